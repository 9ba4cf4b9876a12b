"""Paths of the repository's data, of its chapters, and of the included models."""

from __future__ import annotations

import os
from pathlib import Path

from twotowers.errors import TwoTowersError

HOME = "TWOTOWERS_HOME"


def _root() -> Path:
    """Return the repository's root: `TWOTOWERS_HOME`, or the root of an editable installation.

    Raises:
        TwoTowersError: If the root has no data of the book.
    """
    root = Path(os.environ.get(HOME) or Path(__file__).parents[2]).expanduser().resolve()
    if (root / "data" / "published.csv").is_file():
        return root
    raise TwoTowersError(
        f"missing data/published.csv in '{root}': expected the root of the repository; run `pip "
        f"install -e .` there, or set {HOME} to that folder"
    )


def data_folder() -> Path:
    """Return the repository's data folder.

        >>> (data_folder() / "words" / "pairs.csv").is_file()
        True

    Raises:
        TwoTowersError: If the root has no data of the book.
    """
    return _root() / "data"


def book_folder() -> Path:
    """Return the folder of the chapters.

    Raises:
        TwoTowersError: If the root has no data of the book.
    """
    return _root() / "book"


def build_folder() -> Path:
    """Return the folder of built files.

    Raises:
        TwoTowersError: If the root has no data of the book.
    """
    return _root() / "_build"


def evidence_folder() -> Path:
    """Return the folder of the evidence: `TWOTOWERS_EVIDENCE`, or a subfolder of built files."""
    return Path(os.environ.get("TWOTOWERS_EVIDENCE") or build_folder() / "evidence")


def chapter_number(stem: str) -> str:
    """Return the chapter of a file name as claims name it: "4" for "04-attention-weights".

    Args:
        stem: File name without its extension.
    """
    return stem.partition("-")[0].lstrip("0").upper()


def chapter_names() -> dict[str, str]:
    """Return the file name of every chapter, without its extension, by its number.

    The shortest name counts, because a copy next to a chapter has a longer one.
    """
    stems = (path.stem for path in book_folder().glob("[0-9]*-*.ipynb"))
    return {chapter_number(stem): stem for stem in sorted(stems, key=len, reverse=True)}


def included_models() -> dict[str, Path]:
    """Return the folder of every included model by name.

    Included models are the folders of data/models with a config.json.
    """
    configs = sorted(data_folder().glob("models/*/config.json"))
    return {config.parent.name: config.parent for config in configs}
