"""Buttons, citation, sitemap and 404: what needs an address is left out where none is given."""

import struct
import sys
from types import SimpleNamespace

import pytest
import yaml
from conftest import ROOT
from twotowers.errors import TwoTowersError
from twotowers.stats import tables

sys.path.insert(0, str(ROOT / "book/_ext"))
import online
import opening

CONFIG = (ROOT / "_config.yml").read_bytes()


@pytest.fixture(autouse=True)
def no_addresses(monkeypatch):
    for name in (online.REPOSITORY, online.SITE):
        monkeypatch.delenv(name, raising=False)


def test_without_an_address_nothing_points_elsewhere(tmp_path):
    assert online.with_buttons(CONFIG) == CONFIG
    online.write_site(SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path), None)
    assert [path.name for path in tmp_path.iterdir()] == ["404.html"]
    assert "https:" not in (tmp_path / "404.html").read_text()


def test_with_the_repository_s_address_pages_have_its_buttons(monkeypatch):
    monkeypatch.setenv(online.REPOSITORY, "https://github.com/name/book/")
    made, was = yaml.safe_load(online.with_buttons(CONFIG)), yaml.safe_load(CONFIG)
    assert made["repository"]["url"] == "https://github.com/name/book" and made["html"]["use_edit_page_button"]
    assert {name: made[name] for name in was if name != "html"} == {name: was[name] for name in was if name != "html"}


@pytest.mark.parametrize("given", ["javascript:alert(1)", 'https://a/b" onload="x', "http://a.b", "https://a b", "x"])
def test_what_is_no_address_is_refused(monkeypatch, given):
    monkeypatch.setenv(online.REPOSITORY, given)
    with pytest.raises(TwoTowersError, match="is no address such as"):
        online.with_buttons(CONFIG)


def test_the_sitemap_lists_every_page_and_titles_are_no_markup(monkeypatch, tmp_path):
    monkeypatch.setenv(online.SITE, "https://name.github.io/book")
    (tmp_path / "book").mkdir()
    (tmp_path / "book/01-a&b.html").write_text("")
    online.write_site(SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path), None)
    assert "<loc>https://name.github.io/book/book/01-a&amp;b.html</loc>" in (tmp_path / "sitemap.xml").read_text()
    assert "404" not in (tmp_path / "sitemap.xml").read_text()
    context = {"title": 'A "quoted" <em>title</em>', "metatags": "<meta />"}
    app = SimpleNamespace(config=SimpleNamespace(project="Book"), outdir=tmp_path)
    online.add_citation(app, "book/a", "", context, None)
    assert context["metatags"].startswith("<meta />") and 'content="A &quot;quoted&quot; title"' in context["metatags"]
    assert "https://name.github.io/book/book/a.html" in context["metatags"]
    assert "og:title" in context["metatags"] and "og:image" not in context["metatags"]  # no table, no picture


def test_the_picture_to_share_is_figure_1_where_the_address_is_known(monkeypatch, tmp_path):
    from test_drawings import HOSTILE, table

    (tmp_path / "_static/book").mkdir(parents=True)
    for labels in ({}, {"true": HOSTILE}):
        tables.save(table(**labels), tmp_path / "tables/model", opening.TABLE, {})
        app = SimpleNamespace(config=SimpleNamespace(project="A <book> & more"), outdir=tmp_path, srcdir=tmp_path)
        monkeypatch.setenv(online.SITE, "https://name.github.io/book")
        online.write_card(app)
        drawn = (tmp_path / online.CARD).read_bytes()
        assert drawn[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", drawn[16:24]) == (1200, 630)
        context = {"title": "A"}
        online.add_citation(app, "book/a", "", context, None)
        assert 'property="og:image" content="https://name.github.io/book/_static/book/card.png"' in context["metatags"]
    monkeypatch.delenv(online.SITE)
    online.write_card(app)
    context = {"title": "A"}
    online.add_citation(app, "book/a", "", context, None)
    assert not (tmp_path / online.CARD).exists() and "og:" not in context["metatags"]
