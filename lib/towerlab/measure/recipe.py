"""Recipes of measurements, as data.

A recipe contains a function, its prompts, the sets of heads, and the random sets that are matched
to them.

    >>> own = {"own": [(0, 1)]}
    >>> Recipe(print, [], (), own, {"own": [[(0, 0)], [(1, 1)]]}).all_sets
    {'own': [(0, 1)], 'own, random 0': [(0, 0)], 'own, random 1': [(1, 1)]}

A measurement of several stages calls `pipeline.run(NAME, Recipe(...))` for each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

RANDOM = ", random "
"""Text between the name of a set and the number of a random set that is matched to it"""
Sets = Mapping[str, Any]
"""Name -> heads, or other items along the dimension `head_set`"""


@dataclass(frozen=True)
class Recipe:
    """A call of `measure`, with its prompts, its sets of heads and its random sets.

    The call is `measure(model, items, *arguments)`, or `measure(model, items, sets, *arguments)`.
    """

    measure: Callable[..., xr.Dataset]
    items: Sequence[Any]
    """Prompts in whole blocks, or groups of prompts; the numbers of one do not depend on others"""
    arguments: tuple = ()
    sets: Sets = field(default_factory=dict)
    control: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Set -> random sets matched to it, of equal number for each"""
    drawn: str = "random sets"
    """Name of the random items of the control"""
    stage: str = ""
    """Name of this stage of a measurement; by default the name of `measure`"""
    part: int = 0
    """Number of items of a part; 0: as the cost of a prompt says (`Pipeline.part_size`)"""

    @property
    def all_sets(self) -> Sets:
        """Named sets, followed by the random sets."""
        random = {
            f"{name}{RANDOM}{i}": one
            for name, random_sets in self.control.items()
            for i, one in enumerate(random_sets)
        }
        return {**self.sets, **random}

    def with_matched_sets(self, data: xr.Dataset) -> xr.Dataset:
        """Return a dataset with the coordinates `matched_set`, `set_number` and `control`.

        Random sets that are repeated (`sets.equally_many`) have equal numbers.

        Args:
            data: Result of the recipe, with a dimension `head_set` if the recipe has sets.

        Returns:
            The dataset, unchanged if the recipe has no sets.
        """
        if not self.sets:
            return data
        names = data["head_set"].values
        matched = [name.rpartition(RANDOM)[0] for name in names]
        numbers = {
            f"{name}{RANDOM}{i}": next(j for j, other in enumerate(drawn) if other is one)
            for name, drawn in self.control.items()
            for i, one in enumerate(drawn)
        }
        return data.assign_coords(
            matched_set=("head_set", matched),
            set_number=("head_set", [numbers.get(name, 0) for name in names]),
            control=self.drawn,
        )


def joined(parts: Sequence[xr.Dataset], along: str = "prompt") -> xr.Dataset:
    """Return several datasets as one, such as the datasets of several sets of prompts.

    Args:
        parts: Datasets.
        along: Dimension along which they are joined.

    Returns:
        One dataset.
    """
    return xr.concat(
        parts, along, data_vars="minimal", coords="minimal", compat="override", join="override"
    )
