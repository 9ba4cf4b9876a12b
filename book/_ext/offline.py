"""A Sphinx extension that puts every script of a page into the book's own folder.

Vega, Vega-Lite and Vega-Embed come from the package vl-convert-python, and MathJax comes from
sphinx-mathjax-offline. The extension also corrects pages for screen readers.
"""

import shutil
from pathlib import Path

import explorer
import opening_page
import playground_page
import story
import vl_convert
from sphinx.errors import ExtensionError
from twotowers import claims
from twotowers.colours import BROWN, COLOURS, GREY, INK, RED, ROSE, VERDICT_COLOURS, VIOLET
from twotowers.pages import verdict_class

PAGE = Path(__file__).parent.parent / "_page"
ON_DARK = {
    INK: "#dfe5ec", RED: "#f0718a", ROSE: "#8a4a58", BROWN: "#b5803f", VIOLET: "#9d84d0",
    VERDICT_COLOURS[claims.HOLDS]: "#3f9bdc", VERDICT_COLOURS[claims.FAILS]: "#e07a32",
}  # fmt: skip
"""Colours on dark pages, where the strong one of a pair must be the light one"""
TOGGLE = '<summary aria-label="Toggle hidden content">'  # it has its own words


def style_of_colours() -> str:
    """Return the colours of labels, random heads and verdicts as a style sheet.

    Charts are drawn for light pages. On dark ones, rules replace colours that would be too dark, or
    whose pairs would exchange their strengths.
    """
    named = {verdict_class(name): COLOURS[name] for name in ("right label", "other label")}
    light = " ".join(f"--{name}: {colour};" for name, colour in named.items())
    dark = " ".join(f"--{name}: {ON_DARK[colour]};" for name, colour in named.items())
    is_dark = 'html[data-theme="dark"]'
    rules = "\n".join(
        f'{is_dark} :is(.marks, .strip) [{side}="{colour}"] {{ {side}: {on_dark}; }}'
        for colour, on_dark in ON_DARK.items()
        for side in ("fill", "stroke")
    )
    badges = "\n".join(
        f".verdict.{verdict_class(name)} {{ background: {colour}; }}"
        for name, colour in VERDICT_COLOURS.items()
    )
    screen = f"@media screen {{\n{is_dark} {{ {dark} }}\n{rules}\n}}"
    return f":root {{ {light} --grey: {GREY}; }}\n{screen}\n{badges}\n"


def _write_files(app) -> None:
    """Write scripts, and charts as pictures, to the folder of Sphinx before pages are written.

    Args:
        app: Application of Sphinx.
    """
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "book"
    target.mkdir(parents=True, exist_ok=True)
    for source in PAGE.iterdir():
        shutil.copy(source, target)
    (target / "colours.css").write_text(style_of_colours(), "utf8")
    shutil.rmtree(target / "pictures", ignore_errors=True)
    if (pictures := Path(app.srcdir) / "pictures").is_dir():
        shutil.copytree(pictures, target / "pictures")
    playground_page.write_data(Path(app.srcdir), target)
    explorer.write_data(Path(app.srcdir), target)
    opening_page.write_image(app, target)
    vega = target / "vega.js"
    # A function hides the names of the three libraries from other scripts.
    if not vega.exists():
        vega.write_text(
            f"(() => {{\n{vl_convert.javascript_bundle()}\nwindow.vegaEmbed ??= "
            f"vegaEmbed;\n}})();\n",
            "utf8",
        )


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Add Vega (0.9 MB, once) to pages with a chart only."""
    body = context["body"] = (context.get("body") or "").replace(TOGGLE, "<summary>")
    if '<div class="chart"' in body:
        app.add_js_file("book/vega.js", loading_method="defer")
        app.add_js_file("book/charts.js", loading_method="defer")


def name_unsearched(app, pagename, templatename, context, doctree) -> None:
    """Give pages that are not searched their titles in the search index.

    Functions on such a page are found all the same, and the result says on which page they are.
    The index is written after the page of the search.
    """
    if pagename != "search":
        return
    titles = app.builder.indexer._titles
    for name, title in titles.items():
        titles[name] = title or app.env.titles[name].astext()


def _every_page(app, env) -> list[str]:
    """Return all pages, so that all are written if one is.

    The search index forgets the index entries of a page that is not written.

    Args:
        app: Application of Sphinx.
        env: Environment of Sphinx.
    """
    return list(env.all_docs)


def setup(app) -> dict:
    """Register the extension.

    Args:
        app: Application of Sphinx.

    Raises:
        ExtensionError: If the sources have no figures and no verdicts.
    """
    if (Path(app.srcdir) / "Snakefile").is_file():  # these are not the sources of assemble_pages.py
        raise ExtensionError(
            "cannot build these sources: they have no figures and no verdicts; run `make book`"
        )
    app.add_css_file("book/colours.css")
    app.add_css_file("book/book.css")
    app.add_js_file("book/page.js")
    app.connect("config-inited", opening_page.set_address)
    app.connect("builder-inited", _write_files)
    app.connect("env-updated", _every_page)
    app.connect("html-page-context", add_scripts)
    app.connect("html-page-context", name_unsearched)
    app.connect("html-page-context", playground_page.add_scripts)
    app.connect("html-page-context", explorer.add_scripts)
    app.connect("html-page-context", opening_page.add_scripts)
    app.connect("html-page-context", story.add_scripts)
    # A new number lets Sphinx read all pages again.
    return {"env_version": 11, "parallel_read_safe": True, "parallel_write_safe": True}
