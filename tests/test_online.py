"""Buttons, citation, sitemap and 404: what needs an address is left out where none is given."""

import html
import json
import re
import struct
import sys
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT
from test_drawings import HOSTILE, table
from twotowers.errors import TwoTowersError
from twotowers.stats import tables

sys.path.insert(0, str(ROOT / "book/_ext"))
import build
import online
import opening

CONFIG = (ROOT / "_config.yml").read_bytes()
TITLE = yaml.safe_load(CONFIG)["title"]


@pytest.fixture(autouse=True)
def no_addresses(monkeypatch):
    for name in (online.REPOSITORY, online.SITE):
        monkeypatch.delenv(name, raising=False)


def built(folder) -> dict[str, str]:
    """A book of two pages by the book's own configuration and theme: its HTML files, by name."""
    (folder / "book").mkdir()
    for name in ("_ext", "_page"):
        (folder / "book" / name).symlink_to(ROOT / "book" / name)
    (folder / "_config.yml").write_bytes(online.with_addresses(CONFIG))
    (folder / "CITATION.cff").write_bytes((ROOT / "CITATION.cff").read_bytes())
    (folder / "_toc.yml").write_text("format: jb-book\nroot: book/intro\nchapters:\n- file: book/a&b\n")
    (folder / "book/intro.md").write_text("# A *first* page\n\nWhat it says.\n")
    (folder / "book/a&b.md").write_text(f'# The *second* < "& more"\n\n**Question.** {"Is <it> so? " * 30}\n\nMore.\n')
    tables.save(table(), folder / "tables/model", opening.TABLE, {})
    assert build.sphinx(folder, folder, folder / "log") == ""
    out = folder / "_build/html"
    return {p.relative_to(out).as_posix(): p.read_text("utf8") for p in out.rglob("*.html")}


LINKED = re.compile(r'<script type="application/ld\+json">(.*?)</script>', re.DOTALL)


def linked(page: str) -> list[dict]:
    """What a page says in schema.org's words."""
    (written,) = LINKED.findall(page)
    assert not re.search("[<>&]", written)
    return json.loads(written)["@graph"]


def tags(page: str) -> dict[str, str]:
    return {
        name: html.unescape(said)
        for name, said in re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)"', page)
    }


@pytest.mark.slow
def test_without_an_address_nothing_points_elsewhere(tmp_path):
    assert online.with_addresses(CONFIG) == CONFIG
    pages = built(tmp_path)
    assert pages["index.html"].count("book/intro.html") == 2 and not (tmp_path / "_build/html/sitemap.xml").exists()
    for page in pages.values():
        shown = LINKED.sub("", re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL))  # data that names the paper, no link
        assert "https:" not in shown and "og:" not in page
    said = tags(pages["book/intro.html"])
    assert said["citation_inbook_title"] == TITLE and said["citation_author"] == "The two-towers book authors"
    assert "; citation_author=Zeping Yu; citation_author=Sophia Ananiadou; " in said["citation_reference"]
    assert said["citation_reference"].endswith("; citation_publication_date=2024; citation_arxiv_id=2402.02872")
    (article,) = linked(pages["book/intro.html"])
    assert article["headline"] == "A first page" and "url" not in article and "url" not in article["isPartOf"]
    assert not LINKED.search(pages["search.html"])


@pytest.mark.slow
def test_with_the_site_s_address_a_page_says_where_it_is_and_what_it_is_about(monkeypatch, tmp_path):
    site = "https://name.github.io/book"
    monkeypatch.setenv(online.SITE, f"{site}/")
    monkeypatch.setenv(online.REPOSITORY, "https://github.com/name/book")
    pages = built(tmp_path)
    said = tags(pages["book/a&b.html"])
    assert said["og:title"] == said["citation_title"] == "The second < “& more”" and said["og:site_name"] == TITLE
    assert said["og:url"] == said["citation_fulltext_html_url"] == f"{site}/book/a&b.html"
    assert f'<link rel="canonical" href="{site}/book/a&amp;b.html"' in pages["book/a&b.html"]
    assert said["description"] == said["og:description"] and said["description"].startswith("Question. Is <it> so? Is")
    assert len(said["description"]) <= 200 and said["twitter:card"] == "summary_large_image"
    assert said["og:image"] == f"{site}/{online.CARD}" and (tmp_path / "_build/html" / online.CARD).exists()
    article, code = linked(pages["book/a&b.html"])
    assert article["@type"] == "ScholarlyArticle" and article["headline"] == "The second < “& more”"
    assert article["url"] == f"{site}/book/a&b.html" and article["description"].startswith("Question. Is <it> so?")
    assert article["isPartOf"] == {"@type": "Book", "name": TITLE, "url": f"{site}/"}
    paper = article["isBasedOn"]
    assert [one["name"] for one in paper["author"]] == ["Zeping Yu", "Sophia Ananiadou"] and paper[
        "datePublished"
    ] == "2024"
    assert article["citation"] == paper["sameAs"] == "https://arxiv.org/abs/2402.02872"
    assert code["@type"] == "SoftwareSourceCode" and code["codeRepository"] == "https://github.com/name/book"
    first = tags(pages["index.html"])  # what is shared is most often the bare address
    assert first["og:title"] == TITLE and first["og:description"] == "What it says."
    assert first["og:url"] == f"{site}/book/intro.html" and first["og:image"] == said["og:image"]
    listed = re.findall("<loc>(.*)</loc>", (tmp_path / "_build/html/sitemap.xml").read_text())
    assert listed == [f"{site}/book/a&amp;b.html", f"{site}/book/intro.html"]
    assert f'href="{site}/"' in pages["404.html"]


def test_with_the_repository_s_address_pages_have_its_buttons(monkeypatch):
    monkeypatch.setenv(online.REPOSITORY, "https://github.com/name/book/")
    made, was = yaml.safe_load(online.with_addresses(CONFIG)), yaml.safe_load(CONFIG)
    assert made["repository"]["url"] == "https://github.com/name/book" and made["html"]["use_edit_page_button"]
    assert {name: made[name] for name in was if name != "html"} == {name: was[name] for name in was if name != "html"}


@pytest.mark.parametrize("given", ["javascript:alert(1)", 'https://a/b" onload="x', "http://a.b", "https://a b", "x"])
def test_what_is_no_address_is_refused(monkeypatch, given):
    monkeypatch.setenv(online.REPOSITORY, given)
    with pytest.raises(TwoTowersError, match="is no address such as"):
        online.with_addresses(CONFIG)


def test_the_picture_to_share_is_figure_1_where_the_address_is_known(monkeypatch, tmp_path):
    (tmp_path / "_static/book").mkdir(parents=True)
    app = SimpleNamespace(config=SimpleNamespace(html_title="A <book> & more"), outdir=tmp_path, srcdir=tmp_path)
    for labels in ({}, {"true": HOSTILE}):
        tables.save(table(**labels), tmp_path / "tables/model", opening.TABLE, {})
        monkeypatch.setenv(online.SITE, "https://name.github.io/book")
        online.write_card(app)
        drawn = (tmp_path / online.CARD).read_bytes()
        assert drawn[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", drawn[16:24]) == (1200, 630)
    monkeypatch.delenv(online.SITE)
    online.write_card(app)
    assert not (tmp_path / online.CARD).exists()
