"""Recorded measurements, data/measurements/MODEL/SUITE/NAME.nc: which there are, and what is checked before a page shows one.

    recorded_models()                                           # {"smollm2-135m": its folder, ...}
    open_recorded("smollm2-135m", "words", "heads").data        # None where there is none

A file may come from anyone. So it is refused, in one line, where it is larger than it should be, of other texts or an older
version, of another model than its folder says, or names heads that the model does not have.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

from twotowers import store
from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.paths import data_folder
from twotowers.recording import Recording
from twotowers.settings import Settings

LIMIT, TEXT_BYTES = 2**30, 64
"""Bytes that a file may take once it is unpacked, of which the largest here take a tenth; and those of a text, whatever it is"""
COUNTS = ("parameters", "layers", "heads", "key_value_heads", "vocabulary")
FREE = {"query", "text"}
"""Coordinates that hold text of any kind; all others are names, which stand in charts, too, and hold no sign of HTML"""


def recorded_models() -> dict[str, Path]:
    """Name -> folder of every model whose measurements are recorded."""
    return {path.name: path for path in sorted((data_folder() / "measurements").glob("[!.]*")) if path.is_dir()}


def open_recorded(model: str, suite: str, name: str) -> Recording | None:
    """A recorded measurement, None where there is none. Raises TwoTowersError, naming the file, for one that is not sound."""
    path = data_folder() / "measurements" / model / suite / f"{name}.nc"
    if not path.is_file():
        return None
    try:
        _check_size(path)
        recording = store.load(path)
        _check_origin(recording.data.attrs, model, suite, name)
        _check_names(recording.data)
    except TwoTowersError as error:
        raise TwoTowersError(f"'{model}/{suite}/{name}.nc' is no recorded measurement: {error}") from None
    return recording


def settings_of(recording: Recording) -> dict[str, Any]:
    """What all files of a model and suite share: the model's fingerprint and the settings, but for how many prompts there are."""
    origin = json.loads(recording.data.attrs["identity"])
    shared = {*Settings.model_fields} - {"blocks", "locate", "prompts"} | {"model"}
    return {name: value for name, value in origin.items() if name in shared}


def command(model: str, suite: str, name: str) -> str:
    """What records a measurement that a recorded model lacks, on as many blocks as its others."""
    like, option = ("paper", "prompts") if store.about(name).on == "prompts" else ("heads", "blocks")
    of_like = open_recorded(model, suite, like)
    many = "" if of_like is None else f" --{option} {json.loads(of_like.data.attrs['identity'])[option]}"
    return f"twotowers record {model} {name}{many}" + ("" if suite == "words" else f" --suite {suite}")


def _check_size(path: Path) -> None:
    try:
        with netCDF4.Dataset(path) as file:
            variables = [v for group in (file, *file.groups.values()) for v in group.variables.values()]
            size = sum(math.prod(v.shape) * (TEXT_BYTES if v.dtype is str else v.dtype.itemsize) for v in variables)
    except (OSError, RuntimeError, ValueError) as error:
        raise TwoTowersError(f"it is damaged ({type(error).__name__})") from None
    if size > LIMIT:
        raise TwoTowersError(f"it would take {size / 2**30:,.0f} GiB, more than {LIMIT / 2**30:g}")


def _check_origin(attributes: dict[Any, Any], model: str, suite: str, name: str) -> None:
    for attribute, place in (("measurement", name), ("suite", suite), ("model", model)):
        if attributes.get(attribute) != place:
            raise TwoTowersError(f"it says '{attributes.get(attribute)}', and lies where '{place}' belongs")
    if odd := [count for count in COUNTS if not isinstance(attributes.get(count), int | np.integer) or attributes[count] < 1]:
        raise TwoTowersError(f"its attribute '{odd[0]}' is no count")
    try:
        origin = json.loads(attributes.get("identity", ""))
        if not isinstance(origin, dict) or not isinstance(origin.get("versions"), dict):
            raise ValueError
    except ValueError:
        raise TwoTowersError("its attribute 'identity' is no list of settings") from None
    Settings.of({setting: value for setting, value in origin.items() if setting in Settings.model_fields and setting != "model"})
    if (origin.get("model"), origin.get("suite")) != (attributes.get("fingerprint"), suite):
        raise TwoTowersError(f"its identity is of '{origin.get('model')}', '{origin.get('suite')}'")
    store.check_current(origin, model, suite, name)


def _check_names(data: xr.Dataset) -> None:
    """Heads are those that the model has, and no name is a tag."""
    for name, n in (("layer", data.attrs["layers"]), ("head", data.attrs["heads"])):
        if name in data.dims and data[name].values.tolist() != list(range(n)):
            raise TwoTowersError(f"its '{name}' does not count from 0 to {n - 1}")
        if name in data.coords and not ((data[name] >= 0) & (data[name] < n)).all():
            raise TwoTowersError(f"its '{name}' goes beyond {n - 1}")
    if "listed_head" in data.dims:
        at = zip(data["layer"].values, data["head"].values, strict=True)
        if data["listed_head"].values.tolist() != named(at):
            raise TwoTowersError("its 'listed_head' are not the names of its heads")
    for key, values in data.coords.items():
        if key not in FREE and values.dtype.kind in "UO" and any(set(text) & set("<>&") for text in np.unique(values)):
            raise TwoTowersError(f"its '{key}' holds a sign of HTML, and is no name")
