"""Charts of nothing, of many models, and of models that share a panel."""

import re

import altair as alt
import pandas as pd
import pytest
import xarray as xr
from twotowers import colours, figures, theme


def test_a_chart_of_nothing_is_drawn_too():
    nothing = figures.below([], "model", "x", "group", "value", "low", "high")
    assert list(nothing) == ["model", "x", "group", "value", "low", "high"]
    for mark in ("point", "bar", "line"):
        chart = figures.intervals(nothing, "x", mark=mark, group="group", title="y")
        assert chart.to_dict()["facet"]["field"] == "model"
    steps = alt.Chart().mark_point().encode(y="x:N")
    assert "<svg" in theme.svg(figures.facets(steps, nothing, height=alt.Step(9)).to_dict())


def test_no_chart_in_a_notebook_follows_its_container():
    """JupyterLab would resize it without end."""
    chart = alt.Chart().mark_point().properties(width="container", height="container")
    bundle = alt.renderers.get()(chart.to_dict())
    spec = bundle[theme.VEGA]
    assert (spec["width"], spec["height"]) == (theme.WIDTH, theme.WIDTH)
    assert "<svg" in bundle["image/svg+xml"]


def panels_of(*models: str, **how) -> dict:
    """A chart with one panel for each of some models."""
    rows = [{"model": m, "x": x, "side": side} for m in models for x in (1, 2) for side in "ab"]
    mark = alt.Chart().mark_point().encode(x="x:Q", y="x:Q")
    return figures.facets(mark, pd.DataFrame(rows), **how).to_dict()


def test_models_that_do_not_fit_one_screen_are_chosen():
    names = ["mini-gpt2", "smollm2-135m", "gemma-3-270m", "qwen2.5-coder-1.5b"]
    spec = panels_of(*names, column="side", height=150, free="y")
    (chooser,) = spec["params"]
    assert chooser["value"] == "SmolLM2-135M"  # a pretrained one
    assert chooser["bind"]["options"] == ["mini-gpt2", *map(figures.shown_name, names[1:])]
    assert spec["spec"]["height"] == figures.CHOSEN
    shown = theme.svg(spec)
    assert ">SmolLM2-135M<" in shown and ">Gemma-3-270M<" not in shown
    own = panels_of(*names, "mine--1a2b3c", column="side", height=150)
    assert own["params"][0]["value"] == "mine--1a2b3c"


def test_models_that_fit_one_screen_have_panels():
    assert "params" not in panels_of("mini-gpt2", "smollm2-135m", height=200)
    assert "params" not in panels_of("mini-gpt2", height=900)
    steps = panels_of("mini-gpt2", *"bcdefg", height=alt.Step(13))
    assert "params" not in steps and "transform" not in steps


def test_heads_have_a_point_each_and_those_of_a_kind_one_colour():
    by_layer = xr.DataArray([1.0, 2.0], dims="layer")  # the same for all heads of a layer
    names = ("layer", "head")
    heads = xr.Dataset({"x": by_layer, "y": (names, [[3.0, 4.0], [5.0, 6.0]])})
    heads["kind"] = (names, [["listed", "other"], ["other", "other"]])
    of_models = {"mini-gpt2": heads, "smollm2-135m": heads.assign(y=heads["y"] + 10)}
    spec = figures.scatter_heads(
        of_models, "x", "y", {"y": "y (nats)"}, kinds=["listed", "other"], has_diagonal=True
    ).to_dict()
    (rows,) = spec["datasets"].values()
    assert [(row["x"], row["y"]) for row in rows[:4]] == [(1, 3), (1, 4), (2, 5), (2, 6)]
    assert [row["y"] for row in rows[4:]] == [13, 14, 15, 16]
    assert [row["kind"] for row in rows].count("listed") == 2
    line, points = spec["spec"]["layer"]
    assert points["encoding"]["y"]["title"] == "y (nats)"
    assert points["encoding"]["color"]["scale"]["domain"] == ["listed", "other"]
    assert line["mark"]["type"] == "rule"
    assert "<svg" in theme.svg(spec)


def test_models_in_one_panel_have_a_colour_each():
    table = pd.DataFrame({"model": ["mini-gpt2", "smollm2-135m"] * 2, "x": 1, "side": list("aabb")})
    chart = figures.overlay(alt.Chart().mark_point().encode(x="x:Q"), table, "side").to_dict()
    scale = chart["spec"]["encoding"]["color"]["scale"]
    assert scale["domain"] == ["mini-gpt2", "SmolLM2-135M"]
    assert scale["range"] == colours.MODEL_COLOURS[:2] and chart["columns"] == 2


@pytest.mark.parametrize("largest", [8.5, 2000, 0.00003])
def test_labels_of_values_are_plain_numbers(largest):
    table = pd.DataFrame({"model": "a", "part": ["x", "y"], "value": [largest, largest / 2],
                          "low": 0.0, "high": largest})  # fmt: skip
    chart = theme.svg(figures.intervals(table, "part", mark="bar", title="nats").to_dict())
    labels = re.findall(r">([-−\d.,e+]*\d[-\d.,e+]*)<", chart)
    assert len(labels) > 2 and not [label for label in labels if "e" in label]
