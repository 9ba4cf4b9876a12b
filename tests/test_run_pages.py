"""Chapters of other models as pages: nothing collides, nothing is lost, Sphinx has no warning."""

import sys

import pytest
from book_builder import ROOT

sys.path.insert(0, str(ROOT / "book/_ext"))
import run_pages

TEXT = """(start)=
# A title

See {eq}`score`, {ref}`the start <start>`, [here](#start), {doc}`02-second`, {doc}`03-third`, [it](03-third.ipynb#x),
[a host](https://example.org/a.html), [a label of another page](elsewhere), [the intro](intro), ![alt](one.png).

$$ x $$ (score)

```{figure} one.png
:name: figure-one
```
"""


def notebook(text: str) -> dict:
    return {"cells": [{"cell_type": "markdown", "source": text.splitlines(keepends=True), "metadata": {}}]}


def test_names_and_references_get_the_model_and_links_leave_the_run():
    found = run_pages.run_pages({"01-a": notebook(TEXT), "02-second": notebook("# Two")}, "m", {"03-third", "intro"})
    text = found["01-a"]["cells"][0]["source"]
    assert text.startswith("(start-m)=\n# A title")
    for expected in (
        "{eq}`score-m`", "{ref}`the start <start-m>`", "[here](#start-m)", "{doc}`02-second`", "{doc}`../../03-third`",
        "[it](../../03-third.ipynb#x)", "(https://example.org/a.html)", "(elsewhere)", "[the intro](../../intro)",
        "![alt](../../one.png)", "$$ x $$ (score-m)", ":name: figure-one-m",
    ):  # fmt: skip
        assert expected in text, expected
    assert found["02-second"]["cells"][0]["source"] == "# Two (`m`)"


@pytest.mark.parametrize("toc", [{"root": "r"}, {"root": "r", "chapters": [{"file": "a"}]}])
def test_the_table_of_contents_gains_a_page_for_each_run(toc):
    assert run_pages.with_runs(toc, {}) == toc
    found = run_pages.with_runs(toc, {"m": ["01-a"]})
    last = {"file": "book/runs/m/index", "sections": [{"file": "book/runs/m/01-a"}]}
    assert found["chapters"] == [*toc.get("chapters", []), last]
    parts = run_pages.with_runs({"root": "r", "parts": [{"chapters": []}]}, {"m": ["01-a"]})
    assert parts["parts"][1]["chapters"] == [last]
