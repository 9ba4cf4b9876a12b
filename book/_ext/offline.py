"""A Sphinx extension: every script a page needs comes from the book's own folder, none from the network.

Vega, Vega-Lite and Vega-Embed come from the package vl-convert-python, copied while building. What lies in
`book/_page` makes charts follow the page's colours and width.
"""

import json
import shutil
from pathlib import Path

import altair
import vl_convert

PAGE = Path(__file__).parent.parent / "_page"
# What Altair's loader asks `VEGA_DEBUG` before it fetches a library.
LOADED = {
    "vega_version": altair.VEGA_VERSION,
    "vegalite_version": altair.VEGALITE_VERSION,
    "vegaembed_version": altair.VEGAEMBED_VERSION,
}


def vega_script() -> str:
    """The three libraries in one script; the wrapping function keeps their names to themselves."""
    return f"(() => {{\n{vl_convert.javascript_bundle()}\n}})();\nwindow.VEGA_DEBUG = {json.dumps(LOADED)};\n"


def write_files(app) -> None:
    """Put the scripts where Sphinx puts its own, before the pages are written."""
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "book"
    target.mkdir(parents=True, exist_ok=True)
    for source in PAGE.iterdir():
        shutil.copy(source, target)
    vega = target / "vega.js"
    if not vega.exists():
        vega.write_text(vega_script(), "utf8")


def add_chart_scripts(app, pagename, templatename, context, doctree) -> None:
    """Only a page with a chart loads Vega (0.9 MB, once)."""
    if "altair-viz" in (context.get("body") or ""):
        app.add_js_file("book/vega.js")
        app.add_js_file("book/charts.js")


def setup(app) -> dict:
    app.add_css_file("book/book.css")
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", add_chart_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
