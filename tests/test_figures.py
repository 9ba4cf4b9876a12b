"""Charts of nothing, and charts where little memory is allowed."""

import resource
import subprocess
import sys

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


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (30 * 2**30, -1))
import altair as alt
from towerlab import cli
from twotowers import figures
spec = alt.Chart().mark_point().to_dict()
print(*alt.renderers.get()(spec))
sys.exit(cli.main(["book"]))
"""


def test_where_a_cluster_limits_address_space_charts_have_no_picture_and_pages_are_refused():
    """K7: the library would end the process at the first chart."""
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert not unlimited or not figures.too_little_address_space()
    process = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert process.stdout.split() == [figures.VEGA], process.stderr
    reason = "cannot build the book: `ulimit -v` allows 30 GiB of address space"
    assert process.returncode == 2 and reason in process.stderr
