"""Identity of a measurement: what decides its numbers, the folder of its file, and is it current.

    >>> sorted(json.loads(identity_of("templates", Settings(), "mini-gpt2@0")))[:4]
    ['dtype', 'k', 'label_pairs', 'model']

An identity lists the model, the settings, a digest of the texts that prompts are drawn from, and
the versions of the code. A file is valid if its identity equals the current one.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from twotowers.catalogue import row_of, versions
from twotowers.paths import data_folder
from twotowers.settings import Settings
from twotowers.tables import read_text

NUMBERS = {"evaluation_blocks", "selection_blocks", "prompts"}
"""Settings that count prompts"""
PAPER_SETTINGS = {"suite", "prompts", "seed", "dtype"}
"""Settings that decide a measurement of the paper's own sets"""
OTHER_SETTINGS = {"model", "device", "device_map", "out", "prompts"}
"""Settings that do not decide any other measurement"""
TEXTS = {
    "words": ("words/words.csv", "words/pairs.csv", "words/labels.csv", "words/stop_words.txt"),
    "sentences": ("sentences/own.csv", "words/labels.csv", "words/stop_words.txt"),
    "published": ("sentences/files.csv", "words/labels.csv", "words/stop_words.txt"),
}
"""Suite -> the files in data that its prompts are drawn from"""
TABLES = {"chosen_demonstrations": ("words/similarity.csv", "words/pair_similarity.csv")}
"""Measurement -> further files in data that decide its numbers"""
DIGITS_OF_NAMES = 6
"""Number of hexadecimal digits that tell folders apart"""


def digits(value: object) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a value.

    Args:
        value: Value that JSON can hold.
    """
    text = json.dumps(value)
    digest = hashlib.sha256(text.encode())
    return digest.hexdigest()[:12]


def deciding_settings(name: str, settings: Settings, **dump: Any) -> dict[str, Any]:
    """Return the settings that decide the numbers of a measurement.

    Args:
        name: Measurement.
        settings: All settings.
        **dump: Arguments of `Settings.model_dump`.
    """
    row = row_of(name)
    if row.prompts == "paper_sets":
        return settings.model_dump(include=PAPER_SETTINGS, **dump)
    others = OTHER_SETTINGS if row.is_evaluation else OTHER_SETTINGS | {"evaluation_blocks"}
    return settings.model_dump(exclude=others, **dump)


def changed_settings(name: str, settings: Settings) -> dict[str, Any]:
    """Return the deciding settings of a measurement that differ from their defaults.

    The suite is not among them.

    Args:
        name: Measurement.
        settings: All settings.
    """
    changed = deciding_settings(name, settings, exclude_defaults=True)
    changed.pop("suite", None)
    return dict(sorted(changed.items()))


def identity_of(name: str, settings: Settings, fingerprint: str) -> str:
    """Return everything that decides the numbers of a measurement of a model, as JSON.

    Args:
        name: Measurement.
        settings: All settings.
        fingerprint: Fingerprint of the model.

    Returns:
        Text of a JSON object with sorted keys.
    """
    fields = deciding_settings(name, settings)
    fields["model"] = fingerprint
    fields["texts"] = text_digest(settings.suite)
    fields["versions"] = versions(name)
    if name in TABLES:
        tables = [read_text(data_folder() / file) for file in TABLES[name]]
        fields["tables"] = digits(tables)
    return json.dumps(fields, sort_keys=True)


def text_digest(suite: str) -> str:
    """Return a digest of the texts that the prompts of a suite are drawn from.

    It depends on the lines of tables, on the texts of each class, and on the stop words.

    Args:
        suite: Name of the suite.

    Returns:
        Hexadecimal digits.
    """
    entries = {}
    for file in TEXTS[suite]:
        text = read_text(data_folder() / file)
        header, *lines = filter(None, text.split("\n"))
        if file.endswith(".txt"):
            entries[file] = text.split()
        elif "class" in (columns := header.split(",")):
            classes: dict[str, list[str]] = {}
            for line, cells in zip(lines, csv.reader(lines), strict=False):
                classes.setdefault(cells[columns.index("class")], []).append(line)
            entries[file] = [f"{name} {digits(texts)}" for name, texts in classes.items()]
        else:
            entries[file] = lines
    return digits(entries)


def folder_of(settings: Settings, model: str, name: str) -> Path:
    """Return the folder of a measurement.

    Settings that differ from the defaults have a folder of their own, except among precomputed
    measurements. So nothing is measured twice if the seed is changed and changed back.

    Args:
        settings: All settings.
        model: Name of the model among measurements.
        name: Measurement.

    Returns:
        Path, whether or not the folder exists.
    """
    out = Path(settings.out)
    precomputed = data_folder() / "measurements"
    changed = changed_settings(name, settings)
    if not changed or out.resolve() == precomputed.resolve():
        return out / model / settings.suite
    digest = digits(changed)[:DIGITS_OF_NAMES]
    return out / model / f"{settings.suite}-{digest}"


def agrees(data: xr.Dataset, **parts: Any) -> bool:
    """Return whether a measurement was made from some parts of an identity.

    Args:
        data: A measurement.
        **parts: Values of the identity by name, such as `texts`, `versions` or a setting.
    """
    made_from = json.loads(data.attrs["identity"])
    return parts.items() <= made_from.items()


def top_k(data: xr.Dataset) -> int:
    """Return how many heads the sets have that a measurement was made for.

    A chapter may have another number for the model of its settings.

    Args:
        data: A measurement on blocks.
    """
    made_from = json.loads(data.attrs["identity"])
    return int(made_from["top_k"])


def has_current_code(data: xr.Dataset, name: str) -> bool:
    """Return whether a measurement has the current version of its code and of each requirement.

    Args:
        data: A measurement.
        name: Its name.
    """
    made_from = json.loads(data.attrs["identity"])
    recorded = made_from["versions"]
    needed = versions(name)
    return needed.items() <= recorded.items()


def differs_only_in_numbers(data: xr.Dataset, identity: str) -> bool:
    """Return whether a measurement has an identity, or differs from it only in NUMBERS.

    Args:
        data: A measurement.
        identity: Identity of the measurement under other settings.
    """
    fields = json.loads(identity)
    others = without_numbers(fields)
    return agrees(data, **others)


def is_current(path: Path, identity: str) -> bool:
    """Return whether a file of a measurement has an identity.

    Args:
        path: Path of the file, which may be missing.
        identity: Identity of the measurement.

    Returns:
        False if the file cannot be read.
    """
    try:
        with xr.open_dataset(path) as data:
            return data.attrs.get("identity") == identity
    except (OSError, ValueError, RuntimeError):
        return False


def matches_settings(data: xr.Dataset, settings: Settings) -> bool:
    """Return whether a precomputed measurement has every setting that differs from its default.

    The numbers of blocks and prompts do not count: a precomputed measurement has its own.

    Args:
        data: A precomputed measurement.
        settings: All settings.
    """
    changed = changed_settings(data.attrs["measurement"], settings)
    others = without_numbers(changed)
    return agrees(data, **others)


def without_numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an identity, or the settings, that are not in NUMBERS.

    Args:
        fields: Values by name.
    """
    return {name: value for name, value in fields.items() if name not in NUMBERS}
