"""Names of heads, and coordinates of single heads."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from twotowers.errors import TwoTowersError


class Head(NamedTuple):
    """A head of a model. `str(Head(22, 0))` is "22-0", and `Head.parse` reads it back.

    Attributes:
        layer: Number of the layer, counted from 0.
        head: Number of the head within its layer, counted from 0.
    """

    layer: int
    head: int

    def __str__(self) -> str:
        """Return the name of the head, such as "22-0"."""
        return f"{self.layer}-{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Return the head of a name.

            >>> Head.parse("22-0")
            Head(layer=22, head=0)

        Args:
            text: Name such as "22-0".

        Raises:
            TwoTowersError: If the name has any other form.
        """
        if not re.fullmatch(r"\d+-\d+", text.strip()):
            raise TwoTowersError(f"unknown head '{text}': expected layer-head, such as 2-5")
        return cls(*map(int, text.split("-")))


Heads = Sequence[tuple[int, int]]  # an argument of functions; pairs such as (22, 0) are enough
HeadSets = Mapping[str, Heads]
"""Name of a set -> its heads"""
Sizes = Mapping[Hashable, Any]
"""Numbers of `layers`, `heads` and `key_value_heads` of a model: attributes of a measurement"""


def head_names(heads: Iterable[tuple[int, int]]) -> list[str]:
    """Return the names of heads, such as "22-0".

    Args:
        heads: Pairs (layer, head).
    """
    return [f"{layer}-{head}" for layer, head in heads]


def head_coordinates(heads: Heads) -> dict[str, tuple[str, Any]]:
    """Return coordinates of single heads.

    Args:
        heads: Pairs (layer, head).

    Returns:
        The dimension `selected_head` with names such as "22-0", and `layer` and `head` along it.
    """
    layers, numbers = np.array(heads, dtype=int).reshape(-1, 2).T
    return {
        "selected_head": ("selected_head", head_names(heads)),
        "layer": ("selected_head", layers),
        "head": ("selected_head", numbers),
    }
