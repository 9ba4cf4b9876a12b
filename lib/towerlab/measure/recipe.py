"""How a measurement is made, as data: which prompts, what is measured of them, in which sets of
heads, beside which control.

    >>> with_random({"own": [(0, 1)]}, {"own": [[(0, 0)], [(1, 1)]]})
    {'own': [(0, 1)], 'own, random 0': [(0, 0)], 'own, random 1': [(1, 1)]}

A recipe of several stages calls `run.make(NAME, Recipe(...))` for each, with functions of other
names, and returns what comes of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr
from twotowers import files
from twotowers.errors import TwoTowersError

from towerlab.progress import part

if TYPE_CHECKING:
    from towerlab.measure.chain import Run

Sets = Mapping[str, Any]
"""Name -> heads, or what else `measure` tells apart along the dimension `head_set`"""


@dataclass(frozen=True)
class Recipe:
    """`measure(model, items, *arguments)`, or `measure(model, items, sets, *arguments)` where there
    are sets."""

    measure: Callable[..., xr.Dataset]
    items: Sequence[Any]
    """what has a number each along `along`: prompts in whole blocks of four, of which none owes
    anything to another block"""
    arguments: tuple = ()
    sets: Sets | None = None
    control: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """set -> random ones in its place, as many for each"""
    drawn: str = "random sets"
    """what the control is"""
    turns: Sequence[Sequence[tuple[list[int], Sets]]] = ()
    """further entries along `head_set`, each as its turns: which items, and the set of these, that
    other prompts choose"""
    along: str = "prompt"


def make(run: Run, name: str, recipe: Recipe) -> xr.Dataset:
    """What a recipe of a measurement of this name makes, with its control and its turns."""
    if recipe.sets is None:
        return in_parts(run, name, recipe)
    every = replace(recipe, sets=with_random(recipe.sets, recipe.control))
    data = marked(in_parts(run, name, every), recipe.control, recipe.drawn)
    for number, turns in enumerate(recipe.turns):
        parts = []
        for turn, (at, sets) in enumerate(turns):
            of_turn = replace(recipe, items=[recipe.items[i] for i in at], sets=sets)
            part = in_parts(run, name, of_turn, f"turn {number}-{turn}.")
            parts.append(part.assign_coords(at=("prompt", at)))
        entry = joined(parts).sortby("at").drop_vars("at")
        data = joined([data, marked(entry, {})], "head_set")
    return data


def in_parts(run: Run, name: str, recipe: Recipe, turn: str = "") -> xr.Dataset:
    """The items of a recipe some at a time.

    Each part is kept beside the measurement's file until that is written, so that what was
    interrupted goes on after its last part. Equal settings make equal parts, interrupted or not.

    Args:
        name: of the measurement.
        turn: tells the parts of one turn from those of others.
    """
    arguments = recipe.arguments if recipe.sets is None else (recipe.sets, *recipe.arguments)
    items = recipe.items
    identity = run.identity(name)
    parts = []
    unit = 4 if recipe.along == "prompt" else 1
    size = unit * math.ceil(len(items) / unit / run.n_parts(name))
    n = math.ceil(len(items) / size)
    for first in range(0, len(items), size):
        path = run.path(name).with_name(
            f".{name}.{recipe.measure.__name__}.{turn}{first}-{size}.part"
        )
        data = read_part(path, identity)
        if data is None:
            start = time.monotonic()
            with part(f", part {first // size + 1} of {n}" if n > 1 else ""):
                data = recipe.measure(run.model, items[first : first + size], *arguments)
            if n > 1:
                about = {"identity": identity, "seconds": time.monotonic() - start}
                files.write(data.assign_attrs(about), path)
                data = files.read(path)
        parts.append(data.drop_attrs(deep=False))
    return parts[0] if n == 1 else joined(parts, recipe.along)


def load_made(path: Path, identity: str = "") -> xr.Dataset | None:
    """A file, None where there is none, one of another form, which older code wrote, or one of
    another identity."""
    try:
        data = files.load(path) if path.is_file() else None
    except files.OtherForm:
        return None
    return data if data is not None and identity in ("", data.attrs.get("identity")) else None


def read_part(path: Path, identity: str) -> xr.Dataset | None:
    """A finished part, None where it is to be made: it is missing, of another identity, or cannot
    be read."""
    try:
        data = files.read(path)
    except TwoTowersError:
        return None
    return data if data.attrs.get("identity") == identity else None


def joined(parts: Sequence[xr.Dataset], along: str = "prompt") -> xr.Dataset:
    """Measurements of several sets of prompts, or of what lies along another dimension, as one."""
    return xr.concat(
        parts, along, data_vars="minimal", coords="minimal", compat="override", join="override"
    )


def with_random(sets: Sets, control: Mapping[str, Sequence[Any]]) -> Sets:
    """Named sets and, last, the random ones of each."""
    return {
        **sets,
        **{
            f"{name}, random {i}": one
            for name, draws in control.items()
            for i, one in enumerate(draws)
        },
    }


def marked(
    data: xr.Dataset, control: Mapping[str, Sequence[Any]], drawn: str = "random sets"
) -> xr.Dataset:
    """Return what was measured of sets `with_random`, with the coordinate `matched_set`.

    Args:
        data: Dataset over `head_set`, the random sets last.
        control: Set -> its random sets.
        drawn: What the random sets are: the scalar coordinate `control`.
    """
    random = [name for name, draws in control.items() for _ in draws]
    matched = [""] * (data.sizes["head_set"] - len(random)) + random
    data = data.assign_coords(matched_set=("head_set", matched))
    return data.assign_coords(control=drawn) if random else data
