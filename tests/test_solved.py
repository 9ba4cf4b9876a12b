"""The second verdict: a rule or a reason for every result, and statistics on planted numbers."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from conftest import ROOT
from twotowers import claims
from twotowers.heads import Head
from twotowers.paper_results import LABELS, compare_lists

from benchmarks import solved

RULES = pd.read_csv(ROOT / "data/solved.csv").set_index("id")


def test_every_judged_result_has_a_rule_or_a_reason():
    judged = {name for name, row in claims.paper_results().items() if not row.not_run}
    assert {*RULES.index} == judged and (RULES["measure"].isna() != RULES["none"].isna()).all()
    assert (RULES["rule"] == "2026-11-28").all() and RULES["seen"][RULES["none"].isna()].all()


def attention(true, false):
    """Attention of heads by label, before and after if each head has two numbers."""
    values = np.array([true, false], float)
    dims = ("label", "selected_head", "change")[: values.ndim]
    changes = {"change": ["before", "after"]} if values.ndim == 3 else {}
    return xr.DataArray(values, {"label": LABELS} | changes, dims)


def test_attention_is_counted_and_summed_by_hand():
    half = attention([0.4, 0.4], [0.2, 0.3])
    assert float(solved.share_with_twice_the_attention(half)) == 0.5
    falls = attention([[0.4, 0.2], [0.4, 0.3]], [[0.1, 0.2], [0.1, 0.1]])
    assert float(solved.fall(falls)) == pytest.approx(0.375)
    assert float(solved.fall_and_rise(falls)) == pytest.approx(0.375)
    assert float(solved.fall_in_nearly_all(falls)) == pytest.approx(0.375)
    two_rise = attention([[0.9, 0.1], [0.1, 0.2], [0.1, 0.2]], [[1, 1]] * 3)
    assert float(solved.fall_in_nearly_all(two_rise)) == pytest.approx((1 - 0.5 / 1.1) / 2)


def test_a_share_of_deep_heads_and_one_beyond_chance():
    increase = xr.DataArray(np.zeros((4, 4, 2)), dims=("prompt", "layer", "head"))
    increase[:, 3], increase[:, 0, 0] = 1.0, 0.5
    deep = compare_lists(solved.share_of_deep, {"all": increase}, 3, "", ("layer", "head"))
    assert deep.value == pytest.approx(2 / 3)
    same = compare_lists(solved.beyond_chance, {"0": increase, "1": increase}, 3, "")
    assert same.value == 1.0


def test_remedies_and_the_twelve_by_hand():
    right = xr.DataArray(
        [[0.8, 0.8], [0.6, 0.7], [0.9, 0.85], [0.9, 0.8], [0.5, 0.6]],
        {"change": ["plain", "one true fewer", "one other fewer", "true nearest", "true first"],
         "remedy": ["none", "remedy"]}, ("change", "remedy"))  # fmt: skip
    assert float(solved.majority_remedy(right)) == pytest.approx((0.1 - 0.05) / 0.2)
    assert float(solved.recency_remedy(right)) == pytest.approx(0.5 / 0.17)
    assert np.isnan(solved.majority_remedy(right.where(right["change"] == "plain", 0.79)))
    accuracy = xr.DataArray([0.8, 0.2], {"head_set": ["none", "paper's twelve"]}, "head_set")
    assert float(solved.lost_accuracy(accuracy)) == pytest.approx(0.75)


def test_halves_have_other_class_pairs_and_both_lists_are_of_the_middle():
    increase = np.zeros((2, 8, 6, 2))
    increase[:, :, [0, 3, 4, 5]] = np.array([4, 3, 2, 1])[:, None] + np.array([0, 0.1])
    pairs = [f"{i % 4}/x" for i in range(8)]
    by_norm = xr.Dataset(
        {"increase": (("norm", "prompt", "layer", "head"), increase)},
        {"norm": ["frozen", "recomputed"], "class_pair": ("prompt", pairs)},
    )
    first, second = (set(half["class_pair"].values) for half in solved.halves(by_norm))
    assert first == {"0/x", "2/x"} and second == {"1/x", "3/x"}
    assert len(solved.listed(by_norm)) == 5
    assert solved.in_both_lists(by_norm) == [Head(3, 1), Head(3, 0), Head(4, 1)]
