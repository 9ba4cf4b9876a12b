"""Attention exchanged between prompts of opposite bias, against runs put together by hand."""

from dataclasses import replace

import pytest
import xarray as xr
from conftest import shared_tiny
from independent import changed_at, lead
from reference import Reference
from tolerances import near
from towerlab.prompts.paper_sets import paper_prompts
from towerlab.prompts.prompt import encode_all
from towerlab_experiments.biases import PARTNERS, attention_exchanges
from towerlab_experiments.conditions import CONDITIONS
from twotowers import biases, intervals
from twotowers.heads import Head

SETS = {"none": [], "some": [Head(0, 1), Head(1, 0), Head(1, 1)]}


def sums_by_hand(weights, e):
    """Attention on the labels of the query's class, and on the others."""
    at = {True: 0.0, False: 0.0}
    for position, is_true in zip(e.label_positions, e.prompt.is_true, strict=True):
        at[is_true] += weights[position]
    return at


def weights_by_hand(own, e, given):
    """The prompt's own weights, in which the labels of either class have the given sums."""
    sums, kinds = sums_by_hand(own, e), dict(zip(e.label_positions, e.prompt.is_true, strict=True))
    rest, left = 1 - sum(sums.values()), 1 - sum(given.values())
    shares = [
        given[kinds[p]] / sums[kinds[p]] if p in kinds else left / rest for p in range(len(own))
    ]
    return own * shares


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gptj"])
def test_an_exchange_is_that_of_the_formulas(kind, words, float64):
    model = replace(shared_tiny(kind), tokenizer=words)
    encoded = encode_all(paper_prompts("a/b", 2), words)
    data = attention_exchanges(model, encoded, SETS)
    for change, partner in PARTNERS.items():
        both = [model.encode([CONDITIONS[name](e.prompt) for e in encoded])
                for name in (change, partner)]  # fmt: skip
        for i, (e, other) in enumerate(zip(*both, strict=True)):
            slow, giver = Reference(model, e.ids), Reference(model, other.ids)

            def exchanged(
                layer, head, own=slow.run.weights, theirs=giver.run.weights, of=(e, other)
            ):
                given = sums_by_hand(theirs[layer][head, -1], of[1])
                return weights_by_hand(own[layer][head, -1], of[0], given)

            edit = changed_at(SETS["some"], exchanged, -1)
            runs = {"none": slow.run, "some": slow.by_hand.run(e.ids, weights=edit)}
            found = data["logit_difference"].sel(change=change).isel(prompt=i)
            for name, run in runs.items():
                near(found.sel(head_set=name), lead(run.logits, e))
            before, after = (lead(run.logits, e) for run in runs.values())
            assert abs(before - after) > 1e-6


def test_partners_are_of_opposite_bias():
    assert all(PARTNERS[partner] == change for change, partner in PARTNERS.items())


def test_a_share_of_a_bias_needs_a_bias_above_zero():
    changes, remedies = [*biases.CONDITIONS["majority"]], ["none", "remedy"]
    nats = xr.DataArray([[1.0, 1.0], [0.0, 0.5]], {"change": changes, "remedy": remedies})
    pairs = {name: ("prompt", [*"abcdef"]) for name in intervals.CLUSTERS}
    nats = nats.expand_dims(prompt=6, axis=-1).assign_coords(pairs)
    texts = [biases.share_removed(xr.Dataset({"logit_difference": sign * nats}), "majority")
             for sign in (1, -1, 0)]  # fmt: skip
    assert texts == ["50% [50%, 50%]", "the bias is reversed", "the bias is not clear"]
