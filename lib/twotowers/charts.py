"""Altair charts, one function per kind of figure: a tidy table in, an `alt.Chart` out. No torch here.

Every chart carries a title, axis titles with units, and a text description for readers who cannot see it. The theme
stands here and nowhere else; backgrounds are transparent so that the page's light and dark modes both work.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

# Okabe and Ito's palette: told apart by colour-blind readers, and on light and dark pages.
BLUE, ORANGE, GREEN, PINK, GREY = "#2a87c4", "#d9691e", "#1f9e77", "#c678a8", "#8c8c8c"
COLOURS = {
    "attention": BLUE, "FFN": ORANGE,
    "true": BLUE, "false": ORANGE,
    "foo": BLUE, "bar": ORANGE,
    "in-context heads": BLUE, "random heads": GREY,
    "measured": BLUE, "paper": GREY,
}  # fmt: skip
_SPARE = [BLUE, ORANGE, GREEN, PINK, "#b8a100", "#56b4c9", GREY]


@alt.theme.register("twotowers", enable=True)
def _theme() -> alt.theme.ThemeConfig:
    text = {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"}
    return {
        "config": {
            "background": "transparent",
            "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
            "view": {"stroke": "transparent", "continuousHeight": 260},
            "title": {"anchor": "start", "fontSize": 15, "fontWeight": 600, "subtitleFontSize": 12, "offset": 10},
            "axis": {**text, "gridOpacity": 0.25, "domainOpacity": 0.5, "tickOpacity": 0.5},
            "legend": {**text, "orient": "bottom", "symbolSize": 90, "columns": 4},
            "header": {"labelFontSize": 12, "titleFontSize": 13},
            "bar": {"color": BLUE},
            "point": {"filled": True, "size": 50, "color": BLUE},
            "line": {"color": BLUE, "strokeWidth": 2, "point": True},
            "range": {"category": _SPARE},
        }
    }


def finished(chart: alt.Chart, title: str, description: str, subtitle: str = "", height: int | None = 260) -> alt.Chart:
    """Give a chart its title and its text description, and let it fill the width of the page."""
    heading = alt.TitleParams(title, subtitle=subtitle) if subtitle else alt.TitleParams(title)
    chart = chart.properties(title=heading, description=f"{title}. {description}")
    if isinstance(chart, alt.Chart | alt.LayerChart):
        chart = chart.properties(width="container", autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
        if height is not None:
            chart = chart.properties(height=height)
    return chart


def colour(field: str, table: pd.DataFrame, title: str | None = None) -> alt.Color:
    """A colour scale for the values of `field`: known names keep their colour in every figure of the book."""
    names = list(dict.fromkeys(table[field]))
    spare = iter([c for c in _SPARE if c not in {COLOURS.get(n) for n in names}] * 3)
    scale = alt.Scale(domain=names, range=[COLOURS.get(n) or next(spare) for n in names])
    return alt.Color(f"{field}:N", scale=scale, title=title)


def by_layer(table: pd.DataFrame, *, title: str, description: str, y: str = "increase", y_title: str) -> alt.Chart:
    """Values of attention and FFN blocks, layer by layer (v1 fig 2). Columns: layer, kind, `y`; low, high if known."""
    base = alt.Chart(table).encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
        xOffset="kind:N",
        color=colour("kind", table, "block"),
    )
    chart = base.mark_bar().encode(
        y=alt.Y(f"{y}:Q", title=y_title), tooltip=["layer", "kind", alt.Tooltip(f"{y}:Q", format=".3f")]
    )
    if {"low", "high"} <= set(table.columns):
        chart = chart + base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q", color=alt.value(GREY))
    return finished(chart, title, description)


def head_map(
    table: pd.DataFrame, *, title: str, description: str, value: str = "increase", value_title: str, facet: str = ""
) -> alt.Chart:
    """Layer x head map, deepest layer on top. Columns: layer, head, `value`; `facet` names a column to split by."""
    limit = float(table[value].abs().max()) or 1.0
    rows = table["layer"].nunique()
    chart = (
        alt.Chart(table)
        .mark_rect(stroke=GREY, strokeWidth=0.3)
        .encode(
            x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(labelOverlap=True)),
            color=alt.Color(
                f"{value}:Q",
                title=value_title,
                # Anchored at both ends: the same colour means the same value on both sides of zero.
                scale=alt.Scale(scheme="blueorange", domain=[-limit, limit], reverse=True),
                legend=alt.Legend(gradientLength=180),
            ),
            tooltip=["layer", "head", alt.Tooltip(f"{value}:Q", format=".4f")],
        )
    )
    height = max(90, min(420, 26 * rows))
    if facet:
        chart = chart.properties(width=300, height=height).facet(column=alt.Column(f"{facet}:N", title=None))
    return finished(chart, title, description, height=height)


def bars(
    table: pd.DataFrame, *, x: str, y: str, group: str, title: str, description: str, x_title: str, y_title: str,
    zero: bool = True, sort: list | None = None, height: int = 260,
) -> alt.Chart:  # fmt: skip
    """Grouped bars with intervals. Columns: `x`, `y`, `group`; low, high where an interval is known."""
    base = alt.Chart(table).encode(
        x=alt.X(f"{x}:N", title=x_title, sort=sort, axis=alt.Axis(labelAngle=-30, labelLimit=160)),
        xOffset=alt.XOffset(f"{group}:N", sort=list(dict.fromkeys(table[group]))),
    )
    shown = [c for c in (x, group, y, "low", "high", "n") if c in table.columns]
    chart = base.mark_bar().encode(
        y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=zero)),
        color=colour(group, table, group.replace("_", " ")),
        tooltip=[alt.Tooltip(c, format=".3f") if table[c].dtype.kind == "f" else c for c in shown],
    )
    if {"low", "high"} <= set(table.columns):
        chart = chart + base.mark_rule(strokeWidth=1.5, color=GREY).encode(y="low:Q", y2="high:Q")
    return finished(chart, title, description, height=height)


def scatter(
    table: pd.DataFrame, *, x: str, y: str, title: str, description: str, x_title: str, y_title: str,
    group: str = "", diagonal: bool = False, height: int = 320,
) -> alt.Chart:  # fmt: skip
    """Points, coloured by `group` when given; `diagonal` draws the line of equality."""
    chart = (
        alt.Chart(table)
        .mark_point(opacity=0.7)
        .encode(
            x=alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(zero=False)),
            y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=False)),
            tooltip=[alt.Tooltip(c, format=".3f") if table[c].dtype.kind == "f" else c for c in table.columns],
        )
    )
    if group:
        chart = chart.encode(color=colour(group, table, group.replace("_", " ")))
    if diagonal:
        ends = [float(min(table[x].min(), table[y].min())), float(max(table[x].max(), table[y].max()))]
        line = alt.Chart(pd.DataFrame({x: ends, y: ends})).mark_line(point=False, strokeDash=[4, 4], color=GREY)
        chart = line.encode(x=f"{x}:Q", y=f"{y}:Q") + chart
    return finished(chart, title, description, height=height)
