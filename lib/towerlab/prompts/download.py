"""Data files of others, pinned to a commit and checked by their SHA-256.

    raw = fetch("trec/train_5500.label.txt")

They come from the folder named by TWOTOWERS_DATA where that is set; else from the cache (TWOTOWERS_CACHE, by default the
system's cache folder), downloaded there once. data/sentences/files.csv holds the pins.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import pooch
from pydantic import PositiveInt, StringConstraints
from twotowers.data_files import Row, Text, read_table
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder

from towerlab.cache import user_cache

DATA = "TWOTOWERS_DATA"
SERVER = "https://raw.githubusercontent.com"


class Pin(Row):
    """A line of data/sentences/files.csv: a file of a set, where it lies on the server, and what it is."""

    set: Text
    file: Text
    repository: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
    path: Text
    commit: Annotated[str, StringConstraints(pattern="^[0-9a-f]{40}$")]
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    bytes: PositiveInt


@cache
def pins() -> dict[str, Pin]:
    """Column `file` -> line."""
    return {pin.file: pin for pin in read_table(data_folder() / "sentences" / "files.csv", Pin, ("file",))}


def fetch(file: str) -> bytes:
    """The bytes of a pinned file, named as in `pins()`.

    Raises TwoTowersError when it cannot be had, and when it is another file than the pinned one.
    """
    pin = pins()[file]
    remedy = f"set {DATA} to a folder that holds {file}"
    if folder := os.environ.get(DATA):
        path = Path(folder).expanduser() / file
        if not path.is_file():
            raise TwoTowersError(f"{DATA}='{folder}' lacks {file}: put it there, or unset {DATA} to download it")
        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != pin.sha256:
            raise TwoTowersError(f"'{path}' is not the pinned file (another SHA-256): {remedy} as published, or unset it")
        return raw
    url = f"{SERVER}/{pin.repository}/{pin.commit}/{quote(pin.path)}"
    pooch.get_logger().setLevel("WARNING")  # its notices would stand in the pages of the book
    shelf = pooch.create(user_cache(), base_url="", registry={file: f"sha256:{pin.sha256}"}, urls={file: url})
    try:
        return Path(shelf.fetch(file)).read_bytes()
    except (OSError, ValueError) as error:  # pooch raises ValueError for another SHA-256, and throws the file away
        reason = "another SHA-256 than the pinned one" if "hash" in str(error) else type(error).__name__
        raise TwoTowersError(f"{url} cannot be fetched ({reason}): {remedy}, or connect and try again") from None
