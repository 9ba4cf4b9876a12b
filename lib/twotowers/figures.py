"""Theme and common forms of the charts. A chapter writes a chart where it stands when none fits.

    >>> table = pd.DataFrame({"model": ["a", "b"], "heads": "all", "value": [0.1, 0.2]})
    >>> chart = dots(table.assign(low=0.0, high=0.3), "heads", x_title="nats")
    >>> chart.to_dict()["facet"]["field"]
    'model'

Every form takes a tidy table with a column `model` and draws one panel a model, with shared axes.
Colours mean one thing each through the book (COLOURS); models are told apart by panels, never by
colour. No torch here.
"""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from twotowers.tables import shown_name

# Okabe and Ito's palette: told apart by colour-blind readers, on light and dark pages.
BLUE, ORANGE, GREEN, PINK, SKY = "#2a87c4", "#d9691e", "#1f9e77", "#c678a8", "#56b4c9"
OLIVE, GREY = "#b8a100", "#8c8c8c"
OF_ANYTHING = [BLUE, ORANGE, GREEN, PINK, SKY, OLIVE, GREY]
# Colours of what is neither head nor label.
VIOLET, LILAC, BROWN, TAN, SAND = "#7a5fb0", "#b59cd8", "#7d4f1d", "#b5803f", "#ddb98a"
RED, ROSE = "#b8324c", "#e59aa8"  # of labels
CLEAR = "rgba(140, 140, 140, 0)"  # the middle of a scale with two ends: the page shows through
COLOURS = {
    "nonsense labels": VIOLET, "plain labels": LILAC, "by increase": PINK, "by attribution": GREEN,
    "by attention": BLUE, "other heads": GREY, "true label": RED, "own label": RED,
    "other label": ROSE, "false label": ROSE, "attention": GREEN, "FFN": PINK, "own class": VIOLET,
    "other class": LILAC, "kept": SAND, "taken out": BROWN, "first class of the pair": VIOLET,
    "second class": TAN, "mostly far": SAND, "even": TAN, "mostly near": BROWN,
    "both lists": VIOLET, "judged layers": RED,
    "other layers": GREY, "measured": VIOLET, "softmax alone": LILAC, "logit difference": VIOLET,
    "match": VIOLET, "order": BROWN, "query": LILAC, "preference": SAND, "the rest": GREY,
}  # fmt: skip
WIDTH = 680  # of a whole figure: a page's column; panels share it
ROWS = 100_000  # of a chart: a point for every head of large models; Altair would stop at 5,000
VEGA = "application/vnd.vegalite.v5+json"  # the newest that JupyterLab draws
INTERVAL = ("value", "low", "high")  # columns of a table of intervals
SIDE_BY_SIDE = 3  # models in a row: with more of them names and axes would be too small to read


alt.data_transformers.enable("default", max_rows=ROWS)


def svg(spec: dict) -> str:
    """A chart as a picture. Signs that no XML can hold, at which the library would end Python
    itself, become U+FFFD."""
    spec = {**spec, **({"width": 600} if spec.get("width") == "container" else {})}
    # What is written as \u.... now is a control character.
    text = json.dumps(spec, sort_keys=True, ensure_ascii=False)
    unit = re.compile(r'(\\[\\"nrt])|\\u.{4}|\\.|[\ud800-\udfff\ufffe\uffff]')
    return vl_convert.vegalite_to_svg(unit.sub(lambda match: match[1] or "\ufffd", text))


def _shown(spec: dict, **_: Any) -> dict:
    """What a notebook holds of a chart: JupyterLab and VS Code draw it without a network, other
    viewers show the picture."""
    return {VEGA: spec, "image/svg+xml": svg(spec)}


alt.renderers.register("twotowers", _shown)
alt.renderers.enable("twotowers")


@alt.theme.register("twotowers", enable=True)
def _theme() -> alt.theme.ThemeConfig:
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    return {
        "config": {
            "background": "transparent",
            "font": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
            "view": {"stroke": "transparent", "continuousHeight": 200},
            "title": {"anchor": "start", "fontSize": 14, "fontWeight": 600},
            "axis": {
                **text,
                "gridOpacity": 0.25,
                "domainOpacity": 0.5,
                "tickOpacity": 0.5,
                "labelLimit": 220,
            },
            "legend": {
                **text,
                "orient": "top",
                "symbolSize": 90,
                "columns": 3,
                "labelLimit": 0,
                "titleLimit": 0,
                "title": None,
            },
            "header": {"labelFontSize": 13, "labelFontWeight": 600, "title": None},
            "bar": {"color": BLUE},
            "point": {"filled": True, "size": 50, "color": BLUE},
            "line": {"strokeWidth": 2},
            "range": {"category": OF_ANYTHING},
        }
    }


def colour(field: str, names: Iterable[str], title: str | None = None) -> alt.Color:
    """A colour scale over `names`: known names keep their colour in every figure of the book."""
    names = list(dict.fromkeys(names))
    taken = {COLOURS.get(name) for name in names}
    spare = itertools.cycle([c for c in OF_ANYTHING if c not in taken])
    scale = alt.Scale(domain=names, range=[COLOURS.get(name) or next(spare) for name in names])
    # Marks may be faint, their key is not.
    key = alt.Legend(columns=2 if max(map(len, names), default=0) > 18 else 3, symbolOpacity=1)
    return alt.Color(f"{field}:N", scale=scale, title=title, legend=key)


def below(tables: Iterable[pd.DataFrame], *columns: str) -> pd.DataFrame:
    """Tables, one below the other; where there is none, a table of these columns without rows: a
    chart of it is empty."""
    return pd.concat([*tables] or [pd.DataFrame(columns=[*columns])])


def facets(
    chart: alt.Chart | alt.LayerChart,
    table: pd.DataFrame,
    *,
    columns: int = 3,
    height: int | alt.Step = 180,
    row: str | None = None,
    free: str = "",
) -> alt.FacetChart:
    """One panel a model, in the order of the table. Panels share their scales.

    Args:
        chart: without data.
        table: its data, with a column `model`.
        columns: at most so many panels beside each other.
        height: of a panel.
        row: a column of the table, whose values become rows of panels, each with all models; with
            more than SIDE_BY_SIDE models they become columns, and each model is a row.
        free: "x", "y" or "xy": along these axes each panel has its own scale.
    """
    if table.empty:
        chart, height = alt.Chart().mark_point(), 0  # Altair cannot tell of which types nothing is
    table = table.assign(model=table["model"].map(shown_name))
    across, down = "model", row
    if row and table["model"].nunique() > SIDE_BY_SIDE:
        across, down = row, "model"
    names = {column: list(dict.fromkeys(table[column])) for column in (across, down) if column}
    beside = len(names[across]) if row else min(columns, len(names[across]))
    panel = chart.properties(width=max(120, _room(beside)), height=height)
    if down:
        above = (
            alt.Header(labelOrient="top", labelAngle=0, labelAnchor="start")
            if down == "model"
            else alt.Header()
        )
        rows = alt.Row(f"{down}:N", sort=names[down], title=None, header=above)
        shown = panel.facet(
            row=rows, column=alt.Column(f"{across}:N", sort=names[across], title=None), data=table
        )
    else:
        shown = panel.facet(
            facet=alt.Facet("model:N", sort=names["model"], title=None), columns=columns, data=table
        )
        if beside < len(names["model"]) and len(names["model"]) % columns:
            # Where the last row is not full, the axis of what is above the gap would be below it.
            shown = shown.resolve_axis(x="independent")
    own = {scale: "independent" for axis in free for scale in (axis, f"{axis}Offset")}
    return shown.resolve_scale(**own) if free else shown


def _room(panels: int) -> int:
    """Width of each of so many panels beside each other, with an axis and its title."""
    return WIDTH // max(1, panels) - 65


def _numbers(columns: Iterable[str], fmt: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(column, format=fmt) for column in columns]


def dashed(data: pd.DataFrame | None = None, opacity: float = 0.6, **at: Any) -> alt.Chart:
    """A dashed line across a panel, such as at chance: x or y."""
    return (
        alt.Chart(alt.Undefined if data is None else data)
        .mark_rule(strokeDash=[3, 3], opacity=opacity)
        .encode(**at)
    )


def forest(table: pd.DataFrame, title: str, null: float) -> alt.LayerChart:
    """Effects with 95% intervals, one line a row.

    Args:
        table: columns row (its name), effect, effect_low, effect_high, verdict; control where there
            is one (a grey tick).
        title: of the axis.
        null: where the dashed line lies.
    """
    tip = ["row", *_numbers(("effect", "effect_low", "effect_high", "control"), "+.3f"), "verdict"]
    clear = alt.condition("datum.verdict == 'holds'", alt.value(BLUE), alt.value(GREY))
    ticks = alt.Axis(tickCount=6, labelOverlap=True)
    x = alt.X(
        "effect_low:Q", title=textwrap.wrap(title, 60), axis=ticks, scale=alt.Scale(zero=False)
    )
    base = alt.Chart(table).encode(y=alt.Y("row:N", sort=None, title=None))
    marks = base.mark_rule(strokeWidth=2).encode(x=x, x2="effect_high:Q", color=clear)
    if table["control"].notna().any():
        marks += base.mark_tick(color=GREY, thickness=2, size=14).encode(x="control:Q", tooltip=tip)
    marks += base.mark_point(size=70).encode(x="effect:Q", color=clear, tooltip=tip)
    zero = dashed(pd.DataFrame({"null": [null]}), x="null:Q")
    return (zero + marks).properties(width="container", height=24 * table["row"].nunique())


def _order(names: pd.Series) -> list[str]:
    """Different names as they first come, those of COLOURS last and in its order: a model may lack
    some of them."""
    order = list(COLOURS)
    return sorted(
        dict.fromkeys(names), key=lambda name: order.index(name) if name in COLOURS else -1
    )


def _as(fmt: str, **axis: Any) -> alt.Axis:
    """An axis in percent where the values are, else as Vega writes numbers."""
    return alt.Axis(**axis, format=".0%") if fmt.endswith("%") else alt.Axis(**axis)


def bars(
    table: pd.DataFrame,
    x: str,
    *,
    group: str,
    y_title: str,
    fmt: str = ".2f",
    line: float = 0.0,
    free: str = "",
) -> alt.FacetChart:
    """Bars with 95% intervals, grouped by `group`, a panel a model.

    Args:
        table: columns model, `x`, `group`, value, low, high.
        line: where the dashed line lies, such as at chance; 0 for none.
        free: "y" where each panel has its own scale.
    """
    names, sort = _order(table[group]), _order(table[x])
    widest = max((7 * len(str(name)) + 8 for name in sort), default=0)
    level = len(sort) * widest < _room(min(3, table["model"].nunique()))
    across = alt.X(f"{x}:N", sort=sort, title=None, axis=alt.Axis(labelAngle=0 if level else -30))
    base = alt.Chart().encode(x=across, xOffset=alt.XOffset(f"{group}:N", sort=names))
    bar = base.mark_bar(opacity=0.85).encode(
        y=alt.Y("value:Q", title=y_title, axis=_as(fmt)),
        color=colour(group, names),
        tooltip=["model", x, group, *_numbers(INTERVAL, fmt)],
    )
    error = base.mark_rule(strokeWidth=1.5, color="#666").encode(y="low:Q", y2="high:Q")
    rule = dashed(opacity=0.6 if line else 0, y=alt.datum(line))
    # A panel has room for its own names only: a model may lack some.
    return facets(bar + error + rule, table, free=f"x{free}")


def curves(
    table: pd.DataFrame,
    x: str,
    *,
    group: str,
    x_title: str,
    y_title: str,
    fmt: str = "+.2f",
    x_values: Sequence[float] | None = None,
    **panels: Any,
) -> alt.FacetChart:
    """Lines with 95% bands, a line a value of `group`, a panel a model.

    Args:
        table: columns model, `x` (numbers), `group`, value, low, high.
        x_values: where ticks are.
        **panels: as of `facets`.
    """
    ticks = {"values": list(x_values), "format": "~g"} if x_values else {"tickMinStep": 1}
    across = alt.X(f"{x}:Q", title=x_title, axis=alt.Axis(**ticks))
    base = alt.Chart().encode(x=across, color=colour(group, table[group]))
    band = base.mark_area(opacity=0.18).encode(
        y=alt.Y("low:Q", title=y_title, axis=_as(fmt)), y2="high:Q"
    )
    tip = ["model", group, x, *_numbers(INTERVAL, fmt)]
    line = base.mark_line(point={"size": 35}).encode(y="value:Q", tooltip=tip)
    return facets(band + line, table, **panels)


def dots(
    table: pd.DataFrame,
    y: str,
    *,
    x_title: str,
    group: str | None = None,
    fmt: str = "+.2f",
    height: int = 180,
) -> alt.FacetChart:
    """Points with 95% intervals, a line a value of `y`, a panel a model; dashed: zero.

    Args:
        table: columns model, `y`, value, low, high.
        group: a column whose entries stand beside each other, each in its colour.
    """
    tip = ["model", y, *([group] if group else []), *_numbers(INTERVAL, fmt)]
    base = alt.Chart().encode(
        y=alt.Y(f"{y}:N", sort=list(dict.fromkeys(table[y])), title=None), tooltip=tip
    )
    if group:
        names = list(dict.fromkeys(table[group]))
        base = base.encode(
            color=colour(group, names), yOffset=alt.YOffset(f"{group}:N", sort=names)
        )
    interval = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    axis = _as(fmt, tickCount=4, labelOverlap=True)
    point = base.mark_point(size=60, opacity=1).encode(x=alt.X("value:Q", title=x_title, axis=axis))
    return facets(dashed(x=alt.datum(0.0)) + interval + point, table, height=height)


def head_maps(table: pd.DataFrame, value: str, *, title: str) -> alt.FacetChart:
    """Layer x head, deepest layer on top, a panel a model, each on its own scale.

    Args:
        table: columns model, layer, head, and `value`: violet above zero and brown below.
    """
    table = table.assign(
        scaled=table[value] / table.groupby("model")[value].transform(lambda v: v.abs().max() or 1)
    )
    scale = alt.Scale(domain=[-1, 0, 1], range=[BROWN, CLEAR, VIOLET])
    marks = alt.Chart().mark_rect(stroke=GREY, strokeWidth=0.2).encode(
        x=alt.X("head:O", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y("layer:O", sort="descending", axis=alt.Axis(labelOverlap=True)),
        color=alt.Color("scaled:Q", title=f"{title}, as a share of the largest", scale=scale),
        tooltip=["model", "layer", "head", alt.Tooltip(f"{value}:Q", title=title, format="+.3f")],
    )  # fmt: skip
    return facets(marks, table, height=260, free="xy")
