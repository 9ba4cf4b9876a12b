"""Progress of long work: a bar on a terminal, a line a minute anywhere else.

A notebook's kernel catches what its cells write. Progress goes past it, to the terminal or file
that started papermill or Jupyter, and as a line a minute into the notebook too; pages leave out
what cells write to stderr.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

from tqdm import tqdm

QUIET = 60.0  # seconds between two lines where nothing can be redrawn
_PART: ContextVar[str] = ContextVar("part", default="")
LINES = "TWOTOWERS_PROGRESS_LINES"  # set where several commands share a terminal: lines there, too


@functools.cache
def _copy(number: int) -> TextIO:
    return os.fdopen(os.dup(number), "w", buffering=1)


def outside() -> TextIO:
    """The stderr that this process was started with; a kernel catches it, but knows the number of
    the original."""
    try:
        return _copy(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # replaced by something in memory, as tests do
        return sys.stderr


def in_kernel() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel.")


@contextmanager
def part(which: str) -> Iterator[None]:
    """Bars say which part of a measurement they are of, such as ", part 2 of 9"."""
    token = _PART.set(which)
    try:
        yield
    finally:
        _PART.reset(token)


def progress(what: str, total: int) -> tqdm:
    """A bar over `total` prompts (`with progress("heads", 800) as bar: bar.update(8)`); gone when
    it is done."""
    stream, what = outside(), what + _PART.get()
    if stream.isatty() and not os.environ.get(LINES):
        return tqdm(total=total, desc=what, unit="prompt", leave=False, file=stream)
    return _Lines(
        total=total, desc=what, unit="prompt", mininterval=QUIET, file=stream, leave=False
    )


def say(line: str) -> None:
    """One line, also into the notebook of a kernel."""
    for stream in (outside(), sys.stderr) if in_kernel() else (outside(),):
        print(line, file=stream, flush=True)


class _Lines(tqdm):
    """One line each minute in place of a bar that redraws itself, also while a first large batch is
    not yet done."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self._end = threading.Event()
        threading.Thread(target=self._every_minute, daemon=True).start()

    def _every_minute(self) -> None:
        while not self._end.wait(QUIET):
            elapsed = int(self.format_dict["elapsed"])
            remaining = int(elapsed / self.n * (self.total - self.n)) if self.n else 0
            when = (
                f"{remaining // 60} min {remaining % 60} s left"
                if self.n
                else f"{elapsed // 60} min {elapsed % 60} s so far"
            )
            say(f"{self.desc}: {self.n} of {self.total} prompts, {when}")

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        return True

    def clear(self, *_: object, **__: object) -> None:
        """Nothing was drawn."""

    def close(self) -> None:
        """Without the empty line that tqdm ends with."""
        self._end.set()
        self.disable = True
