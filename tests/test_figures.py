"""Charts of many heads, of nothing, and of models with long names."""

import re

import altair as alt
import pandas as pd
import pytest
from twotowers import figures


def test_a_chart_of_nothing_is_drawn_too():
    nothing = figures.below([], "model", "x", "group", "value", "low", "high")
    assert list(nothing) == ["model", "x", "group", "value", "low", "high"]
    for mark in ("point", "bar", "line"):
        chart = figures.intervals(nothing, "x", mark=mark, group="group", title="y")
        assert chart.to_dict()["facet"]["field"] == "model"
    steps = alt.Chart().mark_point().encode(y="x:N")
    assert "<svg" in figures.svg(figures.facets(steps, nothing, height=alt.Step(9)).to_dict())


LONG = "my-model-that-was-trained-on-sentences"


@pytest.mark.parametrize(
    "names",
    [
        [f"{LONG}-checkpoint-{n}" for n in (1000, 2000)],
        [f"{LONG}-seed-{n}-{LONG}" for n in (1, 2)],
        ["a", "b", f"{LONG}, 18-6"],
    ],
)
def test_names_of_models_that_differ_look_different(names):
    table = pd.DataFrame({"model": names, "x": 1.0})
    panels = figures.facets(alt.Chart().mark_point().encode(x="x:Q"), table).to_dict()
    shown = panels["facet"]["sort"]
    assert len({*shown}) == len(names) and all(
        x[:9] == y[:9] for x, y in zip(shown, names, strict=True)
    )
    empty = dict.fromkeys(("effect", "effect_low", "effect_high", "control"), 0.5)
    chart = figures.forest(table.assign(**empty, verdict="holds"), title="x", null_value=0.0)
    texts = re.findall(r">([^<>]+)</text>", figures.svg(chart.to_dict()))
    assert {*shown} <= {*texts}  # none is cut
