"""Recipes: how a measurement is made, as data.

A recipe names a function, its prompts, the sets of heads, and the random sets that are matched to
them.

    >>> own = {"own": [(0, 1)]}
    >>> Recipe(print, [], (), own, {"own": [[(0, 0)], [(1, 1)]]}).all_sets
    {'own': [(0, 1)], 'own, random 0': [(0, 0)], 'own, random 1': [(1, 1)]}

A measurement of several stages calls `pipeline.make(NAME, Recipe(...))` for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

RANDOM = ", random "
"""Between the name of a set and the number of a random one that is matched to it"""
Sets = Mapping[str, Any]
"""Name -> heads, or what else `measure` tells apart along the dimension `head_set`"""


@dataclass(frozen=True)
class Recipe:
    """`measure(model, items, *arguments)`, or `measure(model, items, sets, *arguments)`."""

    measure: Callable[..., xr.Dataset]
    items: Sequence[Any]
    """prompts in whole blocks; the numbers of a block depend on no other block"""
    arguments: tuple = ()
    sets: Sets = field(default_factory=dict)
    control: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """set -> random sets matched to it, as many for each"""
    drawn: str = "random sets"
    """what is random in the control"""
    stage: str = ""
    """name of this stage among those of a measurement; by default that of `measure`"""

    @property
    def all_sets(self) -> Sets:
        """The named sets, then the random ones."""
        random = {
            f"{name}{RANDOM}{i}": one
            for name, draws in self.control.items()
            for i, one in enumerate(draws)
        }
        return {**self.sets, **random}

    def with_matched_sets(self, data: xr.Dataset) -> xr.Dataset:
        """Return a dataset with the coordinates `matched_set` and `control`."""
        if not self.sets:
            return data
        matched = [name.rpartition(RANDOM)[0] for name in data["head_set"].values]
        data = data.assign_coords(matched_set=("head_set", matched))
        return data.assign_coords(control=self.drawn) if self.control else data


def joined(parts: Sequence[xr.Dataset], along: str = "prompt") -> xr.Dataset:
    """Return several datasets as one, such as those of several sets of prompts."""
    return xr.concat(
        parts, along, data_vars="minimal", coords="minimal", compat="override", join="override"
    )
