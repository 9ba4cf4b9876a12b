"""A Sphinx extension: every script a page needs lies in the book's own folder; what a screen reader
needs is there.

Vega, Vega-Lite and Vega-Embed come from the package vl-convert-python; MathJax from
sphinx-mathjax-offline.
"""

import shutil
from pathlib import Path

import explorer
import first
import tinker
import vl_convert
from sphinx.errors import ExtensionError

PAGE = Path(__file__).parent.parent / "_page"
TOGGLE = '<summary aria-label="Toggle hidden content">'  # it has words of its own


def write_files(app) -> None:
    """Put the scripts, and charts as pictures, where Sphinx puts its own, before the pages are
    written."""
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "book"
    target.mkdir(parents=True, exist_ok=True)
    for source in PAGE.iterdir():
        shutil.copy(source, target)
    shutil.rmtree(target / "pictures", ignore_errors=True)
    if (pictures := Path(app.srcdir) / "pictures").is_dir():
        shutil.copytree(pictures, target / "pictures")
    tinker.write_data(Path(app.srcdir), target)
    explorer.write_data(Path(app.srcdir), target)
    first.write_image(app, target)
    vega = target / "vega.js"
    # in a function, which keeps the names of the three libraries to themselves
    if not vega.exists():
        vega.write_text(
            f"(() => {{\n{vl_convert.javascript_bundle()}\nwindow.vegaEmbed ??= "
            f"vegaEmbed;\n}})();\n",
            "utf8",
        )


def for_one_page(app, pagename, templatename, context, doctree) -> None:
    """Only a page with a chart loads Vega (0.9 MB, once)."""
    body = context["body"] = (context.get("body") or "").replace(TOGGLE, "<summary>")
    if '<div class="chart"' in body:
        app.add_js_file("book/vega.js", loading_method="defer")
        app.add_js_file("book/charts.js", loading_method="defer")


def every_page(app, env) -> list[str]:
    """All pages are written when one is: the search index forgets the index entries of a page that
    is not."""
    return list(env.all_docs)


def setup(app) -> dict:
    if (Path(app.srcdir) / "Snakefile").is_file():  # not what stage.py has put together
        raise ExtensionError("these sources have no figures and no verdicts: run `make book`")
    app.add_css_file("book/book.css")
    app.add_js_file("book/page.js")
    app.connect("config-inited", first.set_address)
    app.connect("builder-inited", write_files)
    app.connect("env-updated", every_page)
    app.connect("html-page-context", for_one_page)
    app.connect("html-page-context", tinker.add_scripts)
    app.connect("html-page-context", explorer.add_scripts)
    app.connect("html-page-context", first.for_one_page)
    # a new number: all pages anew
    return {"env_version": 10, "parallel_read_safe": True, "parallel_write_safe": True}
