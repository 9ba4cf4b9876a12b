"""Where things lie: the repository's `data` folder, its chapters, the shipped models."""

from __future__ import annotations

import os
import re
from pathlib import Path

from twotowers.errors import TwoTowersError

HOME = "TWOTOWERS_HOME"


def _root() -> Path | None:
    """The repository's root: `TWOTOWERS_HOME`, else from the package's place (installed editable),
    else None."""
    folder = os.environ.get(HOME)
    root = Path(folder).expanduser().resolve() if folder else Path(__file__).resolve().parents[2]
    if (root / "data" / "published.csv").is_file():
        return root
    if folder:
        raise TwoTowersError(
            f"{HOME}='{folder}' holds no data/published.csv: set it to the repository's root"
        )
    return None


def has_data() -> bool:
    """Whether the repository's data folder is beside the package."""
    return _root() is not None


def data_folder() -> Path:
    """The repository's data folder. Raises TwoTowersError when the package was installed away from
    it."""
    root = _root()
    if root is None:
        raise TwoTowersError(
            "the book's data folder is not beside the package: install with `pip install -e .` in "
            f"the repository, or set {HOME} to the repository's root"
        )
    return root / "data"


def book_folder() -> Path:
    """The folder of the chapters. Raises TwoTowersError as `data_folder`."""
    return data_folder().parent / "book"


def build_folder() -> Path:
    """Where what is built lies, wherever it was called from; of a package without its repository,
    in the working folder."""
    return (_root() or Path()) / "_build"


def evidence_folder() -> Path:
    """Where chapters of the book write their evidence: `TWOTOWERS_EVIDENCE`, or below what is
    built."""
    return Path(os.environ.get("TWOTOWERS_EVIDENCE") or build_folder() / "evidence")


def chapter_number(stem: str) -> str:
    """The chapter of a file name, as claims name it: "04-attention-weights" is chapter 4."""
    return stem.partition("-")[0].lstrip("0").upper()


def shipped_models() -> dict[str, Path]:
    """Name -> folder of every shipped model (those of data/models with a config.json); empty
    without data."""
    root = _root()
    configs = sorted((root / "data" / "models").glob("*/config.json")) if root else []
    return {config.parent.name: config.parent for config in configs}


def is_own(model: str) -> bool:
    """Whether a model is a folder on this machine, whose name says nothing of what it is."""
    return model not in shipped_models() and Path(model).exists()


def slug(model: str) -> str:
    """A model as a folder name: a known name, a folder's own name, a hub id with "--" for "/"."""
    if is_own(model):
        model = Path(model).resolve().name
    return re.sub(r"[^\w.-]+", "--", model.strip("/"))
