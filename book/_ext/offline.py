"""A Sphinx extension: every script a page needs comes from the book's own folder, none from the network.

Vega, Vega-Lite and Vega-Embed come from the package vl-convert-python, MathJax from sphinx-mathjax-offline;
both are copied while building. What lies in `book/_page` makes charts follow the page's colours and width.
"""

import importlib.util
import json
import shutil
from pathlib import Path

import altair
import tinker
import vl_convert

PAGE = Path(__file__).parent.parent / "_page"
# MathJax is 24 MB; the pages need its TeX reader, the fonts, and the extensions it loads when a formula asks.
MATHJAX_PARTS = ("tex-chtml.js", "output/chtml/fonts/**/*", "input/tex/extensions/*.js")
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
    tinker.write_data(Path(app.srcdir), target)
    vega = target / "vega.js"
    if not vega.exists():
        vega.write_text(vega_script(), "utf8")
    mathjax = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static/mathjax"
    for pattern in MATHJAX_PARTS:
        for source in mathjax.glob(pattern):
            copy = target / "mathjax" / source.relative_to(mathjax)
            if source.is_file() and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)


def add_chart_scripts(app, pagename, templatename, context, doctree) -> None:
    """Only a page with a chart loads Vega (0.9 MB, once)."""
    if "altair-viz" in (context.get("body") or ""):
        app.add_js_file("book/vega.js")
        app.add_js_file("book/charts.js")


def setup(app) -> dict:
    app.config.mathjax_path = "book/mathjax/tex-chtml.js"
    app.add_css_file("book/book.css")
    app.connect("builder-inited", write_files)
    app.connect("html-page-context", add_chart_scripts)
    app.connect("html-page-context", tinker.add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
