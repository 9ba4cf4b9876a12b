"""Whatever a table, a name or an error message holds, a page shows it as text: no markup, no link, no role, no formula.

What the book's own Markdown reader makes of it is looked at, token by token; tests/test_safe_pages.py asks a browser.
"""

import ast
import importlib
import json
import re
import sys
from itertools import islice

import pandas as pd
import pytest
import yaml
from conftest import ROOT
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from test_safe_pages import HOSTILE
from twotowers.errors import TwoTowersError
from twotowers.exhibits import scorecard
from twotowers.exhibits.claim import Claim, Verdict, code, inert, listed, plain
from twotowers.exhibits.drawings import Drawing
from twotowers.prompts.datasets import WORD_SETS
from twotowers.stats import tables

sys.path.insert(0, str(ROOT / "book/_ext"))
import assemble
import run_pages

CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text())
READER = create_md_parser(
    MdParserConfig(enable_extensions=set(CONFIG["parse"]["myst_enable_extensions"])), RendererHTML
)
PLAIN = {"paragraph", "inline", "text", "text_special", "code_inline", "strong", "em", "softbreak"}
BOX = r'<div class="admonition verdict [a-z]+">\n<p class="admonition-title"><strong>[A-Z][a-z ]+</strong></p>|</div>'
DRAWN = {"svg", "title", "desc", "text", "rect", "path", "circle"}
TABLE = {"table", "thead", "tbody", "tr", "th", "td"}
# Letters of all kinds, and many more of those that mean something in Markdown, HTML or TeX.
SIGNS = st.sampled_from("`\\<>{}[]()$&|~^#:@!*_-+=%\"'/ \n\t.1ax")
WILD = st.one_of(st.text(SIGNS, max_size=40), st.text(max_size=30), st.sampled_from(HOSTILE))


def tokens(markdown):
    """Every token; the only HTML is that of the box of a verdict."""
    found = []
    for token in READER.parse(markdown):
        found += [token, *(token.children or [])]
        if token.type == "html_block":
            assert re.fullmatch(BOX, token.content.strip()), token.content
    return found


def kinds(markdown):
    return {token.type.removesuffix("_open").removesuffix("_close") for token in tokens(markdown)}


def shown(text):
    """What `code` leaves of a text: what can be printed, in one line."""
    return " ".join("".join(c for c in text if c.isprintable() or c.isspace()).split())


def codes(markdown):
    return [token.content.strip() for token in tokens(markdown) if token.type == "code_inline"]


@given(WILD, WILD)
def test_names_are_code_and_their_text_is_whole(first, second):
    markdown = f"Of {code(first)} and {code(second)}, {listed([first, second])}: 1."
    assert kinds(markdown) <= PLAIN
    assert codes(markdown) == [shown(first), shown(second)] * 2


@given(WILD, WILD, st.sampled_from([None, Verdict.HOLDS]))
def test_a_sentence_of_a_table_has_no_markup_but_emphasis(raw, name, verdict):
    sentence = f"{raw} of {code(name)}, {raw}."
    if any(word in sentence.lower() for word in ("nan", "inf")):
        return
    assert kinds(Claim(verdict, sentence).markdown) <= {*PLAIN, "html_block"}


@given(WILD)
def test_what_has_no_backtick_is_shown_whole(raw):
    if {"`", "*", "_"} & set(raw) or not raw.isprintable():
        return
    texts = [token.content for token in tokens(inert(f"a {raw} b")) if token.type in ("text", "text_special")]
    assert "".join(texts) == " ".join(f"a {raw} b".split())


@given(WILD)
def test_a_caption_is_shown_whole_without_any_markup(raw):
    shown = [token.content for token in tokens(plain(raw)) if token.type in ("text", "text_special")]
    if raw.isprintable():
        assert "".join(shown) == " ".join(raw.split())
    assert kinds(plain(raw)) <= {"paragraph", "inline", "text", "text_special"}


@given(st.lists(WILD, min_size=1, max_size=4))
@example(["\x00"])
def test_tables_of_the_scorecard_keep_their_cells(words):
    rows = [{"where": "v1", "says": "it", "model": words[0], "verdict": "holds", "sentence": f"{w} {code(w)}",
             "published": w, "numbers": "", "page": "03-mrr", "claim": "it", "pages": "03-mrr"} for w in words]  # fmt: skip
    table = pd.DataFrame(rows)
    links = {"link"}  # of the page that computes it
    assert kinds(scorecard.score_markdown(table, words[0])) <= PLAIN | TABLE | links
    ladder = scorecard.ladder_markdown(table.head(1))
    assert kinds(ladder) <= PLAIN | TABLE | links
    cells = sum(token.type == "td_open" for token in tokens(scorecard.score_markdown(table, words[0])))
    assert cells == 4 * len(words)


@given(WILD, WILD)
def test_a_page_says_why_it_failed_in_code(why, name):
    notebook = {"cells": [], "metadata": {}}
    assemble.add(notebook, 0, f"**This chapter failed when it was last run**, so: {code(why)}")
    assert kinds(notebook["cells"][0]["source"]) <= PLAIN
    moved = run_pages.suffixed(notebook["cells"][0]["source"], "m", {"score"}, {"01-locate"}, {"intro"})
    assert kinds(moved) <= PLAIN


@given(WILD)
def test_the_data_of_a_chart_are_no_markup(text):
    spec = json.dumps({"title": text, "data": [text]})
    html = f'<style></style><div id="altair-viz-1"></div>\n<script>\n  (function(a, b){{\n  }})({spec}, {{"mode": "x"}});\n</script>'
    block = assemble.chart_block(html)
    start, end = block.index('class="chart">') + len('class="chart">'), block.rindex("</script>")
    assert "<" not in block[start:end] and json.loads(block[start:end]) == json.loads(spec)


# --- every exhibit of the book ---


def exhibits():
    """(chapter, study's table name, function) of everything that a chapter publishes."""
    for path in sorted((ROOT / "book").glob("[01]*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        tree = ast.parse("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
        modules = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("twotowers."):
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    if importlib.util.find_spec(node.module).submodule_search_locations:
                        modules[alias.asname or alias.name] = importlib.import_module(name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "chapter.publish":
                named = [k.value for k in node.keywords if k.arg not in ("beside", "caption")]  # those are texts
                study, *given = [getattr(modules[one.value.id], one.attr) for one in [*node.args, *named]]
                yield from ((path.stem, study.name, one) for one in given)


def saved(name):
    """The tables of that study that are in the repository."""
    golden = sorted((ROOT / "tests/golden").glob(f"*/{name}@*.csv"))
    recorded = sorted((ROOT / "data/results").glob(f"*/{name}.csv"))
    yield from (pd.read_csv(path) for path in golden)
    yield from (tables.load(path.parent, path.stem) for path in recorded)


OURS = {*WORD_SETS, "foo", "bar", "sst2", "trec", "agnews", "ethos", "amazon", "financial", "animal", "country", "number",
        "sentiment"}  # fmt: skip
WORDS = {
    "word",
    "text",
    "label",
    "dataset",
    "line",
    "answer",
    "words",
    "chat_model",
    "class",
    "true_word",
    "query_class",
}
EXHIBITS = list(exhibits())


def with_text(table, text):
    """The table of somebody who named labels, sets and words like this; what our code itself writes stays."""

    def other(value):
        return f"{text} {value}" if value in OURS else value

    return table.apply(lambda column: column.map(other) if not pd.api.types.is_numeric_dtype(column) else column)


def test_the_exhibits_are_found():
    assert len(EXHIBITS) > 60
    assert sum(bool(list(saved(name))) for _, name, _ in EXHIBITS) > 30


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(EXHIBITS)), ids=[f"{c}-{n}-{f.__name__}" for c, n, f in EXHIBITS])
def test_no_exhibit_makes_markup_of_a_label_or_the_name_of_a_set(at):
    _, name, make = EXHIBITS[at]
    found = list(islice(saved(name), 2))
    if not found:
        pytest.skip("no table of this study is in the repository")
    for table in found:
        if table.empty:
            continue
        make(table)
        for text in HOSTILE[:8:3]:
            try:
                made = make(with_text(table, text))
            except TwoTowersError:
                continue
            if isinstance(made, Claim):
                assert kinds(made.markdown) <= {*PLAIN, "html_block"}
            elif isinstance(made, pd.DataFrame):
                assert type(made) is pd.DataFrame and "<script" not in made._repr_html_()
            elif isinstance(made, Drawing):
                assert set(re.findall(r"<(\w+)", made._repr_html_())) <= DRAWN
            else:
                html = made._repr_mimebundle_()["text/html"]
                assert assemble.chart_block("".join(html)).count("<") == 4
