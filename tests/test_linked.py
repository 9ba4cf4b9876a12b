"""The chart that answers a click: what it holds, and a click in a headless browser, drawn as the book's pages draw it."""

import sys

import pandas as pd
import pytest
from conftest import ROOT
from test_exhibits_which_heads import CLASS, INCREASE, LABEL, scores
from test_pages import needs_browser
from test_tinker import browser
from twotowers.exhibits import which_heads as shown

sys.path.insert(0, str(ROOT / "book/_ext"))
TABLE = scores([[0, 1], [0, 2], [0, 1]])


def test_a_head_is_one_row_with_a_line_for_every_ranking():
    (rows,) = shown.one_head_chart(TABLE).to_dict()["datasets"].values()
    assert [row["name"] for row in rows] == ["0-0", "0-1", "0-2", "0-3"]
    assert rows[1]["line"] == [f"{name}: 2 of 4, 0.2000 (nats)" for name in (INCREASE, LABEL, CLASS)]
    assert rows[1]["share"] == pytest.approx([2 / 3] * 3) and rows[1]["strong"] == [True, False, True]


def test_the_head_shown_first_is_the_highest_of_ours_or_of_the_ranking_that_is_there():
    turned = TABLE.assign(score=TABLE["score"].where(TABLE["ranking"] != LABEL, -TABLE["score"]))
    for table, first in ((TABLE, "0-0"), (turned, "0-3"), (turned[turned["ranking"] != LABEL], "0-0")):
        (pick,) = shown.one_head_chart(table).to_dict()["params"]
        assert pick["value"] == [{"name": first}] and pick["select"]["clear"] is False


def test_a_model_of_any_size_meets_no_limit_on_rows():
    many = pd.concat([TABLE.assign(layer=i, name=TABLE["name"].str.replace("0-", f"{i}-")) for i in range(600)])
    assert shown.one_head_chart(many).to_dict()


@needs_browser
def test_a_click_on_another_head_changes_what_is_told(tmp_path):
    import vl_convert
    from assemble import chart_block

    block = chart_block(shown.one_head_chart(TABLE)._repr_mimebundle_()["text/html"])
    scripts = [
        vl_convert.javascript_bundle() + "\nwindow.vegaEmbed ??= vegaEmbed;",
        (ROOT / "book/_page/charts.js").read_text(),
    ]
    page = "<!doctype html><meta charset=utf-8><title>a</title>" + block
    for i, script in enumerate(scripts):
        (tmp_path / f"{i}.js").write_text(script, "utf8")
        page += f'<script src="{i}.js"></script>'
    (tmp_path / "page.html").write_text(page, "utf8")
    with browser() as visit:
        page = visit((tmp_path / "page.html").as_uri())
        page.wait_for_selector("svg.marks")
        assert page.locator("svg", has_text="Head 0-0").count() and page.get_by_text(f"{LABEL}: 1 of 4").count() == 1
        page.locator(".mark-rect path").nth(1).click()
        page.get_by_text("Head 0-1").wait_for()
        assert page.get_by_text(f"{LABEL}: 2 of 4").count() == 1 and not page.get_by_text(f"{LABEL}: 1 of 4").count()
        page.locator("svg.marks").click(position={"x": 2, "y": 2})  # beside the map: the head stays
        assert page.get_by_text("Head 0-1").count() == 1
