"""Altair charts, one function per kind of figure: a tidy table in, an `alt.Chart` out. No torch here.

Every chart carries a title, axis titles with units, and a text description for readers who cannot see it. The theme
stands here and nowhere else; backgrounds are transparent so that the page's light and dark modes both work.
"""

from __future__ import annotations

from collections.abc import Callable

import altair as alt
import pandas as pd

# Okabe and Ito's palette: told apart by colour-blind readers, and on light and dark pages.
BLUE, ORANGE, GREEN, PINK, GREY = "#2a87c4", "#d9691e", "#1f9e77", "#c678a8", "#8c8c8c"
COLOURS = {
    "attention": BLUE, "FFN": ORANGE,
    "true": BLUE, "false": ORANGE,
    "foo": BLUE, "bar": ORANGE,
    "true label": BLUE, "false label": ORANGE, "other": GREY,
    "in-context heads": BLUE, "best head": BLUE, "random heads": GREY,
    "later in-context heads": BLUE, "other heads": GREY, "other heads of their layers": GREY, "model": GREEN,
    "random heads, same layers": GREY, "random heads, all layers": PINK, "nothing zeroed": GREEN,
    "fooheads": BLUE, "barheads": ORANGE,
    "measured": BLUE, "paper": GREY, "predicted": ORANGE, "a forward pass": GREY,
    "before": GREY, "after": BLUE,
    "own label": BLUE, "other label": ORANGE, "own text": GREEN, "other text": PINK,
    "own class": "#56b4c9", "other class": "#b8a100", "no relation": GREY,
    "random direction": "#b9b9b9",
}  # fmt: skip
_SPARE = [BLUE, ORANGE, GREEN, PINK, "#b8a100", "#56b4c9", GREY]
# Channels, not names: Altair takes milliseconds to find the class for a name, each time.
_INTERVAL = {"y": alt.Y("low:Q"), "y2": alt.Y2("high:Q")}
MOST_NUMBERS = 6  # columns of a matrix whose cells hold numbers


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


def finished(chart: alt.TopLevelMixin, title: str, description: str, height: int | None = 260) -> alt.TopLevelMixin:
    """Give a chart its title and its text description, and let it fill the width of the page."""
    chart = chart.properties(title=alt.TitleParams(title), description=f"{title}. {description}")
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
    # Long names get fewer columns: a legend is not wrapped but cut off at the edge of the page.
    columns = max(1, min(4, 84 // (5 + max(len(str(name)) for name in names))))
    return alt.Color(f"{field}:N", scale=scale, title=title, legend=alt.Legend(columns=columns))


def axis(table: pd.DataFrame, column: str, **given) -> alt.Axis:
    """An axis whose ticks are whole numbers where the column counts something."""
    counts = {"tickMinStep": 1, "format": ",d"} if table[column].dtype.kind in "iu" else {}
    return alt.Axis(**counts | given)


def by_layer(
    table: pd.DataFrame, *, title: str, description: str, y: str = "increase", y_title: str
) -> alt.TopLevelMixin:
    """Values of attention and FFN blocks, layer by layer (v1 fig 2). Columns: layer, kind, `y`; low, high if known."""
    base = alt.Chart(table).encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("kind:N"),
        color=colour("kind", table, "block"),
    )
    chart = base.mark_bar().encode(
        y=alt.Y(f"{y}:Q", title=y_title),
        tooltip=[alt.Tooltip("layer"), alt.Tooltip("kind"), alt.Tooltip(f"{y}:Q", format=".3f")],
    )
    if {"low", "high"} <= set(table.columns):
        chart = chart + base.mark_rule(strokeWidth=1.5).encode(**_INTERVAL, color=alt.value(GREY))
    return finished(chart, title, description)


def head_cells(table: pd.DataFrame, value: str, value_title: str) -> alt.Chart:
    """Layer x head, deepest layer on top, without title or width. Columns: layer, head, `value`."""
    limit = float(table[value].abs().max()) or 1.0
    chart = alt.Chart(table, height=max(90, min(420, 26 * table["layer"].nunique())))
    return chart.mark_rect(stroke=GREY, strokeWidth=0.3).encode(
        x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("layer:O", title="layer", sort="descending", axis=alt.Axis(labelOverlap=True)),
        color=alt.Color(
            f"{value}:Q",
            title=value_title,
            # Anchored at both ends: the same colour means the same value on both sides of zero.
            scale=alt.Scale(scheme="blueorange", domain=[-limit, limit], reverse=True),
            legend=alt.Legend(gradientLength=180, titleLimit=300),
        ),
        tooltip=[alt.Tooltip("layer"), alt.Tooltip("head"), alt.Tooltip(f"{value}:Q", title=value_title, format=".4f")],
    )


def head_map(
    table: pd.DataFrame, *, title: str, description: str = "", value: str = "increase", value_title: str
) -> alt.TopLevelMixin:
    """Layer x head map. Columns: layer, head, `value`."""
    description = description or f"A grid with one cell for each head, the deepest layer on top; colour: {value_title}."
    return finished(head_cells(table, value, value_title), title, description, height=None)


X_TITLES = {"head": "head (layer-head)", "dataset": "set (false/true class)"}


def bars(
    table: pd.DataFrame, *, x: str, y: str, group: str, title: str, y_title: str, x_title: str = "", description: str = "",
    note: str = "", zero: bool = True, sort: list | None = None, height: int = 260, facet: str = "",
) -> alt.TopLevelMixin:  # fmt: skip
    """Grouped bars with intervals. Columns: `x`, `y`, `group`; low, high where an interval is known; `facet` splits.

    Places along x stand in the table's order, or in that of `sort`; `x_title` may be left out for heads and sets, and
    `description` where `in_words` says it, with a `note`.
    """
    sort, x_title = sort or list(dict.fromkeys(table[x])), x_title or X_TITLES[x]
    tint, shown = colour(group, table, group.replace("_", " ")), (x, group, y, "low", "high", "n")
    crowded = table.groupby(x)[group].nunique().max() > 1  # one bar a place needs no room for others
    offset = {"xOffset": alt.XOffset(f"{group}:N", sort=list(dict.fromkeys(table[group])))} if crowded else {}

    def panel(part: pd.DataFrame) -> alt.TopLevelMixin:
        base = alt.Chart(part).encode(
            x=alt.X(f"{x}:N", title=x_title, sort=sort, axis=alt.Axis(labelAngle=-30, labelLimit=240)), **offset
        )
        chart = base.mark_bar().encode(
            y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=zero), axis=axis(part, y)),
            color=tint,
            tooltip=_tooltip(part, shown),
        )
        if {"low", "high"} <= set(part.columns):
            chart = chart + base.mark_rule(strokeWidth=1.5, color=GREY).encode(**_INTERVAL)
        return chart

    chart = _drawn(panel, table, facet, height)
    chart = chart.resolve_scale(y="shared") if facet else chart
    description = description or in_words("Bars", table, (y_title, x_title), group, facet, note)
    return finished(chart, title, description, height=height)


def in_words(marks: str, table: pd.DataFrame, titles: tuple[str, str], group: str, facet: str, note: str = "") -> str:
    """A chart for its caption, and for readers who cannot see it: what stands on its axes, its panels and its colours."""
    intervals = " with 95% intervals" if {"low", "high"} <= set(table.columns) else ""
    told = [f"{marks}{intervals}. Up: {titles[0]}. Across: {titles[1]}."]
    for what, column in (("Panels", facet), ("Colours", "" if group == facet else group)):
        names = list(dict.fromkeys(table[column].astype(str))) if column else []
        rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
        told += [f"{what}: {'; '.join(names[:8])}{rest}."] if len(names) > 1 else []
    return " ".join([*told, note]).strip()


def _tooltip(table: pd.DataFrame, columns) -> list:
    columns = [c for c in columns if c in table.columns]
    return [alt.Tooltip(c, format=".3f") if table[c].dtype.kind == "f" else alt.Tooltip(c) for c in columns]


def _drawn(panel: Callable, table: pd.DataFrame, facet: str, height: int) -> alt.TopLevelMixin:
    """One panel, or one for each value of `facet` in the table's order; together about as wide as the page.

    Panels are drawn one by one, not by Vega-Lite's facets, whose bars vanish when panels differ in their groups.
    """
    if not facet:
        return panel(table)
    names = list(dict.fromkeys(table[facet]))
    columns = min(3, len(names))
    width = (640 - 60 * columns) // columns
    panels = []
    for name in names:
        heading = alt.TitleParams(str(name), anchor="middle", fontSize=13, fontWeight="normal")
        panels.append(panel(table[table[facet] == name]).properties(title=heading, width=width, height=height))
    return alt.concat(*panels, columns=columns)


def lines(
    table: pd.DataFrame, *, x: str, y: str, group: str, title: str, x_title: str, y_title: str, description: str = "",
    zero: bool = False, log: bool = False, height: int = 280, dash: str = "", facet: str = "",
) -> alt.TopLevelMixin:  # fmt: skip
    """One line per `group`, with a band where low and high are known. `log`: a log axis that shows 0 too (symlog).

    `dash`: lines of a group, told apart by their dashes; `facet` splits into panels, each with its own scales.
    """
    smallest = float(table.loc[table[x] > 0, x].min()) if log else 1.0
    scale = alt.Scale(type="symlog", constant=smallest) if log else alt.Scale(zero=False)
    values = {"values": sorted(table[x].unique()), "format": ".2~r", "labelOverlap": True} if log else {}
    ticks = axis(table, x, **values)
    shades = colour(group, table, group.replace("_", " "))
    shades.legend = alt.Legend(symbolOpacity=1, labelLimit=300, columns=2)
    dashes = {"strokeDash": alt.StrokeDash(f"{dash}:N", title=dash)} if dash else {}
    y_scale = alt.Scale(zero=zero)

    def panel(part: pd.DataFrame) -> alt.TopLevelMixin:
        base = alt.Chart(part).encode(x=alt.X(f"{x}:Q", title=x_title, scale=scale, axis=ticks), color=shades)
        y_axis = alt.Y(f"{y}:Q", title=y_title, scale=y_scale, axis=axis(part, y))
        chart = base.mark_line(point=not dash).encode(y=y_axis, tooltip=_tooltip(part, part.columns), **dashes)
        if {"low", "high"} <= set(part.columns):
            low = alt.Y("low:Q", title=y_title, scale=y_scale)
            chart = base.mark_area(opacity=0.15, line=False, point=False).encode(y=low, y2=alt.Y2("high:Q")) + chart
        return chart

    description = description or in_words("Lines", table, (y_title, x_title), group, facet)
    return finished(_drawn(panel, table, facet, height), title, description, height=height)


def scatter(
    table: pd.DataFrame, *, x: str, y: str, title: str, description: str, x_title: str, y_title: str,
    group: str = "", shape: str = "", diagonal: bool = False, height: int = 320, facet: str = "", opacity: float = 0.7,
) -> alt.TopLevelMixin:  # fmt: skip
    """Points, coloured by `group` and shaped by `shape` when given; `diagonal` draws the line of equality.

    `facet` splits into panels, each with its own scales.
    """
    encodings = {}
    if group:
        encodings["color"] = colour(group, table, group.replace("_", " "))
    if shape:
        names = list(dict.fromkeys(table[shape]))
        scale = alt.Scale(domain=names, range=["circle", "triangle-up", "square"][: len(names)])
        encodings["shape"] = alt.Shape(f"{shape}:N", scale=scale, title=shape.replace("_", " "))

    def panel(part: pd.DataFrame) -> alt.TopLevelMixin:
        chart = alt.Chart(part).mark_point(opacity=opacity)
        return chart.encode(
            x=alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(zero=False), axis=axis(part, x)),
            y=alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(zero=False), axis=axis(part, y)),
            tooltip=_tooltip(part, part.columns), **encodings,
        )  # fmt: skip

    chart = _drawn(panel, table, facet, height)
    if diagonal:
        ends = [float(min(table[x].min(), table[y].min())), float(max(table[x].max(), table[y].max()))]
        line = alt.Chart(pd.DataFrame({x: ends, y: ends})).mark_line(point=False, strokeDash=[4, 4], color=GREY)
        chart = line.encode(x=alt.X(f"{x}:Q"), y=alt.Y(f"{y}:Q")) + chart
    return finished(chart, title, description, height=height)


def matrix(
    table: pd.DataFrame, *, x: str, y: str, value: str, title: str, description: str, x_title: str, y_title: str,
    value_title: str, facet: str = "",
) -> alt.TopLevelMixin:  # fmt: skip
    """A grid of numbers with their colours, zero in the middle. Columns: `x`, `y`, `value`; `facet` splits.

    Where numbers would not fit, of more than MOST_NUMBERS columns, colours and tooltips stand alone.
    """
    limit = float(table[value].abs().max()) or 1.0
    order = {name: list(dict.fromkeys(table[name])) for name in (x, y)}
    scale = alt.Scale(scheme="blueorange", domain=[-limit, limit], reverse=True)
    legend = alt.Legend(gradientLength=180, titleLimit=300)
    many = len(order[x]) > MOST_NUMBERS
    dark = (alt.datum[value] > 0.6 * limit) | (alt.datum[value] < -0.6 * limit)  # white numbers on strong colours

    def panel(part: pd.DataFrame) -> alt.TopLevelMixin:
        base = alt.Chart(part).encode(
            x=alt.X(f"{x}:N", title=x_title, sort=order[x], axis=alt.Axis(labelAngle=-40 if many else 0)),
            y=alt.Y(f"{y}:N", title=y_title, sort=order[y]),
            tooltip=_tooltip(part, part.columns),
        )
        tint = alt.Color(f"{value}:Q", title=value_title, scale=scale, legend=legend)
        numbers = base.mark_text(fontSize=12).encode(
            text=alt.Text(f"{value}:Q", format=".2f"),
            color=alt.condition(dark, alt.value("white"), alt.value("#222222")),
        )
        cells = base.mark_rect(stroke=GREY, strokeWidth=0.3).encode(color=tint)
        return cells if many else cells + numbers

    height = max(90, (24 if many else 45) * len(order[y]))
    return finished(_drawn(panel, table, facet, height), title, description, height=height)


def word_explorer(
    table: pd.DataFrame, *, title: str, description: str, start: dict[str, str] | None = None, height: int = 260
) -> alt.TopLevelMixin:
    """Top words of one vector at a time, chosen by the reader in drop-down lists; works on a static page (v1 table 1).

    Columns: head, vector, silent ("left out" / "kept": the stop words), rank, word, value, relation. `start` names the
    values shown first. Colour says how a word stands to the text and label at its place.
    """
    # Two tokens may read alike; with its rank each word has a line of its own.
    numbered = table["rank"].astype(str) + ". " + table["word"]
    table = table.assign(relation=table["relation"].replace("", "no relation"), line=numbered)
    legend = table.sort_values("relation", key=lambda c: c.map(list(COLOURS).index))
    names = {"head": "head (layer-head) ", "vector": "read ", "silent": "stop words "}
    chosen = {}
    for column, label in names.items():
        options = list(dict.fromkeys(table[column]))
        first = (start or {}).get(column, options[0])
        form = alt.binding_radio if column == "silent" else alt.binding_select
        chosen[column] = alt.selection_point(
            fields=[column], bind=form(options=options, name=label), value=first, empty=False
        )
    # One row a vector, unfolded in the browser: the page stays small and no limit on rows is met.
    words = ["rank", "line", "value", "relation"]
    rows = table.groupby(list(names), sort=False)[words].agg(list).reset_index()
    chart = alt.Chart(rows)
    for selection in chosen.values():
        chart = chart.transform_filter(selection)
    chart = (
        chart.transform_flatten(words)
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title="bs-value (before the softmax)"),
            y=alt.Y("line:N", title="top words", sort=alt.EncodingSortField("rank", order="ascending")),
            color=colour("relation", legend, "the word is of"),
            tooltip=[alt.Tooltip("line:N"), alt.Tooltip("value:Q", format=".2f"), alt.Tooltip("relation:N")],
        )
        .add_params(*chosen.values())
    )
    return finished(chart, title, description, height=height)


def rank_curves(
    table: pd.DataFrame, *, group: str, facet: str, title: str, description: str, x_title: str = "rank"
) -> alt.TopLevelMixin:
    """Share of ranks at or below each rank: a line a group, a panel a facet. Columns: `facet`, `group`, rank, share."""
    line = (
        alt.Chart(table)
        .mark_line(interpolate="step-after", point=False)
        .encode(
            x=alt.X("rank:Q", title=x_title, scale=alt.Scale(type="log", nice=False)),
            y=alt.Y("share:Q", title="share at or below", scale=alt.Scale(domain=[0, 1])),
            color=colour(group, table, group.replace("_", " ")),
            tooltip=[*map(alt.Tooltip, (facet, group, "rank")), alt.Tooltip("share:Q", format=".3f")],
        )
        .properties(width=270, height=220)
    )
    order = list(dict.fromkeys(table[facet]))
    return finished(line.facet(column=alt.Column(f"{facet}:N", title=None, sort=order)), title, description)
