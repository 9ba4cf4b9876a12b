"""What pages say and link to once they are online: buttons that need the repository's address, citation, the picture and
sentence that other sites show beside a link, sitemap, 404.

Whom to cite stands in CITATION.cff and nowhere else. `TWOTOWERS_REPOSITORY` is the repository's address on GitHub,
`TWOTOWERS_SITE` that of the published pages. What needs an address that is not given is left out.
"""

import json
import os
import re
import textwrap
from html import escape, unescape
from pathlib import Path

import opening
import yaml
from docutils import nodes
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
INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Refresh" content="0; url={first}" />{tags}</head>
<body><p><a href="{first}">{title}</a></p></body></html>
"""
PUBLISHED = "2026"
NOT_LISTED = {"404.html", "index.html", "search.html", "genindex.html"}


def address(name: str) -> str:
    """A variable of the environment that holds an address; nothing where it is unset. Raises TwoTowersError for another text."""
    given = os.environ.get(name, "").strip()
    if given and not ADDRESS.fullmatch(given):
        raise TwoTowersError(f"{name}={given!r} is no address such as https://github.com/name/repository")
    return given.rstrip("/")


def with_addresses(config: bytes) -> bytes:
    """The book's _config.yml with each page's own address, and buttons to the repository, "edit this page", Binder and Colab."""
    whole = yaml.safe_load(config)
    if site := address(SITE):
        whole["html"]["baseurl"] = f"{site}/"
    if not (repository := address(REPOSITORY)):
        return yaml.safe_dump(whole, sort_keys=False).encode() if site else config
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
        if drawn := opening.card(table.parent, app.config.html_title):
            target.write_bytes(drawn)


def read_citation(app, config) -> None:
    """CITATION.cff as a part of the configuration, so that pages are written again when it changes."""
    config.citation = yaml.safe_load((Path(app.srcdir) / "CITATION.cff").read_text("utf8"))


def authors(cited: dict) -> list[dict]:
    """The authors of a work in CITATION.cff as schema.org has them."""
    return [
        {"@type": "Organization", "name": one["name"]} if "name" in one
        else {"@type": "Person", "name": f"{one['given-names']} {one['family-names']}"}
        for one in cited["authors"]
    ]  # fmt: skip


def arxiv(paper: dict) -> str:
    """The paper's number there."""
    values = [one["value"] for one in paper["identifiers"]]
    return next(value.removeprefix("arXiv:") for value in values if value.startswith("arXiv:"))


def linked_data(app, page: str, title: str, said: str) -> str:
    """schema.org's words for search engines, as JSON-LD: this page, the paper, and the code where its address is known.

    It is data, no script: a browser runs nothing of it, and in it no text can end the block. `page`: its address, or "".
    """
    book, paper = app.config.citation, app.config.citation["preferred-citation"]
    work = {
        "@type": "ScholarlyArticle", "name": paper["title"], "author": authors(paper), "datePublished": str(paper["year"]),
        "isPartOf": {"@type": "PublicationVolume", "name": paper["collection-title"]}, "url": paper["url"],
        "publisher": {"@type": "Organization", "name": paper["publisher"]["name"]},
        "sameAs": f"https://arxiv.org/abs/{arxiv(paper)}",
    }  # fmt: skip
    ours = {"author": authors(book), "license": f"https://spdx.org/licenses/{book['license']}"}
    article = ours | {
        "@type": "ScholarlyArticle", "headline": title, "description": said, "inLanguage": "en", "datePublished": PUBLISHED,
        "isPartOf": {"@type": "Book", "name": app.config.html_title}, "isBasedOn": work, "citation": work["sameAs"],
    }  # fmt: skip
    if page:
        article["url"] = page
        article["isPartOf"]["url"] = f"{address(SITE)}/"
    code = ours | {"@type": "SoftwareSourceCode", "name": book["title"], "version": book["version"],
                   "programmingLanguage": "Python", "codeRepository": address(REPOSITORY)}  # fmt: skip
    graph = [article, code] if code["codeRepository"] else [article]
    written = json.dumps({"@context": "https://schema.org", "@graph": graph}, ensure_ascii=False)
    for sign in "<>&":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return f'\n    <script type="application/ld+json">{written}</script>'


def metatags(app, pagename: str, title: str, said: str) -> str:
    """Highwire tags, which reference managers and Google Scholar read: this book's page, and the paper it re-derives.

    Where the site's address is known also Open Graph's, which other sites read for a link. `said`: what the page is about;
    a page that says something has `linked_data` too.
    """
    book, cited = app.config.html_title, app.config.citation
    paper = cited["preferred-citation"]
    reference = [("title", paper["title"]), *(("author", one["name"]) for one in authors(paper)),
                 ("publication_date", paper["year"]), ("arxiv_id", arxiv(paper))]  # fmt: skip
    tags = [
        ("description", said), ("citation_title", title), *(("citation_author", one["name"]) for one in authors(cited)),
        ("citation_language", "en"), ("citation_publication_date", PUBLISHED), ("citation_inbook_title", book),
        ("citation_reference", "; ".join(f"citation_{name}={value}" for name, value in reference)),
    ]  # fmt: skip
    page = ""
    if site := address(SITE):
        page = f"{site}/{pagename}.html"
        tags += [("citation_fulltext_html_url", page), ("og:title", title), ("og:type", "article"), ("og:url", page),
                 ("og:site_name", book), ("og:description", said)]  # fmt: skip
        if (Path(app.outdir) / CARD).exists():
            tags += [("og:image", f"{site}/{CARD}"), ("og:image:alt", PICTURE), ("twitter:card", "summary_large_image")]
    written = "".join(
        f'\n    <meta {"property" if name.startswith("og:") else "name"}="{name}" content="{escape(text)}" />'
        for name, text in tags
        if text
    )
    return written + (linked_data(app, page, title, said) if said else "")


def about(doctree: nodes.document | None) -> str:
    """The first paragraph of a page, of which search engines and other sites show some two hundred characters."""
    first = next(doctree.findall(nodes.paragraph), None) if doctree else None
    return textwrap.shorten(first.astext(), 200, placeholder=" …") if first else ""


def add_citation(app, pagename, templatename, context, doctree) -> None:
    title = unescape(re.sub(r"<[^>]*>", "", context.get("title") or "")) or app.config.html_title
    context["metatags"] = context.get("metatags", "") + metatags(app, pagename, title, about(doctree))


def write_site(app, exception) -> None:
    """404.html, and index.html, which sends on to the first page; and sitemap.xml where the site's address is known."""
    if app.builder.format != "html" or exception:
        return
    site, out, first = address(SITE), Path(app.outdir), app.config.root_doc
    (out / "404.html").write_text(NOT_FOUND.format(home=escape(f"{site}/" if site else "index.html")), "utf8")
    title = app.config.html_title
    tags = metatags(app, first, title, about(app.env.get_doctree(first)))
    (out / "index.html").write_text(INDEX.format(first=f"{first}.html", title=escape(title), tags=tags), "utf8")
    if site:
        pages = sorted(p.relative_to(out).as_posix() for p in out.rglob("*.html") if "_static" not in p.parts)
        listed = [page for page in pages if page not in NOT_LISTED]
        places = "".join(f"<url><loc>{escape(f'{site}/{page}')}</loc></url>\n" for page in listed)
        (out / "sitemap.xml").write_text(
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{places}</urlset>\n', "utf8"
        )  # fmt: skip
