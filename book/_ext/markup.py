"""A Sphinx extension: pages that a screen reader or a keyboard can use.

Formulas become MathML while the book is built, so no page loads a library for them.
"""

import re
from html import escape

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

# What is wrong in the HTML of Sphinx, its theme and extensions -> what stands there instead.
MENDED = {
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


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    app.config.html_math_renderer = "mathml"
    app.add_js_file("book/page.js")
    app.connect("html-page-context", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
