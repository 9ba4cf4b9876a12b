"""Charts that several chapters use, with one panel for each model.

    >>> table = pd.DataFrame({"model": ["a", "b"], "heads": "all", "value": [0.1, 0.2]})
    >>> chart = intervals(table.assign(low=0.0, high=0.3), "heads", title="nats")
    >>> chart.to_dict()["facet"]["field"]
    'model'

Every function takes a tidy table with a column `model` and draws one panel for each model, with
shared axes, or (`overlay`) all models in one panel. A chapter has its own code for any other chart.
Colours are in `colours`, and the look of all charts is in `theme`. This module does not load torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd
import xarray as xr

from twotowers.colours import BROWN, CLEAR, COLOURS, GREY, OTHER_COLOURS, VIOLET, model_colours
from twotowers.paths import included_models
from twotowers.tables import shown_name, shown_names
from twotowers.theme import WIDTH

TALLEST = 560
"""Height of the tallest figure with all models (pixels)"""
HEADER = 60
"""Height of a panel's header and axis (pixels)"""
CHOSEN = 240
"""Smallest height of the panels of one chosen model (pixels)"""


def colour(field: str, names: Iterable[str], title: str | None = None) -> alt.Color:
    """Return a colour scale over names, in which known names keep their colour in every figure.

        >>> colour("label", ["right label", "other label"]).to_dict()["scale"]
        {'domain': ['right label', 'other label'], 'range': ['#b8324c', '#e59aa8']}

    Args:
        field: Column of the names.
        names: Names in the order of the legend.
        title: Title of the legend.
    """
    names = list(dict.fromkeys(names))
    known = [COLOURS.get(name) for name in names]
    spare = itertools.cycle(c for c in OTHER_COLOURS if c not in known)
    colours = [c or next(spare) for c in known]
    longest = max(map(len, names), default=0)
    columns = 2 if longest > 18 else 3
    scale = alt.Color(f"{field}:N", title=title)
    scale = scale.scale(domain=names, range=colours)
    return scale.legend(columns=columns, symbolOpacity=1)  # marks may be faint, their key is not


def below(tables: Iterable[pd.DataFrame], *columns: str) -> pd.DataFrame:
    """Return tables, one below the other.

    Without tables, the result has the columns and no rows, and a chart of it is empty.

        >>> tables = [pd.DataFrame({"model": [name], "heads": [5]}) for name in ("a", "b")]
        >>> below(tables)["model"].tolist(), below([], "model", "heads").columns.tolist()
        (['a', 'b'], ['model', 'heads'])

    Args:
        tables: Tables with the same columns.
        *columns: Names of the columns.
    """
    parts = [*tables]
    if not parts:
        return pd.DataFrame(columns=[*columns])
    return pd.concat(parts)


def tidy(values: Mapping[str, xr.DataArray], name: str, **columns: Any) -> pd.DataFrame:
    """Return arrays of all models as one table, with a row for each number that is not missing.

        >>> attention = xr.DataArray([0.2, 0.7], {"head": [3, 4]})
        >>> tidy({"a": attention}, "attention").values.tolist()
        [['a', 3, 0.2], ['a', 4, 0.7]]

    Args:
        values: Arrays by model, with the same dimensions.
        name: Column of the numbers.
        **columns: Further columns, the same in every row.

    Returns:
        Columns model, the dimensions in their order, `name`, and the given ones.
    """
    parts = []
    for model, array in values.items():
        numbers = array.reset_coords(drop=True).to_series()
        part = numbers.rename(name).dropna().reset_index()
        part.insert(0, "model", model)
        parts.append(part)
    return below(parts, "model", name).assign(**columns)


def facets(
    chart: alt.Chart | alt.LayerChart,
    table: pd.DataFrame,
    column: str | None = None,
    columns: int = 3,
    *,
    height: int | alt.Step = 180,
    free: str = "",
    axes: Literal["x", "xy"] = "xy",
) -> alt.FacetChart:
    """Draw one panel for each model, in the order of the table. Panels share their scales.

    If all panels do not fit one screen, those of one model are shown, with a chooser.

        >>> table = pd.DataFrame({"model": ["a", "a", "b"], "layer": [0, 1, 0], "nats": [1, 2, 3]})
        >>> chart = facets(alt.Chart().mark_bar().encode(x="layer:O", y="nats:Q"), table)
        >>> chart.to_dict()["facet"]["sort"]
        ['a', 'b']

    Args:
        chart: A chart without data.
        table: Data of the chart, with a column `model`.
        column: A column whose values become columns of panels; each model is a row.
        columns: Maximum number of panels in a row, if there is no `column`.
        height: Height of a panel in pixels.
        free: Axes ("x", "y" or "xy") along which each panel has its own scale.
        axes: Axes that every panel shows. Long names along "y" are shown once in each row.
    """
    if table.empty:
        chart = alt.Chart().mark_point()  # Altair cannot infer types of no rows
        table = pd.DataFrame(columns=["model", column or "rows"])
        height = 0
    table = table.assign(model=table["model"].map(shown_name))
    names = table["model"].unique().tolist()
    n_models = len(names)
    if column:
        n_across = table[column].nunique()
        n_rows = n_models
    else:
        n_across = min(columns, n_models)
        n_rows = math.ceil(n_models / columns)
    row_height = _pixels(height, table) + HEADER
    is_chosen = n_rows > 1 and n_rows * row_height > TALLEST
    if is_chosen:
        n_across = 1
        if column:
            by_model = table.groupby("model")[column]
            n_across = int(by_model.nunique().max())
        if not isinstance(height, alt.Step):
            height = max(height, CHOSEN)
    panel = chart.properties(width=_panel_width(n_across), height=height)
    if column:
        row = alt.Row("model:N", sort=names).header(
            labelOrient="top", labelAngle=0, labelAnchor="start"
        )
        entries = table[column].unique().tolist()
        across = alt.Column(f"{column}:N", sort=entries)
        panels = panel.facet(row=row, column=across, data=table)
    else:
        each = alt.Facet("model:N", sort=names)
        panels = panel.facet(each, columns=columns, data=table)
    panels = panels.resolve_axis(**dict.fromkeys(axes, "independent"))
    if is_chosen:
        panels = _with_chooser(panels, names)
    independent = {}
    for axis in free:
        independent[axis] = "independent"
        independent[f"{axis}Offset"] = "independent"
    return panels.resolve_scale(**independent)


def _panel_width(n_across: int) -> int:
    """Return the width of a panel (pixels), for a number of panels in a row."""
    share = WIDTH // max(1, n_across)
    return max(120, share - 65)


def _pixels(height: int | alt.Step, table: pd.DataFrame) -> int:
    """Return the height of a panel, about that of its longest list if it has steps."""
    if not isinstance(height, alt.Step):
        return height
    words = table.select_dtypes(exclude="number").drop(columns="model")
    if not len(words.columns):
        return int(height.step)
    n_words = words.groupby(table["model"]).nunique()
    longest = n_words.max(axis=None)
    return int(height.step * longest)


def _with_chooser(panels: alt.FacetChart, names: list[str]) -> alt.FacetChart:
    """Show the panels of one model, which the reader chooses.

    The first choice is the user's own model, otherwise the smallest pretrained model.
    """
    known = [shown_name(model) for model in included_models()]
    pretrained = [name for name in names if name not in known]
    of_book = shown_names().values()
    own = [name for name in pretrained if name not in of_book]
    first, *_ = own or pretrained or names
    chosen = panels.transform_filter("datum.model === model")
    chosen.params = [model_menu(names, first).param]
    return chosen


def model_menu(names: list[str], first: str) -> alt.Parameter:
    """Return a menu of models, which is the parameter `model` of a chart.

    Args:
        names: Names of the models, as pages show them.
        first: Name that is chosen at first.
    """
    menu = alt.binding_select(options=names, name="model ")
    return alt.param("model", bind=menu, value=first)


def overlay(chart: alt.Chart | alt.LayerChart, table: pd.DataFrame, column: str) -> alt.FacetChart:
    """Draw all models together, in colours, with one panel for each value of a column.

    Panels are side by side and share the vertical axis only.

    Args:
        chart: A chart without data and without colours.
        table: Data of the chart, with a column `model`.
        column: Column whose values have panels, in the order of the table.
    """
    table = table.assign(model=table["model"].map(shown_name))
    names = table["model"].unique().tolist()
    entries = table[column].unique().tolist()
    scale = alt.Scale(domain=names, range=model_colours(names))
    colours = alt.Color("model:N", scale=scale, title=None)
    coloured = chart.encode(color=colours)
    n_panels = len(entries) or 1
    panel = coloured.properties(width=_panel_width(n_panels), height=280)
    facet = alt.Facet(f"{column}:N", sort=entries, title=None)
    panels = panel.facet(facet, columns=n_panels, data=table)
    return panels.resolve_scale(x="independent")


def dashed(**position: Any) -> alt.Chart:
    """Draw a dashed line across a panel, such as chance.

    Args:
        **position: Position of the line, as `x` or `y`.
    """
    rule = alt.Chart().mark_rule(strokeDash=[3, 3], opacity=0.6)
    return rule.encode(**position)


def diagonal(x: str, y: str) -> alt.Chart:
    """Draw a dashed line where two columns are equal, between their common ends.

    Args:
        x: Column of the horizontal axis.
        y: Column of the vertical axis.
    """
    ends = alt.Chart().transform_aggregate(
        x_low=f"min({x})", y_low=f"min({y})", x_high=f"max({x})", y_high=f"max({y})"
    )
    ends = ends.transform_calculate(
        low="max(datum.x_low, datum.y_low)", high="min(datum.x_high, datum.y_high)"
    )
    ends = ends.transform_filter("datum.low < datum.high")
    line = ends.mark_rule(strokeDash=[3, 3])
    return line.encode(
        alt.X("low:Q", title=""),
        alt.Y("low:Q", title=""),
        x2="high:Q",
        y2="high:Q",
        color=alt.value(GREY),
    )


def scatter_heads(
    values: Mapping[str, xr.Dataset],
    x: str,
    y: str,
    titles: Mapping[str, str],
    *,
    kinds: Sequence[str] = (),
    has_diagonal: bool = False,
    **panels: Any,
) -> alt.FacetChart:
    """Draw a point for each head, from two of its quantities, one panel for each model.

        >>> heads = xr.Dataset({"before": (("layer", "head"), [[0.1, 0.2]])})
        >>> values = {"a": heads.assign(after=heads["before"] ** 2)}
        >>> chart = scatter_heads(values, "before", "after", {"after": "after (nats)"})
        >>> chart.to_dict()["spec"]["encoding"]["y"]["title"]
        'after (nats)'

    Args:
        values: Quantities by model, over (layer, head) or fewer dimensions, and `kind` if the heads
            have kinds.
        x: Quantity of the horizontal axis.
        y: Quantity of the vertical axis.
        titles: Titles of quantities. A quantity without a title has its own name.
        kinds: Kinds of heads, which have colours.
        has_diagonal: Whether a dashed line shows where both quantities are equal.
        **panels: Arguments of `facets`.
    """
    named = ["model", "layer", "head"]
    if kinds:
        named.append("kind")
    tables = []
    for model, heads in values.items():
        shown = heads[[*named[3:], x, y]].reset_coords(drop=True)
        table = shown.to_dataframe().reset_index()
        tables.append(table.assign(model=model))
    axes = []
    for channel, name in ((alt.X, x), (alt.Y, y)):
        title = titles.get(name, name)
        axis = channel(f"{name}:Q", title=title)
        axes.append(axis.scale(zero=False))
    numbers = [alt.Tooltip(f"{name}:Q", format="+.2f") for name in (x, y)]
    chart = alt.Chart().mark_point(size=35, opacity=0.7)
    chart = chart.encode(*axes, tooltip=[*named, *numbers])
    if kinds:
        chart = chart.encode(colour("kind", kinds))
    if has_diagonal:
        chart = diagonal(x, y) + chart
    return facets(chart, below(tables, *named, x, y), **panels)


def intervals(
    table: pd.DataFrame,
    by: str,
    *,
    title: str,
    mark: Literal["point", "bar", "line"] = "point",
    group: str | None = None,
    by_title: str | None = None,
    fmt: str = "+.2f",
    null_value: float | None = None,
    **panels: Any,
) -> alt.FacetChart:
    """Draw values with 95% intervals, one panel for each model.

        >>> table = pd.DataFrame({"model": ["a"], "heads": ["all"], "value": [0.1]})
        >>> chart = intervals(table.assign(low=0.0, high=0.2), "heads", title="attention")
        >>> [layer["mark"]["type"] for layer in chart.to_dict()["spec"]["layer"]]
        ['rule', 'point']

    Args:
        table: Columns model, `by`, value, low, high, and `group`.
        by: Column whose entries have a line ("point"), a bar, or a place on the axis ("line").
        title: Title of the values.
        mark: Mark of a value. Intervals of lines are bands.
        group: Column whose entries have colours; points and bars are side by side.
        by_title: Title of the entries.
        fmt: Format of values in tooltips.
        null_value: Position of a dashed line, such as chance.
        **panels: Arguments of `facets`.
    """
    if table.empty:
        return facets(alt.Chart().mark_point(), table, **panels)
    entry, offset = alt.X, alt.XOffset
    value, end = alt.Y, alt.Y2
    if mark == "point":
        entry, offset = alt.Y, alt.YOffset
        value, end = alt.X, alt.X2
        panels["axes"] = "x"
    kind = "Q" if mark == "line" else "N"
    label_angle = -30 if mark == "bar" else 0
    entries = entry(f"{by}:{kind}", sort=None, title=by_title)
    entries = entries.axis(tickMinStep=1, labelAngle=label_angle)
    tooltip_fields = [alt.Tooltip(name, format=fmt) for name in ("value", "low", "high")]
    names = ["model", by]
    if group:
        names.append(group)
    base = alt.Chart().encode(entries, tooltip=[*names, *tooltip_fields])
    if group:
        base = base.encode(colour(group, table[group]))
        if mark != "line":
            base = base.encode(offset(f"{group}:N", sort=None))
    spread = base.mark_rule(strokeWidth=2)
    if mark == "line":
        spread = base.mark_area(opacity=0.18)
    marks = {
        "point": base.mark_point(size=60, opacity=1),
        "bar": base.mark_bar(opacity=0.85),
        "line": base.mark_line(point={"size": 35}),
    }
    axis_format = ".0%" if fmt.endswith("%") else "~f"  # not ~g, which writes 10 as 1e+1
    numbers = value("value:Q", title=title)
    numbers = numbers.axis(format=axis_format, labelSeparation=4)
    values = marks[mark].encode(numbers)
    spread = spread.encode(value("low:Q"), end("high:Q"))
    if mark == "bar":
        chart = values + spread.encode(color=alt.value("#666"))
    else:
        chart = spread + values
    if null_value is not None:
        side = "x" if mark == "point" else "y"
        chart += dashed(**{side: alt.datum(null_value)})
    return facets(chart, table, **panels)


def dots(
    table: pd.DataFrame,
    by: str,
    value: str,
    *,
    title: str,
    group: str,
    names: Sequence[str],
    group_title: str | None = None,
    shape: str | None = None,
    order: Sequence[str] | None = None,
    fmt: str = ".3f",
    scale: Literal["linear", "log"] = "linear",
    is_joined: bool = False,
    null_value: float | None = None,
    **panels: Any,
) -> alt.FacetChart:
    """Draw a line for each entry with a dot for each name of a group, one panel for each model.

        >>> table = pd.DataFrame({"model": "a", "head": "1-0", "label": ["foo", "bar"]})
        >>> table = table.assign(attention=[0.4, 0.1])
        >>> names = ["foo", "bar"]
        >>> chart = dots(table, "head", "attention", title="sum", group="label", names=names)
        >>> chart.to_dict()["spec"]["encoding"]["y"]["field"]
        'head'

    Args:
        table: Columns model, `by`, `value`, `group` and `shape`.
        by: Column whose entries have lines.
        value: Column of the numbers.
        title: Title of the numbers.
        group: Column whose entries have colours.
        names: Entries of `group` in the order of the legend.
        group_title: Title of the legend.
        shape: Column whose entries have shapes: circles, then crosses.
        order: Entries of `by` from top to bottom, by default as in the table.
        fmt: Format of the numbers in tooltips.
        scale: Scale of the numbers.
        is_joined: Whether a grey line joins the dots of an entry.
        null_value: Position of a dashed line, such as chance.
        **panels: Arguments of `facets`.
    """
    axis_format = ".0%" if fmt.endswith("%") else "~g"
    numbers = alt.X(f"{value}:Q", title=title)
    numbers = numbers.axis(tickCount=3, format=axis_format)
    numbers = numbers.scale(type=scale)
    entries = alt.Y(f"{by}:N", sort=order, title=None)
    entries = entries.axis(labelFontSize=11)
    fields = []
    for name in ("model", by, group):
        words = name.replace("_", " ")
        fields.append(alt.Tooltip(name, title=words))
    fields.append(alt.Tooltip(value, format=fmt))
    if shape:
        fields.append(alt.Tooltip(shape))
    base = alt.Chart().encode(entries, numbers, tooltip=fields)
    colours = colour(group, names, group_title)
    chart = base.mark_point(size=55, opacity=1).encode(colours)
    if shape:
        shapes = alt.Shape(f"{shape}:N").scale(range=["circle", "cross"])
        chart = chart.encode(shape=shapes)
    if is_joined:
        line = base.mark_line(color=GREY)
        chart = line.encode(detail=f"{by}:N") + chart
    if null_value is not None:
        chart = dashed(x=alt.datum(null_value)) + chart
    return facets(chart, table, axes="x", **panels)


def head_maps(table: pd.DataFrame, value: str, *, title: str) -> alt.FacetChart:
    """Draw a map of all heads, layer by head, one panel for each model, each with its own scale.

    The deepest layer is on top. Values above zero are violet, and values below zero are brown.

    Args:
        table: Columns model, layer, head, and `value`.
        value: Column of the values.
        title: Title of the values.
    """
    sizes = table[value].abs()
    largest = sizes.groupby(table["model"]).transform("max")
    scaled = table[value] / largest.replace(0, 1)
    table = table.assign(scaled=scaled)
    colours = alt.Color("scaled:Q", title=f"{title}, as a share of the largest")
    number = alt.Tooltip(value, title=title, format="+.3f")
    marks = alt.Chart().mark_rect(stroke=GREY, strokeWidth=0.2)
    marks = marks.encode(
        alt.X("head:O").axis(labelAngle=0, labelOverlap=True),
        alt.Y("layer:O", sort="descending").axis(labelOverlap=True),
        colours.scale(domain=[-1, 0, 1], range=[BROWN, CLEAR, VIOLET]),
        tooltip=["model", "layer", "head", number],
    )
    return facets(marks, table, height=260, free="xy")
