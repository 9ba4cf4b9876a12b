"""Attention exchanged between prompts of opposite bias, against runs put together by hand."""

from dataclasses import replace

import pytest
import torch
from conftest import shared_tiny
from reference import Reference
from towerlab.model.label_attention import with_class_sums
from towerlab.prompts.paper_sets import paper_prompts
from towerlab.prompts.prompt import encode_all
from towerlab_experiments.biases import PARTNERS, attention_exchanges
from towerlab_experiments.conditions import CONDITIONS
from twotowers.heads import Head

SETS = {"none": [], "some": [Head(0, 1), Head(1, 0), Head(1, 1)]}


def test_sums_are_the_given_ones_and_shares_stay():
    weights = torch.tensor([[[[0.1, 0.3, 0.2, 0.0, 0.4]]]])
    true, other = (torch.full((1, 1, 1, 1), share) for share in (0.2, 0.5))
    places = torch.tensor([[1, 1, -1, -1, 0]])
    changed = with_class_sums(weights, places, true, other)[0, 0, 0]
    assert changed.tolist() == pytest.approx([0.05, 0.15, 0.5, 0.0, 0.3])
    # A class without attention has no shares.
    unattended = with_class_sums(weights, torch.tensor([[1, 1, 0, -1, 0]]), true, other)[0, 0, 0]
    assert unattended.tolist() == pytest.approx([0.05, 0.15, 0.1, 0.5, 0.2])


def sums_by_hand(slow, e, layer, head):
    """Attention on the labels of the query's class, and on the others."""
    weights = slow.attentions[layer][head]
    at = {True: 0.0, False: 0.0}
    for position, is_true in zip(e.label_positions, e.prompt.is_true, strict=True):
        at[is_true] += float(weights[position])
    return at


def weights_by_hand(slow, e, given, layer, head):
    """The prompt's own weights, in which the labels of either class have the given sums."""
    own, sums = slow.attentions[layer][head], sums_by_hand(slow, e, layer, head)
    kinds = dict(zip(e.label_positions, e.prompt.is_true, strict=True))
    rest, left = 1 - sum(sums.values()), 1 - sum(given.values())
    return [
        float(weight) * (given[kinds[p]] / sums[kinds[p]] if p in kinds else left / rest)
        for p, weight in enumerate(own)
    ]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gptj"])
def test_an_exchange_is_that_of_hooks_layer_by_layer(kind, words, float64):
    model = replace(shared_tiny(kind), tokenizer=words)
    encoded = encode_all(paper_prompts("a/b", 2), words)
    data = attention_exchanges(model, encoded, SETS)
    for change, partner in PARTNERS.items():
        both = [model.encode([CONDITIONS[name](e.prompt) for e in encoded])
                for name in (change, partner)]  # fmt: skip
        for i, (e, other) in enumerate(zip(*both, strict=True)):
            slow, giver = Reference(model, e.ids), Reference(model, other.ids)
            handles, added = [], []
            for layer in (0, 1):
                # The second layer is read in the model whose first layer is changed.
                now, delta = Reference(model, e.ids, added), 0
                for head in (head.head for head in SETS["some"] if head.layer == layer):
                    given = sums_by_hand(giver, other, layer, head)
                    weights = weights_by_hand(slow, e, given, layer, head)
                    output = sum(
                        w * now.value_output(layer, head, p) for p, w in enumerate(weights)
                    )
                    delta = delta + output - now.head(layer, head)
                added.append((layer, delta))

                def hook(_, args, output, delta=delta):
                    output = output.clone()
                    output[:, -1] += delta
                    return output

                handles.append(model.part(layer, "attention_out").register_forward_hook(hook))
            logits = model.hf(torch.tensor([e.ids])).logits[0, -1]
            for handle in handles:
                handle.remove()
            found = data["logit_difference"].sel(change=change).isel(prompt=i)
            true, false = e.label_pair_ids
            expected = float(logits[true] - logits[false])
            assert float(found.sel(head_set="some")) == pytest.approx(expected, abs=1e-9)
            plain = model.hf(torch.tensor([e.ids])).logits[0, -1]
            before = float(plain[true] - plain[false])
            assert float(found.sel(head_set="none")) == pytest.approx(before, abs=1e-9)
            assert abs(before - expected) > 1e-6


def test_partners_are_of_opposite_bias():
    assert all(PARTNERS[partner] == change for change, partner in PARTNERS.items())
