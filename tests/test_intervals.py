"""Intervals, ranks and overlap against cases worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twotowers.errors import TwoTowersError
from twotowers.stats import intervals
from twotowers.stats.intervals import (
    Interval,
    bootstrap,
    bootstrap_correlation,
    bootstrap_difference,
    bootstrap_of_means,
    overlap,
    spearman,
)


def test_interval_reads_in_prose():
    interval = Interval(0.93, 0.91, 0.95, 100)
    assert str(interval) == f"{interval}" == "0.93 [0.91, 0.95]"
    assert f"{interval:.0%}" == "93% [91%, 95%]"
    assert f"{Interval(0.5, math.nan, math.nan, 1):.1f}" == "0.5 [no interval, n = 1]"


def test_constant_values_have_an_interval_of_no_width():
    assert bootstrap([3.0] * 7) == Interval(3.0, 3.0, 3.0, 7)


def test_two_values_resample_to_three_means():
    # Resamples of (0, 1) have means 0, 1/2, 1 with weights 1/4, 1/2, 1/4: the middle 40% is 1/2, 95% is all.
    assert bootstrap([0, 1], level=0.4) == Interval(0.5, 0.5, 0.5, 2)
    assert bootstrap([0, 1]) == Interval(0.5, 0.0, 1.0, 2)


def test_interval_of_a_mean_has_the_width_of_theory():
    values = np.random.default_rng(1).normal(size=400)
    interval = bootstrap(values)
    half = 1.96 * values.std() / 20
    assert interval.estimate == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_accuracy_takes_booleans_and_one_observation_has_no_interval():
    assert bootstrap([True, True, False, True]).estimate == 0.75
    one = bootstrap([0.5])
    assert (one.estimate, one.n) == (0.5, 1) and math.isnan(one.low) and math.isnan(one.high)


def test_blocks_bound_the_memory_and_change_nothing(monkeypatch):
    values = np.random.default_rng(0).normal(size=50)
    whole = bootstrap(values, "median", draws=300)
    sizes = []

    def watched(rows):
        sizes.append(rows.size)
        return np.median(rows, -1)

    monkeypatch.setattr(intervals, "_BLOCK", 120)
    monkeypatch.setitem(intervals.STATISTICS, "median", watched)
    assert bootstrap(values, "median", draws=300) == whole
    assert max(sizes) == 100 and len(sizes) == 151


def test_std_and_seed():
    assert bootstrap([1, 3], "std").estimate == pytest.approx(math.sqrt(2))
    values = np.random.default_rng(0).normal(size=50)
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1) != bootstrap(values, seed=2)


def test_pairing_removes_what_the_pairs_share():
    shared = np.random.default_rng(0).normal(size=60) * 100
    paired = bootstrap_difference(shared + 1, shared)
    assert (paired.low, paired.high) == pytest.approx((1, 1)) and paired.n == 60
    alone = bootstrap_difference(shared + 1, shared, paired=False)
    assert alone.estimate == pytest.approx(1) and alone.low < -10 < 10 < alone.high
    assert bootstrap_difference([1, 2, 3], [0, 0], paired=False).n == 2


def test_unpaired_samples_are_resampled_independently():
    values = np.arange(30.0)
    assert bootstrap_difference(values, values, paired=False).high > 1


def test_spearman_with_ties_by_hand():
    assert spearman([1, 2, 3, 4], [10, 20, 25, 1000]) == pytest.approx(1)
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: covariance 4.5, variances 4.5 and 5.
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_correlation_takes_ranks_anew_in_every_resample():
    x = [1.0, 2.0, 3.0]
    y = [1.0, 3.0, 2.0]
    possible = set()
    for at in itertools.product(range(3), repeat=3):
        a, b = np.take(x, at), np.take(y, at)
        if np.ptp(a) and np.ptp(b):
            possible.add(round(spearman(a, b), 9))
    assert possible == {1, 0.5, -1}
    interval = bootstrap_correlation(x, y)
    assert interval == Interval(interval.estimate, -1, 1, 3) and interval.estimate == pytest.approx(0.5)


def test_what_does_not_vary_has_no_correlation_however_its_mean_rounds():
    assert np.mean([0.1] * 3) != 0.1
    assert np.isnan(intervals._pearson(np.array([[0.1] * 3]), np.array([[1.0, 2.0, 3.0]]))).all()


def test_pearson_by_hand():
    # Deviations -1, 0, 1 and -1, -1, 2: covariance 3, variances 2 and 6.
    assert bootstrap_correlation([1, 2, 3], [0, 0, 3], "pearson").estimate == pytest.approx(3 / math.sqrt(12))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_ranks_are_average_ranks(values):
    expected = [sum(w < v for w in values) + (values.count(v) + 1) / 2 for v in values]
    assert intervals._ranks(np.array([values], float))[0].tolist() == expected


def test_overlap_by_hand():
    # Two pairs out of four: both shared in 1 of 6 draws, at least one in 5 of 6.
    both = overlap({(0, 0), (0, 1)}, [(0, 1), (0, 0)], 4)
    assert (both.count, both.expected) == (2, 1) and both.probability == pytest.approx(1 / 6)
    assert overlap("ab", "bc", 4).probability == pytest.approx(5 / 6)
    assert overlap("ab", "cd", 4).probability == 1
    assert str(overlap("ab", "ab", 4)) == "2 of 2 shared (by chance 1, p = 0.17)"


def test_overlap_of_the_papers_size_is_exact():
    heads = range(20)
    assert overlap(heads, heads, 720).probability == pytest.approx(1 / math.comb(720, 20))


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap([]),
        lambda: bootstrap([1, math.nan]),
        lambda: bootstrap([1, math.inf]),
        lambda: bootstrap([[1, 2]]),
        lambda: bootstrap([1, 2], "mode"),
        lambda: bootstrap([1, 2], level=95),
        lambda: bootstrap([1, 2], draws=0),
        lambda: bootstrap_difference([1, 2], [1, 2, 3]),
        lambda: bootstrap_correlation([1, 2], [1, 2]),
        lambda: bootstrap_correlation([1, 1, 1], [1, 2, 3]),
        lambda: bootstrap_correlation([1, 2, 3], [1, 2, 3], "kendall"),
        lambda: spearman([1, 2], [1, 2, 3]),
        lambda: overlap("ab", "cd", 3),
    ],
)
def test_what_would_be_silently_wrong_is_refused(call):
    with pytest.raises(TwoTowersError) as error:
        call()
    assert "\n" not in str(error.value) and ":" in str(error.value)


def test_pairs_of_one_prompt_are_resampled_together():
    rng = np.random.default_rng(0)
    x = rng.normal(size=30)
    y = x + rng.normal(size=30)
    alone = bootstrap_correlation(x, y, "pearson")
    # Three copies of every pair say nothing new: the interval must not shrink.
    copies = bootstrap_correlation(np.repeat(x[:, None], 3, 1), np.repeat(y[:, None], 3, 1), "pearson")
    assert (copies.estimate, copies.low, copies.high, copies.n) == pytest.approx(
        (alone.estimate, alone.low, alone.high, 30)
    )
    grid = rng.normal(size=(30, 3)), rng.normal(size=(30, 3))
    assert bootstrap_correlation(*grid).estimate == pytest.approx(spearman(grid[0].ravel(), grid[1].ravel()))


def test_a_function_of_means_against_a_slow_reference():
    rng = np.random.default_rng(3)
    table = rng.normal(loc=[1, 2, 5], size=(30, 3))
    found = bootstrap_of_means(table, lambda m: m[..., 0] / m[..., 1] - m[..., 2], draws=200, seed=4)
    ratios = []
    for at in np.random.default_rng(4).integers(0, 30, size=(200, 30)):
        a, b, c = table[at].mean(0)
        ratios.append(a / b - c)
    assert found.low == pytest.approx(np.quantile(ratios, 0.025))
    assert found.high == pytest.approx(np.quantile(ratios, 0.975))
    a, b, c = table.mean(0)
    assert found.estimate == pytest.approx(a / b - c) and found.n == 30


def test_the_mean_of_one_column_is_the_plain_bootstrap():
    values = [1, 0, 1, 1, 0, 1]
    plain, of_means = bootstrap(values), bootstrap_of_means(np.array(values)[:, None], lambda m: m[..., 0])
    assert (of_means.estimate, of_means.low, of_means.high, of_means.n) == pytest.approx(
        (plain.estimate, plain.low, plain.high, plain.n)
    )


def test_a_function_of_means_that_is_not_finite_has_no_interval():
    found = bootstrap_of_means(np.zeros((4, 2)), lambda m: m[..., 0] / m[..., 1])
    assert math.isnan(found.estimate) and math.isnan(found.low) and math.isnan(found.high) and found.n == 4
    for bad in (np.zeros(3), np.zeros((0, 2)), np.array([[1.0, math.nan]])):
        with pytest.raises(TwoTowersError):
            bootstrap_of_means(bad, lambda m: m[..., 0])


def test_an_interval_never_says_minus_zero():
    assert f"{Interval(-0.001, -0.004, 0.002, 9):.2f}" == "0.00 [0.00, 0.00]"
    assert f"{Interval(-0.001, -0.004, 0.002, 9):+.2f}" == "+0.00 [+0.00, +0.00]"
