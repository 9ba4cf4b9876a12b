"""Drawings: whole SVG with text for who cannot see it, numbers from the table, and no label that is markup."""

from xml.etree import ElementTree

import pandas as pd
import pytest
from twotowers.errors import TwoTowersError
from twotowers.exhibits import drawings

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</svg><script>alert("1")</script>'
ROLES = ["demonstration text", "other", "false label", "false label", "true label", "true label", "query text"]
WEIGHTS, MARGINS = [0.05, 0.0, 0.1, 0.15, 0.2, 0.4, 0.1], [0.0, 0.01, -0.2, -0.3, 0.5, 1.0, -0.01]


def table(true="foo", other="bar"):
    sums = [("last residual vector", "embedding", 0.25), ("last residual vector", "attention blocks", 1.5),
            ("attention blocks", "2-1", 1.0), ("attention blocks", "all other heads", 0.5)]  # fmt: skip
    rows = [{"of": of, "part": part, "margin": m, "role": "", "weight": float("nan")} for of, part, m in sums]
    rows += [
        {"of": "2-1", "part": "x", "margin": m, "role": role, "weight": w}
        for role, w, m in zip(ROLES, WEIGHTS, MARGINS, strict=True)
    ]
    return pd.DataFrame(rows).assign(true_label=true, other_label=other, p_true=0.875)


ACCURACY = pd.DataFrame({"form": ["original", "true ones first"] * 2, "accuracy": [1.0, 0.5, 0.8, 0.3]})
EVERY = {
    "in_context_head": lambda **labels: drawings.in_context_head(table(**labels)),
    "sum_apart": lambda **labels: drawings.sum_apart(table(**labels)),
    "variants": lambda: drawings.variants(ACCURACY),
}


def words(drawing):
    return [e.text for e in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", EVERY)
def test_a_drawing_is_whole_described_and_within_its_frame(kind):
    root = ElementTree.fromstring(EVERY[kind]().svg)
    assert root.get("role") == "img" and root[0].tag == f"{SVG}title" and root[0].text
    assert root[1].tag == f"{SVG}desc" and len(root[1].text) > 80 and "nan" not in root[1].text
    assert root.get("aria-labelledby") == f"{root[0].get('id')} {root[1].get('id')}"
    _, _, width, height = map(float, root.get("viewBox").split())
    for e in root.iter(f"{SVG}text"):
        assert 0 <= float(e.get("x")) <= width and 0 <= float(e.get("y")) <= height
        assert float(e.get("font-size")) >= 11
    for e in root.iter(f"{SVG}rect"):
        assert float(e.get("x")) >= 0 and float(e.get("x")) + float(e.get("width")) <= width


@pytest.mark.parametrize("kind", ["in_context_head", "sum_apart"])
def test_labels_are_never_markup(kind):
    drawing = EVERY[kind](true=HOSTILE, other="a&b")
    root = ElementTree.fromstring(drawing.svg)
    assert not list(root.iter(f"{SVG}script")) and HOSTILE in root[1].text and "<script" not in drawing.svg


def test_figure_1_shows_the_weights_margins_and_answer_of_the_table():
    said = words(drawings.in_context_head(table()))
    assert [w for w in said if w.endswith("%") and w[0].isdigit()] == ["10%", "15%", "20%", "40%"]
    assert [w for w in said if w[0] in "+-"] == ["-0.20", "-0.30", "+0.50", "+1.00"]
    assert "next word: foo, 88%" in said and "love :" in said and "one :" in said


def test_the_sum_names_every_part_and_what_is_left():
    said = words(drawings.sum_apart(table()))
    assert {"last residual vector = +1.75", "attention blocks = +1.50", "head 2-1, by position = +1.00"} <= set(said)
    assert said[said.index("all other positions") + 1] == "0.00"


def test_variants_strike_out_move_and_swap():
    drawing = drawings.variants(ACCURACY)
    said = words(drawing)
    assert "original: right in 90%, mean of the sets" in said and "last true one removed" in said
    assert said.count("⇄ foo") == said.count("⇄ bar") == 2
    assert drawing.svg.count('stroke-dasharray="4 3"') == 1  # one is gone
    assert sum(" C" in part for part in drawing.parts) == 2  # two moved


def test_a_table_that_holds_no_example_is_refused():
    for broken in (pd.DataFrame(), table().drop(columns="weight"), table()[:-2]):
        with pytest.raises(TwoTowersError, match="run chapter 1 again"):
            drawings.in_context_head(broken)
