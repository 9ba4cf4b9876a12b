"""A head's name, and coordinates of single heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from twotowers.errors import TwoTowersError


class Head(NamedTuple):
    """A head of a model, layer and head counted from 0. `str(Head(22, 0))` is "22-0"; `Head.parse`
    reads it back."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}-{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """A head from "22-0". Raises TwoTowersError on any other form."""
        if not re.fullmatch(r"\d+-\d+", text.strip()):
            raise TwoTowersError(f"'{text}' is no head: write layer-head, such as 2-5")
        return cls(*map(int, text.split("-")))


Heads = Sequence[tuple[int, int]]  # heads given to a function: pairs do, such as (22, 0)


def named(heads: Iterable[tuple[int, int]]) -> list[str]:
    """["22-0", ...] of (layer, head) pairs."""
    return [f"{layer}-{head}" for layer, head in heads]


def listed(heads: Heads) -> dict[str, tuple[str, Any]]:
    """Coordinates of single heads: the dimension `listed_head` with their names ("22-0"), `layer`
    and `head` beside them."""
    layers, numbers = np.array(heads, dtype=int).reshape(-1, 2).T
    columns = {"listed_head": named(heads), "layer": layers, "head": numbers}
    return {name: ("listed_head", values) for name, values in columns.items()}
