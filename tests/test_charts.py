"""Charts: titled, described, axes named, drawn from the table they were given, and valid Vega-Lite."""

import json

import altair as alt
import pandas as pd
import pytest
from twotowers.stats import charts

WORDS = {"title": "A title", "description": "What is seen."}
BLOCKS = pd.DataFrame({"layer": [0, 0, 1, 1], "kind": ["attention", "FFN"] * 2, "increase": [0.1, 0.2, 1.5, -0.3]})
HEADS = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "increase": [0.1, 0.2, 1.5, -0.3]})
BARS = pd.DataFrame({"set": ["a", "b"], "accuracy": [0.9, 0.8], "source": "measured", "low": 0.7, "high": 0.95, "n": 9})
POINTS = pd.DataFrame({"u": [0.1, 0.2, 0.4], "v": [1.0, 2.0, 2.5], "kind": ["true", "false", "true"]})

EXPLORER = pd.DataFrame(
    [(head, vector, silent, rank, f"word{rank}", 3.0 - rank, "own text" if rank == 1 else "")
     for head in ("1-0", "1-1") for vector in ("2: value", "5: value") for silent in ("left out", "kept")
     for rank in (1, 2)],
    columns=["head", "vector", "silent", "rank", "word", "value", "relation"],
)  # fmt: skip
CURVES = pd.DataFrame({"label": ["foo", "foo", "bar"], "source": "here", "rank": [1, 5, 2], "share": [0.5, 1.0, 1.0]})

EVERY = {
    "by_layer": lambda: charts.by_layer(BLOCKS, y_title="increase (nats)", **WORDS),
    "head_map": lambda: charts.head_map(HEADS, value_title="increase (nats)", **WORDS),
    "bars": lambda: charts.bars(BARS, x="set", y="accuracy", group="source", x_title="set", y_title="share", **WORDS),
    "lines": lambda: charts.lines(
        BARS.assign(factor=[0.0, 0.1]),
        x="factor",
        y="accuracy",
        group="source",
        x_title="a",
        y_title="b",
        log=True,
        **WORDS,
    ),
    "scatter": lambda: charts.scatter(
        POINTS, x="u", y="v", group="kind", diagonal=True, x_title="weight", y_title="increase (nats)", **WORDS
    ),
    "bars, split": lambda: charts.bars(
        BARS, x="set", y="accuracy", group="source", facet="source", x_title="set", y_title="share", **WORDS
    ),
    "scatter, split": lambda: charts.scatter(
        POINTS, x="u", y="v", shape="kind", facet="kind", x_title="weight", y_title="increase (nats)", **WORDS
    ),
    "matrix": lambda: charts.matrix(
        HEADS, x="head", y="layer", value="increase", x_title="key", y_title="query", value_title="nats", **WORDS
    ),
    "matrix, split": lambda: charts.matrix(
        HEADS,
        x="head",
        y="layer",
        value="increase",
        x_title="key",
        y_title="query",
        value_title="nats",
        facet="layer",
        **WORDS,
    ),
    "word_explorer": lambda: charts.word_explorer(EXPLORER, **WORDS),
    "rank_curves": lambda: charts.rank_curves(CURVES, group="source", facet="label", **WORDS),
}


def _axis_titles(spec: dict) -> set:
    spec = spec.get("concat", [spec])[0]
    spec = spec.get("spec", spec)  # what a facet repeats
    layers = spec.get("layer", [spec])
    return {layer["encoding"][axis].get("title") for layer in layers for axis in "xy" if axis in layer["encoding"]}


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_is_titled_described_and_named_on_both_axes(kind):
    spec = EVERY[kind]().to_dict()  # validates against the Vega-Lite schema
    assert spec["title"]["text"] == "A title"
    assert spec["description"] == "A title. What is seen."
    assert len({title for title in _axis_titles(spec) if title}) >= 2


def test_panels_split_the_table_and_share_their_colours():
    both = pd.concat([BARS, BARS.assign(source="paper", set=["c", "d"])])
    spec = charts.bars(both, x="set", y="accuracy", group="source", facet="source", x_title="s", y_title="a", **WORDS)
    spec = spec.to_dict()
    panels = spec["concat"]
    assert [p["title"]["text"] for p in panels] == ["measured", "paper"]
    colours = [p["layer"][0]["encoding"]["color"]["scale"] for p in panels]
    assert colours[0] == colours[1] and colours[0]["domain"] == ["measured", "paper"]
    rows = [spec["datasets"][p["data"]["name"]] if "data" in p else None for p in panels]
    assert [{row["set"] for row in part} for part in rows] == [{"a", "b"}, {"c", "d"}]


def test_interval_rules_are_drawn_only_when_the_table_has_intervals():
    assert "layer" in EVERY["bars"]().to_dict()
    bare = charts.bars(
        BARS.drop(columns=["low", "high"]), x="set", y="accuracy", group="source", x_title="s", y_title="a", **WORDS
    )
    assert "layer" not in bare.to_dict()


def test_known_names_keep_their_colour_and_others_get_different_ones():
    table = pd.DataFrame({"kind": ["foo", "bar", "elsewhere", "nowhere"]})
    scale = charts.colour("kind", table).to_dict()["scale"]
    assert scale["domain"] == ["foo", "bar", "elsewhere", "nowhere"]
    assert scale["range"][:2] == [charts.COLOURS["foo"], charts.COLOURS["bar"]]
    assert len(set(scale["range"])) == 4


def test_the_map_of_heads_has_the_same_colour_on_both_sides_of_zero():
    domain = EVERY["head_map"]().to_dict()["encoding"]["color"]["scale"]["domain"]
    assert domain == [-1.5, 1.5]


def test_the_theme_is_set_once_and_for_all():
    assert alt.theme.active == "twotowers"


def test_the_explorer_holds_one_row_a_vector_and_starts_where_it_is_told():
    spec = charts.word_explorer(EXPLORER, start={"vector": "5: value"}, **WORDS).to_dict()
    (rows,) = spec["datasets"].values()
    assert len(rows) == 8 and all(row["line"] == ["1. word1", "2. word2"] for row in rows)
    shown = {p["select"]["fields"][0]: p["value"] for p in spec["params"]}
    assert shown == {"head": "1-0", "vector": "5: value", "silent": "left out"}
    assert [p["bind"]["input"] for p in spec["params"]] == ["select", "select", "radio"]
    # A combination that nothing fits must show nothing, not everything.
    assert all(t["filter"]["empty"] is False for t in spec["transform"] if "filter" in t)


def test_a_matrix_of_many_columns_has_no_numbers_that_overlap():
    def marks(n):
        table = pd.DataFrame([{"q": f"q{i}", "k": f"k{j}", "v": i - j} for i in range(n) for j in range(n)])
        chart = charts.matrix(
            table, x="k", y="q", value="v", title="t", description="d", x_title="x", y_title="y", value_title="v"
        )
        spec = json.dumps(chart.to_dict())
        return '"text", "fontSize"' in spec or '"type": "text"' in spec

    assert marks(charts.MOST_NUMBERS) and not marks(charts.MOST_NUMBERS + 1)


@pytest.mark.parametrize("kind", ["lines", "bars", "scatter"])
def test_ticks_of_counts_are_whole_numbers_and_others_are_not_forced(kind):
    table = pd.DataFrame({"x": [1, 2, 3], "count": [0, 1, 2], "rate": [0.1, 0.2, 0.4], "g": "a"})
    for y, whole in (("count", True), ("rate", False)):
        group = {} if kind == "scatter" else {"group": "g"}
        spec = getattr(charts, kind)(table, x="x", y=y, x_title="x", y_title="y", **group, **WORDS).to_dict()
        encoding = spec.get("layer", [spec])[0]["encoding"]
        assert (encoding["y"].get("axis", {}).get("tickMinStep") == 1) == whole
        assert kind == "bars" or encoding["x"]["axis"]["tickMinStep"] == 1


def test_a_chart_says_its_axes_panels_and_colours_in_words():
    named = {"x_title": "set", "y_title": "accuracy", "title": "A title"}
    both = pd.concat([BARS.assign(part=part, source=part[0]) for part in ("left", "below")])
    said = charts.bars(both, x="set", y="accuracy", group="source", facet="part", note="So it is.", **named).description
    told = "Up: accuracy. Across: set. Panels: left; below. Colours: l; b. So it is."
    assert said == f"A title. Bars with 95% intervals. {told}"
    one = charts.bars(BARS.drop(columns="low"), x="set", y="accuracy", group="source", **named).description
    assert one == "A title. Bars. Up: accuracy. Across: set."
    many = BARS.loc[BARS.index.repeat(6)].assign(source=[f"s{i}" for i in range(12)])
    assert charts.bars(many, x="set", y="accuracy", group="source", **named).description.endswith("; s7 and 4 more.")
