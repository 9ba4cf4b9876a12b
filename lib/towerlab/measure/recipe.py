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
from twotowers import schema, store
from twotowers.recording import Recording

from towerlab.progress import part

if TYPE_CHECKING:
    from towerlab.measure.chain import Run

Sets = Mapping[str, Any]
"""Name -> heads, or what else `measure` tells apart along the dimension `heads`"""


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
    """further entries along `heads`, each as its turns: which items, and the set of these, that
    other prompts choose"""
    along: str = "prompt"


def make(run: Run, name: str, recipe: Recipe) -> Recording:
    """What a recipe of a measurement of this name makes, with its control and its turns."""
    if recipe.sets is None:
        return Recording(in_parts(run, name, recipe))
    sets_and_random = with_random(recipe.sets, recipe.control)
    data, control = apart(
        in_parts(run, name, replace(recipe, sets=sets_and_random)), recipe.control, recipe.drawn
    )
    for number, turns in enumerate(recipe.turns):
        parts = []
        for turn, (at, sets) in enumerate(turns):
            of_turn = replace(recipe, items=[recipe.items[i] for i in at], sets=sets)
            parts.append(
                in_parts(run, name, of_turn, f"turn {number}-{turn}.").assign_coords(
                    at=("prompt", at)
                )
            )
        data = joined([data, joined(parts).sortby("at").drop_vars("at")], "heads")
    return Recording(data, control)


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
        recording = load_made(path, identity)
        if recording is None:
            start = time.monotonic()
            with part(f", part {first // size + 1} of {n}" if n > 1 else ""):
                recording = Recording(
                    recipe.measure(run.model, items[first : first + size], *arguments)
                )
            if n > 1:
                about = {
                    "measurement": schema.PART,
                    "identity": identity,
                    "seconds": time.monotonic() - start,
                }
                store.save(recording, path, about)
                recording = store.load(path)
        parts.append(recording.data.drop_attrs(deep=False))
    return parts[0] if n == 1 else joined(parts, recipe.along)


def load_made(path: Path, identity: str = "") -> Recording | None:
    """A file, None where there is none, one of another form, which older code wrote, or one of
    another identity."""
    try:
        recording = store.load(path) if path.is_file() else None
    except schema.OtherForm:
        return None
    return (
        recording if recording and identity in ("", recording.data.attrs.get("identity")) else None
    )


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


def apart(
    both: xr.Dataset, control: Mapping[str, Sequence[Any]], drawn: str = "random sets"
) -> Recording:
    """What was measured of sets `with_random`: data of the named ones, and the others along `draw`.

    Args:
        both: over `heads`, the random sets last.
        control: set -> its random sets.
        drawn: what these are.
    """
    n = sum(map(len, control.values()))
    if not n:
        return Recording(both)
    data = both.isel(heads=slice(-n))
    random = both.isel(heads=slice(-n, None)).drop_vars("heads")
    size = n // len(control)
    by_set = (
        random.coarsen(heads=size)
        .construct(heads=("set", "draw"))
        .rename(set="heads")
        .transpose("heads", ...)
    )
    return Recording(
        data, by_set.assign_coords(heads=list(control), draw=range(size), control=drawn)
    )
