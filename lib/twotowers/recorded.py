"""Recorded measurements, data/measurements/MODEL/SUITE/NAME.nc, checked before a page shows one.

    >>> "smollm2-135m" in recorded_models()
    True
    >>> open_recorded("smollm2-135m", "words", "heads").data.sizes["layer"]
    30
    >>> open_recorded("smollm2-135m", "words", "none such")     # None

A file may come from anyone. So it is refused, in one line, where it is larger than it should be, of
texts that are no more or an older version, of another model than its folder says, or names heads
that the model does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from pydantic import BaseModel, Json, PositiveInt, ValidationError

from twotowers import store
from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.paths import data_folder
from twotowers.recording import Recording
from twotowers.settings import Settings
from twotowers.tables import first_fault

LIMIT = 2**30
"""Bytes that a file may take once it is unpacked, of which the largest here take a tenth"""
FREE = {"query", "text"}
"""Coordinates that hold text of any kind; all others are names, which stand in charts, too, and
hold no sign of HTML"""


class Attributes(BaseModel):
    """What a file says of itself."""

    measurement: str
    suite: str
    model: str
    fingerprint: str
    identity: Json[dict[str, Any]]
    drawn_from: Json[dict[str, list[str]]]
    parameters: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    key_value_heads: PositiveInt
    vocabulary: PositiveInt


def recorded_models() -> dict[str, Path]:
    """Name -> folder of every model whose measurements are recorded."""
    return {
        path.name: path
        for path in sorted((data_folder() / "measurements").glob("[!.]*"))
        if path.is_dir()
    }


def open_recorded(model: str, suite: str, name: str) -> Recording | None:
    """A recorded measurement, None where there is none.

    Args:
        model: its folder.
        suite: its texts.
        name: of the measurement.

    Raises:
        TwoTowersError: naming the file, for one that is not sound.
    """
    path = data_folder() / "measurements" / model / suite / f"{name}.nc"
    if not path.is_file():
        return None
    try:
        recording = store.load(path, LIMIT)
        _check_origin(recording.data.attrs, model, suite, name)
        _check_names(recording.data)
    except TwoTowersError as error:
        raise TwoTowersError(
            f"'{model}/{suite}/{name}.nc' is no recorded measurement: {error}"
        ) from None
    return recording


def settings_of(recording: Recording) -> dict[str, Any]:
    """What all files of a model and suite share: the model's fingerprint and the settings, but for
    how many prompts there are."""
    shared = Settings.model_fields.keys() - store.NUMBERS
    return {name: value for name, value in store.origin(recording).items() if name in shared}


def command(model: str, suite: str, names: Sequence[str]) -> str:
    """What records measurements that a recorded model lacks, on as many blocks as its others.

    Args:
        model: its folder.
        suite: its texts.
        names: of the measurements.
    """
    text = " ".join(["twotowers record", model, *names]) + (
        "" if suite == "words" else f" --suite {suite}"
    )
    of_prompts = {store.about(name).on == "prompts" for name in names}
    for are_prompts, like, option in ((False, "heads", "blocks"), (True, "paper", "prompts")):
        with suppress(TwoTowersError):  # one that cannot be read is named where it is opened
            if are_prompts in of_prompts and (of := open_recorded(model, suite, like)):
                text += f" --{option} {store.origin(of)[option]}"
    return text


def _check_origin(attributes: Mapping[str, Any], model: str, suite: str, name: str) -> None:
    try:
        about = Attributes(**attributes)
    except ValidationError as error:
        raise TwoTowersError("its attribute " + first_fault(error)) from None
    for says, place in ((about.measurement, name), (about.suite, suite), (about.model, model)):
        if says != place:
            raise TwoTowersError(f"it says '{says}', and lies where '{place}' belongs")
    own = Settings.of(
        {
            key: value
            for key, value in about.identity.items()
            if key in Settings.model_fields and key != "model"
        }
    )
    drawn, now = about.drawn_from, store.drawn_from(suite)
    for file, entries in drawn.items():
        if gone := [entry for entry in entries if entry not in now.get(file, ())]:
            raise TwoTowersError(
                f"it was drawn from '{gone[0]}' of data/{file}, which is gone: restore it, "
                "or record the model again"
            )
    for key, today in json.loads(store.identity(name, own, about.fingerprint, drawn)).items():
        if about.identity.get(key) != today:
            raise TwoTowersError(
                f"its {key} is {about.identity.get(key)}, and would be {today} now: record it again"
            )


def _check_names(data: xr.Dataset) -> None:
    """Heads are those that the model has, and no name is a tag."""
    for name, n in (("layer", data.attrs["layers"]), ("head", data.attrs["heads"])):
        every = {*range(n)}
        if name in data.coords and not (
            {*data[name].values} == every if name in data.dims else {*data[name].values} <= every
        ):
            raise TwoTowersError(f"its '{name}' does not count from 0 to {n - 1}")
    if "listed_head" in data.dims:
        heads = named(zip(data["layer"].values, data["head"].values, strict=True))
        if data["listed_head"].values.tolist() != heads:
            raise TwoTowersError("its 'listed_head' are not the names of its heads")
    for key, values in data.coords.items():
        if (
            key not in FREE
            and values.dtype.kind in "UO"
            and any(set(text) & set("<>&") for text in np.unique(values))
        ):
            raise TwoTowersError(f"its '{key}' holds a sign of HTML, and is no name")
