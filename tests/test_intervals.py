"""Intervals by numbers that can be checked by hand, against slow sums, and by how often they hold
the truth."""

import numpy as np
import pytest
import scipy.stats
import xarray as xr
from conftest import refused
from hypothesis import given
from hypothesis import strategies as st
from tolerances import near
from twotowers.intervals import MIN_EQUAL, mean, means, ratio, resample, table


def prompts(values, pair, labels):
    coords = {"class_pair": ("prompt", list(pair)), "label_pair": ("prompt", list(labels))}
    return xr.DataArray(np.asarray(values, dtype=float), dims="prompt", coords=coords)


def test_with_one_factor_it_is_students_t_over_cluster_means():
    values = prompts([0.5, 1.5, 2.0, 2.0, 3.0, 6.0, 6.0], "aabbcdd", "x" * 7)
    of_clusters = np.array([1.0, 2.0, 3.0, 6.0])
    low, high = scipy.stats.t.interval(0.95, 3, loc=3.0, scale=of_clusters.std(ddof=1) / 2)
    # one label pair only: class pairs alone
    for result in (mean(values, ["class_pair"]), mean(values)):
        near([result.estimate, result.low, result.high], [3.0, low, high])
        narrow = scipy.stats.t.interval(0.9, 3, loc=3.0, scale=of_clusters.std(ddof=1) / 2)
        near([result.low90, result.high90], narrow)
        near(result.p, scipy.stats.ttest_1samp(of_clusters, 0).pvalue)
    assert mean(values, ["class_pair"]).n == (4,) and mean(values).n == (4, 1)


def slow_variances(values):
    """Variances of the mean of class pairs' means with clusters of class pairs, label pairs, cells:
    sums over all pairs of prompts."""
    pair, labels, x = values.class_pair.values, values.label_pair.values, values.values
    weights = np.array([1 / (len(set(pair)) * (pair == p).sum()) for p in pair])
    residuals = weights * (x - weights @ x)
    out = []
    for clusters in (pair, labels, np.char.add(pair, labels)):
        n = len(set(clusters))
        both = [
            a * b
            for a, c in zip(residuals, clusters, strict=True)
            for b, d in zip(residuals, clusters, strict=True)
            if c == d
        ]
        out.append(sum(both) * n / (n - 1))
    return out


@given(st.integers(0, 10_000))
def test_two_ways_equal_slow_sums_and_never_a_negative_variance(seed):
    rng = np.random.default_rng(seed)
    pair, labels = list("aabbccdda"), list(rng.permutation(list("xyzxyzxyz")))
    effect = (
        np.array([{"x": 1.0, "y": -1.0, "z": 0.0}[label] for label in labels]) if seed % 2 else 0.0
    )
    values = prompts(effect + rng.normal(size=9), pair, labels)
    of_pairs, of_labels, of_cells = slow_variances(values)
    both = of_pairs + of_labels - of_cells
    error = np.sqrt(both if both > 0 else max(of_pairs, of_labels))
    result = mean(values)
    near(result.high - result.estimate, scipy.stats.t.ppf(0.975, 2) * error)
    assert result.n == (4, 3)


def test_a_negative_variance_is_the_larger_one_way():
    values = prompts([2.2, -1.0, -1.0, 2.0], "aabb", "xyxy")
    of_pairs, of_labels, of_cells = slow_variances(values)
    assert of_pairs + of_labels < of_cells
    error = np.sqrt(max(of_pairs, of_labels))
    near(mean(values).high - mean(values).estimate, scipy.stats.t.ppf(0.975, 1) * error)
    # the means of both factors are all alike
    assert np.isnan(mean(prompts([2.0, -1.0, -1.0, 2.0], "aabb", "xyxy")).low)


def test_the_covariance_of_a_ratio_is_that_along_it():
    """What the whole does not explain has a negative two-way variance, and the part has not."""
    whole = prompts([1010.0, 1010.0, 990.0, 990.0], "aabb", "xyxy")
    part = whole / 2 + [2.0, -1.0, -1.0, 2.0]
    share = part.mean() / whole.mean()  # by the delta method
    result, along = ratio(part, whole), mean(share + (part - share * whole) / whole.mean())
    near(result.high - result.low, along.high - along.low, rtol=0.05)


def test_equal_values_and_a_mean_of_nearly_zero():
    equal = mean(prompts([0.5] * 8, "abcdefgh", "xyxyxyxy"))
    assert equal.low == equal.high == 0.5 and equal.p == 0
    assert f"{mean(prompts([-0.001, 0.001, 0.0], 'abc', 'xxx')):+.2f}" == "0.00 [0.00, 0.00]"


@pytest.mark.parametrize("of_labels", [0.0, 1.0])
def test_a_crossed_design_is_covered(of_labels):
    """45 blocks of four prompts, as interventions have: random effects of 20 class pairs, 9 label
    pairs and blocks; truth 0."""
    rng, runs, hits = np.random.default_rng(0), 1000, 0
    for _ in range(runs):
        pair = np.arange(45) % 20
        labels = np.concatenate([rng.permutation(9) for _ in range(5)])
        effect = (
            rng.normal(size=20)[pair] + of_labels * rng.normal(size=9)[labels] + rng.normal(size=45)
        )
        result = mean(prompts(np.repeat(effect, 4), np.repeat(pair, 4), np.repeat(labels, 4)))
        hits += result.low <= 0 <= result.high
    assert 0.93 <= hits / runs <= 0.97


def test_fieller_by_hand():
    """Means 2 and 5, variances and covariance 1/3, t = 4.3027 with two degrees of freedom."""
    part, whole = prompts([1, 2, 3], "abc", "xxx"), prompts([4, 5, 6], "abc", "xxx")
    square, linear, constant = 25 - 18.5128 / 3, 10 - 18.5128 / 3, 4 - 18.5128 / 3
    by_hand = [
        (linear + sign * np.sqrt(linear**2 - square * constant)) / square for sign in (-1, 1)
    ]
    result = ratio(part, whole)
    near([result.estimate, result.low, result.high], [0.4, *by_hand], atol=1e-5)
    # what defines them: there part - bound x whole is just clear of zero
    bounds = result.low, result.high, result.low90, result.high90
    p = [mean(part - bound * whole).p for bound in bounds]
    assert p == pytest.approx([0.05, 0.05, 0.1, 0.1])


def test_a_share_of_what_may_be_zero_has_no_number():
    whole = prompts([1.0, -0.5, 0.2], "abc", "xxx")
    result = ratio(whole / 2, whole)
    assert np.isnan([result.estimate, result.low, result.high]).all()
    assert f"{result:.0%}" == "no number"
    assert np.isnan(ratio(whole, -5 - whole).estimate)  # below zero it is no whole either
    exact = ratio(prompts([1, 2, 3], "abc", "xyx") / 4, prompts([1, 2, 3], "abc", "xyx") + 10)
    assert exact.low < exact.estimate < exact.high


def test_a_whole_that_is_the_same_everywhere_only_scales_a_share():
    part = prompts([1.0, 2.0, 4.0], "abc", "xyx")
    for whole in (1.0, 2.0):
        got = ratio(part, xr.full_like(part, whole))
        wanted = mean(part / whole)
        bounds = got.low, got.estimate, got.high
        np.testing.assert_allclose(bounds, (wanted.low, wanted.estimate, wanted.high))
        assert np.isfinite(got.low)


def test_prompts_of_a_block_are_drawn_together_and_those_of_a_set_alone():
    """Values that cancel out in a block have no spread; another class pair has other blocks."""
    values = xr.DataArray([1.0, -1.0] * 20, dims="prompt")
    block = ("prompt", np.repeat(np.arange(20), 2))
    for class_pairs, spread in ((["a"] * 40, 0.0), (["a", "b"] * 20, 1 / 40**0.5)):
        of_blocks = values.assign_coords(block=block, class_pair=("prompt", class_pairs))
        drawn = resample(of_blocks)
        assert float(drawn.std()) == pytest.approx(spread, abs=0.01)
    np.testing.assert_array_equal(drawn, resample(values))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_few_class_pairs_that_are_all_alike_have_no_interval(share):
    """Of eight answers of two class pairs, all are right, or as many in each (F12)."""
    for pairs in (2, 5, 6):
        right = np.tile([True] * int(4 * share) + [False] * int(4 - 4 * share), pairs)
        part = prompts(right, np.repeat(list("abcdef")[:pairs], 4), np.tile(list("xyzw"), pairs))
        for labels in (part["label_pair"].values, ["x"] * len(right)):
            result = mean((part > 0).assign_coords(label_pair=("prompt", labels)), ["class_pair"])
            assert result.estimate == pytest.approx(share) and np.isnan(result.low) == np.isnan(
                result.p
            )
            assert np.isnan(result.low) == (pairs < MIN_EQUAL)
        whole = prompts([4.0, 5.0, 6.0] * pairs, list("abcdef")[:pairs] * 3, "x" * 3 * pairs)
        result, bound = ratio(whole / 2, whole), 0.5 if pairs >= MIN_EQUAL else np.nan
        np.testing.assert_allclose([result.low, result.estimate, result.high], [bound, 0.5, bound])


@pytest.mark.parametrize("clusters", [["class_pair", "label_pair"], ["label_pair"]])
def test_a_table_has_the_95_percent_bounds_of_each_mean_and_share(clusters):
    part = prompts([1.0, 2.0, 4.0, 2.5, 3.0], "aabbc", "xyxyx")
    for whole in (None, part + 9):
        of = mean(part, clusters) if whole is None else ratio(part, whole, clusters)
        given = None if whole is None else {"m": whole}
        row = table({"m": part}, denominator=given, clusters=clusters).loc[0]
        near([*row[["value", "low", "high"]]], [of.estimate, of.low, of.high])
        assert row["n"] == of.n[0]


def test_means_of_many_equal_the_mean_of_each():
    rng = np.random.default_rng(0)
    sets = [prompts(rng.normal(size=6), "aabccc", "xyxyxy") for _ in range(3)]
    near(means(xr.concat(sets, "random_set")), [mean(of_set).estimate for of_set in sets])


def test_an_infinite_value_is_refused():
    refused("cannot use 1 of 3 values", mean, prompts([1.0, np.inf, 2.0], "abc", "xxx"))
