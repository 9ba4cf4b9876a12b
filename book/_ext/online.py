"""What pages say and link to once they are online: buttons that need the repository's address, citation, the picture that
other sites show beside a link, sitemap, 404.

`TWOTOWERS_REPOSITORY` is the repository's address on GitHub, `TWOTOWERS_SITE` that of the published pages. What needs an
address that is not given is left out.
"""

import os
import re
from html import escape
from pathlib import Path

import opening
import yaml
from twotowers.errors import TwoTowersError
from twotowers.paths import REPOSITORY, SITE

CARD = "_static/book/card.png"
PICTURE = "The book's title, and its Figure 1: how an in-context head answers, drawn for one prompt."
ADDRESS = re.compile(r"https://[\w.-]+(?:/[\w.-]+)*/?")
NOT_FOUND = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Page not found</title>
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"></head>
<body style="font: 1.1em sans-serif; max-width: 34em; margin: 15vh auto; padding: 0 1em">
<h1>This page is not here</h1><p>It may have moved. <a href="{home}">The book begins here.</a></p></body></html>
"""


def address(name: str) -> str:
    """A variable of the environment that holds an address; nothing where it is unset. Raises TwoTowersError for another text."""
    given = os.environ.get(name, "").strip()
    if given and not ADDRESS.fullmatch(given):
        raise TwoTowersError(f"{name}={given!r} is no address such as https://github.com/name/repository")
    return given.rstrip("/")


def with_buttons(config: bytes) -> bytes:
    """The book's _config.yml with buttons to the repository, "edit this page", Binder and Colab."""
    if not (repository := address(REPOSITORY)):
        return config
    whole = yaml.safe_load(config)
    whole["repository"] = {"url": repository, "branch": "main"}
    buttons = ("use_repository_button", "use_edit_page_button", "use_issues_button")
    whole["html"] |= dict.fromkeys(buttons, True)
    whole["launch_buttons"] = {
        "notebook_interface": "jupyterlab", "binderhub_url": "https://mybinder.org",
        "colab_url": "https://colab.research.google.com",
    }  # fmt: skip
    return yaml.safe_dump(whole, sort_keys=False).encode()


def write_card(app) -> None:
    """The picture, where the site's address is known and the table that it is drawn from lies in the stage."""
    target = Path(app.outdir) / CARD
    target.unlink(missing_ok=True)
    for table in Path(app.srcdir).glob(f"tables/*/{opening.TABLE}.csv") if address(SITE) else ():
        if drawn := opening.card(table.parent, app.config.project):
            target.write_bytes(drawn)


def add_citation(app, pagename, templatename, context, doctree) -> None:
    """Highwire tags, which reference managers and Google Scholar read: this book's page, and the paper it re-derives.

    Where the site's address is known also Open Graph's, which other sites read for a link.
    """
    title = re.sub(r"<[^>]*>", "", context.get("title") or "") or app.config.project
    said = [
        ("citation_title", title), ("citation_author", "The two-towers book authors"), ("citation_language", "en"),
        ("citation_publication_date", "2026"), ("citation_inbook_title", app.config.project),
        ("citation_reference", "citation_title=How do Large Language Models Learn In-Context? Query and Key Matrices of "
         "In-Context Heads are Two Towers for Metric Learning; citation_author=Zeping Yu; citation_author=Sophia Ananiadou; "
         "citation_publication_date=2024; citation_arxiv_id=2402.02872"),
    ]  # fmt: skip
    if site := address(SITE):
        page = f"{site}/{pagename}.html"
        said += [("citation_fulltext_html_url", page), ("og:title", title), ("og:type", "article"), ("og:url", page)]
        if (Path(app.outdir) / CARD).exists():
            said += [("og:image", f"{site}/{CARD}"), ("og:image:alt", PICTURE), ("twitter:card", "summary_large_image")]
    for name, text in said:
        kind = "property" if name.startswith("og:") else "name"
        context["metatags"] = f'{context.get("metatags", "")}\n    <meta {kind}="{name}" content="{escape(text)}" />'


def write_site(app, exception) -> None:
    """404.html; and sitemap.xml where the site's address is known."""
    if app.builder.format != "html" or exception:
        return
    site, out = address(SITE), Path(app.outdir)
    (out / "404.html").write_text(NOT_FOUND.format(home=escape(f"{site}/" if site else "index.html")), "utf8")
    if site:
        pages = sorted(p.relative_to(out).as_posix() for p in out.rglob("*.html") if "_static" not in p.parts)
        places = "".join(f"<url><loc>{escape(f'{site}/{page}')}</loc></url>\n" for page in pages if page != "404.html")
        (out / "sitemap.xml").write_text(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{places}</urlset>\n', "utf8"
        )  # fmt: skip
