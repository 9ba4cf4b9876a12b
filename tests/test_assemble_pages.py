"""No text from outside becomes markup or a script on a page."""

import json
import re
from pathlib import Path

import altair as alt
import assemble_pages
import docstrings
import launch
import pandas as pd
import pytest
import tiny_book
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tags import Page
from twotowers import claims, pages, strips
from twotowers.claims import Claim
from twotowers.evidence import EvidenceRow, verdict_row
from twotowers.theme import VEGA

HOSTILE = [
    "</script><script>x()</script>",
    "<img src=x onerror=x()>",
    "<!--<script>",
    "`<b>` ``<b>",
    '"><svg onload=x()>',
    "</noscript><b>",
]
anything = (
    st.text()
    | st.sampled_from(HOSTILE)
    | st.tuples(st.text(), st.sampled_from(HOSTILE), st.text()).map("".join)
)


@settings(max_examples=30)
@given(anything)
def test_code_in_markdown_is_text_whatever_stands_in_it(text):
    html = MarkdownIt().render(f"Failed: {assemble_pages.code(text)} again.")
    assert set(Page(html).tags) <= {"p", "code"}


@settings(max_examples=30)
@given(anything)
def test_a_chart_s_data_are_data(text):
    chart = (
        alt.Chart(pd.DataFrame({"x": [text], "n": [0.123456789]}), title=text)
        .mark_bar()
        .encode(x="n:Q", y="x:N")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble_pages, "picture", lambda svg, description, folder: "")
        page = Page(
            assemble_pages.chart({VEGA: chart.to_dict(), "image/svg+xml": "<svg/>"}, "chart", ROOT)
        )
    assert page.tags == ["div", "script", "noscript"]
    spec = json.loads(page.script)
    (rows,) = spec["datasets"].values()
    assert spec["title"] == text and rows == [{"x": text, "n": 0.12346}]


@settings(max_examples=30)
@given(anything, anything)
def test_a_claim_s_sentence_and_a_caption_are_text(text, model):
    claim = Claim.model_construct(
        **dict.fromkeys(Claim.model_fields, text)
        | {"id": "a-b", "null_value": 0.0, "smallest_effect": None}
    )
    rows = [verdict_row(claim, model, text, text, effect=0.5)]
    tags = {"div", "p", "ul", "li", "b", "details", "summary", "br"}
    tags |= {"table", "thead", "tbody", "tfoot", "tr", "th", "td", "svg", "title", "rect", "circle"}
    html = strips.block(claim, rows, "Prompts", text)
    assert set(Page(html).tags) <= tags | {"line", "text", "span"}
    table = pages.verdict_table(pd.DataFrame(rows), {claim.id: claim}).data
    html = MarkdownIt().enable("table").render(table)
    assert not {"script", "img", "svg", "noscript"} & set(Page(html).tags)


def test_what_other_programs_leave_beside_the_sources_is_no_source(tmp_path):
    """K4: checkpoints of JupyterLab, and what macOS adds on some disks."""
    home = tiny_book.make(tmp_path / "book")
    assemble_pages.assemble_pages(home, tmp_path / "before")
    for folder in ("book", "book/_page", "book/_ext"):
        (home / folder / ".ipynb_checkpoints").mkdir()
        (home / folder / ".ipynb_checkpoints/book-checkpoint.css").write_text("a { }")
        (home / folder / "._book.css").write_bytes(b"\x00\x05\x16\x07")
    assemble_pages.assemble_pages(home, tmp_path / "after")
    before, after = ({path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*")}
                     for name in ("before", "after"))  # fmt: skip
    assert before == after and Path("book/_page/book.css") in after


def test_a_widget_becomes_a_note_and_long_cells_and_papermill_s_are_folded(tmp_path):
    cell = {
        "cell_type": "code",
        "metadata": {"tags": ["injected-parameters"]},
        "source": "",
        "outputs": [
            {"output_type": "display_data", "data": {assemble_pages.WIDGET: {}}, "metadata": {}}
        ],
    }
    long, judges, short = (
        {"cell_type": "code", "metadata": {"tags": []}, "source": source, "outputs": []}
        for source in (["x = 1\n"] * 7, ['chapter.judge_claim("x", {})'], ["x = 1\n"] * 6)
    )
    book = {"metadata": {"widgets": {}}, "cells": [cell, long, judges, short]}
    page = assemble_pages.prepare_notebook(book, tmp_path, "04-attention-weights.ipynb")
    note = launch.links(assemble_pages.RUN_LIVE.format("04-attention-weights.ipynb"))
    assert page["cells"][0]["outputs"][0]["data"] == {"text/markdown": note}
    folded = ["hide-input" in cell["metadata"]["tags"] for cell in page["cells"]]
    assert folded == [True, True, True, False] and not page["metadata"]


def test_links_of_outputs_lead_to_notebooks_and_on_pages_to_pages(tmp_path):
    """No role of Sphinx is in a notebook, which would show it as it is."""
    result = claims.paper_results()["figure 6"]
    row = EvidenceRow("figure 6", "m", claims.AGREES, "", "", "4", effect=1.0, figure="4.1")
    text = strips.entry(result, [row])
    assert '<a href="04-attention-weights.ipynb#fig-4-1">' in text and "`" not in text
    made = assemble_pages.with_pages(text)
    assert '<a href="04-attention-weights.html#fig-4-1">' in made
    assert "**{index}`figure 6 <!figure 6>`** (" in made


def test_the_name_of_a_figure_is_at_its_top(tmp_path):
    caption = '<p class="caption" id="fig-2-1"><b>Figure 2.1.</b> Bars.</p>'
    shown = [{"data": {"text/html": html}} for html in ("<table></table>", caption, "<p>After</p>")]
    cell = {"cell_type": "code", "metadata": {}, "source": "", "outputs": shown}
    made = assemble_pages.prepare_notebook({"metadata": {}, "cells": [cell]}, tmp_path, "n.ipynb")
    table, below, after = (out["data"]["text/html"] for out in made["cells"][0]["outputs"])
    assert table == '<div class="figure-top" id="fig-2-1"></div><table></table>'
    assert below == caption.replace(' id="fig-2-1"', "") and after == "<p>After</p>"


def test_a_figure_of_a_chapter_is_shown_on_another_page(tmp_path):
    caption = '<p class="caption" id="fig-4-5"><b>Figure 4.5.</b> Points.</p>'
    shown = [{"data": {VEGA: {"mark": "bar"}, "image/svg+xml": "<svg/>"}}]
    shown.append({"data": {"text/html": caption}})
    chapters = tmp_path / "_build/chapters"
    chapters.mkdir(parents=True)
    cells = [{"cell_type": "code", "outputs": shown}]
    (chapters / "04-attention-weights.ipynb").write_text(json.dumps({"cells": cells}))
    text = assemble_pages.filled('<div data-figure="13.1 4.5"></div>', tmp_path)
    assert text.startswith('<div class="chart" data-name="fig-4-5">') and "\n\n" not in text
    link = '<a href="04-attention-weights.html#fig-4-5">Figure 4.5</a>'
    assert text.endswith(f'<p class="caption"><b>{link}.</b> Points.</p>')
    assert "not made" in assemble_pages.filled('<div data-figure="13.1"></div>', tmp_path)


def test_lists_in_docstrings_stay_lists():
    lines = ["Rules:", "", "1. one that goes", "   on", "2. two", "", "    code", "", "End."]
    assert docstrings.plain(lines)[2:5] == ["1. one that goes", "   on", "2. two"]
    assert docstrings.plain(lines)[6:] == ["::", "", "    code", "", "End."]


@pytest.mark.parametrize("name", ["", "owner/name"])
def test_a_chapter_names_the_modules_that_measure_for_it(name, monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", name)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    path = ROOT / "book/04-attention-weights.ipynb"
    line = assemble_pages.experiments_of(json.loads(path.read_text("utf8")))
    assert "`paper`" in line
    found = re.findall(r"github.com/owner/name/blob/main/(\S+?)\)", line)
    assert all((ROOT / module).is_file() for module in found)
    assert bool(found) == bool(name)


def test_a_page_says_once_how_to_run_its_chapter_on_a_model(tmp_path):
    (tmp_path / "book").symlink_to(ROOT / "book")
    page = assemble_pages.page(tmp_path, tmp_path / "book/04-attention-weights.ipynb").decode()
    assert page.count("papermill book/") == page.count("book/04-attention-weights.ipynb out") == 1
