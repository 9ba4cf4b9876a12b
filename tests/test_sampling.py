"""Choices small enough to count by hand."""

import numpy as np
import pytest
from twotowers.errors import TwoTowersError
from twotowers.prompts.sampling import deal_round_robin, distinct_codes, take_distinct


def test_shares_are_dealt_in_turn():
    assert deal_round_robin([1, 5, 5], 7, "mine") == [1, 3, 3]
    assert deal_round_robin([2, 2, 2], 2, "mine") == [1, 1]
    assert deal_round_robin([0, 3, 0, 1], 4, "mine") == [0, 3, 0, 1]
    with pytest.raises(TwoTowersError, match="5 prompts of 'mine' cannot be drawn, there are 4: ask for 4 or fewer"):
        deal_round_robin([3, 1], 5, "mine")


def test_codes_are_all_different_and_all_there():
    rng = np.random.default_rng(0)
    assert sorted(distinct_codes([3, 2], 6, rng, "mine")) == [(i, j) for i in range(3) for j in range(2)]
    assert len(set(distinct_codes([30, 30], 50, rng, "mine"))) == 50
    with pytest.raises(TwoTowersError, match="there are 6"):
        distinct_codes([3, 2], 7, rng, "mine")


def test_every_code_picks_other_things():
    assert sorted(take_distinct("abc", code) for code in [(i, j) for i in range(3) for j in range(2)]) == [
        ["a", "b"], ["a", "c"], ["b", "a"], ["b", "c"], ["c", "a"], ["c", "b"],
    ]  # fmt: skip
