"""Measurement files: reader, atomic replacement of any file, and precomputed measurements.

    >>> open_precomputed("smollm2-135m", "words", "heads").sizes["layer"]
    30

A file holds one dataset. Along the dimension `head_set`, the sets that a rule selects come first,
then the random sets that are matched to them. The coordinate `matched_set` holds the name of the
set that a random set is matched to, and "" for selected sets.

The attribute `identity` lists everything that decides the numbers, as JSON: the model, the
settings, a digest of the texts that prompts are drawn from, and the versions of the code
(`identity`). A precomputed file is valid if its versions are current.
"""

from __future__ import annotations

import itertools
import os
import platform
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

import xarray as xr

from twotowers import identity
from twotowers.catalogue import catalogue, fault
from twotowers.errors import TwoTowersError
from twotowers.names import precomputed_models
from twotowers.paths import data_folder
from twotowers.settings import Settings

SAME_ANSWERS = 0.9
"""Smallest share of answers that are the same in equal sets of heads, in a file that does not
number its sets: in these files 97% or more are, since few are rounded in two ways, and in different
sets 75% or fewer"""


class UnexpectedVariables(TwoTowersError):
    """A measurement that differs from data/variables.csv."""


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let Ctrl-C wait until a file is done.

    Within the locks of xarray the process would hang.
    """
    waiting: list[int] = []
    # Only the main thread may set handlers.
    in_main = threading.current_thread() is threading.main_thread()
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if in_main else ()
    handlers = {kind: signal.signal(kind, lambda kind, _: waiting.append(kind)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
        for first in waiting[:1]:
            signal.raise_signal(first)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a scratch name next to a path, and replace the path by this file at the end.

    Args:
        path: Path of the final file.

    Yields:
        Path of the scratch file.

    Raises:
        TwoTowersError: If the file cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.scratch")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        os.replace(scratch, path)
    except (OSError, RuntimeError) as error:  # netCDF raises the latter if the disk is full
        raise TwoTowersError(
            f"cannot write '{path}': {error}; free some space, or choose another folder with "
            "out=..."
        ) from None
    finally:
        with suppress(OSError):  # a read-only disk was reported above
            scratch.unlink(missing_ok=True)


def read_dataset(path: Path) -> xr.Dataset:
    """Return the dataset of a file, in memory.

    Args:
        path: Path of the file.

    Raises:
        TwoTowersError: If the file is missing or cannot be read.
    """
    try:
        with deferred_signals():
            return xr.load_dataset(path, engine="netcdf4")
    except FileNotFoundError:
        raise TwoTowersError(
            f"missing measurement '{path}': run `twotowers measure` first"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise TwoTowersError(
            f"cannot read '{path}': {error}; wait until no program writes it, or delete it and "
            "measure it again"
        ) from None


def load(path: Path) -> xr.Dataset:
    """Return a saved measurement, in memory.

    Args:
        path: Path of the file.

    Raises:
        TwoTowersError: If the file cannot be read.
        UnexpectedVariables: If the file differs from data/variables.csv.
    """
    data = read_dataset(path)
    if difference := fault(data):
        raise UnexpectedVariables(f"cannot use '{path}': {difference}; measure it again")
    return data


def select_named_sets(data: xr.Dataset) -> xr.Dataset:
    """Return a measurement of the head sets that a rule selects, without the random ones.

    Args:
        data: A measurement.
    """
    if "matched_set" not in data.coords:
        return data
    named = data.isel(head_set=(data["matched_set"] == "").values)
    return named.drop_vars(["matched_set", "set_number", "control"], errors="ignore")


def select_random_sets(data: xr.Dataset) -> xr.Dataset | None:
    """Return a measurement of the random sets over (head_set, random_set, ...), or None.

    `head_set` is the named set that the random sets are matched to. The scalar coordinate `control`
    names the random part: "random sets" or "random sets and directions". The coordinate
    `set_number` (head_set, random_set) is equal for equal sets. Files of before 2026-11-29 lack it,
    and equal sets are those with the same answers.

    Args:
        data: A measurement.
    """
    if "matched_set" not in data.coords:
        return None
    random = data.isel(head_set=(data["matched_set"] != "").values)
    names = list(dict.fromkeys(random["matched_set"].values.tolist()))
    if not names:
        return None
    size = random.sizes["head_set"] // len(names)
    random = random.drop_vars(["head_set", "matched_set"])
    by_set = random.coarsen(head_set=size).construct(head_set=("head_set", "random_set"))
    by_set = by_set.assign_coords(head_set=names, random_set=range(size))
    if "set_number" in by_set.coords:
        return by_set
    numbers = [_set_numbers(by_set["logit_difference"].sel(head_set=name)) for name in names]
    return by_set.assign_coords(set_number=(("head_set", "random_set"), numbers))


def _set_numbers(answers: xr.DataArray) -> list[int]:
    """Return for each random set the number of the first one with the same answers.

    Args:
        answers: Answers over (random_set, ...).
    """
    rows = answers.transpose("random_set", ...).values.reshape(answers.sizes["random_set"], -1)
    numbers: list[int] = []
    for i, row in enumerate(rows):
        is_same = (rows[:i] == row).mean(1) >= SAME_ANSWERS
        numbers.append(int(is_same.argmax()) if is_same.any() else i)
    return numbers


def select_labels(data: xr.Dataset, labels: str) -> xr.Dataset:
    """Return the prompts with labels of one kind, or a measurement without prompts as it is.

    The labels of a prompt are the names of the classes if its `label_pair` equals its `class_pair`.

    Args:
        data: A measurement.
        labels: Kind of labels: "arbitrary", "names" of the classes, or "all".
    """
    if labels == "all" or "label_pair" not in data.coords or "prompt" not in data.dims:
        return data
    are_names = (data["label_pair"] == data["class_pair"]).values
    return data.isel(prompt=are_names == (labels == "names"))


def precomputed_fingerprint(model: str) -> str | None:
    """Return the fingerprint of a precomputed model, None if there is no such model.

    Args:
        model: Name of the model.
    """
    paths = [path for (of_model, *_), path in precomputed_files().items() if of_model == model]
    return str(read_dataset(paths[0]).attrs["fingerprint"]) if paths else None


def precomputed_files() -> dict[tuple[str, str, str], Path]:
    """Return every file of a precomputed measurement by model, suite and measurement.

    Whatever else is in these folders, such as a copy under another name, is not among them.
    """
    found = {}
    suites = get_args(Settings.model_fields["suite"].annotation)
    for model, folder in precomputed_models().items():
        for suite, name in itertools.product(suites, catalogue()):
            path = folder / suite / f"{name}.nc"
            if path.is_file():
                found[model, suite, name] = path
    return found


def open_precomputed(model: str, suite: str, name: str) -> xr.Dataset | None:
    """Return a precomputed measurement, None if there is none.

    Args:
        model: Folder of the model.
        suite: Suite of the texts.
        name: Measurement.

    Raises:
        TwoTowersError: If the file cannot be read, is a copy of another, or was made by older code.
    """
    path = data_folder() / "measurements" / model / suite / f"{name}.nc"
    if not path.is_file():
        return None
    data = load(path)
    made = tuple(data.attrs[key] for key in ("model", "suite", "measurement"))
    if made != (model, suite, name):
        raise TwoTowersError(
            f"cannot use '{path}': expected {name} of {model} ({suite}), and got {made[2]} of "
            f"{made[0]} ({made[1]}); remove this copy"
        )
    if not identity.has_current_code(data, name):
        source = data.attrs["fingerprint"].partition("@")[0]
        option = "" if suite == "words" else f" --suite {suite}"
        raise TwoTowersError(
            f"cannot use '{path}': expected the current versions of the code; run `twotowers "
            f"precompute MODEL {name}{option}`, where MODEL is the folder or Hugging Face id of "
            f"'{source}'"
        )
    return data


def is_served(model: str, suite: str, name: str, settings: Settings) -> bool:
    """Return whether a precomputed measurement stands for one under some settings.

    Args:
        model: Name of the model.
        suite: Suite of the texts.
        name: Measurement.
        settings: All settings.

    Returns:
        False if there is none, or if it cannot be used.
    """
    try:
        data = open_precomputed(model, suite, name)
    except TwoTowersError:
        return False
    return data is not None and identity.matches_settings(data, settings)
