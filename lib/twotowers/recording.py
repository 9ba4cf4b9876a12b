"""A measurement as chapters see it: named sets of heads, and random ones beside them.

recording = recorded.open_recorded("smollm2-135m", "words", "ablations")
recording.data                         # variables over (heads, prompt)
recording.control                      # over (heads, draw, prompt); None where there is none
of_labels(recording, "names").data     # prompts whose labels are the classes' own names
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import xarray as xr

from twotowers.errors import TwoTowersError

LABELS = ("arbitrary", "names", "all")
"""Kinds of labels: words that mean nothing for the classes (those judge), the classes' own names,
or both"""


class Recording(NamedTuple):
    """`data` over named sets of heads; `control`: the same of the random sets matched to some of
    them, with a dimension `draw` more. What does not depend on `heads` stands in both. The scalar
    coordinate `control` of the control tells its kind: "random sets" or "random directions".
    """

    data: xr.Dataset
    control: xr.Dataset | None = None


def with_shared(part: xr.Dataset, data: xr.Dataset) -> xr.Dataset:
    """A part with what it shares with the data: all that does not depend on `heads`."""
    return data.drop_dims("heads").assign_coords(part.coords).assign(part.data_vars)


def own(part: xr.Dataset, data: xr.Dataset) -> xr.Dataset:
    """A part without what it shares with the data: what is written to its group."""
    variables = part[[name for name, array in part.data_vars.items() if "heads" in array.dims]]
    common = [name for name in variables.coords if name in data.coords and name != "heads"]
    return variables.drop_vars(common).drop_attrs(deep=False)


def of_labels(recording: Recording, labels: str) -> Recording:
    """Prompts with labels of one kind, of LABELS.

    A prompt's labels are the classes' own names where its `labels` equals its `pair`.

    Args:
        recording: data and control over the same prompts.
        labels: "arbitrary", "names" or "all".

    Raises:
        TwoTowersError: for no kind of LABELS.
    """
    if labels not in LABELS:
        raise TwoTowersError(f"no labels '{labels}': choose one of {', '.join(LABELS)}")
    if labels == "all" or "labels" not in recording.data.coords:
        return recording
    are_names = (recording.data["labels"] == recording.data["pair"]).values
    at = np.flatnonzero(are_names == (labels == "names"))
    return each_part(recording, lambda part: part.isel(prompt=at))


def each_part(recording: Recording, change: Callable[[xr.Dataset], xr.Dataset]) -> Recording:
    """A measurement with its parts changed alike."""
    data, control = recording
    return Recording(change(data), None if control is None else change(control))
