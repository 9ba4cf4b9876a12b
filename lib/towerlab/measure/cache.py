"""The cache of measurement files: identity of a measurement, and folder of its file.

    >>> sorted(json.loads(identity("templates", Settings(), "mini-gpt2@0")))[:4]
    ['dtype', 'k', 'label_pairs', 'model']

An identity lists the model, the settings, a digest of the texts that prompts are drawn from, and
the versions of the code. A file is valid if its identity equals the current one.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from twotowers.catalogue import versions
from twotowers.files import changed_settings, deciding_settings, digits
from twotowers.paths import data_folder
from twotowers.settings import Settings
from twotowers.tables import read_text

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


def identity(name: str, settings: Settings, fingerprint: str) -> str:
    """Return everything that decides the numbers of a measurement of a model, as JSON.

    Args:
        name: Measurement.
        settings: All settings.
        fingerprint: Fingerprint of the model.

    Returns:
        Text of a JSON object with sorted keys.
    """
    made_from = {"model": fingerprint, "texts": text_digest(settings.suite)}
    fields = deciding_settings(name, settings) | made_from | {"versions": versions(name)}
    if name in TABLES:
        fields["tables"] = digits([read_text(data_folder() / file) for file in TABLES[name]])
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


def folder(settings: Settings, model: str, name: str = "heads") -> Path:
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
    out, changed = Path(settings.out), changed_settings(name, settings)
    if not changed or out.resolve() == (data_folder() / "measurements").resolve():
        return out / model / settings.suite
    return out / model / f"{settings.suite}-{digits(changed)[:DIGITS_OF_NAMES]}"
