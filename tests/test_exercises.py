"""Exercises at the end of chapters: what they name is there, and their answers are folded in a form that Jupyter shows."""

import json
import re
from importlib import import_module

import pytest
from conftest import ROOT
from twotowers.chapters.notebooks import declared
from twotowers.exhibits.claim import Verdict
from twotowers.parameters import Parameters
from twotowers.studies.context import CHAPTERS

WITH = sorted((ROOT / "book").glob("[01]*.ipynb"))
for path in (ROOT / "lib/twotowers/studies").glob("*.py"):  # studies are known once they are imported
    import_module(f"twotowers.studies.{path.stem}")
TITLES = "".join(path.read_text("utf8") for path in (ROOT / "lib/twotowers/exhibits").glob("*.py"))


def texts(path) -> list[str]:
    cells = json.loads(path.read_text("utf8"))["cells"]
    return [" ".join("".join(c["source"]).split("\n")) for c in cells if c["cell_type"] == "markdown"]


@pytest.mark.parametrize("path", WITH, ids=lambda path: path.stem)
def test_what_an_exercise_names_is_there(path):
    (text,) = (text for text in texts(path) if text.startswith("## Try it"))
    given = dict(re.findall(r"-p (\w+)\s+([\w./,-]+)", text))
    assert given.keys() <= set(declared(path.stem)) and Parameters.of(given)
    files = {f"{study.name}.csv" for study in CHAPTERS[path.stem]}
    assert set(re.findall(r"`([\w-]+\.csv)`", text)) <= files
    for name in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text):
        assert f"## {name}" in " ".join(texts(path)) or name in TITLES or name.lower() in set(Verdict), name
    folded = [text.count(one) for one in ("  **", "  <details><summary>Answer</summary>  ", "  </details>")]
    assert folded in ([1, 1, 1], [2, 2, 2])
