"""The two mitigations against runs put together by hand, one head and one position at a time."""

from dataclasses import replace

import pytest
import torch
from conftest import random_prompts
from reference import Reference
from towerlab.prompts.prompt import Demonstration, Prompt
from towerlab_experiments import mitigations as module
from towerlab_experiments.mitigations import minority, remedied
from twotowers.heads import Head

SETS = {"some": [Head(0, 1), Head(1, 0)], "one": [Head(1, 1)]}


def measured(model, encoded, sets=SETS):
    model = replace(model)
    model.encode = lambda _: encoded
    changes = {"as it is": lambda prompt: prompt}
    return remedied(model, encoded, sets, changes).sel(change="as it is")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("bar bar foo", ("foo", 2.0)),
        ("foo bar foo foo", ("bar", 3.0)),
        ("foo bar", (None, 1.0)),
        ("foo", (None, 1.0)),
    ],
)
def test_the_minority_by_hand(labels, expected):
    demonstrations = tuple(Demonstration(f"w{i}", label) for i, label in enumerate(labels.split()))
    assert minority(Prompt(demonstrations, "q", "foo", ("foo", "bar"))) == expected


def test_the_majority_shortcut_is_the_sum_of_its_subheads(model, monkeypatch):
    monkeypatch.setattr(module, "A_C", 0.5)
    encoded = random_prompts(1, lengths=(11,))  # bar, foo, bar
    result = measured(model, encoded)
    for i, heads in enumerate(SETS.values()):
        slow = Reference(model, encoded[0].ids)
        x = slow.resid_final + 0.5 * 2 * sum(slow.position(layer, head, 5) for layer, head in heads)
        logits = model.hf.get_output_embeddings()(model.final_norm(x)).log_softmax(-1)
        at = result.sel(remedy="remedy").isel(head_set=i)
        assert float(at["log_prob_true"][0]) == pytest.approx(
            float(logits[encoded[0].true_id]), abs=1e-9
        )
    assert (
        abs(result.sel(remedy="remedy") - result.sel(remedy="none"))["log_prob_true"].min() > 1e-4
    )


def free_weights(model, slow, ids, layer, head):
    """Weights of the last position from queries and keys made by the stock modules, without any
    position."""
    x = slow.normed[layer]
    if model.architecture.positions == "learned":
        embedded = model.hf.transformer.wpe.weight[: len(ids)]
        norm = model.layers[layer].ln_1
        scale = (slow.streams[layer].var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        x = x - norm.weight * (embedded - embedded.mean(-1, keepdim=True)) / scale
    query, key = (slow.query_key(layer, head, rows)[i] for i, rows in enumerate((x[-1], x)))
    return (key @ query).softmax(-1)


@pytest.mark.parametrize("share", [(0.5, 0.5), (0.0, 1.0)])
def test_the_recency_shortcut_is_that_of_hooks_layer_by_layer(model, share, monkeypatch):
    monkeypatch.setattr(module, "SHARE", share)
    encoded = random_prompts(2, lengths=(14,))
    result = measured(model, encoded).sel(remedy="remedy")
    for i, e in enumerate(encoded):
        handles, added = [], []
        # the second layer is read in the model whose first layer is changed
        for layer, head in SETS["some"]:
            slow = Reference(model, e.ids, added)
            hidden = model.hf(torch.tensor([e.ids]), output_hidden_states=True).hidden_states
            slow.streams = [h[0] for h in hidden]
            free = free_weights(model, slow, e.ids, layer, head)
            shortcut = sum(w * slow.value_output(layer, head, p) for p, w in enumerate(free))
            delta = (share[0] - 1) * slow.head(layer, head) + share[1] * shortcut
            added.append((layer, delta))

            def hook(_, args, output, delta=delta):
                output = output.clone()
                output[:, -1] += delta
                return output

            handles.append(model.part(layer, "attention_out").register_forward_hook(hook))
        expected = model.hf(torch.tensor([e.ids])).logits[0, -1].log_softmax(-1)[e.true_id]
        for handle in handles:
            handle.remove()
        at = result.sel(head_set="some").isel(prompt=i)
        assert float(at["log_prob_true"]) == pytest.approx(float(expected), abs=1e-9)
