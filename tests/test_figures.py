"""Charts of nothing."""

import altair as alt
from twotowers import figures


def test_a_chart_of_nothing_is_drawn_too():
    nothing = figures.below([], "model", "x", "group", "value", "low", "high")
    assert list(nothing) == ["model", "x", "group", "value", "low", "high"]
    for mark in ("point", "bar", "line"):
        chart = figures.intervals(nothing, "x", mark=mark, group="group", title="y")
        assert chart.to_dict()["facet"]["field"] == "model"
    steps = alt.Chart().mark_point().encode(y="x:N")
    assert "<svg" in figures.svg(figures.facets(steps, nothing, height=alt.Step(9)).to_dict())


def test_no_chart_in_a_notebook_follows_its_container():
    """JupyterLab would resize it without end."""
    chart = alt.Chart().mark_point().properties(width="container", height="container")
    bundle = alt.renderers.get()(chart.to_dict())
    spec = bundle[figures.VEGA]
    assert (spec["width"], spec["height"]) == (figures.WIDTH, figures.WIDTH)
    assert "<svg" in bundle["image/svg+xml"]
