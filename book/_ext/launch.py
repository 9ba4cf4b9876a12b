"""A Sphinx extension for buttons that open a notebook on Binder or Colab.

`BOOK_REPOSITORY`, or `GITHUB_REPOSITORY` in a workflow, names the repository as owner/name. Without
them, pages have no buttons and no links to these hosts.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

BINDER, COLAB = "https://mybinder.org", "https://colab.research.google.com"
BRANCH = "main"  # the branch whose pages .github/workflows/book.yml publishes
MARK = re.compile(r"<!-- open (\S+) -->")
ADDRESS = "<!-- repository -->"


def repository() -> str:
    """Return the repository of the book on GitHub as owner/name, or "" if it is unknown.

    Raises:
        ValueError: If a variable has another form.
    """
    name = os.environ.get("BOOK_REPOSITORY") or os.environ.get("GITHUB_REPOSITORY", "")
    if name and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"cannot use BOOK_REPOSITORY '{name}': expected owner/name")
    return name


def links(text: str) -> str:
    """Return Markdown with a link to each service in place of a mark such as this one.

    `Open it <!-- open book/04-attention-weights.ipynb -->in JupyterLab.`

    Args:
        text: Markdown. If the repository is unknown, marks are removed, and its address is a word.
    """
    name = repository()
    text = text.replace(ADDRESS, f"https://github.com/{name}" if name else "ADDRESS")
    binder, colab = (
        f"{BINDER}/v2/gh/{name}/{BRANCH}?urlpath=lab/tree",
        f"{COLAB}/github/{name}/blob",
    )
    return MARK.sub(
        rf"on [Binder]({binder}/\1), on [Colab]({colab}/{BRANCH}/\1) or " if name else "", text
    )


def set_repository(app, config) -> None:
    """Tell the theme the repository, if it is known.

    Args:
        app: Application of Sphinx.
        config: Configuration of Sphinx.
    """
    if name := repository():
        config.html_theme_options |= {
            "repository_url": f"https://github.com/{name}",
            "repository_branch": BRANCH,
            "launch_buttons": {
                "binderhub_url": BINDER,
                "colab_url": COLAB,
                "notebook_interface": "jupyterlab",
            },
        }


def remove_buttons(app, pagename, templatename, context, doctree) -> None:
    """Remove the buttons of a page that needs the evidence of all chapters."""
    source = Path(app.srcdir) / f"{pagename}.ipynb"
    if source.is_file():
        metadata = json.loads(source.read_text("utf8"))["metadata"]
        if metadata.get("twotowers", {}).get("evidence"):
            buttons = context["header_buttons"]
            context["header_buttons"] = [b for b in buttons if b["label"] != "launch-buttons"]


def setup(app) -> dict:
    """Register the extension.

    Args:
        app: Application of Sphinx.
    """
    app.connect("config-inited", set_repository)
    app.connect("html-page-context", remove_buttons, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}
