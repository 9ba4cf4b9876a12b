"""Charts of nothing, and of models with long names."""

import re

import altair as alt
import pandas as pd
from twotowers import figures


def test_a_chart_of_nothing_is_drawn_too():
    nothing = figures.below([], "model", "x", "group", "value", "low", "high")
    assert list(nothing) == ["model", "x", "group", "value", "low", "high"]
    for mark in ("point", "bar", "line"):
        chart = figures.intervals(nothing, "x", mark=mark, group="group", title="y")
        assert chart.to_dict()["facet"]["field"] == "model"
    steps = alt.Chart().mark_point().encode(y="x:N")
    assert "<svg" in figures.svg(figures.facets(steps, nothing, height=alt.Step(9)).to_dict())


def test_a_long_name_of_a_model_is_whole_beside_an_axis():
    name = "my-model-that-was-trained-on-sentences-checkpoint-1000"
    numbers = dict.fromkeys(("effect", "effect_low", "effect_high", "control"), 0.5)
    table = pd.DataFrame([{"model": name, "verdict": "holds"} | numbers])
    chart = figures.forest(table, title="x", null_value=0.0)
    assert name in re.findall(r">([^<>]+)</text>", figures.svg(chart.to_dict()))
