"""The chart that answers a click: what it holds, and a click in a headless browser, drawn as the book's pages draw it."""

import sys

import pandas as pd
import pytest
from conftest import ROOT
from test_exhibits_which_heads import CLASS, INCREASE, LABEL, scores
from test_pages import needs_browser
from test_tinker import browser
from twotowers.exhibits import attention_weights, locate
from twotowers.exhibits import which_heads as shown

sys.path.insert(0, str(ROOT / "book/_ext"))
TABLE = scores([[0, 1], [0, 2], [0, 1]])
HEADS = pd.DataFrame(
    {"layer": 0, "head": at, "name": f"0-{at}", "dataset": name, "increase": 1 - at, "label_margin": margin * at}
    for name, margin in (("a/b", 0.5), ("b/a", -0.5), *((f"c{i}/d", 0.1) for i in range(9))) for at in (0, 1, 2)
)  # fmt: skip
EVERY = pd.DataFrame(
    {"layer": 0, "head": [0, 1, 2], "name": ["0-0", "0-1", "0-2"], "difference": [0.5, 0.25, -0.5], "auc": [0.5, 0.75, 0.25],
     "label_margin": [0.0, -1e-9, 0.25], "stands": [True, False, True], "auc_stands": [False, True, False]}
)  # fmt: skip


def test_a_head_is_one_row_with_a_line_for_every_ranking():
    (rows,) = shown.one_head_chart(TABLE).to_dict()["datasets"].values()
    assert [row["name"] for row in rows] == ["0-0", "0-1", "0-2", "0-3"]
    assert rows[1]["line"] == [f"{name}: 2 of 4, 0.2000 (nats)" for name in (INCREASE, LABEL, CLASS)]
    assert rows[1]["share"] == pytest.approx([2 / 3] * 3) and rows[1]["strong"] == [True, False, True]


def test_the_located_heads_are_told_set_by_set_in_both_rankings():
    (rows,) = locate.map_chart(HEADS).to_dict()["datasets"].values()
    assert [row["first"] for row in rows] == [0, 0.5, 1]  # the map's colour is of the first set
    assert rows[2]["line"][:2] == ["a/b, ours: 1 of 3, +1.000", "b/a, ours: 3 of 3, -1.000"]
    assert rows[2]["line"][4] == "a/b, paper's: 3 of 3, -1.000" and rows[2]["share"][:2] == [1, 0]
    assert [len(row["line"]) for row in rows] == [2 * locate.MOST_SETS] * 3  # a run of many sets stays one window high
    assert rows[0]["strong"] == [True] * locate.MOST_SETS + [False] * locate.MOST_SETS


def test_of_every_head_attention_scores_and_what_it_adds_are_told():
    (rows,) = attention_weights.every_head_chart(EVERY).to_dict()["datasets"].values()
    assert rows[1]["line"] == [
        "attention, true less false: 2 of 3, +0.250", "score: AUC: 1 of 3, 0.75",
        "lead of the true label: 3 of 3, +0.000 nats",
    ]  # fmt: skip
    assert rows[1]["share"] == [0.5, 1, 0] and rows[1]["strong"] == [False, True, False]


def test_the_head_shown_first_is_the_highest_of_ours_or_of_the_ranking_that_is_there():
    turned = TABLE.assign(score=TABLE["score"].where(TABLE["ranking"] != LABEL, -TABLE["score"]))
    for table, first in ((TABLE, "0-0"), (turned, "0-3"), (turned[turned["ranking"] != LABEL], "0-0")):
        (pick,) = shown.one_head_chart(table).to_dict()["params"]
        assert pick["value"] == [{"name": first}] and pick["select"]["clear"] is False


def test_a_model_of_any_size_meets_no_limit_on_rows():
    many = pd.concat([TABLE.assign(layer=i, name=TABLE["name"].str.replace("0-", f"{i}-")) for i in range(600)])
    assert shown.one_head_chart(many).to_dict()


CLICKED = {  # a chart -> the head before a click, what is told of it, and of 0-1 after a click
    "rankings": (lambda: shown.one_head_chart(TABLE), "0-0", f"{LABEL}: 1 of 4", f"{LABEL}: 2 of 4"),
    "located": (lambda: locate.map_chart(HEADS), "0-2", "a/b, ours: 1 of 3", "a/b, ours: 2 of 3"),
    "every": (lambda: attention_weights.every_head_chart(EVERY), "0-0", "false: 1 of 3", "false: 2 of 3"),
}


@needs_browser
@pytest.mark.parametrize("kind", CLICKED)
def test_a_click_on_another_head_changes_what_is_told(kind, tmp_path):
    import vl_convert
    from assemble import chart_block

    chart, first, before, after = CLICKED[kind]
    block = chart_block(chart()._repr_mimebundle_()["text/html"])
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
        assert page.locator("svg", has_text=f"Head {first}").count() and page.get_by_text(before).count() == 1
        page.locator(".mark-rect path").nth(1).click()
        page.get_by_text("Head 0-1").wait_for()
        assert page.get_by_text(after).count() == 1 and not page.get_by_text(before).count()
        page.locator("svg.marks").click(position={"x": 2, "y": 2})  # beside the map: the head stays
        assert page.get_by_text("Head 0-1").count() == 1
