"""The user's cache: digests of files, computed once, and folders that are made once and whole. No torch here.

digest(Path("model.safetensors"))                      # SHA-256, in hexadecimal
kept(user_cache() / "gguf" / key, make, good)          # the folder; made aside, under a lock, if it is not good
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from twotowers.errors import TwoTowersError
from twotowers.paths import CACHE, user_cache
from twotowers.stats import tables

SMALL = 1 << 20  # bytes; a smaller file is read faster than its digest is found
SETTLED = 2 * 10**9  # nanoseconds: a file that changed just now may change again within one tick of the clock


def digest(path: Path) -> str:
    """SHA-256 of all bytes of a file. A large file's is remembered in the cache by path, size and times of change."""
    path = path.resolve()
    stat = path.stat()
    stamp = f"{path}\n{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n"
    memory = user_cache() / "digests" / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    large = stat.st_size >= SMALL
    if large and (known := _remembered(memory, stamp)):
        return known
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    after = path.stat()
    same = (after.st_size, after.st_mtime_ns, after.st_ctime_ns) == (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if large and same and max(stat.st_mtime_ns, stat.st_ctime_ns) + SETTLED < time.time_ns():
        with suppress(TwoTowersError):  # a cache that cannot be written costs time, nothing else
            tables.write(memory, (stamp + found).encode("utf8", "surrogateescape"))
    return found


def _remembered(memory: Path, stamp: str) -> str | None:
    try:
        text = memory.read_text("utf8", "surrogateescape")
    except OSError:
        return None
    rest = text.removeprefix(stamp)
    return rest if rest != text and re.fullmatch("[0-9a-f]{64}", rest) else None


def room(needed: int, what: str) -> None:
    """Raise TwoTowersError unless the cache has room for `needed` bytes (and a little more)."""
    folder = user_cache()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed * 1.02:
        raise TwoTowersError(
            f"{what} takes {size(needed)} in the cache '{user_cache()}', where {size(free)} are free: make room, or "
            f"set {CACHE} to a folder that has it"
        )


def size(n: float) -> str:
    """A number of bytes for a reader: 98 MB, 1.1 GB."""
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


def kept(target: Path, make: Callable[[Path], None], good: Callable[[Path], bool]) -> Path:
    """`target`, a folder that is there and good, or else made: `make` fills an empty folder that then takes the name.

    One process makes it while others wait. Whatever kills `make`, `target` stays as it was, and what is left beside it
    is cleared by the next call. Raises TwoTowersError when the cache cannot be written.
    """
    if good(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear(target.parent)
        with FileLock(target.with_name(f".{target.name}.lock")):
            if good(target):  # another process has made it meanwhile
                return target
            part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
            try:
                make(part)
                shutil.rmtree(target, ignore_errors=True)
                os.replace(part, target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise TwoTowersError(
            f"the cache '{user_cache()}' cannot be written ({error.strerror or type(error).__name__}): make room, or "
            f"set {CACHE} to a folder of your own"
        ) from None
    return target


def _clear(folder: Path) -> None:
    """Remove what killed processes left: the parts `.NAME.RANDOM.part` whose lock `.NAME.lock` nobody holds."""
    for part in folder.glob(".*.part"):
        try:
            with FileLock(part.with_suffix("").with_suffix(".lock"), timeout=0):
                shutil.rmtree(part, ignore_errors=True)
        except Timeout:
            continue
