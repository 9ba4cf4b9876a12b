"""What can be measured. A measurement is one file: its function, and below it a recipe, which says what goes in.

    @measurement("heads", needs=("forms",), version=1, on="blocks", passes=3)
    def _heads(run: Run) -> Recording:
        \"\"\"Every head on the blocks that judge.\"\"\"
        return run.in_parts("heads", run.judging(), lambda some: heads(run.model, some))

    measurements()["heads"].make(run)

Needs and version also stand in data/versions.csv, from where they are known without torch (see `measure.versions`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import xarray as xr
from twotowers.recording import Recording

if TYPE_CHECKING:
    from towerlab.measure.chain import Run


class Measurement(NamedTuple):
    """`make(run)` gives the dataset, with its control where it has one; `needs` are measurements that it reads."""

    make: Callable[[Run], xr.Dataset | Recording]
    needs: tuple[str, ...]
    version: int
    """to be raised when numbers change: recorded files of the old version are then refused by name"""
    on: Literal["locate", "blocks", "few"]
    """which blocks it costs most on: see `Run.n_blocks`. "locate": made from these alone, so that more judging blocks leave it
    as it is"""
    passes: float
    """what it costs: for each prompt of these blocks as long as so many plain passes, as timed for SmolLM2-135M"""

    @property
    def judges(self) -> bool:
        return self.on != "locate"

    @property
    def what(self) -> str:
        """What it measures, in a line."""
        return (self.make.__doc__ or "").partition("\n")[0]


_REGISTRY: dict[str, Measurement] = {}


def measurement(
    name: str, *, needs: tuple[str, ...], version: int, on: Literal["locate", "blocks", "few"], passes: float
) -> Callable:
    """Register a recipe under a name."""

    def register(make: Callable[[Run], xr.Dataset | Recording]) -> Callable[[Run], xr.Dataset | Recording]:
        _REGISTRY[name] = Measurement(make, needs, version, on, passes)
        return make

    return register


def measurements() -> Mapping[str, Measurement]:
    """Name -> measurement, of every module of this room."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _REGISTRY
