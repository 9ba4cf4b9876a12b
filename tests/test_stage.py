"""No text from outside becomes markup or a script on a page."""

import json
import sys

import altair as alt
import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tags import Page
from twotowers import pages
from twotowers.claims import Claim
from twotowers.evidence import verdict_row
from twotowers.figures import VEGA

sys.path.insert(0, str(ROOT / "book/_ext"))
import stage

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


@given(anything)
def test_code_in_markdown_is_text_whatever_stands_in_it(text):
    html = MarkdownIt().render(f"Failed: {stage.code(text)} again.")
    assert set(Page(html).tags) <= {"p", "code"}


@given(anything)
def test_a_chart_s_data_are_data(text):
    chart = (
        alt.Chart(pd.DataFrame({"x": [text], "n": [0.123456789]}), title=text)
        .mark_bar()
        .encode(x="n:Q", y="x:N")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "picture", lambda svg, description, folder: "")
        page = Page(stage.chart({VEGA: chart.to_dict(), "image/svg+xml": ""}, "chart", ROOT))
    assert page.tags == ["div", "script", "noscript"]
    spec = json.loads(page.script)
    (rows,) = spec["datasets"].values()
    assert spec["title"] == text and rows == [{"x": text, "n": 0.12346}]


def test_a_picture_of_a_chart_stands_in_an_img_where_nothing_runs(tmp_path):
    chart = (
        alt.Chart(pd.DataFrame({"x": HOSTILE}), title=HOSTILE[0], description=HOSTILE[4])
        .mark_bar()
        .encode(y="x:N")
    )
    shown = chart._repr_mimebundle_()
    page = Page(stage.picture(shown["image/svg+xml"], shown[VEGA]["description"], tmp_path))
    assert page.tags == ["img"] and [name for name, _ in page.attributes] == ["class", "alt", "src"]
    assert (
        stage.picture(shown["image/svg+xml"], "", tmp_path) and len(list(tmp_path.iterdir())) == 1
    )


def test_a_chart_is_named_after_its_figure_or_its_claim():
    html = [
        {"data": {"text/html": text}}
        for text in ('<div id="claim-a-b">', "chart", "chart", '<p id="fig-4-1">')
    ]
    assert [stage.chart_name(html, at) for at in range(4)] == [
        "chart",
        "claim-a-b",
        "fig-4-1",
        "chart",
    ]


@given(anything, anything)
def test_a_claim_s_sentence_and_a_caption_are_text(text, model):
    claim = Claim.model_construct(
        **dict.fromkeys(Claim.model_fields, text) | {"id": "a-b", "null": 0.0, "smallest": None}
    )
    rows = [verdict_row(claim, model, text, text)]
    tags = {"div", "p", "ul", "li", "b", "details", "summary"}
    assert set(Page(pages.sentence(claim, rows, "Prompts", text)).tags) <= tags
    table = pages.verdict_table(pd.DataFrame(rows), {claim.id: claim}).data
    html = MarkdownIt().enable("table").render(table)
    assert not {"script", "img", "svg", "noscript"} & set(Page(html).tags)


def test_a_widget_becomes_a_note_and_papermill_s_cell_is_folded(tmp_path):
    cell = {
        "cell_type": "code",
        "metadata": {"tags": ["injected-parameters"]},
        "source": "",
        "outputs": [
            {
                "output_type": "display_data",
                "metadata": {},
                "data": {stage.WIDGET: {}, "text/plain": "x"},
            }
        ],
    }
    page = stage.for_the_page({"metadata": {"widgets": {}}, "cells": [cell]}, tmp_path)
    assert page["cells"][0]["outputs"][0]["data"] == {"text/markdown": stage.RUN_LIVE}
    assert "hide-input" in page["cells"][0]["metadata"]["tags"] and not page["metadata"]


@pytest.mark.parametrize(
    ("lines", "tags", "folded"),
    [(6, [], []), (7, [], ["hide-input"]), (7, ["hide-cell"], ["hide-cell"])],
)
def test_a_cell_of_more_than_six_lines_is_folded(lines, tags, folded, tmp_path):
    source = ["x = 1\n", "\n"] * lines
    cell = {"cell_type": "code", "metadata": {"tags": tags}, "source": source, "outputs": []}
    assert (
        stage.for_the_page({"metadata": {}, "cells": [cell]}, tmp_path)["cells"][0]["metadata"][
            "tags"
        ]
        == folded
    )


def test_the_drawing_has_every_part_that_a_chapter_lights():
    svg, lit = (ROOT / "book/map.svg").read_text("utf8"), {}
    for path in sorted((ROOT / "book").glob("[0-9]*-*.ipynb")):
        first = "".join(json.loads(path.read_text("utf8"))["cells"][0]["source"])
        if not (found := stage.MAP.search(first)):
            continue
        lit[path.stem] = found[1]
        assert stage.drawing(svg, lit[path.stem]).count(' lit"') == len(lit[path.stem].split()), (
            path.stem
        )
    with pytest.raises(ValueError, match="no part 'tower'"):
        stage.drawing(svg, "look tower")
