"""Where what is fetched or converted is kept."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "TWOTOWERS_CACHE"


def user_cache() -> Path:
    """`TWOTOWERS_CACHE`, else the system's cache folder of this package."""
    if folder := os.environ.get(CACHE):
        return Path(folder).expanduser()
    import pooch  # where no cache is touched, its quarter of a second is saved

    return Path(pooch.os_cache("twotowers"))
