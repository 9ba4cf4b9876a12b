"""Logit minus on planted vectors and against the slow reference; pairs of prompts; what a flip changed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import random_prompts, tiny
from reference import Reference, log_prob
from twotowers.analysis import prediction_flips
from twotowers.errors import TwoTowersError


@pytest.mark.parametrize("norm", ["frozen", "recomputed", "raw"])
def test_logit_minus_is_the_difference_of_two_log_probabilities(any_model, norm):
    encoded, heads = random_prompts(3), [(1, 1), (0, 0)]
    table = prediction_flips.logit_minus(any_model, encoded, heads, ("foo", "bar"), norm)
    assert len(table) == sum(len(e.label_positions) for e in encoded) * 2
    slow = Reference(any_model, encoded[1].ids)
    for layer, head in heads:
        rows = table[(table["prompt"] == 1) & (table["head"] == f"{layer}-{head}")]
        assert list(rows["label"]) == [d.label for d in encoded[1].prompt.demonstrations]
        for position, weight, found in zip(
            encoded[1].label_positions, rows["weight"], rows["logit_minus"], strict=True
        ):
            assert weight == pytest.approx(float(slow.attentions[layer][head, position]), abs=1e-12)
            v = slow.position(layer, head, position)
            if weight > 0:  # a sliding window may hide the place: nothing to normalise there
                a, b = (log_prob(any_model, v, word, norm, slow.scale) for word in (7, 9))
                assert found == pytest.approx(float(a - b), abs=1e-8)


def moved(encoded):
    """Other tokens at the first text and the query; labels where they were."""
    out = []
    for e in encoded:
        ids = list(e.ids)
        for at in (0, e.last - 1):
            ids[at] = 2 + (ids[at] + 3) % 50
        out.append(replace(e, ids=tuple(ids)))
    return out


def test_a_comparison_reads_both_prompts_of_a_pair(any_model):
    first, heads = random_prompts(4), [(1, 0), (0, 1)]
    second = moved(first)
    table = prediction_flips.compare(any_model, first, second, heads, max_tokens=30)
    order = [(i, f"{a}-{b}", j) for i, e in enumerate(first) for a, b in heads for j in range(len(e.label_positions))]
    assert list(zip(table["prompt"], table["head"], table["place"], strict=True)) == order
    for i in (0, 1):
        slow = [Reference(any_model, e[i].ids) for e in (first, second)]
        for layer, head in heads:
            rows = table[(table["prompt"] == i) & (table["head"] == f"{layer}-{head}")]
            for at, row in zip(first[i].label_positions, rows.itertuples(), strict=True):
                before, after = (s.value_output(layer, head, at) for s in slow)
                assert row.norm_before == pytest.approx(float(before.norm()), abs=1e-9)
                assert row.norm_after == pytest.approx(float(after.norm()), abs=1e-9)
                assert row.distance == pytest.approx(float((after - before).norm()), abs=1e-9)
                assert row.cosine == pytest.approx(float(torch.cosine_similarity(before, after, 0)), abs=1e-9)
                assert row.weight_after == pytest.approx(float(slow[1].attentions[layer][head, at]), abs=1e-12)


def test_answers_are_label_words_or_nothing():
    model, first = tiny("gpt2"), random_prompts(2)
    with torch.no_grad():
        top = model.hf(torch.tensor([first[0].ids])).logits[0, -1].argmax().item()
    known = [replace(first[0], label_ids={"foo": top, "bar": 9})]
    assert set(prediction_flips.compare(model, known, known, [(0, 0)])["before"]) == {"foo"}
    other = [replace(first[0], label_ids={"foo": (top + 1) % 61, "bar": (top + 2) % 61})]
    assert set(prediction_flips.compare(model, other, other, [(0, 0)])["after"]) == {""}


def test_the_same_prompt_twice_changes_nothing(any_model):
    encoded = random_prompts(3)
    table = prediction_flips.compare(any_model, encoded, encoded, [(1, 1)])
    np.testing.assert_array_equal(table["weight_before"], table["weight_after"])
    np.testing.assert_allclose(table["cosine"], 1)
    assert prediction_flips.relative_change(table, "norm").estimate == pytest.approx(0, abs=1e-12)


def test_a_relative_change_counts_prompts():
    pairs = pd.DataFrame(
        {"prompt": [0, 0, 1, 1], "weight_before": [0.2, 0.2, 0.1, 0.1], "weight_after": [0.1, 0.1, 0.1, 0.0]}
    )
    found = prediction_flips.relative_change(pairs, "weight")
    assert (found.estimate, found.n) == (pytest.approx(0.3 / 0.6 - 1), 2)
    opposed = pairs.assign(weight_after=[0.3, 0.1, 0.2, 0.0], distance=[1.0, 0, 0, 2.0], norm_before=[2.0, 2, 1, 1])
    assert prediction_flips.relative_change(opposed, "weight").estimate == pytest.approx(0)
    assert prediction_flips.relative_shift(opposed, "weight").estimate == pytest.approx(0.4 / 0.6)
    assert prediction_flips.relative_shift(opposed, "norm").estimate == pytest.approx(3 / 6)


def test_values_before_the_exchanged_text_cannot_change(any_model):
    first = random_prompts(2, lengths=(14,))
    second = [replace(e, ids=(*e.ids[:6], 2 + (e.ids[6] + 3) % 50, *e.ids[7:])) for e in first]  # the third text
    table = prediction_flips.compare(any_model, first, second, [(1, 0)])
    earlier, later = table[table["place"] < 2], table[table["place"] >= 2]
    np.testing.assert_allclose(earlier["cosine"], 1, atol=1e-12)
    assert (later["cosine"] < 1 - 1e-9).all() and (later["distance"] > 1e-6).all()
    if any_model.norm_after(1, "attention") is None:
        assert (earlier["distance"] < 1e-12).all()


def test_pairs_that_do_not_fit_are_refused():
    model, encoded = tiny("gpt2"), random_prompts(2)
    with pytest.raises(TwoTowersError, match="same labels at the same places"):
        prediction_flips.compare(model, encoded, encoded[:1], [(0, 0)])
    with pytest.raises(TwoTowersError, match="same labels at the same places"):
        prediction_flips.compare(model, encoded, encoded[::-1], [(0, 0)])  # of other lengths
    with pytest.raises(TwoTowersError, match="two different"):
        prediction_flips.logit_minus(model, encoded, [(0, 0)], ("foo", "foo"))
    with pytest.raises(TwoTowersError, match="is not in"):
        prediction_flips.logit_minus(model, encoded, [(9, 0)], ("foo", "bar"))
