"""Charts of sizes that nobody had."""

import altair as alt
import pandas as pd
import pytest
from twotowers import figures


@pytest.mark.parametrize("layers, heads", [(60, 50), (1, 3000)])
def test_a_chart_holds_every_head(layers, heads):
    rows = [
        {"model": m, "layer": i, "head": h, "value": h / heads}
        for m in "abc"
        for i in range(layers)
        for h in range(heads)
    ]
    shown = figures.facets(
        alt.Chart().mark_rect().encode(x="head:O", y="layer:O", color="value:Q"), pd.DataFrame(rows)
    )
    assert sum(map(len, shown.to_dict()["datasets"].values())) == 9000


def test_a_chart_of_nothing_is_drawn_too():
    nothing = figures.below([], "model", "x", "group", "value", "low", "high")
    assert list(nothing) == ["model", "x", "group", "value", "low", "high"]
    for chart in (
        figures.bars(nothing, "x", group="group", y_title="y"),
        figures.dots(nothing, "x", group="group", x_title="x"),
        figures.curves(nothing, "x", group="group", x_title="x", y_title="y"),
    ):
        assert chart.to_dict()["facet"]["field"] == "model"
    steps = alt.Chart().mark_point().encode(y="x:N")
    assert "<svg" in figures.svg(figures.facets(steps, nothing, height=alt.Step(9)).to_dict())
    some = pd.DataFrame({"model": ["a"], "x": [1]})
    assert figures.below([some, some]).equals(pd.concat([some, some]))
