"""A recorded folder that somebody hands in is data: it is checked before anything of it is used.

faults(Path("data/measurements/someone"))     # [], or a line for everything that is wrong with it
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import netCDF4
import numpy as np
import xarray as xr
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from twotowers import store
from twotowers.data_files import Text
from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.settings import Settings

NAME = re.compile(r"\w[\w.-]*", re.ASCII)
LIMIT = 2**30
"""bytes that a file may take once it is unpacked; the largest of the book take a tenth of it"""
FREE = {"query", "text", "source_text"}
"""Coordinates that hold text of any kind; all others are names, which stand in charts, too, and hold no sign of HTML"""
TEXT_BYTES = 64  # of a text whose length stands nowhere


class About(BaseModel):
    """The attributes of a recorded file: see `towerlab.measure.chain`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    measurement: Text
    version: PositiveInt
    identity: Text
    model: Text
    fingerprint: Text
    quantisation: str
    parameters: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    key_value_heads: PositiveInt
    vocabulary: PositiveInt
    suite: Text
    command: str = ""
    seconds: float
    date: str
    machine: str
    libraries: str
    licence: Text
    not_testable: str = ""
    left_out: int = 0
    note: str = ""
    labels_left_out: str = ""


ONE = ("model", "fingerprint", "quantisation", "parameters", "layers", "heads", "key_value_heads", "vocabulary")
"""Attributes that all files of a folder share"""


def faults(folder: Path) -> list[str]:
    """What keeps a folder such as data/measurements/MODEL from being used, a line each; empty where nothing does.

    Nothing is read that would take more than LIMIT bytes. All files are of one model; those of a suite of one setting, but for
    the number of judging blocks; all are of the schema, of the texts of today and of the current versions.
    """
    out = [] if NAME.fullmatch(folder.name) else [f"'{folder.name}' is no name of a model: use letters, digits, '.', '_' and '-'"]
    files = sorted(folder.rglob("*.nc"))
    common: dict[str, dict[str, object]] = {"": {}}  # what the files seen so far share: of the folder, and of each suite
    for path in files:
        try:
            for group, values in _check_file(path, folder):
                for name, value in values.items():
                    if common.setdefault(group, {}).setdefault(name, value) != value:
                        raise TwoTowersError(f"its {name} is {value}, that of files before it {common[group][name]}")
        except TwoTowersError as error:
            out.append(str(TwoTowersError(f"'{path.relative_to(folder)}' is no recorded measurement: {error}")))
    return out if files else [*out, "it holds no measurement"]


def _check_file(path: Path, folder: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """What a file must share with the others of its folder, and of its suite, once it is sound by itself."""
    suite, name = path.parent.name, path.stem
    if path.parent.parent != folder or suite not in store.TEXTS or name not in store.catalogue():
        raise TwoTowersError("write SUITE/NAME.nc, with names of data/versions.csv")
    _check_size(path)
    recording = store.load(path, lazy=True)
    about = _about(recording.data)
    for label, place in ((about.measurement, name), (about.suite, suite), (about.model, folder.name)):
        if label != place:
            raise TwoTowersError(f"it says '{label}', and lies where '{place}' belongs: name the folder as its model")
    origin = _origin(about)
    store.check_current(origin, about.model, suite, name)
    _check_heads(recording.data, about)
    for coordinate, values in recording.data.coords.items():
        if coordinate not in FREE and values.dtype.kind in "UO" and any(set(text) & set("<>&") for text in np.unique(values)):
            raise TwoTowersError(f"its '{coordinate}' holds a sign of HTML, and is no name")
    yield "", {name: getattr(about, name) for name in ONE}
    yield suite, {name: value for name, value in origin.items() if name in Settings.model_fields and name != "blocks"}


def _check_size(path: Path) -> None:
    """Raises TwoTowersError for a file that is damaged, has other groups, or is too large once it is unpacked."""
    try:
        with netCDF4.Dataset(path) as file:
            if other := set(file.groups) - {"control"} | {sub for group in file.groups.values() for sub in group.groups}:
                raise TwoTowersError(f"the group '{min(other)}' is not in the schema")
            size = sum(_bytes(group) for group in (file, *file.groups.values()))
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, TwoTowersError):
            raise
        raise TwoTowersError(f"it is damaged ({type(error).__name__})") from None
    if size > LIMIT:
        raise TwoTowersError(f"it would take {size / 2**30:,.0f} GiB, more than {LIMIT / 2**30:g}")


def _bytes(group: netCDF4.Dataset) -> int:
    """Bytes of the variables of a group, unpacked."""
    return sum(math.prod(v.shape) * (TEXT_BYTES if v.dtype is str else v.dtype.itemsize) for v in group.variables.values())


def _about(data: xr.Dataset) -> About:
    attributes = {str(k): v.item() if isinstance(v, np.generic) else v for k, v in data.attrs.items()}
    try:
        return About.model_validate(attributes)
    except ValidationError as error:
        first = error.errors()[0]
        raise TwoTowersError(f"its attribute '{first['loc'][0]}': {first['msg']}") from None


def _origin(about: About) -> dict:
    """`identity` as a mapping, with settings that are settings. Raises TwoTowersError for anything else."""
    try:
        origin = json.loads(about.identity)
        if not isinstance(origin, dict) or not isinstance(origin.get("versions"), dict):
            raise ValueError
    except ValueError:
        raise TwoTowersError("its attribute 'identity' is no list of settings") from None
    Settings.of({name: value for name, value in origin.items() if name not in ("model", "texts", "versions")})
    if (origin.get("model"), origin.get("suite")) != (about.fingerprint, about.suite):
        raise TwoTowersError(f"its identity is of '{origin.get('model')}', '{origin.get('suite')}'")
    return origin


def _check_heads(data: xr.Dataset, about: About) -> None:
    """Raises TwoTowersError for heads that the model does not have."""
    for name, n in (("layer", about.layers), ("head", about.heads)):
        if name in data.dims and data[name].values.tolist() != list(range(n)):
            raise TwoTowersError(f"its '{name}' does not count from 0 to {n - 1}")
        if name in data.coords and not ((data[name] >= 0) & (data[name] < n)).all():
            raise TwoTowersError(f"its '{name}' goes beyond {n - 1}")
    at = () if "listed_head" not in data.dims else zip(data["layer"].values, data["head"].values, strict=True)
    if "listed_head" in data.dims and data["listed_head"].values.tolist() != named(at):
        raise TwoTowersError("its 'listed_head' are not the names of its heads")
