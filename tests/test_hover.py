"""A link to a term of the glossary says what the term means when the pointer rests on it."""

import html
import re
import sys

import pytest
from conftest import ROOT

pytest.importorskip("myst_nb", reason="the book's packages are not installed: pip install -e .[book]")
from sphinx.application import Sphinx

CONF = f"""import sys
sys.path.insert(0, {str(ROOT / "book/_ext")!r})
extensions, root_doc, html_theme = ["myst_parser", "hover"], "book/page", "basic"
myst_enable_extensions = ["colon_fence", "dollarmath"]
"""
GLOSSARY = (
    ":::{glossary}\nin-context head\n  One <that> reads *labels*\n  & writes.\n\n  $a = b$\n\nother\n  More.\n:::\n"
)


def build(folder) -> str:
    Sphinx(folder, folder, folder / "out", folder / "trees", "html", status=None, warning=sys.stderr).build()
    return (folder / "out/book/page.html").read_text("utf8")


def titles(page: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'href="glossary\.html#term-[^"]*" title="([^"]*)"', page)]


def test_a_link_to_a_term_has_its_definition_as_title_and_changes_with_it(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "conf.py").write_text(CONF)
    (tmp_path / "book/glossary.md").write_text(f"# Terms\n\n{GLOSSARY}")
    text = "# Page\n\n[heads](glossary.md#term-in-context-head), {term}`other`, [](glossary)\n\n"
    (tmp_path / "book/page.md").write_text(f"{text}```{{toctree}}\nglossary\n```\n")
    assert titles(build(tmp_path)) == ["One <that> reads labels & writes.", "More."]
    (tmp_path / "book/glossary.md").write_text(f"# Terms\n\n{GLOSSARY.replace('More', 'Less')}")
    assert titles(build(tmp_path))[1] == "Less."  # the page itself did not change


def test_a_link_to_a_term_that_is_missing_is_a_warning(tmp_path, capsys):
    (tmp_path / "book").mkdir()
    (tmp_path / "conf.py").write_text(CONF)
    (tmp_path / "book/glossary.md").write_text(f"# Terms\n\n{GLOSSARY}")
    (tmp_path / "book/page.md").write_text("# Page\n\n[heads](glossary.md#term-head)\n\n```{toctree}\nglossary\n```\n")
    assert titles(build(tmp_path)) == []
    assert "local id not found in doc 'book/glossary': 'term-head'" in capsys.readouterr().err


def test_every_term_is_defined_once_in_plain_words_first():
    text = (ROOT / "book/glossary.md").read_text("utf8").split(":::{glossary}\n")[1].removesuffix(":::\n")
    entries = [entry.split("\n", 1) for entry in re.split(r"\n(?=\S)", text)]
    terms = [term for term, _ in entries]
    assert terms == sorted(set(terms), key=str.lower) and len(terms) >= 20
    for term, said in entries:
        first = said.strip().split("\n\n")[0]
        assert first.endswith(".") and "$" not in first and "](" not in first, (
            term
        )  # a title shows no formula and no link


def test_chapters_link_to_terms_in_a_form_that_jupyter_shows():
    texts = {path.stem: path.read_text("utf8") for path in (ROOT / "book").glob("*.ipynb")}
    assert sum("(glossary.md#term-" in text for text in texts.values()) >= 10
    assert not [name for name, text in texts.items() if "{term}" in text]
