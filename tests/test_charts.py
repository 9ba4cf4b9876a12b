"""Charts: titled, described, axes named, drawn from the table they were given, and valid Vega-Lite."""

import altair as alt
import pandas as pd
import pytest
from twotowers import charts

WORDS = {"title": "A title", "description": "What is seen."}
BLOCKS = pd.DataFrame({"layer": [0, 0, 1, 1], "kind": ["attention", "FFN"] * 2, "increase": [0.1, 0.2, 1.5, -0.3]})
HEADS = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "increase": [0.1, 0.2, 1.5, -0.3]})
BARS = pd.DataFrame({"set": ["a", "b"], "accuracy": [0.9, 0.8], "source": "measured", "low": 0.7, "high": 0.95, "n": 10})
POINTS = pd.DataFrame({"u": [0.1, 0.2, 0.4], "v": [1.0, 2.0, 2.5], "kind": ["true", "false", "true"]})

EVERY = {
    "by_layer": lambda: charts.by_layer(BLOCKS, y_title="increase (nats)", **WORDS),
    "head_map": lambda: charts.head_map(HEADS, value_title="increase (nats)", **WORDS),
    "bars": lambda: charts.bars(BARS, x="set", y="accuracy", group="source", x_title="set", y_title="share", **WORDS),
    "scatter": lambda: charts.scatter(
        POINTS, x="u", y="v", group="kind", diagonal=True, x_title="weight", y_title="increase (nats)", **WORDS
    ),
}


def _axis_titles(spec: dict) -> set:
    layers = spec.get("layer", [spec])
    return {layer["encoding"][axis].get("title") for layer in layers for axis in "xy" if axis in layer["encoding"]}


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_is_titled_described_and_named_on_both_axes(kind):
    spec = EVERY[kind]().to_dict()  # validates against the Vega-Lite schema
    assert spec["title"]["text"] == "A title"
    assert spec["description"] == "A title. What is seen."
    assert len({title for title in _axis_titles(spec) if title}) >= 2


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
