"""Pictures of the story, which are those of the opening page and of claims.

MARK.sub(lambda match: drawn(Path("_build"), *match.groups()), text)
"""

from __future__ import annotations

import re
from pathlib import Path

import live_prompt
import opening_page
from twotowers import claims, evidence

MARK = re.compile(r'<div data-(picture|claim)="([\w-]+)"></div>')


def drawn(build: Path, kind: str, name: str) -> str:
    """Return a picture on one line.

    Args:
        build: Folder of built files.
        kind: "claim" for the strip of a claim, or "picture".
        name: Id of the claim, or "attention" or "orders" for a picture of the opening page.
    """
    rows = evidence.read(build / "evidence", {**claims.claims(), **claims.paper_results()})
    if kind == "claim":
        return f'<div class="claim">{opening_page.claim_strip(rows, name)}</div>'
    if name == "orders":
        return f'<div class="opening">{opening_page.catch(build, rows)}</div>'
    return f'<div class="opening">{live_prompt.still(build)}</div>'


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Add the buttons of full screen, and the style of slides, to the story only."""
    if 'class="story"' in (context.get("body") or ""):
        app.add_css_file("book/opening-page.css")
        app.add_css_file("book/story.css")
        app.add_js_file("book/story.js", loading_method="defer")
