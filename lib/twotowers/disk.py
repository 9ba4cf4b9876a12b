"""Files that are written whole or not at all, and a disk that says no, told in one line.

with written(path) as scratch:      # a name beside the file, which takes its place at the end
    table.to_csv(scratch)
"""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from twotowers.errors import TwoTowersError


def check_writable(path: Path) -> None:
    """Raise TwoTowersError where no file such as `path` can be written: asked before long work, not
    after it."""
    # No folder is made before there is a file.
    there = next(folder for folder in path.absolute().parents if folder.exists())
    with _refused(path), TemporaryFile(dir=there) as trial:
        trial.write(bytes(1 << 16))


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Ctrl-C and the like wait until a file is done: within xarray's own locks they would leave the
    process waiting for ever."""
    waiting: list[int] = []
    handlers = {}
    # No other thread may set handlers, and none is disturbed.
    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Handlers of Python's own wait; those of the system end the process at once.
            if callable(signal.getsignal(kind)):
                handlers[kind] = signal.signal(kind, lambda kind, _: waiting.append(kind))
    try:
        yield
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
        for first in waiting[:1]:
            signal.raise_signal(first)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """A disk that says no is told in one line."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # netCDF raises the latter where the disk is full
        why = getattr(error, "strerror", None) or error
        raise TwoTowersError(
            f"cannot write '{path}' ({why}): make room there, or give another folder (out=...)"
        ) from None


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A name beside a file, whose folder is made; what is written there takes the file's place when
    all is done.

    Raises TwoTowersError where the disk says no.
    """
    scratch = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.part")
    try:
        with _refused(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield scratch
            os.replace(scratch, path)
    finally:
        with suppress(OSError):  # a disk that can only be read says so above
            scratch.unlink(missing_ok=True)
