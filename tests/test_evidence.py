"""The rule of evidence on hand-made observations: every branch, by numbers that can be checked by hand."""

import numpy as np
import pytest
import scipy.stats
import xarray as xr
from twotowers import evidence
from twotowers.errors import TwoTowersError
from twotowers.evidence import Claim, compare, interval, judge, not_testable, over_sets

CLAIM = Claim("c", "4", "Heads look.", "attention", 0.0, 0.1, "share", "v1", "2026-11-22", "nothing")


def test_interval_is_students_t_over_cluster_means():
    values = np.array([1.0, 2.0, 3.0, 6.0])
    got = interval(values)
    low, high = scipy.stats.t.interval(0.95, 3, loc=3.0, scale=values.std(ddof=1) / 2)
    assert (got.estimate, got.n) == (3.0, 4)
    np.testing.assert_allclose([got.low, got.high], [low, high])
    assert got.low < got.low90 < got.high90 < got.high


def test_interval_of_equal_values_and_of_one():
    assert interval(np.full(3, 0.5)).low == interval(np.full(2, 0.5)).high == 0.5
    assert np.isnan(interval(np.array([0.5])).low)
    assert interval(np.array([1.0, np.nan, 3.0])).n == 2
    assert f"{interval(np.array([0.5])):.1f}" == "0.5 [no interval, n = 1]"


def prompts(means, each=4, spread=0.0):
    """Observations of class pairs with these means, `each` prompts a pair."""
    values = np.repeat(means, each) + spread * np.tile([-1, 1], len(means) * each // 2)
    return xr.DataArray(values, dims="prompt", coords={"pair": ("prompt", np.repeat(list("abcdefgh")[: len(means)], each))})


def test_prompts_of_a_pair_count_once():
    few, many = (compare(CLAIM, "m", prompts([0.4, 0.6, 0.5, 0.7], each, 0.2)) for each in (2, 20))
    assert few["effect_low"] == pytest.approx(many["effect_low"]) and few["n"] == many["n"] == 4


UP, NEAR_ZERO, DOWN, WIDE = [0.5, 0.6, 0.55, 0.5], [0.01, -0.01, 0.02, 0.0], [-0.5, -0.6, -0.4, -0.5], [1.5, -0.6, 0.9, -0.4]


def random_sets(means, draws=20, high=0):
    """`draws` sets with these means, `high` of them one higher."""
    sets = [prompts(np.array(means) + (1.0 if i < high else 0.0)) for i in range(draws)]
    return xr.concat(sets, "draw")


@pytest.mark.parametrize(
    "effect, random, verdict",
    [
        (UP, None, evidence.HOLDS),
        (DOWN, None, evidence.FAILS),
        (NEAR_ZERO, None, evidence.ABSENT),
        (WIDE, None, evidence.UNDECIDED),
        (UP, random_sets([0.1, 0.1, 0.0, 0.1]), evidence.HOLDS),
        (UP, random_sets([0.1, 0.1, 0.0, 0.1], high=1), evidence.HOLDS),  # one of twenty is allowed
        (UP, random_sets([0.1, 0.1, 0.0, 0.1], high=2), evidence.NOT_SPECIFIC),
        (UP, random_sets([0.6, 0.4, 0.6, 0.5]), evidence.NOT_SPECIFIC),  # no difference from their mean
        (UP, random_sets([0.1, 0.1, 0.0, 0.1], draws=19), evidence.UNDECIDED),
        ([0.5], None, evidence.UNDECIDED),  # one pair has no interval
        ([np.nan, np.nan], None, evidence.NOT_TESTABLE),
    ],
)
def test_rule(effect, random, verdict):
    assert compare(CLAIM, "m", prompts(effect), random)["verdict"] == verdict


def test_a_threshold_has_no_absent():
    half = Claim(**{**vars(CLAIM), "null": 0.5, "smallest": 0.0})
    assert compare(half, "m", prompts([0.501, 0.5, 0.499, 0.5]))["verdict"] == evidence.UNDECIDED


def test_share_is_the_ratio_of_means_with_its_spread():
    whole = prompts([1.0, 2.0, 3.0])
    assert interval(evidence.share(whole / 4, whole)).low == pytest.approx(0.25)  # the same share in every pair: no spread
    got = evidence.share(prompts([1.0, 0.0, 2.0]), whole)
    np.testing.assert_allclose(got, 0.5 + (np.array([1.0, 0.0, 2.0]) - 0.5 * np.array([1.0, 2.0, 3.0])) / 2)
    sets = xr.concat([whole, 2 * whole], "heads")
    np.testing.assert_allclose(evidence.share(sets, whole).mean("pair"), [1.0, 2.0])


def test_null_and_smallest_belong_to_the_claim():
    half = interval(np.array([0.52, 0.51, 0.53, 0.52]))
    assert judge(half, null=0.0, smallest=0.05) == evidence.HOLDS
    assert judge(half, null=0.5, smallest=0.05) == evidence.ABSENT
    assert judge(half, null=0.5, smallest=0.01) == evidence.HOLDS


def test_row_tells_effect_control_and_share():
    row = compare(CLAIM, "m", prompts(UP), random_sets([0.1, 0.1, 0.1, 0.1], high=2))
    assert row["effect"] == pytest.approx(np.mean(UP)) and row["control"] == pytest.approx(0.2)
    assert row["difference"] == pytest.approx(np.mean(UP) - 0.2) and row["share"] == 0.1 and row["draws"] == 20
    assert set(not_testable(CLAIM, "m", "no heads")) == set(row)


def test_means_over_sets_equal_a_loop():
    rng = np.random.default_rng(0)
    pair = ("prompt", np.repeat(["a", "b"], 3))
    values = xr.DataArray(rng.normal(size=(6, 2, 3)), dims=("prompt", "layer", "head"), coords={"pair": pair})
    sets = [[(0, 1), (1, 2)], [(1, 0), (0, 0)]]
    got = over_sets(values, sets)
    for draw, heads in enumerate(sets):
        for i, rows in enumerate((slice(0, 3), slice(3, 6))):
            slow = np.mean([values.values[rows, layer, head].mean() for layer, head in heads])
            assert float(got[draw, i]) == pytest.approx(slow)


def test_a_claim_is_judged_once_a_model():
    row = compare(CLAIM, "m", prompts(UP))
    with pytest.raises(TwoTowersError, match="judged twice"):
        evidence.check_rows([row, row])


def test_the_list_of_claims_is_whole():
    known = evidence.claims()
    assert all(c.statement.endswith(".") and (c.smallest > 0 or c.null == 0.5) and c.rule and c.unit for c in known.values())
