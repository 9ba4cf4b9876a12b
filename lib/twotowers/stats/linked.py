"""A chart that answers a click: a head is picked on the map, and what is known of it follows. Altair's own selections."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.stats import charts

WIDTH = 300  # of either part, so that both are seen at once on a phone


def head_explorer(
    table: pd.DataFrame, *, value: str, value_title: str, title: str, description: str, share_title: str
) -> alt.TopLevelMixin:
    """A layer x head map, and lines about the head that is picked on it; before a click, the one with the highest `value`.

    A row is one line about a head: layer, head, name, `value` (the same in all rows of a head), line (what is said), share
    (of a bar, 0 to 1) and strong (bool, coloured). Lines are unfolded in the browser, so no limit on rows is met.
    """
    heads = table.groupby(["layer", "head", "name", value], sort=False, dropna=False)  # a head without a value stays
    table = heads[["line", "share", "strong"]].agg(list).reset_index()
    first = table.loc[table[value].idxmax(), "name"]
    pick = alt.selection_point(name="pick", fields=["name"], value=[{"name": first}], empty=False, clear=False)
    found = alt.expr("pick.name ? 'Head ' + pick.name[0] : 'No head is picked: click one on the map'")

    def part(chart: alt.Chart | alt.LayerChart, heading: object) -> alt.Chart | alt.LayerChart:
        small = alt.TitleParams(heading, fontSize=13, fontWeight="normal")
        return chart.properties(title=small, width=WIDTH)

    cells = charts.head_cells(table, value, value_title).add_params(pick)
    cells = cells.encode(
        stroke=alt.condition(pick, alt.value(charts.PINK), alt.value(charts.GREY)),
        strokeWidth=alt.condition(pick, alt.value(3), alt.value(0.3)),
    )
    lines = alt.Chart(table).transform_filter(pick).transform_flatten(["line", "share", "strong"])
    row = alt.Y("line:N", sort=None, axis=None)
    bars = lines.mark_bar(height=9, yOffset=7).encode(
        x=alt.X(
            "share:Q",
            title=share_title,
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(format="%", tickCount=5, grid=False),
        ),
        y=row,
        color=alt.condition(alt.datum.strong, alt.value(charts.BLUE), alt.value(charts.GREY)),
    )
    said = lines.mark_text(align="left", baseline="bottom", fontSize=11).encode(x=alt.value(0), y=row, text="line:N")
    below = part((bars + said).properties(height=34 * len(table["line"].iloc[0])), found)
    return charts.finished(part(cells, "click a head") & below, title, description)


def below(rank: pd.Series, count: int) -> pd.Series:
    """The share of the other heads that a place leaves below it: 1 for the first of `count`, 0 for the last."""
    return (count - rank) / max(1, count - 1)
