"""Different choices, all equally likely: what a draw of prompts is made of. numpy only.

codes = distinct_codes([4, 3], 5, rng, "mine")    # 5 different ways to take two of four things in turn
picked(things, codes[0])
shares([1, 5, 5], 7, "mine")                      # [1, 3, 3]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twotowers.errors import TwoTowersError


def distinct_codes(sizes: list[int], n: int, rng: np.random.Generator, name: str) -> list[tuple[int, ...]]:
    """n different rows of digits, digit i below sizes[i], all rows equally likely."""
    capacity = math.prod(sizes)
    if n > capacity:
        raise TwoTowersError(
            f"{n} prompts of '{name}' cannot be drawn, there are {capacity}: ask for {capacity} or fewer"
        )
    if capacity <= 4 * n:
        digits = np.unravel_index(rng.permutation(capacity)[:n], sizes)
        return list(zip(*(d.tolist() for d in digits), strict=True))
    found: dict[tuple[int, ...], None] = {}
    while len(found) < n:
        found.update(dict.fromkeys(map(tuple, rng.integers(0, sizes, size=(n, len(sizes))).tolist())))
    return list(found)[:n]


def take_distinct(pool: Sequence[str], code: Sequence[int]) -> list[str]:
    """Things without repetition: each digit counts among the things that are left."""
    left = list(pool)
    return [left.pop(digit) for digit in code]


def deal_round_robin(room: list[int], n: int, name: str) -> list[int]:
    """n dealt out one by one in turn, entry i at most room[i]; entries that get none at the end are left away."""
    if n > sum(room):
        raise TwoTowersError(
            f"{n} prompts of '{name}' cannot be drawn, there are {sum(room)}: ask for {sum(room)} or fewer"
        )
    dealt = [0] * len(room)
    while n:
        for i, most in enumerate(room):
            if n and dealt[i] < most:
                dealt[i], n = dealt[i] + 1, n - 1
    return dealt[: len(dealt) - next(i for i, share in enumerate(reversed(dealt)) if share)]
