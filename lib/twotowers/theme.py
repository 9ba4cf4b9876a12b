"""The theme of all charts, and their forms in a notebook: a specification and a picture.

Whatever imports this module draws charts with the theme. This module does not load torch.
"""

from __future__ import annotations

import json
import re
from typing import Any

import altair as alt
import vl_convert

from twotowers.colours import BLUE, OTHER_COLOURS

WIDTH = 680  # of a whole figure: a page's column; panels share it
ROWS = 100_000  # of a chart: a point for every head of large models; Altair would stop at 5,000
VEGA = "application/vnd.vegalite.v5+json"  # the newest that JupyterLab draws

alt.data_transformers.enable("default", max_rows=ROWS)


def svg(spec: dict) -> str:
    """Return a chart as a picture.

    Characters that XML cannot hold become U+FFFD, since the library would end Python at them.

    Args:
        spec: Chart as a Vega-Lite specification.
    """
    text = json.dumps(spec, sort_keys=True, ensure_ascii=False)
    # JSON now writes only control characters as \u....
    text = re.sub(r"(?<!\\)\\(u....|[bf])|[\ud800-\udfff\ufffe\uffff]", "\ufffd", text)
    return vl_convert.vegalite_to_svg(text)


def _bundle(spec: dict, **_: Any) -> dict:
    """Return the forms of a chart in a notebook.

    JupyterLab and VS Code draw the chart without a network, and other viewers show the picture.
    JupyterLab resizes a chart that follows its container without end, so the page freezes.
    """
    endless = {side: WIDTH for side in ("width", "height") if spec.get(side) == "container"}
    spec = spec | endless
    return {VEGA: spec, "image/svg+xml": svg(spec)}


alt.renderers.register("twotowers", _bundle)
alt.renderers.enable("twotowers")


@alt.theme.register("twotowers", enable=True)
def _theme() -> alt.theme.ThemeConfig:
    """Return the theme of all charts."""
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
                "labelLimit": 0,
            },
            "axisXQuantitative": {"labelOverlap": True},
            "legend": {
                **text,
                "orient": "top",
                "symbolSize": 90,
                "columns": 3,
                "labelLimit": 0,
                "titleLimit": 0,
                "title": None,
            },
            "header": {
                "labelFontSize": 13,
                "labelFontWeight": 600,
                "labelLimit": 230,  # a longer name would reach into the next panel
                "title": None,
            },
            "bar": {"color": BLUE},
            "point": {"filled": True, "size": 50, "color": BLUE},
            "line": {"strokeWidth": 2},
            "range": {"category": OTHER_COLOURS},
        }
    }
