"""The chapters: the notebooks that _toc.yml names, in its order, and the parameters that each declares. No torch here."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from twotowers.errors import TwoTowersError
from twotowers.parameters import nearest
from twotowers.paths import book_folder


def chapters() -> list[str]:
    """The names of all notebooks of the book, in the order of _toc.yml."""
    root = book_folder().parent
    toc = read_yaml(root / "_toc.yml")
    return [Path(page).name for page in _pages(toc) if (root / f"{page}.ipynb").is_file()]


def _pages(node: Any) -> Iterator[str]:
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in ("root", "file"):
            yield value
        for child in value if isinstance(value, list) else ():
            yield from _pages(child)


def known_chapter(name: str) -> str:
    """The name itself. Raises TwoTowersError with the nearest one when the book has no such chapter."""
    if name not in (known := chapters()):
        raise TwoTowersError(f"unknown chapter '{name}': {nearest(name, known)}")
    return name


def read_yaml(path: Path) -> Any:
    """A YAML file. Raises TwoTowersError, in one line, when it is missing or no YAML."""
    try:
        return yaml.safe_load(path.read_text("utf8"))
    except OSError as error:
        raise TwoTowersError(f"cannot read '{path}' ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        at = getattr(error, "problem_mark", None)
        raise TwoTowersError(f"'{path}' is no YAML{f' (line {at.line + 1})' if at else ''}: mend it") from None


def declared(chapter: str) -> dict[str, Any]:
    """The parameters that a chapter's notebook declares, with the values in its parameters cell."""
    path = book_folder() / f"{chapter}.ipynb"
    if not path.is_file():
        raise TwoTowersError(f"there is no chapter '{chapter}' in {path.parent}")
    try:
        cells = json.loads(path.read_text("utf8"))["cells"]
        tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
        source = "\n".join("".join(cell["source"]) for cell in tagged)
        return {name: ast.literal_eval(value) for name, value in assigned(source).items()}
    except (ValueError, KeyError):
        raise TwoTowersError(f"'{path}' is no notebook whose parameters cell holds plain values: mend it") from None


def assigned(source: str) -> dict[str, ast.expr]:
    """Name -> value of every plain assignment of a cell, top level only; nothing of a cell that is no Python."""
    try:
        nodes = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    except SyntaxError:  # a cell with %magic
        return {}
    return {target.id: node.value for node in nodes for target in node.targets if isinstance(target, ast.Name)}
