"""Sets of heads that recipes share: those that a rule names, and random ones matched to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import xarray as xr
from twotowers import choose
from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads
from twotowers.pages import QUICK
from twotowers.recording import Recording, of_labels, with_shared

from towerlab.measure.chain import Run
from towerlab.measure.observations import joined, observations
from towerlab.prompts.prompt import Encoded

DRAWS, AT_LAST = 20, 100
"""Random sets beside one that runs at all positions, and beside one that runs at the last position only, which costs less. A
file holds as many as its `draw` says. Sets are drawn one after the other, so one with fewer is shorter and not stale: each row
of evidence prints how many it rests on."""
OTHER_HALVES = "other halves"


def random_sets(run: Run, heads: Sequence[Head], draws: int = DRAWS) -> list[list[Head]]:
    """Random sets matched to one, none of whose heads stands in the set in question; in a quick look at most DRAWS."""
    model, draws = run.model, min(draws, DRAWS) if run.settings.blocks < QUICK else draws
    group = model.n_heads // model.n_key_value_heads
    return choose.matched_sets(heads, model.n_layers, model.n_heads, group, draws)


def with_control(
    measure: Callable[[dict[str, Heads]], xr.Dataset], sets: Mapping[str, Heads], draws: Mapping[Any, Sequence[Heads]]
) -> Recording:
    """`measure(sets)`, whose `heads` are the names of sets, of named sets and of random ones in one go: data and control.

    `draws`: name -> the random sets matched to that set, as many for each name.
    """
    flat = {f"{name}, random {i}": heads for name, of in draws.items() for i, heads in enumerate(of)}
    if clash := set(sets) & set(flat):
        raise ValueError(f"two sets are called '{clash.pop()}'")
    both = measure({**sets, **flat})
    n = both.sizes["heads"] - len(flat)
    data = both.isel(heads=slice(n))
    if not flat:
        return Recording(data)
    control = drawn(both.isel(heads=slice(n, None)), list(draws)).assign_coords(control="random sets")
    return Recording(data, with_shared(control, data))


def with_other_halves(
    run: Run,
    recording: Recording,
    name: str,
    encoded: Sequence[Encoded],
    measure: Callable[[dict[str, Heads], list[int]], xr.Dataset],
) -> Recording:
    """`recording` with one entry more among its heads, "NAME, other halves": of every prompt, the set that locating prompts of other
    class pairs and other label pairs choose.

    encoded: the prompts of `recording`; measure(sets, which of them): the same for these. Where a turn's locating prompts name no
    heads there is no such entry.
    """
    locating = of_labels(Recording(run.measured("locating")), "arbitrary").data
    prompts = observations(encoded, {}).assign(at=("prompt", range(len(encoded))))
    turns = [(choose.head_sets(a, run.settings.top_k), b["at"].values.tolist()) for a, b in choose.turns(locating, prompts)]
    turn_heads = [(sets[name] or sets["by attention"], at) for sets, at in turns]  # as in steering._comparers
    if not all(heads for heads, _ in turn_heads):
        return recording
    parts = [measure({f"{name}, {OTHER_HALVES}": heads}, at).assign_coords(at=("prompt", at)) for heads, at in turn_heads]
    others = joined(parts).sortby("at").drop_vars("at")
    return recording._replace(data=joined([recording.data, others], "heads"))


def drawn(data: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """Entries of `heads`, as many for each name and one name's after the other's: variables over (heads, draw)."""
    each = data[[name for name, array in data.data_vars.items() if "heads" in array.dims]].drop_vars("heads").rename(heads="draw")
    count = each.sizes["draw"] // len(names)
    parts = [each.isel(draw=slice(i * count, (i + 1) * count)) for i in range(len(names))]
    return xr.concat(parts, pd.Index(names, name="heads")).assign_coords(draw=range(count))


def with_by_increase(run: Run, k: int | None = None) -> dict[str, list[Head]]:
    """The run's sets, of so many heads, and that of the paper: for recipes that need the measurement "norms", too."""
    located = choose.with_increase(run.measured("locating"), run.measured("norms"))
    return choose.head_sets(located, k or run.settings.top_k)


def present(sets: Mapping[str, list[Head]]) -> dict[str, list[Head]]:
    """Sets in which the rule names heads. Raises NotTestable where it names none at all."""
    not_empty = {name: heads for name, heads in sets.items() if heads}
    if not not_empty:
        raise NotTestable("no rule names any head of this model, as happens where it does not learn the task")
    return not_empty
