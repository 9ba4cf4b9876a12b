"""The form of every measurement (data/variables.csv), checked on save and on load.

- `head` is the number beside `layer`, both from 0. Single heads that are listed lie along
  `listed_head`, whose names ("18-6") have `layer` and `head` beside them; `heads` are named sets of
  heads.
- Random sets and random directions are a dimension `draw` in a group of their own, `control`, with
  the same variables as the data: over (..., heads, draw, ...).
- Whatever has answers has `logit_difference`, the log-probability of the true label minus that of
  the other, or `says`, the top token. A variable is here because a page reads it
  (`tests/test_unread.py`): what else a recipe makes is not kept.
- Heads along `named_head` have names only, where a file also has `layer` and `head` as dimensions.
- No variable has the name of a dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Literal

import xarray as xr
from pydantic import BeforeValidator

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.recording import Recording
from twotowers.tables import Row, Text, read_table

OPTIONAL = {"query", "text"}
"""Texts are left out where they are not ours to pass on"""
LISTED = ("prompt", "listed_head", "place")
OF_PROMPTS = {"pair", "labels", "cls", "true_label", "order", "block", "true_first"}
BESIDE = {
    "prompt": OF_PROMPTS, "listed_head": {"listed_head", "layer", "head"}, "place": {"true"},
    "sender": {"sender_layer", "sender_head"}, "draw": {"draw", "control"},
    "component": set(), "position": set(), "neuron": set(), "candidate": set(),
}  # fmt: skip
"""Dimension -> coordinates that stand with it; others have one of their own name. A place is a
demonstration"""
KINDS = {"float": "f", "int": "iu", "str": "UOST"}
"""Type -> kinds of numpy's types that hold it"""
PART = "part"
"""What is under way, kept so that it can go on: it may lack what comes last, and is read by what
wrote it alone"""


class OtherForm(TwoTowersError):
    """A measurement has another form than the schema says."""


class Variable(Row):
    """A line of data/variables.csv: a variable of a measurement, its dimensions in any order (with
    spaces between), and its unit."""

    measurement: Text
    variable: Text
    dims: Annotated[tuple[str, ...], BeforeValidator(str.split)]
    units: Text
    type: Literal["float", "int", "str"]


@cache
def variables() -> dict[str, dict[str, Variable]]:
    """Measurement -> its variables."""
    out: dict[str, dict[str, Variable]] = {}
    for row in read_table(data_folder() / "variables.csv", Variable, ("measurement", "variable")):
        out.setdefault(row.measurement, {})[row.variable] = row
    return out


def check(name: str, recording: Recording) -> None:
    """A measurement has the form of this module; one that holds nothing has.

    Args:
        name: of the measurement.
        recording: its data and control.

    Raises:
        OtherForm: naming what differs.
    """
    if name == PART:
        return
    if name not in variables():
        raise OtherForm(f"no measurement '{name}'")
    for part, where in ((recording.data, ""), (recording.control, ", in its group 'control'")):
        for fault in _faults(part, variables()[name], drawn=bool(where)) if part else ():
            raise OtherForm(fault + where)


def _faults(data: xr.Dataset, form: Mapping[str, Variable], drawn: bool) -> Iterator[str]:
    """`drawn`: what depends on heads has a dimension `draw` more."""
    dims_of = {
        name: (*about.dims, "draw") if drawn and "heads" in about.dims else about.dims
        for name, about in form.items()
    }
    wanted = {*form}.union(*(BESIDE.get(dim, {dim}) for dims in dims_of.values() for dim in dims))
    if missing := wanted - {*data.variables}:
        yield f"it lacks {', '.join(sorted(missing))}"
    if more := {*map(str, data.data_vars)} - {*form}:
        yield f"{', '.join(sorted(more))} is not in the schema"
    for variable, about in form.items():
        array, dims = data[variable], dims_of[variable]
        if sorted(map(str, array.dims)) != sorted(dims):
            there = ", ".join(map(str, array.dims))
            yield f"'{variable}' is over ({there}), not ({', '.join(dims)})"
        if array.dtype.kind not in KINDS[about.type]:
            yield f"'{variable}' is no {about.type}"
        if array.attrs.get("units") != about.units:
            yield f"'{variable}' is not in {about.units}"


def listing() -> list[str]:
    """Every variable of every measurement, a line each, indented as code: a page shows it."""
    rows = [
        (about.measurement, about.variable, f"({', '.join(about.dims)})", about.units)
        for of in variables().values()
        for about in of.values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
