"""Sets of heads that recipes share: those that a rule names, and random ones matched to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from twotowers import choose
from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads
from twotowers.opened import Opened, with_shared

from towerlab.measure.chain import Run

DRAWS = 20


def drawn(run: Run, heads: Sequence[Head]) -> list[list[Head]]:
    """DRAWS random sets matched to one, none of whose heads stands in the set in question."""
    model = run.model
    group = model.n_heads // model.n_key_value_heads
    return choose.matched_sets(heads, model.n_layers, model.n_heads, group, DRAWS)


def with_control(
    measure: Callable[[dict[str, Heads]], xr.Dataset], sets: Mapping[str, Heads], draws: Mapping[Any, Sequence[Heads]]
) -> Opened:
    """`measure(sets)`, whose `heads` are the names of sets, of named sets and of random ones in one go: data and control.

    `draws`: name -> the random sets matched to that set, as many for each name.
    """
    flat = {f"{name}, random {i}": heads for name, of in draws.items() for i, heads in enumerate(of)}
    if shared := set(sets) & set(flat):
        raise ValueError(f"two sets are called '{shared.pop()}'")
    both = measure({**sets, **flat})
    n = both.sizes["heads"] - len(flat)
    data = both.isel(heads=slice(n))
    if not flat:
        return Opened(data)
    control = rows(both, n, draws, "draw").assign_coords(control="random sets")
    return Opened(data, with_shared(control, data))


def rows(data: xr.Dataset, first: int, sets: Mapping[Any, Sequence], dim: str, labels: Sequence[int] = ()) -> xr.Dataset:
    """Entries of `heads` from `first` on, one after the other those of each name of `sets`: variables over (heads, dim).

    A name with fewer entries than others has NaN, and -1 for what is an index, in place of the rest.
    """
    most = max(map(len, sets.values()))
    ends = first + np.cumsum([0, *map(len, sets.values())])
    at = np.array([[begin + i if i < len(of) else -1 for i in range(most)] for begin, of in zip(ends, sets.values(), strict=False)])
    part = data[[name for name, array in data.data_vars.items() if "heads" in array.dims]].drop_vars("heads")
    places = xr.DataArray(at, dims=("heads", dim), coords={"heads": list(sets), dim: list(labels)[:most] or range(most)})
    there, out = places >= 0, part.isel(heads=places)
    return out.map(lambda x: x.where(there, -1 if x.dtype.kind == "i" else np.nan).transpose(*x.dims), keep_attrs=True)


def present(sets: Mapping[str, list[Head]]) -> dict[str, list[Head]]:
    """Sets in which the rule names heads. Raises NotTestable where it names none at all."""
    some = {name: heads for name, heads in sets.items() if heads}
    if not some:
        raise NotTestable("no rule names any head of this model, as happens where it does not learn the task")
    return some


def with_comparers(run: Run) -> dict[str, list[Head]]:
    """The run's sets; where the rule names no comparers, the heads with the largest attention difference stand for them."""
    return {**run.sets, "comparers": run.sets["comparers"] or run.sets["by attention"]}
