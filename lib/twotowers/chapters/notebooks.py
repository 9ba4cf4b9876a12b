"""The chapters: the notebooks that _toc.yml names, in its order, and the parameters that each declares. No torch here."""

from __future__ import annotations

import ast
import json
import re
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
    try:
        return {name: ast.literal_eval(value) for name, value in assigned(_source(chapter, "parameters")).items()}
    except ValueError:
        raise _no_notebook(chapter) from None


def least_prompts(chapter: str) -> int:
    """How many prompts a set a chapter asks for when it opens: `open_chapter(..., least=8)`; 2 unless it says."""
    found = re.search(r"open_chapter\(.*\bleast=(\d+)", _source(chapter))
    return int(found[1]) if found else 2


def _source(chapter: str, tag: str = "") -> str:
    """The code of a chapter's notebook, or of its cells with a tag."""
    path = book_folder() / f"{chapter}.ipynb"
    if not path.is_file():
        raise TwoTowersError(f"there is no chapter '{chapter}' in {path.parent}")
    try:
        cells = [cell for cell in json.loads(path.read_text("utf8"))["cells"] if cell["cell_type"] == "code"]
        chosen = [cell for cell in cells if not tag or tag in cell["metadata"].get("tags", [])]
        return "\n".join("".join(cell["source"]) for cell in chosen)
    except (ValueError, KeyError, TypeError):
        raise _no_notebook(chapter) from None


def _no_notebook(chapter: str) -> TwoTowersError:
    path = book_folder() / f"{chapter}.ipynb"
    return TwoTowersError(f"'{path}' is no notebook whose parameters cell holds plain values: mend it")


def assigned(source: str) -> dict[str, ast.expr]:
    """Name -> value of every plain assignment of a cell, top level only; nothing of a cell that is no Python."""
    try:
        nodes = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    except SyntaxError:  # a cell with %magic
        return {}
    return {target.id: node.value for node in nodes for target in node.targets if isinstance(target, ast.Name)}
