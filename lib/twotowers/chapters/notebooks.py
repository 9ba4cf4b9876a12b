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
        raise TwoTowersError(f"cannot read '{path}' ({error.strerror}): give a file that is there") from None
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


def exhibits(chapter: str) -> dict[tuple[str, str], str]:
    """(study, what draws it) -> its number, "Fig 3.2" or "Table 3.1", as the notebook's cells publish them in order.

    Read off the notebook itself, so that cells run in any order, or twice, give the same numbers. Empty for a chapter
    whose name begins with no number, or that has no notebook.
    """
    numbers: dict[tuple[str, str], str] = {}
    for study, given in _given(chapter):
        for kind, key in (("Fig", "chart"), ("Table", "rows")):
            if drawn := given.get(key):
                n = 1 + sum(number.startswith(kind) for number in numbers.values())
                numbers.setdefault((study, drawn), f"{kind} {_number(chapter)}.{n}")
    return numbers


def claims(chapter: str) -> dict[tuple[str, str], str]:
    """(study, claim) -> the number of the exhibit that shows it, in the notebook's order: that of its own call, else
    the first of the same study, else ""."""
    numbers, found = exhibits(chapter), {}
    for study, given in _given(chapter):
        if claim := given.get("claim"):
            own = [numbers[study, given[key]] for key in ("chart", "rows") if given.get(key)]
            same = [number for (of, _), number in numbers.items() if of == study]
            found.setdefault((study, claim), next(iter(own + same), ""))
    return found


def _number(chapter: str) -> int:
    """Of "03-mrr": 3; 0 for a chapter whose name begins with none."""
    begins = re.match(r"\d+", chapter)
    return int(begins[0]) if begins else 0


def _given(chapter: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Of each call of `publish`: its study, and what is given for chart, claim and rows, by last names. Nothing of a
    chapter without a number or a notebook."""
    if not _number(chapter) or not (path := book_folder() / f"{chapter}.ipynb").is_file():
        return
    cells = [cell for cell in json.loads(path.read_text("utf8"))["cells"] if cell["cell_type"] == "code"]
    for call in (call for cell in cells for call in published("".join(cell["source"]))):
        study, *given = map(_last_name, call.args)
        named = {one.arg: _last_name(one.value) for one in call.keywords}
        yield study, dict(zip(("chart", "claim", "rows"), given, strict=False)) | named


def studied(chapter: str) -> set[str]:
    """The names of the studies that a chapter publishes."""
    return {_last_name(call.args[0]) for call in published(_source(chapter)) if call.args}


def published(source: str) -> list[ast.Call]:
    """The calls of `publish` in a cell, from its top down; none where the cell is no plain Python."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return []
    found = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "publish"]
    return sorted(found, key=lambda call: call.lineno)


def _last_name(node: ast.expr) -> str:
    """`shown.by_head_chart` -> "by_head_chart"."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
