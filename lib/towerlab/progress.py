"""Progress of long work: a bar on a terminal, and at most one line a minute anywhere else."""

from __future__ import annotations

import sys

from tqdm import tqdm


def say(line: str) -> None:
    """Print a line on stderr, above the progress bar if there is one.

    Args:
        line: Text of the line.
    """
    tqdm.write(line, file=sys.stderr)


def progress(name: str, total: int) -> tqdm:
    """Return a progress bar over prompts.

    Args:
        name: Name of the bar.
        total: Number of prompts.

    Returns:
        The bar, as in `with progress("heads", 800) as bar: bar.update(8)`.
    """
    seconds = 0.1 if sys.stderr.isatty() else 60
    return tqdm(
        total=total, desc=name, unit="prompt", leave=False, delay=seconds, mininterval=seconds
    )
