"""Intervals, ranks and overlap against cases worked out by hand."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from twotowers.errors import TwoTowersError
from twotowers.stats import resample
from twotowers.stats.intervals import (
    Interval,
    bootstrap,
    bootstrap_correlation,
    bootstrap_difference,
    bootstrap_of_means,
    discoveries,
    estimate,
    grouped,
    overlap_within_layers,
    p_value,
    rate,
    spearman,
)


def bounds(interval):
    return interval.low, interval.high


def test_interval_reads_in_prose():
    interval = Interval(0.93, 0.91, 0.95, 100)
    assert str(interval) == f"{interval}" == "0.93 [0.91, 0.95]"
    assert f"{interval:.0%}" == "93% [91%, 95%]"
    assert f"{Interval(0.5, math.nan, math.nan, 1):.1f}" == "0.5 [no interval, n = 1]"
    assert f"{Interval(math.nan, math.nan, math.nan, 4):.1f}" == "undefined [n = 4]"


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


def test_a_seed_gives_the_same_interval_again():
    values = np.random.default_rng(0).normal(size=50)
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1) != bootstrap(values, seed=2)


def test_pairing_removes_what_the_pairs_share():
    shared = np.random.default_rng(0).normal(size=60) * 100
    paired = bootstrap_difference(shared + 1, shared)
    assert (paired.low, paired.high) == pytest.approx((1, 1)) and paired.n == 60


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
    assert interval == Interval(interval.estimate, -1.0, 1.0, 3) and interval.estimate == pytest.approx(0.5)


def test_pearson_by_hand():
    # Deviations -1, 0, 1 and -1, -1, 2: covariance 3, variances 2 and 6.
    assert bootstrap_correlation([1, 2, 3], [0, 0, 3], "pearson").estimate == pytest.approx(3 / math.sqrt(12))


def test_overlap_by_hand():
    # Two heads out of four of a layer: both shared in 1 of 6 draws, at least one in 5 of 6.
    both, one, none = ([(0, 0), (0, 1)], [(0, 1), (0, 2)], [(0, 2), (0, 3)])
    assert overlap_within_layers(set(both), both[::-1], 4) == (2, 1, *[pytest.approx(1 / 6)] * 2)
    assert overlap_within_layers(both, one, 4).probability == pytest.approx(5 / 6)
    assert overlap_within_layers(both, none, 4).probability == 1


def test_overlap_of_many_heads_is_exact():
    heads = [(0, i) for i in range(20)]
    assert overlap_within_layers(heads, heads, 720).probability == pytest.approx(1 / math.comb(720, 20))


@pytest.mark.parametrize(
    "call",
    [
        lambda: bootstrap([]),
        lambda: bootstrap([1, math.nan]),
        lambda: bootstrap([1, math.inf]),
        lambda: bootstrap([[1, 2]]),
        lambda: bootstrap([1, 2], level=95.0),
        lambda: bootstrap([1, 2], draws=0),
        lambda: bootstrap_difference([1, 2], [1, 2, 3]),
        lambda: bootstrap_correlation([1, 2], [1, 2]),
        lambda: bootstrap_correlation([1, 1, 1], [1, 2, 3]),
        lambda: bootstrap_correlation([1, 2, 3], [1, 2, 3], "kendall"),
        lambda: spearman([1, 2], [1, 2, 3]),
        lambda: overlap_within_layers({(0, 4)}, {(0, 0)}, 4),
        lambda: bootstrap([1, 2], clusters=["a"]),
        lambda: bootstrap([1, 2], clusters=["a", None]),
        lambda: bootstrap([1, 2], clusters=["a", math.nan]),
        lambda: bootstrap([1, 2], clusters=np.zeros((2, 3))),
        lambda: bootstrap_difference([1, 2], [1, 3], clusters=[0]),
        lambda: rate([0, 0.5]),
        lambda: rate([0, 1], level=95.0),
        lambda: rate([]),
        lambda: p_value([1, math.nan]),
        lambda: discoveries([0.5, math.nan]),
        lambda: discoveries([1.1]),
        lambda: discoveries([]),
        lambda: discoveries([0.5], q=5.0),
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


@given(st.data())
def test_means_by_weight_are_those_of_the_repeated_values(data):
    values = np.array(data.draw(st.lists(st.floats(-9, 9, width=16), min_size=2, max_size=9)))
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values))))
    weights[:2] += 1
    found = resample.mean(values, weights[None])
    assert found == pytest.approx([np.repeat(values, weights).mean()], abs=1e-12)


def test_bootstrap_is_scipys():
    values = np.random.default_rng(5).exponential(size=23)
    rng = np.random.default_rng(7)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=400, vectorized=False, method="BCa", rng=rng)
    assert bounds(bootstrap(values, draws=400, seed=7)) == pytest.approx(tuple(theirs.confidence_interval))


def test_clusters_are_drawn_whole_as_in_a_naive_loop():
    rng = np.random.default_rng(2)
    values, clusters = rng.exponential(size=40), rng.choice(list("abcdefghi"), size=40)
    members = [values[clusters == name] for name in dict.fromkeys(clusters)]

    def naive(at):
        return round(np.concatenate([members[i] for i in at]).mean(), 12)  # ties stay ties

    rng = np.random.default_rng(3)
    theirs = stats.bootstrap((np.arange(9),), naive, n_resamples=300, vectorized=False, method="BCa", rng=rng)
    found = bootstrap(values, draws=300, seed=3, clusters=clusters)
    assert bounds(found) == pytest.approx(tuple(theirs.confidence_interval))
    assert found.n == 9 and found.estimate == pytest.approx(values.mean())


def test_clusters_of_one_are_no_clusters_and_copies_say_nothing_new():
    values = np.random.default_rng(0).normal(size=30)
    alone = bootstrap(values)
    assert bootstrap(values, clusters=[(i, "prompt") for i in range(30)]) == alone
    copies = bootstrap(np.repeat(values, 3), clusters=np.repeat(np.arange(30), 3))
    assert bounds(copies) == pytest.approx(bounds(alone)) and copies.n == 30


def test_one_cluster_has_no_interval():
    assert str(bootstrap([1, 2, 3], clusters="aaa")) == "2.00 [no interval, n = 1]"


def test_pairs_and_rows_are_drawn_by_cluster():
    rng = np.random.default_rng(0)
    a, b, clusters = rng.normal(size=24), rng.normal(size=24), rng.integers(0, 6, size=24)
    expected = bootstrap(a - b, clusters=clusters)
    for found in (
        bootstrap_difference(a, b, clusters=clusters),
        bootstrap_of_means(np.stack([a, b], 1), lambda m: m[..., 0] - m[..., 1], clusters=clusters),
    ):
        assert bounds(found) == pytest.approx(bounds(expected)) and found.n == expected.n == 6


def test_a_function_of_means_against_a_slow_reference():
    rng = np.random.default_rng(3)
    table = rng.normal(loc=[1, 2, 5], size=(30, 3))

    def of(means):
        return means[..., 0] / means[..., 1] - means[..., 2]

    found = bootstrap_of_means(table, of, draws=200, seed=4)
    rng = np.random.default_rng(4)
    theirs = stats.bootstrap(
        (np.arange(30),), lambda at: of(table[at].mean(0)), n_resamples=200, vectorized=False, method="BCa", rng=rng
    )
    assert bounds(found) == pytest.approx(tuple(theirs.confidence_interval))
    assert found.estimate == pytest.approx(of(table.mean(0))) and found.n == 30


def test_where_some_resamples_are_undefined_the_interval_is_the_percentiles_of_the_rest():
    # Two rows: column 1 has mean 0, 1/2 or 1; without the resamples of mean 0, 1 / mean is 1 or 2.
    found = bootstrap_of_means(np.array([[1, 0], [1, 1]]), lambda m: m[..., 0] / m[..., 1])
    assert (found.estimate, found.low, found.high) == (2, 1, 2)


def test_no_spread_has_an_interval_of_no_width_that_states_n():
    for values in ([3.0] * 7, [0.1] * 7):
        assert bootstrap(values) == Interval(values[0], values[0], values[0], 7)
    assert str(bootstrap([3.0] * 7)) == "3.00 [3.00, 3.00; n = 7]"


@given(values=st.lists(st.integers(-2, 2), min_size=2, max_size=6), three=st.booleans())
def test_two_observations_or_more_always_have_bounds(values, three):
    clusters = [i % 3 for i in range(len(values))] if three else None
    found = bootstrap(values, draws=50, clusters=clusters)
    assert math.isfinite(found.low) and math.isfinite(found.high) and found.low <= found.high


def test_blocks_bound_the_memory_and_change_nothing(monkeypatch):
    table, sizes = np.random.default_rng(0).normal(size=(50, 1)), []

    def watched(means):
        sizes.append(50 * means[..., 0].size)
        return means[..., 0]

    whole = bootstrap_of_means(table, watched, draws=300)
    sizes.clear()
    monkeypatch.setattr(resample, "_BLOCK", 120)
    assert bootstrap_of_means(table, watched, draws=300) == whole
    assert max(sizes) == 100 and len(sizes) == 1 + 150 + 1 + 25  # the estimate twice, draws, leaving out one


def covered(draw, interval, truth, times=200):
    """Share of `times` samples whose interval holds the truth."""
    rng = np.random.default_rng(11)
    return np.mean([low <= truth <= high for low, high in (bounds(interval(*draw(rng))) for _ in range(times))])


def test_95_percent_intervals_hold_the_mean_of_skewed_values_nearly_as_often():
    share = covered(lambda rng: (rng.exponential(size=60),), lambda values: bootstrap(values, draws=400), 1.0)
    assert 0.9 <= share <= 0.98


def of_words(rng):
    """Right or wrong for 6 prompts of each of 30 words, some words easier than others, and the words."""
    easy = rng.beta(1.6, 0.4, size=30)
    return (rng.random((30, 6)) < easy[:, None]).ravel(), np.repeat(np.arange(30), 6)


@pytest.mark.parametrize(
    "interval", [rate, lambda values, clusters=None: bootstrap(values, draws=400, clusters=clusters)]
)
def test_intervals_by_cluster_hold_the_rate_and_others_do_not(interval):
    assert covered(of_words, interval, 0.8) >= 0.9
    assert covered(of_words, lambda values, clusters: interval(values), 0.8) <= 0.85


@pytest.mark.parametrize("right", range(8))
def test_rate_is_wilsons(right):
    theirs = stats.binomtest(right, 7).proportion_ci(method="wilson")
    assert bounds(rate([1] * right + [0] * (7 - right))) == pytest.approx(tuple(theirs))


def test_rate_by_hand():
    # z = 2 (level 0.9545), 1 of 4: centre (1/4 + 4/8) / 2 = 3/8, half 2 sqrt(3/64 + 4/64) / 2.
    found = rate([0, 0, 1, 0], level=math.erf(math.sqrt(2)))
    half = math.sqrt(7) / 8
    assert (found.estimate, *bounds(found), found.n) == pytest.approx((0.25, 3 / 8 - half, 3 / 8 + half, 4))
    assert str(rate([True] * 50)) == "1.00 [0.93, 1.00]" and f"{rate([0] * 10):.1%}" == "0.0% [0.0%, 27.8%]"


def test_rate_by_cluster():
    # Clusters 11 11 11 00: p = 3/4, sums of deviations 1/2 1/2 1/2 -3/2. Robust variance 4/3 * 3 / 64 = 1/16, binomial
    # (3/16) / 7, so deff = 7/3 and the effective size 24/7.
    found, n, z = (
        rate([1, 1, 1, 1, 1, 1, 0, 0], clusters=[0, 0, 1, 1, 2, 2, 3, 3], level=math.erf(math.sqrt(2))),
        24 / 7,
        2,
    )
    middle, half = 3 / 4 + z**2 / (2 * n), z * math.sqrt(3 / 16 / n + z**2 / (4 * n**2))
    assert bounds(found) == pytest.approx(((middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)))
    assert (found.estimate, found.n) == (0.75, 4)
    mixed = [1, 0, 1, 1, 0]
    assert bounds(rate(mixed, clusters="abcde")) == pytest.approx(bounds(rate(mixed)))
    # Clusters of one right and one wrong tell more than chance would: the size stays that of all values.
    assert bounds(rate([1, 0] * 4, clusters=np.repeat(range(4), 2))) == pytest.approx(bounds(rate([1, 0] * 4)))


@pytest.mark.parametrize("value", [0, 1])
def test_where_all_are_alike_a_rate_counts_clusters(value):
    assert rate([value] * 50, clusters=np.arange(50) % 5) == rate([value] * 5)
    assert rate([value] * 9, clusters="a" * 9) == rate([value]) and rate([value]).high - rate([value]).low > 0.7


def test_p_value_is_the_t_test_and_by_cluster_that_of_cluster_means():
    values = np.random.default_rng(0).normal(0.3, size=(12, 4))
    assert p_value(values.ravel()) == pytest.approx(stats.ttest_1samp(values.ravel(), 0).pvalue)
    clusters = np.repeat(np.arange(12), 4)
    assert p_value(values.ravel(), clusters) == pytest.approx(stats.ttest_1samp(values.mean(1), 0).pvalue)
    # Unequal clusters 0 | 1 5: mean 2, sums of deviations -2 and 2, variance 2 * 8 / 9: t = 1.5, one degree (Cauchy).
    assert p_value([0, 1, 5], "abb") == pytest.approx(1 - 2 / math.pi * math.atan(1.5))


def test_p_value_without_spread_is_that_of_the_signs():
    assert p_value([0.1] * 5) == p_value([-2.0] * 5) == 1 / 16
    assert p_value([0.0] * 5) == p_value([3.0]) == p_value([3.0, 4.0], "aa") == 1
    assert p_value([1, -1]) == 1


def test_p_value_by_cluster_is_rarely_small_by_chance():
    rng = np.random.default_rng(0)
    clusters, small = np.repeat(np.arange(12), 5), np.zeros(2)
    for _ in range(400):
        values = (rng.normal(size=(12, 1)) + rng.normal(size=(12, 5))).ravel()
        small += [p_value(values, clusters) < 0.05, p_value(values) < 0.05]
    by_cluster, alone = small / 400
    assert 0.02 <= by_cluster <= 0.08 and alone > 0.2


def test_discoveries_by_hand():
    # Of 4 sorted p, the largest k with p <= 0.05 k / 4 counts: 0.0125, 0.025, 0.0375, 0.05.
    assert discoveries([0.04, 0.01, 0.06, 0.045]).tolist() == [False, True, False, False]
    assert discoveries([[0.04, 0.01], [0.05, 0.045]]).tolist() == [[True, True], [True, True]]
    assert discoveries([0.04, 0.01, 0.06, 0.045], q=0.07).tolist() == [True] * 4


def test_overlap_within_layers_against_every_possible_draw():
    a, b = {(0, 0), (0, 1), (2, 3)}, {(0, 1), (0, 2), (2, 3), (3, 0)}
    found = overlap_within_layers(a, b, 4)
    layers = (itertools.combinations([(layer, head) for head in range(4)], k) for layer, k in ((0, 2), (2, 1), (3, 1)))
    draws = [len(a & {*x, *y, *z}) for x, y, z in itertools.product(*layers)]
    assert len(draws) == 96 and found.count == 2
    assert found.expected == pytest.approx(np.mean(draws))
    assert found.probability == pytest.approx(np.mean(np.array(draws) >= 2))


def test_overlap_within_one_layer_and_without_heads():
    # The review's case: five heads of one layer of 8, all shared.
    found = overlap_within_layers({(3, h) for h in range(5)}, [(3, h) for h in range(5)], 8)
    assert (found.expected, found.probability) == pytest.approx((25 / 8, 1 / 56))
    assert overlap_within_layers({(0, 0)}, {(1, 0)}, 4).probability == overlap_within_layers([], [], 4).probability == 1


def test_the_smallest_p_is_that_of_the_largest_overlap():
    # Two sets of two heads in a layer of four: six equal ways, one of them the same. A layer of its own adds nothing.
    a, b = [(0, 0), (0, 1), (1, 3)], [(0, 2), (0, 3), (2, 0)]
    assert overlap_within_layers(a, b, 4).least == pytest.approx(1 / 6)


TABLE = pd.DataFrame(
    {"heads": ["ours", "random", "ours"], "k": [1, 1, 2], "accuracy": [0.9, 0.8, 0.7], "low": [0.8, 0.7, 0.6],
     "high": [1.0, 0.9, 0.8], "n": [34, 34, 34]}
)  # fmt: skip


def test_estimate_is_the_one_row_that_matches():
    found = estimate(TABLE, "accuracy", heads="ours", k=2)
    assert found == Interval(0.7, 0.6, 0.8, 34) and isinstance(found.n, int)
    assert estimate(TABLE, "accuracy", heads="random").estimate == 0.8


@pytest.mark.parametrize(
    "column, where, message",
    [
        ("accuracy", {"heads": "ours"}, "2 rows have heads='ours'"),
        ("accuracy", {"heads": "ours", "k": 3}, "0 rows have heads='ours', k=3"),
        ("accuracy", {}, "3 rows"),
        ("margin", {"heads": "random"}, "no column 'margin'"),
        ("accuracy", {"layer": 3}, "no column 'layer'"),
    ],
)
def test_estimate_refuses_what_is_not_one_row(column, where, message):
    with pytest.raises(TwoTowersError, match=message):
        estimate(TABLE, column, **where)


def test_grouped_is_one_bootstrap_a_group_in_order_of_appearance():
    table = pd.DataFrame({"head": ["2-0"] * 4 + ["0-1"] * 3, "weight": [0.1, 0.2, 0.3, 0.8, 0.5, 0.5, 0.5]})
    got = grouped(table, ["head"], "weight", seed=3)
    assert got["head"].tolist() == ["2-0", "0-1"] and got["n"].tolist() == [4, 3]
    expected = bootstrap([0.1, 0.2, 0.3, 0.8], seed=3)
    assert got.loc[0, ["weight", "low", "high", "n"]].tolist() == list(expected.as_row("weight").values())
    assert got.loc[1, ["weight", "low", "high"]].tolist() == [0.5, 0.5, 0.5]
    assert estimate(got, "weight", head="2-0") == expected


def test_grouped_by_cluster():
    table = pd.DataFrame(
        {"layer": [0] * 6 + [1] * 6, "head": 2, "right": [1] * 6 + [0, 1] * 3, "word": [*"aabbcc"] * 2}
    )
    means = grouped(table, ["layer", "head"], "right", clusters="word", seed=1)
    assert grouped(table, ["layer"], "right")["n"].tolist() == [6, 6] and means["n"].tolist() == [3, 3]
    assert estimate(means, "right", layer=1) == bootstrap([0, 1] * 3, seed=1, clusters="aabbcc")


def test_grouped_refuses_what_has_no_value_or_no_name():
    table = pd.DataFrame({"head": ["a", None], "right": [1.0, 0.0], "word": ["x", "y"], "weight": [1.0, math.nan]})
    for by, value, clusters in (
        (["head"], "right", None),
        (["word"], "weight", None),
        (["word"], "right", "head"),
        (["layer"], "right", None),
    ):
        with pytest.raises(TwoTowersError):
            grouped(table, by, value, clusters=clusters)
    assert grouped(table[:0], ["head"], "right").columns.tolist() == ["head", "right", "low", "high", "n"]
