"""The two mitigations against runs put together by hand, one head and one position at a time."""

from dataclasses import replace

import pytest
import torch
from conftest import random_prompts, shared_tiny
from reference import Reference
from towerlab.measure import mitigations as measured
from towerlab.model.capture import capture
from towerlab.model.last_position import edited
from towerlab.prompts.prompt import Demonstration, Prompt
from twotowers.errors import TwoTowersError
from twotowers.heads import Head

KINDS = ["gpt2", "gptj", "llama"]
SETS = {"some": [Head(0, 1), Head(1, 0)], "one": [Head(1, 1)]}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("bar bar foo", ("foo", 2.0)), ("foo bar foo foo", ("bar", 3.0)), ("foo bar", (None, 1.0)), ("foo", (None, 1.0))],
)
def test_the_minority_by_hand(labels, expected):
    demonstrations = tuple(Demonstration(f"w{i}", label) for i, label in enumerate(labels.split()))
    assert measured.minority(Prompt(demonstrations, "q", "foo", ("foo", "bar"))) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_majority_shortcut_is_the_sum_of_its_subheads(kind, float64):
    model, encoded = shared_tiny(kind), random_prompts(2, lengths=(11, 14))  # bar, foo, bar; and a balanced prompt
    result = measured.mitigations(model, encoded, SETS, a_c=0.5)
    for i, heads in enumerate(SETS.values()):
        slow = Reference(model, encoded[0].ids)
        x = slow.resid_final + 0.5 * 2 * sum(slow.position(layer, head, 5) for layer, head in heads)
        logits = model.hf.get_output_embeddings()(model.final_norm(x)).log_softmax(-1)
        at = result.sel(remedy="majority shortcut").isel(heads=i)
        assert float(at["log_prob_true"][0]) == pytest.approx(float(logits[encoded[0].true_id]), abs=1e-9)
    plain = result.sel(remedy="none")
    changed = abs(result.sel(remedy="majority shortcut") - plain)["log_prob_true"]
    assert changed[:, 0].min() > 1e-4 and changed[:, 1].max() < 1e-12


def free_weights(model, slow, ids, layer, head):
    """Weights of the last position from queries and keys made by the stock modules, without any position."""
    attention, d = model.part(layer, "attention"), model.d_head
    x = slow.normed[layer]
    if model.architecture.positions == "learned":
        embedded = model.hf.transformer.wpe.weight[: len(ids)]
        norm = model.blocks[layer].ln_1
        scale = (slow.streams[layer].var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        x = x - norm.weight * (embedded - embedded.mean(-1, keepdim=True)) / scale
        query, key, _ = attention.c_attn(x).split(model.d_model, -1)
    else:
        query, key = attention.q_proj(x), attention.k_proj(x)
    shared = head * model.n_key_value_heads // model.n_heads
    q, k = query[-1, head * d : (head + 1) * d], key[:, shared * d : (shared + 1) * d]
    return (k @ q / d**0.5).softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [(0.5, 0.5), (0.0, 1.0)])
def test_the_recency_shortcut_is_that_of_hooks_layer_by_layer(kind, share, float64):
    model, encoded = shared_tiny(kind), random_prompts(2, lengths=(14,))
    result = measured.mitigations(model, encoded, SETS, share=share).sel(remedy="recency shortcut")
    for i, e in enumerate(encoded):
        handles = []
        for layer, head in SETS["some"]:  # the second layer is read in the model whose first layer is changed
            slow = Reference(model, e.ids)
            hidden = model.hf(torch.tensor([e.ids]), output_hidden_states=True).hidden_states
            slow.streams = [h[0] for h in hidden]
            free = free_weights(model, slow, e.ids, layer, head)
            shortcut = sum(w * slow.value_output(layer, head, p) for p, w in enumerate(free))
            delta = (share[0] - 1) * slow.head(layer, head) + share[1] * shortcut

            def hook(_, args, output, delta=delta):
                output = output.clone()
                output[:, -1] += delta
                return output

            handles.append(model.part(layer, "attention_out").register_forward_hook(hook))
        expected = model.hf(torch.tensor([e.ids])).logits[0, -1].log_softmax(-1)[e.true_id]
        for handle in handles:
            handle.remove()
        at = result.sel(heads="some").isel(prompt=i)
        assert float(at["log_prob_true"]) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_share_nothing_changes(kind, float64):
    model, encoded = shared_tiny(kind), random_prompts(3, lengths=(14,))
    result = measured.mitigations(model, encoded, SETS, a_c=0.0, share=(1.0, 0.0))
    plain = result.sel(remedy="none")
    assert abs(result - plain)[["log_prob_true", "log_prob_other"]].max().to_array().max() < 1e-9


def test_a_first_layer_without_positions_does_not_notice_where_a_demonstration_stands(float64):
    model, (prompt,) = shared_tiny("llama"), random_prompts(1, lengths=(14,))
    moved = replace(prompt, ids=prompt.ids[3:12] + prompt.ids[:3] + prompt.ids[12:])
    written = {}
    for share in ((0.0, 1.0), (1.0, 0.0)):
        outputs = []
        for e in (prompt, moved):
            plain = capture(model, [e], {"streams"})
            heads = [Head(0, h) for h in range(model.n_heads)]
            with edited(model, measured.recency_shortcut(model, heads, plain, share)):
                outputs.append(capture(model, [e]).attention_output[0])
        written[share] = float((outputs[0] - outputs[1]).abs().max())
    assert written[0.0, 1.0] < 1e-11 < 1e-4 < written[1.0, 0.0]


def test_empty_sets_and_heads_outside_the_model_are_refused():
    model, encoded = shared_tiny("gpt2"), random_prompts(1)
    with pytest.raises(TwoTowersError, match="a head in every set"):
        measured.mitigations(model, encoded, {"none": []})
    with pytest.raises(TwoTowersError, match="head 9-0 is not in gpt2"):
        measured.mitigations(model, encoded, {"some": [Head(9, 0)]})
