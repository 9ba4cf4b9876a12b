"""A Sphinx extension: pages that are light, and that a screen reader or a keyboard can use.

Formulas become MathML while the book is built, so no page loads a library for them. Icons come from the font that the
theme's style sheet loads anyway, not from its script of 1.5 MB.
"""

import re
from html import escape
from pathlib import Path

import pydata_sphinx_theme
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

# What is wrong in the HTML of Sphinx, its theme and extensions -> what stands there instead.
MENDED = {
    '<div role="list" class="citation-list">': '<div class="citation-list">',  # it holds no list items
    ' role="doc-biblioentry"': "",
    '<summary aria-label="Toggle hidden content">': "<summary>",  # it has words of its own
}


def mathml(tex: str, block: bool) -> str:
    """A formula as MathML; a warning, which fails the build, for what the converter does not know."""
    made = convert(tex, display="block" if block else "inline")
    if unknown := re.findall(r">(\\\w+)<", made):
        logging.getLogger(__name__).warning("a formula has %s, which MathML gets not: %s", ", ".join(unknown), tex)
    return made


def inline(self, node: nodes.Element) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(f"{mathml(node.astext(), block=False)}</span>")
    raise nodes.SkipNode


def block(self, node: nodes.Element) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({escape(str(node["number"]))})</span>')
    self.body.append(f"{mathml(node.astext(), block=True)}</div>\n")
    raise nodes.SkipNode


def mend(app, pagename, templatename, context, doctree) -> None:
    body = context.get("body") or ""
    for wrong, right in MENDED.items():
        body = body.replace(wrong, right)
    context["body"] = body


def fewer_icons(css: str, used: set[str]) -> str:
    """The theme's style sheet without the rules of icons that no page has; nothing else is touched."""

    def kept(match: re.Match) -> str:
        return match[0] if used & set(re.findall(r"\.(fa-[\w-]+):", match[0])) else ""

    return re.sub(r"(?<=\})(?:\.fa-[\w-]+:{1,2}before,?)+\{content:[^{}]*\}", kept, css)


def lighten(app, failed) -> None:
    """No script of icons, and only the used ones in the style sheet, taken anew from the theme in every build."""
    static, theme = Path(app.outdir) / "_static", Path(pydata_sphinx_theme.__file__).parent
    sheet = static / "styles/pydata-sphinx-theme.css"
    if failed or not sheet.exists():
        return
    script = static / "scripts/fontawesome.js"
    script.write_text("// The icons are drawn with the font of the style sheet.\n", "utf8")
    texts = [*Path(app.outdir).rglob("*.html"), *(one for one in (static / "scripts").glob("*.js") if one != script)]
    used = {name for text in texts for name in re.findall(r"\bfa-[\w-]+", text.read_text("utf8"))}
    css = theme / "theme/pydata_sphinx_theme/static/styles/pydata-sphinx-theme.css"
    sheet.write_text(fewer_icons(css.read_text("utf8"), used), "utf8")


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    app.config.html_math_renderer = "mathml"
    app.add_js_file("book/page.js")
    app.connect("html-page-context", mend)
    app.connect("build-finished", lighten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
