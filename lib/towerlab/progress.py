"""Progress of long work: a bar on a terminal, a line a minute anywhere else."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from tqdm import tqdm

SECONDS = 60
"""Time between two lines"""


def say(line: str) -> None:
    """Print a line on stderr; from a notebook, also where papermill or Jupyter was started."""
    print(line, file=sys.stderr, flush=True)
    if type(sys.stderr).__module__.startswith("ipykernel."):
        with suppress(OSError):  # a kernel that does not keep the original
            os.write(sys.stderr.fileno(), f"{line}\n".encode())


def progress(what: str, total: int) -> tqdm:
    """Return a bar over `total` prompts (`with progress("heads", 800) as bar: bar.update(8)`)."""
    kind = tqdm if sys.stderr.isatty() else _Lines
    return kind(total=total, desc=what, unit="prompt", leave=False)


class _Lines(tqdm):
    """A line each minute, of whichever bar moves then, in place of a bar that redraws itself."""

    last = time.monotonic()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None and time.monotonic() - _Lines.last >= SECONDS:
            _Lines.last = time.monotonic()
            say(str(self))
