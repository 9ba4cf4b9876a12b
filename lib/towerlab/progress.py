"""Progress of long work: a bar on a terminal, and at most one line a minute anywhere else."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from tqdm import tqdm


def say(line: str) -> None:
    """Print a line on stderr.

    From a notebook, the line also appears where papermill or Jupyter was started.

    Args:
        line: Text of the line.
    """
    print(line, file=sys.stderr, flush=True)
    if type(sys.stderr).__module__.startswith("ipykernel."):
        with suppress(OSError):  # a kernel that does not keep the original
            os.write(sys.stderr.fileno(), f"{line}\n".encode())


def progress(what: str, total: int) -> tqdm:
    """Return a progress bar over prompts.

    Args:
        what: Name of the bar.
        total: Number of prompts.

    Returns:
        The bar, as in `with progress("heads", 800) as bar: bar.update(8)`.
    """
    wait = 0 if sys.stderr.isatty() else 60
    return tqdm(
        total=total, desc=what, unit="prompt", leave=False, delay=wait, mininterval=wait or 0.1
    )
