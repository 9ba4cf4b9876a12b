"""The measurements that exist: versions, needs and costs, and the form of each.

    >>> versions("heads")
    {'forms': 1, 'heads': 1}
    >>> variables()["heads"]["attention"].dims
    ('prompt', 'layer', 'head', 'place')

Versions are in `data/versions.csv`, forms in `data/variables.csv`. A form is checked when a file is
loaded. `head` is the number within a layer; both count from 0. Single heads
that are listed have the dimension `listed_head`, with `layer` and `head` as coordinates. They have
the dimension `named_head` if the file also has `layer` and `head` as dimensions. No variable has
the name of a dimension, and every variable is read by a page (`tests/test_unread.py`).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import xarray as xr
from pydantic import BeforeValidator, PositiveFloat, PositiveInt

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.tables import Optional, Row, Text, read_csv, read_table

NOT_TESTABLE = "not_testable"
"""Attribute of a file without variables: why the measurement has no meaning for the model"""
RELATIONS = ("none", "own label", "other label", "own text", "own class", "other class")
"""How a token relates to its prompt: the values of `relation`"""


class Version(Row):
    """A line of data/versions.csv: the version of a measurement's code, its needs and its cost."""

    measurement: Text
    module: Text
    """of `towerlab.measure`, whose function _NAME makes the measurement"""
    version: PositiveInt
    needs: Annotated[tuple[str, ...], BeforeValidator(str.split)]
    on: Literal["locate", "blocks", "few", "prompts"]
    """blocks that it is made from; "locate": more evaluation blocks do not change it; "prompts":
    the paper's own sets, so that only PAPER_SETTINGS decide it"""
    passes: PositiveFloat
    """cost of a prompt in plain passes, as timed for SmolLM2-135M"""
    sentences: Optional
    """the same for sentences, if it differs"""
    sources: str
    """digest of its code when this version was pinned (tests/test_versions.py)"""

    @property
    def judges(self) -> bool:
        return self.on != "locate"


@cache
def catalogue() -> dict[str, Version]:
    """Return the rows of data/versions.csv by measurement, each after the ones that it needs."""
    rows = read_table(data_folder() / "versions.csv", Version, ("measurement",))
    return {row.measurement: row for row in rows}


def row_of(name: str) -> Version:
    """Return the row of a measurement. Raises TwoTowersError for an unknown name."""
    if name not in catalogue():
        raise TwoTowersError(f"no measurement '{name}': choose one of {', '.join(catalogue())}")
    return catalogue()[name]


@cache
def variables() -> dict[str, dict[str, Any]]:
    """Return the variables of every measurement: rows of data/variables.csv, `dims` split."""
    table = read_csv(data_folder() / "variables.csv", str)
    table["dims"] = table["dims"].str.split().map(tuple)
    groups = table.groupby("measurement", sort=False)
    return {str(name): {row.variable: row for row in of.itertuples()} for name, of in groups}


def versions(name: str) -> dict[str, int]:
    """Return the versions of the code of a measurement and of all that it needs."""
    every = {name: row_of(name).version}
    for need in row_of(name).needs:
        every |= versions(need)
    return dict(sorted(every.items()))


def fault(data: xr.Dataset) -> str:
    """Return the first difference between a measurement and data/variables.csv, "" without any."""
    form = variables().get(data.attrs.get("measurement", ""), {})
    if NOT_TESTABLE in data.attrs:
        return ""
    if different := {*form} ^ {*map(str, data.data_vars)}:
        return f"missing or unknown variables: {', '.join(sorted(different))}"
    for name, row in form.items():
        array = data[name]
        found = {*array.dims}, array.attrs.get("units")
        if found != ({*row.dims}, row.units):
            return f"'{name}' is over {array.dims} in {found[1]}"
    return ""
