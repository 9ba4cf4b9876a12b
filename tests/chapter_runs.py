"""A chapter run in this process, without a kernel: what its cells judge, as a table."""

import ast
import contextlib
import json
from pathlib import Path

import altair as alt
import pandas as pd
from conftest import ROOT, sources
from towerlab.plan import Plan
from twotowers import book, evidence, tables
from twotowers.identity import TABLES, TEXTS
from twotowers.paths import data_folder
from twotowers.settings import Settings

CHAPTERS = sorted(path.stem for path in (ROOT / "book").glob("*-*.ipynb"))


def evidence_of(chapter: str, monkeypatch, folder: Path, **parameters) -> pd.DataFrame:
    """The rows of evidence of one chapter; where it judges nothing, an empty table. `folder` is
    empty before. The tables that the chapter reads are those with which the build runs it again."""
    read, read_text = set(), tables.read_text
    monkeypatch.setattr(tables, "read_text", lambda path: read.add(path) or read_text(path))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(folder))
    monkeypatch.setattr(
        book,
        "display",
        lambda part: part.to_dict() if isinstance(part, alt.TopLevelMixin) else None,
    )
    names = {"display": book.display}
    for cell in json.loads((ROOT / f"book/{chapter}.ipynb").read_text("utf8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            if "parameters" in cell["metadata"].get("tags", []):
                names |= parameters
    monkeypatch.setattr(tables, "read_text", read_text)
    used = {data_folder() / path for path in Plan(Settings(), False).tables(chapter)}
    decide_identities = {
        data_folder() / path for paths in (*TEXTS.values(), *TABLES.values()) for path in paths
    }
    read = {path for path in read if data_folder() in path.parents}  # no evidence
    expected = used | decide_identities | {data_folder() / "versions.csv"}
    assert read <= expected, read - expected
    return evidence.read(folder)


def shown_chapter(monkeypatch):
    """A chapter with a precomputed model, and the HTML that it shows."""
    shown = []
    monkeypatch.setattr(book, "display", lambda part: shown.append(part.data))
    return book.open({"model": "smollm2-135m"}), shown


def functions_of(chapter: str) -> dict:
    """The functions of the cells of a chapter, and tables and constants (names in capitals) that
    need no measurement."""
    names: dict = {}
    for node in ast.parse("\n".join(sources(chapter))).body:
        to = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        is_definition = isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef))
        if is_definition or to.isupper() or to.startswith("words"):
            with contextlib.suppress(NameError):
                exec(compile(ast.Module([node], []), chapter, "exec"), names)
    return names
