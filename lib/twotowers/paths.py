"""Where things lie: the repository's `data` folder, its chapters, the shipped models."""

from __future__ import annotations

import os
import re
from pathlib import Path

from twotowers.errors import TwoTowersError

HOME = "TWOTOWERS_HOME"


def _root() -> Path:
    """Return the repository's root: `TWOTOWERS_HOME`, or the place of an editable installation.

    Raises TwoTowersError if the book's data are not there.
    """
    root = Path(os.environ.get(HOME) or Path(__file__).parents[2]).expanduser().resolve()
    if (root / "data" / "published.csv").is_file():
        return root
    raise TwoTowersError(
        f"there is no data/published.csv in '{root}': install with `pip install -e .` in the "
        f"repository, or set {HOME} to the repository's root"
    )


def data_folder() -> Path:
    """Return the repository's data folder. Raises TwoTowersError as `_root`."""
    return _root() / "data"


def book_folder() -> Path:
    """Return the folder of the chapters. Raises TwoTowersError as `_root`."""
    return _root() / "book"


def build_folder() -> Path:
    """Return the folder of what is built. Raises TwoTowersError as `_root`."""
    return _root() / "_build"


def evidence_folder() -> Path:
    """Where chapters of the book write their evidence: `TWOTOWERS_EVIDENCE`, or below what is
    built."""
    return Path(os.environ.get("TWOTOWERS_EVIDENCE") or build_folder() / "evidence")


def chapter_number(stem: str) -> str:
    """The chapter of a file name, as claims name it: "04-attention-weights" is chapter 4."""
    return stem.partition("-")[0].lstrip("0").upper()


def shipped_models() -> dict[str, Path]:
    """Name -> folder of every shipped model: those of data/models with a config.json."""
    configs = sorted(data_folder().glob("models/*/config.json"))
    return {config.parent.name: config.parent for config in configs}


def is_own(model: str) -> bool:
    """Whether a model is a folder on this machine, whose name says nothing of what it is."""
    return model not in shipped_models() and Path(model).exists()


def slug(model: str) -> str:
    """A model as a folder name: a known name, a folder's own name, a hub id with "--" for "/"."""
    if is_own(model):
        model = Path(model).resolve().name
    return re.sub(r"[^\w.-]+", "--", model.strip("/"))
