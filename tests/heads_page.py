"""The explorer in the page for its tests: its files in a page of their own."""

import sys
from pathlib import Path

from tinker_page import HEAD, PAGE, ROOT

sys.path.insert(0, str(ROOT / "book/_ext"))
import explorer

DATA = explorer.SCRIPTS[0]


def written(folder: Path, built: Path) -> str:
    """The explorer's own files, and the site's script, in a page without the book around it, as a file."""
    (folder / DATA).write_text(explorer.script(built), "utf8")
    sources = [folder / DATA, *(PAGE / name for name in (*explorer.SCRIPTS[1:], "page.js"))]
    head = "".join(f'<script defer src="{source.as_uri()}"></script>' for source in sources)
    styles = ("book.css", "tinker.css", "heads.css")
    head += "".join(f'<link rel="stylesheet" href="{(PAGE / name).as_uri()}">' for name in styles)
    fragment = (ROOT / "book/heads.md").read_text("utf8").split("```{raw} html\n")[1].split("```")[0]
    body = f"<body class='bd-article'><main><h1>t</h1>{fragment}</main></body>"
    (folder / "page.html").write_text(HEAD + head + body)
    return (folder / "page.html").as_uri()
