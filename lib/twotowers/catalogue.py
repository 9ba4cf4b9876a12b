"""The existing measurements: versions, requirements and costs, and the variables of each.

    >>> versions("heads")
    {'heads': 1, 'templates': 1}
    >>> variables()["heads"]["attention"].dims
    ('prompt', 'layer', 'head', 'demonstration')

Versions are in `data/versions.csv`, and variables with their dimensions and units are in
`data/variables.csv`. Variables are checked when a file is loaded. `head` is the number within a
layer, and layers and heads count from 0. Selected single heads have the dimension `selected_head`,
with `layer` and `head` as coordinates, except if the file has these as dimensions. No variable has
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
"""Relation of a token to its prompt: the values of `relation`"""


class Version(Row):
    """A line of data/versions.csv: version of a measurement's code, requirements and cost."""

    measurement: Text
    module: Text
    """Module of `towerlab_experiments` whose RECIPES make the measurement"""
    version: PositiveInt
    needs: Annotated[tuple[str, ...], BeforeValidator(str.split)]
    prompts: Literal["selection_blocks", "evaluation_blocks", "intervention_blocks", "paper_sets"]
    """Prompts that it is made from. With "selection_blocks", more evaluation blocks do not change
    it. With "paper_sets", it is made from the paper's own sets, and only PAPER_SETTINGS decide
    it."""
    passes: PositiveFloat
    """Cost of a prompt in plain forward passes, timed for SmolLM2-135M"""
    sentences: Optional
    """Cost of a sentence prompt, if it differs"""
    sources: str
    """Digest of its code when this version was pinned (tests/test_versions.py)"""

    @property
    def is_evaluation(self) -> bool:
        """Whether the measurement is made on evaluation blocks or on the paper's own sets."""
        return self.prompts != "selection_blocks"


@cache
def catalogue() -> dict[str, Version]:
    """Return the rows of data/versions.csv by measurement, each one after its requirements."""
    rows = read_table(data_folder() / "versions.csv", Version, ("measurement",))
    return {row.measurement: row for row in rows}


def row_of(name: str) -> Version:
    """Return the row of a measurement.

    Args:
        name: Measurement.

    Raises:
        TwoTowersError: If the name is unknown.
    """
    if name not in catalogue():
        raise TwoTowersError(
            f"unknown measurement '{name}': expected one of {', '.join(catalogue())}"
        )
    return catalogue()[name]


@cache
def variables() -> dict[str, dict[str, Any]]:
    """Return the variables of every measurement, as rows of data/variables.csv.

    The field `dims` of a row is a tuple.
    """
    table = read_csv(data_folder() / "variables.csv", str)
    table["dims"] = table["dims"].str.split().map(tuple)
    return {
        measurement: {row.variable: row for row in rows.itertuples()}
        for measurement, rows in table.groupby("measurement", sort=False)
    }


def versions(name: str) -> dict[str, int]:
    """Return the versions of the code of a measurement and of all its requirements.

    Args:
        name: Measurement.
    """
    found = {name: row_of(name).version}
    for requirement in row_of(name).needs:
        found |= versions(requirement)
    return dict(sorted(found.items()))


def fault(data: xr.Dataset) -> str:
    """Return the first difference between a measurement and data/variables.csv, "" without any.

    Args:
        data: A measurement.
    """
    expected = variables().get(data.attrs.get("measurement", ""), {})
    if NOT_TESTABLE in data.attrs:
        return ""
    if different := {*expected} ^ {*map(str, data.data_vars)}:
        return f"missing or unknown variables: {', '.join(sorted(different))}"
    for name, row in expected.items():
        array = data[name]
        units = array.attrs.get("units")
        if {*array.dims} != {*row.dims} or units != row.units:
            return f"'{name}' is over {array.dims} in {units}"
    return ""
