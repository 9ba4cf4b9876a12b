"""A Sphinx extension: every script a page needs comes from the book's own folder, and nothing else is run.

Vega, Vega-Lite and Vega-Embed come from the package vl-convert-python, copied while building. What lies in `book/_page`
draws the charts in the page's colours and width. Formulas are MathML, made while building.

A content security policy in every page is the second wall behind escaping: whatever text got in as markup, a browser
runs only files of the book, and those inline scripts that the theme's templates and extensions wrote themselves. They
are told from others by a random mark while building, which no text can hold; the finished page has their hashes.
"""

import base64
import hashlib
import re
import secrets
import shutil
from pathlib import Path

import online
import tinker
import vl_convert

PAGE = Path(__file__).parent.parent / "_page"
MARK = secrets.token_hex(16)
PRINTS = "window.print()"  # the one handler that the theme writes into an attribute
# From file:// a browser may not take the book's folder for 'self', so that scheme is named; a server's page cannot use
# it. Styles are written by Vega. Only the search page asks for pages, to show where a word stands.
POLICY = {
    "default-src": "'none'", "script-src": "'self' file: 'unsafe-hashes'", "style-src": "'self' file: 'unsafe-inline'",
    "font-src": "'self' file: data:", "img-src": "'self' file: data: blob:", "connect-src": "'none'",
    "object-src": "'none'", "base-uri": "'none'", "form-action": "'self' file:",
}  # fmt: skip


def vega_script() -> str:
    """The three libraries in one script; the wrapping function keeps their names to themselves."""
    return f"(() => {{\n{vl_convert.javascript_bundle()}\nwindow.vegaEmbed ??= vegaEmbed;\n}})();\n"


def write_files(app) -> None:
    """Put the scripts where Sphinx puts its own, before the pages are written."""
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "book"
    target.mkdir(parents=True, exist_ok=True)
    for source in PAGE.iterdir():
        shutil.copy(source, target)
    tinker.write_data(Path(app.srcdir), target)
    online.write_card(app)
    vega = target / "vega.js"
    if not vega.exists():
        vega.write_text(vega_script(), "utf8")


def add_chart_scripts(app, pagename, templatename, context, doctree) -> None:
    """Only a page with a chart loads Vega (0.9 MB, once)."""
    if "altair-viz" in (context.get("body") or ""):
        app.add_js_file("book/vega.js", loading_method="defer")
        app.add_js_file("book/charts.js", loading_method="defer")


def policy(scripts: list[str], pagename: str) -> str:
    """The policy of a page with these inline scripts."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in [PRINTS, *scripts]]
    rules = dict(POLICY)
    rules["script-src"] += "".join(f" 'sha256-{one}'" for one in dict.fromkeys(digests))
    if pagename == "search":
        rules["connect-src"] = "'self'"
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def mark_templates(app) -> None:
    """Every script that a template writes gets the mark, as the template is read."""
    loader = app.builder.templates
    if app.builder.format != "html" or loader is None:
        return
    read = loader.get_source

    def marked(environment, template):
        source, *rest = read(environment, template)
        return re.sub(r"<script\b", f'<script nonce="{MARK}"', source), *rest

    loader.get_source = marked


def mark_page(app, pagename, templatename, context, doctree) -> None:
    """The scripts that extensions add get the mark, and the policy its place before all of them."""
    for script in context.get("script_files", []):
        if getattr(script, "attributes", {}).get("body"):
            script.attributes["nonce"] = MARK
    tag = f'<meta http-equiv="Content-Security-Policy" content="{MARK} {pagename}" />'
    context["metatags"] = f"\n    {tag}{context.get('metatags', '')}"


def with_policy(page: str) -> str:
    """A page with the policy in place of the marks."""
    inline = re.findall(rf'<script(?=[^>]*nonce="{MARK}")[^>]*>(.*?)</script>', page, re.DOTALL)
    known = [script for script in inline if script]
    page = page.replace(f' nonce="{MARK}"', "")
    return re.sub(rf'{MARK} ([^"]*)', lambda name: policy(known, name[1]), page)


def write_policies(app, exception) -> None:
    """In every page that was written now; the others have theirs."""
    for path in Path(app.outdir).rglob("*.html") if app.builder.format == "html" and not exception else ():
        if MARK in (page := path.read_text("utf8")):
            path.write_text(with_policy(page), "utf8")


def setup(app) -> dict:
    app.add_css_file("book/book.css")
    app.add_config_value("citation", {}, "html")
    app.connect("config-inited", online.read_citation)
    app.connect("builder-inited", write_files)
    app.connect("builder-inited", mark_templates)
    app.connect("html-page-context", add_chart_scripts)
    app.connect("html-page-context", tinker.add_scripts)
    app.connect("html-page-context", online.add_citation)
    app.connect("html-page-context", mark_page, priority=900)
    app.connect("build-finished", write_policies)
    app.connect("build-finished", online.write_site)
    return {"env_version": 6, "parallel_read_safe": True, "parallel_write_safe": True}  # a new number: all pages anew
