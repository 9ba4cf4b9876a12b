"""Saved tables: CSV files whose first line says where they come from, and that are refused when damaged.

    save(table, folder, "03-mrr-by-head", provenance)      # provenance: a dict, see `studies.run`
    table = load(folder, "03-mrr-by-head")                 # table.attrs["provenance"] is that dict
    pandas.read_csv(path, skiprows=1)                      # how others read it

The first line is `# ` and JSON. It holds, beside what the caller gives, the SHA-256 of the lines below it, so one
rename puts table and provenance in place together, and a table that was cut or edited is named, never used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from twotowers.errors import TwoTowersError

DIGEST = "sha256"
USED = "TWOTOWERS_USED"  # set by the engine: a file that takes the path of every table that a chapter saves or loads
# pandas reads floats exactly from 3.1 on; before, it must be asked to.
_OLD = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
_EXACT = {"float_precision": "round_trip"} if _OLD else {}


class _Provenance(dict):
    """Read, never changed, so it is the same in all that comes of a table: pandas copies `attrs` deeply at each step."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Provenance:
        return self


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


def write(path: Path, content: bytes) -> None:
    """Put `content` at `path` whole or not at all; leftovers of killed writers are cleared.

    Raises TwoTowersError when it cannot be written (no room, read-only).
    """
    writable(path.parent)
    for old in path.parent.glob(f".{path.name}.*.part"):
        if not _runs(old.suffixes[-2][1:]):
            old.unlink(missing_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError as error:
        raise TwoTowersError(f"cannot write '{path}' ({error.strerror}): give another folder or make room") from None
    finally:
        part.unlink(missing_ok=True)


def _runs(process: str) -> bool:
    """Whether a process of this number is there."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass
    return True


def save(table: pd.DataFrame, folder: str | os.PathLike, name: str, provenance: dict[str, Any]) -> Path:
    """Write `table` to folder/name.csv under its provenance; return the path.

    The file appears whole or not at all, and numbers come back exactly. Row labels are not written. Raises
    TwoTowersError on a folder that cannot be written and a name with a folder in it.
    """
    path = _path(Path(folder), name)
    rows = table.to_csv(index=False, lineterminator="\n").encode()
    told = {**provenance, DIGEST: hashlib.sha256(rows).hexdigest()}
    write(path, f"# {json.dumps(told, sort_keys=True)}\n".encode() + rows)
    _note(path)
    return path


def _note(path: Path) -> None:
    if used := os.environ.get(USED):
        with open(used, "a", encoding="utf8") as file:
            file.write(f"{path.resolve()}\n")


def provenance_of(path: str | os.PathLike) -> dict[str, Any]:
    """The first line of a saved table. Raises TwoTowersError when there is none."""
    try:
        with Path(path).open("rb") as file:
            line = file.readline()
        told = json.loads(line.removeprefix(b"# "))
        assert isinstance(told, dict) and DIGEST in told
    except FileNotFoundError:
        raise TwoTowersError(f"there is no table '{path}': run the chapter that saves it") from None
    except (ValueError, AssertionError, OSError):
        raise TwoTowersError(f"'{path}' says not where it comes from: delete it and run its chapter again") from None
    return told


def load(folder: str | os.PathLike, name: str) -> pd.DataFrame:
    """Read folder/name.csv, its provenance in `attrs`. Empty cells are missing; words such as "NA" or "nan" stay words.

    Raises TwoTowersError when there is no such table, it says not where it comes from, or it was changed since.
    """
    path = _path(Path(folder), name)
    told = provenance_of(path)
    rows = path.read_bytes().split(b"\n", 1)[1]
    if hashlib.sha256(rows).hexdigest() != told[DIGEST]:
        raise TwoTowersError(f"'{path}' is damaged or was edited: delete it and run its chapter again")
    if not rows.strip():
        table = pd.DataFrame()
    else:
        table = pd.read_csv(io.BytesIO(rows), keep_default_na=False, na_values=[""], **_EXACT)
    table.attrs["provenance"] = _Provenance(told)
    _note(path)
    return table


def _path(folder: Path, name: str) -> Path:
    if not name or Path(name).name != name or "\\" in name:
        raise TwoTowersError(f"the table name '{name}' is not a plain file name: leave folders to `folder`")
    return folder / f"{name}.csv"
