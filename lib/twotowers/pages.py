"""Sentences, tables and notes on pages. All text in them is escaped.

    >>> "&lt;b&gt;" in shown(pd.DataFrame({"word": ["<b>"]})).to_html()
    True

`note("A sentence made in a cell.")` shows a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown, display
from pandas.io.formats.style import Styler

from twotowers.claims import HOLDS_TOO_FEW, UNDECIDED, Claim, PaperResult, Statement
from twotowers.evidence import MIN_RANDOM_SETS, reach_text
from twotowers.intervals import Interval
from twotowers.paths import chapter_names
from twotowers.tables import ordered_models, shown_name

COMMON_SCRIPTS = {"latin", "greek", "cyrillic", "micro", "feminine", "masculine"}
"""First words of the Unicode names of letters that all fonts have"""


def verdict_class(verdict: str) -> str:
    """Return the name of a verdict in style sheets.

    Args:
        verdict: The verdict.
    """
    return re.sub(r"\W+", "-", verdict)


def judged_numbers(row: Any, statement: Statement) -> str:
    """Return the numbers behind a verdict on a result of the paper, or nothing for a claim.

    Args:
        row: Row of evidence.
        statement: Claim, or result of the paper.
    """
    if not isinstance(statement, PaperResult) or pd.isna(row.effect):
        return ""
    text = f"{row.effect:z.2f}"
    if statement.measure.startswith("digits"):
        text += " digits"
    if row.n_random_sets:
        text += f"; random lists {row.control:z.2f}"
    text += _shares_of_lists(row)
    if not pd.isna(row.stability):
        text += f"; {row.stability:.0%} of resamples"
    if row.prompts:
        text += f"; {row.prompts:,.0f} prompts"
    return text


def _shares_of_lists(row: Any) -> str:
    """Return how many random lists reach the verdict of a result of the paper."""
    if pd.isna(row.exceedance):
        return ""
    text = f", {reach_text(row.exceedance)} of {row.n_random_sets:,.0f}"
    text += " from other key-value groups"
    if not pd.isna(row.share_in_layer):
        text += f" ({row.share_in_layer:.0%} of their heads are in the same layer)"
    if not pd.isna(row.exceedance_in_layers):
        text += f" and {reach_text(row.exceedance_in_layers)} of {row.n_lists_in_layers:,.0f}"
        text += " from the same layers"
        if row.n_lists_in_layers < MIN_RANDOM_SETS:
            text += " (too few for a test)"
    return f"{text} reach it"


def markdown_text(text: str) -> str:
    """Return a text as Markdown that shows it as it is.

        >>> markdown_text("__run_2__")
        '&#95;&#95;run&#95;2&#95;&#95;'

    Args:
        text: Any text.
    """
    return re.sub(r"[^\w\s]|_", lambda sign: f"&#{ord(sign[0])};", text)


def page_of(statement: Statement) -> str:
    """Return the name of the page that judges a statement, "" if there is none.

    Args:
        statement: Claim, or result of the paper.
    """
    return chapter_names().get(statement.chapter, "")


def verdict_table(rows: pd.DataFrame, statements: Mapping[str, Statement]) -> Markdown:
    """Return a table of statements and models with a verdict in each cell, as Markdown.

    Args:
        rows: Rows of evidence.
        statements: Claims or results of the paper by id, in the order of the lines.
    """
    models = ordered_models(rows["model"])
    cells = {}
    for row in rows.itertuples():
        cells[row.claim, row.model] = _cell(row)
    are_claims = any(isinstance(statement, Claim) for statement in statements.values())
    titles = ["statement"] + ["control"] * are_claims
    titles += [markdown_text(shown_name(model)) for model in models]
    lines = [titles, ["---"] * len(titles)]
    for statement in statements.values():
        kind = "paper" if isinstance(statement, PaperResult) else "claim"
        link = f"{page_of(statement)}.ipynb#{kind}-{statement.anchor}"
        text = escape(statement.statement)
        text = f'<a href="{link}" title="{escape(statement.measure)}">{text}</a>'
        text += f"<br><small>{escape(statement.source)}</small>"
        of_models = [cells.get((statement.id, model), "") for model in models]
        controls = [_control(statement, rows)] if isinstance(statement, Claim) else []
        lines.append([text, *controls, *of_models])
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _control(statement: Claim, rows: pd.DataFrame) -> str:
    """Return the control of a claim with the number of its sets, "none" without one."""
    n_sets = rows[(rows["claim"] == statement.id) & (rows["n_random_sets"] > 0)]["n_random_sets"]
    if n_sets.empty:
        return "none"
    numbers = " to ".join(dict.fromkeys(f"{n:,.0f}" for n in (n_sets.min(), n_sets.max())))
    return f"{numbers} {escape(statement.control)}"


def _cell(row: Any) -> str:
    """Return the verdict of a row, in its colour, with its numbers as a tooltip.

    An undecided verdict has its reason below it, and one without enough random sets their number.
    """
    numbers = escape(row.words).replace("|", "&#124;")
    has_reason = row.verdict in (UNDECIDED, HOLDS_TOO_FEW)
    reason = escape(row.reason) if has_reason else ""
    small_print = f"<br><small>{reason}</small>" if reason else ""
    name, verdict = verdict_class(row.verdict), escape(row.verdict)
    return f'<span class="verdict {name}" title="{numbers}">{verdict}</span>{small_print}'


def shown(table: pd.DataFrame, index: bool = False, **formats: Any) -> Styler:
    """Return a table for a page, with escaped text and the shown names of models.

        >>> table = pd.DataFrame({"model": ["smollm2-135m"], "nats": [-0.001], "heads": [3]})
        >>> shown(table, precision=2).data.values.tolist()
        [['SmolLM2-135M', 0.0, 3]]

    Args:
        table: Numbers and texts.
        index: Whether the index of the table is shown.
        **formats: Arguments of `Styler.format`.
    """

    def with_shown_names(cell: Any) -> Any:
        return escape(shown_name(cell)) if isinstance(cell, str) else cell

    table = table.map(with_shown_names).rename(index=with_shown_names, columns=with_shown_names)
    table = table.rename_axis(index=with_shown_names, columns=with_shown_names)
    if "precision" in formats:  # no -0.00
        table = table.map(
            lambda cell: (
                round(cell, formats["precision"]) + 0.0 if isinstance(cell, float) else cell
            )
        )
    styler = table.style.format(**formats)
    return styler if index else styler.hide(axis="index")


def folded(table: pd.DataFrame, summary: str, index: bool = False, **formats: Any) -> None:
    """Show a table below a line of text that unfolds it.

        >>> folded(pd.DataFrame({"model": ["smollm2-135m"]}), "Names of models")
        <IPython.core.display.HTML object>

    Args:
        table: Numbers and texts, as in `shown`.
        summary: Text of the line: the content of the table.
        index: Whether the index of the table is shown.
        **formats: Arguments of `Styler.format`.
    """
    display(unfolding(summary, shown(table, index, **formats)))


def unfolding(summary: str, table: Styler) -> HTML:
    """Return a table below a line of text that unfolds it.

    Args:
        summary: Text of the line.
        table: Table of `shown`.
    """
    line = f"<summary>{escape(summary)}</summary>"
    return HTML(f'<details class="numbers">{line}{table.to_html()}</details>')


def interval_table(
    table: pd.DataFrame, index: str | list[str], columns: str, fmt: str
) -> pd.DataFrame:
    """Return values with intervals, such as "31% [8%, 54%]", as a table of two columns' entries.

        >>> row = {"model": "m", "part": "a", "value": 0.5, "low": 0.25, "high": 0.75, "n": 9}
        >>> cells = interval_table(pd.DataFrame([row]), "model", "part", ".2f")
        >>> cells.loc["m", "a"].split()
        ['0.50', '[0.25,', '0.75]']

    Args:
        table: Columns value, low, high and n (number of clusters), and the two columns.
        index: Column, or columns, whose entries have lines.
        columns: Column whose entries have columns.
        fmt: Format of a value.
    """
    cells = []
    for row in table.itertuples():
        interval = Interval(row.value, (row.n,), row.low, row.high)
        cells.append(f"{interval:{fmt}}".replace(", ", ",\u00a0"))
    table = table.assign(cell=cells)
    pivoted = table.pivot_table("cell", index, columns, aggfunc="first", sort=False)
    return pivoted.fillna("")


def with_script(word: str) -> str:
    """Return a word with the name of its script, if fonts of many systems lack the script.

        >>> with_script("ご"), with_script("é")
        ('ご (hiragana)', 'é')

    Args:
        word: Text of a token.
    """
    scripts = set()
    for letter in filter(str.isalpha, word):
        first, *_ = unicodedata.name(letter, "latin").split()
        scripts.add(first.lower())
    others = sorted(scripts - COMMON_SCRIPTS)
    return f"{word} ({', '.join(others)})" if others else word


def readings(rows: Iterable[tuple[str, str, str, Iterable[tuple[str, bool]]]]) -> Styler:
    """Return a table of the words that heads read, with matching words in bold.

    Args:
        rows: Model and head, kind of vector, text, and words in order with whether each one
            matches.
    """
    cells = []
    for *labels, words in rows:
        shown_words = []
        for word, counts in words:
            text = escape(with_script(word))
            shown_words.append(f"<b>{text}</b>" if counts else text)
        read = ", ".join(shown_words)
        cells.append((*map(escape, labels), read))
    names = ["model and head", "read", "at", "top ten words"]
    table = pd.DataFrame(cells, columns=names)
    style = table.set_index(names[:3]).style
    style = style.set_properties(**{"text-align": "left"})  # JupyterLab aligns cells at the right
    return style.set_table_attributes('class="one-model"')  # page.js adds a chooser


def with_formulas(text: str) -> str:
    r"""Return a text as HTML. MathJax typesets what is between dollar signs.

        >>> with_formulas("$S[w]$ & $x$")
        '<span class="math">\\(S[w]\\)</span> &amp; <span class="math">\\(x\\)</span>'

    Args:
        text: Any text.
    """
    return re.sub(r"\$(.+?)\$", r'<span class="math">\\(\1\\)</span>', escape(text))


def note(text: str) -> None:
    """Show a sentence made in a cell as plain text, without Markdown or tags.

    Models have the names that pages show, except in commands.

        >>> note("smollm2-135m has 30 layers.")
        <IPython.core.display.HTML object>

    Args:
        text: The sentence.
    """
    display(HTML(f'<p class="note">{escape(shown_name(text))}</p>'))
