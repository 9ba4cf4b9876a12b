"""The measurements that exist: versions, needs and costs, and the form of each.

    >>> versions("heads")
    {'forms': 1, 'heads': 1}
    >>> variables()["heads"]["attention"].dims
    ('prompt', 'layer', 'head', 'place')

Versions are in `data/versions.csv`, forms in `data/variables.csv`. A form is checked when a file is
saved and when it is loaded. `head` is the number within a layer; both count from 0. Single heads
that are listed have the dimension `listed_head`, with `layer` and `head` as coordinates. They have
the dimension `named_head` if the file also has `layer` and `head` as dimensions. No variable has
the name of a dimension, and every variable is read by a page (`tests/test_unread.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Literal

import xarray as xr
from pydantic import BeforeValidator, PositiveFloat, PositiveInt

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.tables import Optional, Row, Text, read_table

NOT_TESTABLE = "not_testable"
"""Attribute of a file without variables: why the measurement has no meaning for the model"""
RELATIONS = ("none", "own label", "other label", "own text", "own class", "other class")
"""How a token relates to its prompt: the values of `relation`"""
LISTED = ("prompt", "listed_head", "place")
COORDINATES = {
    "prompt": {"pair", "labels", "cls", "true_label", "order", "block", "true_first"},
    "listed_head": {"listed_head", "layer", "head"}, "head_set": {"head_set", "matched_set"},
    "place": {"true"}, "sender": {"sender_layer", "sender_head"},
    "component": set(), "position": set(), "neuron": set(), "candidate": set(),
}  # fmt: skip
"""Dimension -> its coordinates; any other dimension has one of its own name"""
KINDS = {"float": "f", "int": "iu", "str": "UOST"}
"""Type in data/variables.csv -> kinds of NumPy types"""


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


class Variable(Row):
    """A line of data/variables.csv: a variable, its dimensions in any order, and its unit."""

    measurement: Text
    variable: Text
    dims: Annotated[tuple[str, ...], BeforeValidator(str.split)]
    units: Text
    type: Literal["float", "int", "str"]


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
def variables() -> dict[str, dict[str, Variable]]:
    """Return the variables of every measurement."""
    out: dict[str, dict[str, Variable]] = {}
    for row in read_table(data_folder() / "variables.csv", Variable, ("measurement", "variable")):
        out.setdefault(row.measurement, {})[row.variable] = row
    return out


def listing() -> list[str]:
    """Return a line for every variable of every measurement, indented as code for a page."""
    rows = [
        (row.measurement, row.variable, f"({', '.join(row.dims)})", row.units)
        for of_measurement in variables().values()
        for row in of_measurement.values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def versions(name: str) -> dict[str, int]:
    """Return the versions of the code of a measurement and of all that it needs."""
    every = {name: row_of(name).version}
    for need in row_of(name).needs:
        every |= versions(need)
    return dict(sorted(every.items()))


def faults(data: xr.Dataset) -> Iterator[str]:
    """Yield each difference between a measurement and data/variables.csv."""
    if NOT_TESTABLE in data.attrs:
        return
    name = data.attrs.get("measurement")
    if name not in variables():
        yield f"its attribute measurement is '{name}'"
        return
    form = variables()[name]
    dims = {dim for row in form.values() for dim in row.dims}
    wanted = {*form}.union(*(COORDINATES.get(dim, {dim}) for dim in dims))
    if missing := wanted - {*data.variables}:
        yield f"it lacks {', '.join(sorted(missing))}"
    if more := {*map(str, data.data_vars)} - {*form}:
        yield f"{', '.join(sorted(more))} is not in data/variables.csv"
    for variable, row in form.items():
        array = data[variable]
        if sorted(map(str, array.dims)) != sorted(row.dims):
            found = ", ".join(map(str, array.dims))
            yield f"'{variable}' is over ({found}), not ({', '.join(row.dims)})"
        if array.dtype.kind not in KINDS[row.type]:
            yield f"'{variable}' has another type than {row.type}"
        if array.attrs.get("units") != row.units:
            yield f"'{variable}' is not in {row.units}"
