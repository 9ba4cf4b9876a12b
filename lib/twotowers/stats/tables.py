"""CSV tables stamped with the model they came from, and the published numbers.

save(table, "runs/gpt2", "heads", fingerprint=model.fingerprint)
load("runs/gpt2", "heads", fingerprint=model.fingerprint)      # refuses another model's table
published_value("v1 table 2", "accuracy", where="animal/country true=foo")["value"]
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder

STAMP = "model_fingerprint"
# pandas reads floats exactly from 3.1 on; before, it must be asked to.
_OLD = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EXACT = {"float_precision": "round_trip"} if _OLD else {}


def writable(folder: str | os.PathLike) -> Path:
    """The folder, created when absent. Raises TwoTowersError when files cannot be written there."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TwoTowersError(f"cannot write to '{folder}' ({error.strerror}): give another folder") from None
    return folder


def save(table: pd.DataFrame, folder: str | os.PathLike, name: str, *, fingerprint: str) -> Path:
    """Write `table` to folder/name.csv, its first column the model's fingerprint; return the path.

    The file appears whole or not at all, and numbers come back exactly. Row labels are not written. Raises
    TwoTowersError on a folder that cannot be written, a name with a folder in it, and a table stamped by another model.
    """
    if not fingerprint or fingerprint != fingerprint.strip():
        raise TwoTowersError(f"the fingerprint {fingerprint!r} is empty or has spaces: give model.fingerprint")
    if STAMP in table:
        _same_model(table, fingerprint, f"the table for '{name}'")
        table = table.drop(columns=STAMP)
    path = _path(writable(folder), name)
    stamped = table.copy()
    stamped.insert(0, STAMP, fingerprint)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        stamped.to_csv(part, index=False, encoding="utf-8", lineterminator="\n")
        os.replace(part, path)
    except OSError as error:
        raise TwoTowersError(f"cannot write '{path}' ({error.strerror}): give another folder") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def load(folder: str | os.PathLike, name: str, *, fingerprint: str | None = None) -> pd.DataFrame:
    """Read folder/name.csv, the stamp column included. Empty cells are missing; words such as "NA" or "nan" stay words.

    Raises TwoTowersError when there is no such table, it bears no stamp, or it came from another model than
    `fingerprint` (None takes any).
    """
    path = _path(Path(folder), name)
    try:
        table = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={STAMP: str}, **_EXACT)
    except FileNotFoundError:
        raise TwoTowersError(f"there is no table '{path}': run the chapter that saves it") from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError):
        raise TwoTowersError(f"'{path}' is not a CSV table: delete it and run the chapter that saves it") from None
    if STAMP not in table:
        raise TwoTowersError(f"'{path}' says not which model made it: run the chapter that saves it again")
    if fingerprint is not None:
        _same_model(table, fingerprint, f"'{path}'")
    return table


def _same_model(table: pd.DataFrame, fingerprint: str, what: str) -> None:
    others = sorted(set(table[STAMP].astype(str)) - {fingerprint})
    if others:
        raise TwoTowersError(
            f"{what} came from the model {', '.join(others)}, not from {fingerprint}: "
            "run it again with this model, or give another folder"
        )


def _path(folder: Path, name: str) -> Path:
    if not name or Path(name).name != name or "\\" in name:
        raise TwoTowersError(f"the table name '{name}' is not a plain file name: leave folders to `folder`")
    return folder / f"{name}.csv"


def published(where: str | None = None) -> pd.DataFrame:
    """The published numbers (data/published.csv): source, model, where, quantity, value, note, all as text.

    `where` keeps the rows whose source or place contains it, whatever the case. Raises TwoTowersError when none does.
    """
    table = pd.read_csv(data_folder() / "published.csv", dtype=str, keep_default_na=False)
    if where is None:
        return table
    found = table[_contains(table["source"], where) | _contains(table["where"], where)]
    if found.empty:
        sources = ", ".join(dict.fromkeys(table["source"]))
        raise TwoTowersError(f"nothing published matches '{where}': the sources are {sources}")
    return found.reset_index(drop=True)


def published_value(source: str, quantity: str = "", *, where: str = "", model: str = "") -> pd.Series:
    """The one published row whose columns contain these texts, whatever the case; its `value` is text ("18-31").

    Raises TwoTowersError when no row or several rows match.
    """
    table = published()
    asked = {"source": source, "quantity": quantity, "where": where, "model": model}
    found = table
    for column, text in asked.items():
        found = found[_contains(found[column], text)]
    given = ", ".join(f"{column} '{text}'" for column, text in asked.items() if text)
    if found.empty:
        raise TwoTowersError(f"nothing published matches {given}: see data/published.csv")
    if len(found) > 1:
        several = "; ".join(" | ".join(row) for row in found[list(asked)].head(3).to_numpy())
        raise TwoTowersError(f"{len(found)} published rows match {given}: say more to choose among {several}")
    return found.iloc[0]


def paper_model(name: str) -> str | None:
    """The paper's name of a model ("gpt2-large") from a hub id, a folder or a fingerprint; None for any other model.

    It goes by the last part of the name alone; "-hf" and the like do not count.
    """
    last = re.sub(r"@[0-9a-f]+$", "", name).rstrip("/").split("/")[-1].split("--")[-1].lower()
    known = {one for row in published()["model"] for one in re.split(r" and | ", row)} - {"toy"}
    last = {"gpt-j-6b": "gpt-j"}.get(last, last.removesuffix("-hf"))
    return last if last in known else None


def _contains(column: pd.Series, text: str) -> pd.Series:
    return column.str.contains(text, case=False, regex=False)
