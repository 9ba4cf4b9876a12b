"""A link to a term of the glossary says what the term means when the pointer rests on it."""

import html
import json
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


RAW = r"(?<!`)\{[\w:-]+\}`|^\([\w-]+\)=|^(?:```|:::+) *\{|^\{[.#]"  # roles, names of places, directives, attributes: MyST's own


@pytest.mark.parametrize("text", ["see {cite:t}`a`", "(here)=", "```{note}", ":::{note}", "{.wide}", "{#name .wide}"])
def test_what_jupyter_would_show_raw_is_told_from_what_it_shows(text):
    assert re.search(RAW, f"a\n{text}\nb", re.MULTILINE) and not re.search(RAW, "$x_{a}$ `{b}` ```bash", re.MULTILINE)


@pytest.mark.parametrize("path", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda path: path.stem)
def test_jupyter_shows_a_chapter_s_text_and_follows_its_links(path):
    cells = json.loads(path.read_text("utf8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert not re.findall(RAW, text, re.MULTILINE)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^()\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).is_file()] == []


def test_terms_and_references_are_linked():
    texts = [path.read_text("utf8") for path in (ROOT / "book").glob("*.ipynb")]
    assert sum("(glossary.md#term-" in text for text in texts) >= 10
    assert sum("(references.md#" in text for text in texts) >= 2
