"""Agreement of rankings by hand: chance given the layers, by counting all permutations of small cases."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
from twotowers.errors import TwoTowersError
from twotowers.stats.agreement import agreement, top
from twotowers.stats.intervals import overlap_within_layers, spearman


def test_the_top_heads_in_their_order():
    assert top(np.array([[1.0, 5.0], [3.0, 3.0]]), 3) == [(0, 1), (1, 0), (1, 1)]
    for k in (0, 5):
        with pytest.raises(TwoTowersError, match="the model has 4 heads"):
            top(np.zeros((2, 2)), k)


def test_five_of_eight_heads_of_one_layer_are_shared_by_chance_in_one_of_56():
    heads = [(3, i) for i in range(5)]
    assert overlap_within_layers(heads, heads, 8) == (5, 25 / 8, *[pytest.approx(1 / 56)] * 2)
    assert overlap_within_layers(heads, [(2, 0)], 8) == (0, 0, *[pytest.approx(1)] * 2)
    with pytest.raises(TwoTowersError, match="no head 4 in a layer of 4"):
        overlap_within_layers(heads, heads, 4)


def test_the_overlap_by_chance_is_that_of_all_draws_within_layers():
    a, b = [(0, 0), (0, 1), (1, 2), (2, 0)], [(0, 1), (0, 3), (1, 2), (1, 0)]
    draws = [
        {*((0, i) for i in zero), *((1, i) for i in one)}
        for zero, one in product(combinations(range(4), 2), combinations(range(4), 2))
    ]
    shared = np.array([len({*a} & drawn) for drawn in draws])
    found = overlap_within_layers(a, b, 4)
    assert found == (
        2,
        *(pytest.approx(one) for one in (shared.mean(), (shared >= 2).mean(), (shared == shared.max()).mean())),
    )


def test_rank_correlation_beside_all_permutations_within_layers():
    a, b = np.array([[0.0, 1.0, 2.0], [5.0, 3.0, 4.0]]), np.array([[1.0, 0.0, 3.0], [9.0, 4.0, 4.0]])
    (row,) = agreement({"a": a, "b": b}, 2, draws=20_000).to_dict("records")
    every = [
        spearman(a.ravel(), np.r_[b[0, list(p)], b[1, list(q)]]) for p, q in product(permutations(range(3)), repeat=2)
    ]
    assert row["spearman"] == pytest.approx(spearman(a.ravel(), b.ravel()))
    assert row["spearman_expected"] == pytest.approx(np.mean(every)) and row["spearman_expected"] > 0.5
    assert row["spearman_p"] == pytest.approx(np.mean(np.array(every) >= row["spearman"] - 1e-9), abs=0.01)
    assert (row["a"], row["b"], row["heads"], row["k"], row["shared"]) == ("a", "b", 6, 2, 1 + (top(b, 2)[1] == (1, 2)))
    assert row["shared_expected"] == pytest.approx(4 / 3)


def test_every_pair_once_and_the_same_again():
    rng = np.random.default_rng(0)
    rankings = {name: rng.normal(size=(3, 4)) for name in "abc"}
    first, again = agreement(rankings, 3, draws=50), agreement(rankings, 3, draws=50)
    assert list(zip(first["a"], first["b"], strict=True)) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert first.equals(again)


def test_depth_alone_is_no_agreement():
    """Both rankings rise with the layer and are random within it: a high correlation, expected as high."""
    rng, depth = np.random.default_rng(1), 10 * np.arange(12)[:, None]
    found = agreement({"a": depth + rng.normal(size=(12, 9)), "b": depth + rng.normal(size=(12, 9))}, 20).iloc[0]
    assert found["spearman"] > 0.9 and found["spearman_p"] > 0.05 and found["shared_p"] > 0.05
    assert found["spearman"] == pytest.approx(found["spearman_expected"], abs=0.01)


@pytest.mark.parametrize(
    ("rankings", "says"),
    [
        ({"a": np.eye(2)}, "at least two"),
        ({"a": np.eye(2), "b": np.eye(3)}, "different models"),
        ({"a": np.eye(2), "b": np.ones((2, 2))}, "'b' gives every head the same"),
        ({"a": np.eye(2), "b": np.full((2, 2), np.nan)}, "'b' has values that are NaN"),
    ],
)
def test_what_ranks_nothing_is_refused(rankings, says):
    with pytest.raises(TwoTowersError, match=says):
        agreement(rankings, 1)
