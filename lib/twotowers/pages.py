"""Sentences, tables and notes on pages. All text in them is escaped.

    >>> "&lt;b&gt;" in shown(pd.DataFrame({"word": ["<b>"]})).to_html()
    True

`note("A sentence made in a cell.")` shows a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown, display
from pandas.io.formats.style import Styler

from twotowers.claims import PaperResult, Statement
from twotowers.paths import chapter_names
from twotowers.tables import shown_name


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
    if row.n_random_sets:
        text += f"; random lists {row.control:z.2f}"
    if not pd.isna(row.exceedance):
        text += f", {row.exceedance:.0%} of {row.n_random_sets:,.0f} reach it"
    if not pd.isna(row.stability):
        text += f"; stable in {row.stability:.0%}"
    return text


def verdict_table(
    rows: pd.DataFrame, statements: Mapping[str, Statement], numbers: bool = False
) -> Markdown:
    """Return a table of statements and models with a verdict in each cell, as Markdown.

    Results of the paper are main entries of the index (`!`), so that the search box leads to their
    line first. Only Markdown has such entries.

    Args:
        rows: Rows of evidence.
        statements: Claims or results of the paper by id, in the order of the lines.
        numbers: Whether numbers are in the cells. Otherwise they are in the tooltip of the verdict.
    """
    chapters = chapter_names()
    models = list(dict.fromkeys(rows["model"]))
    cells = {(row.claim, row.model): row for row in rows.itertuples()}
    titles = ["statement", *(escape(shown_name(model)) for model in models)]
    lines = [titles, ["---"] * len(titles)]
    for statement in statements.values():
        found = [cells.get((statement.id, model)) for model in models]
        figure = next((row.figure for row in found if row and row.figure), "")
        kind = "paper" if isinstance(statement, PaperResult) else "claim"
        place, source = f"{kind}-{statement.anchor}", statement.source
        if figure:
            place, source = f"fig-{figure.replace('.', '-')}", f"{source}, ours: {figure}"
        text = escape(statement.statement)
        if statement.chapter in chapters and any(
            found
        ):  # a result that was not run is in no chapter
            link = f"{chapters[statement.chapter]}.html#{place}"
            text = f'<a href="{link}" title="{escape(statement.measure)}">{text}</a>'
        if isinstance(statement, PaperResult):
            published = "".join(
                f"{{index}}`{part} <!{part}>`" if re.fullmatch(r"[-+.\d]*\d%?", part) else part
                for part in re.split("( to | and |; |, )", statement.published)
            )
            name = f'<a id="row-{statement.anchor}"></a>{{index}}`!{statement.id}`'
            text = f"{name}: {text}" + (f" *{published}*" if published else "")
        text += "" if numbers else f"<br><small>{escape(source)}</small>"
        lines.append([text, *(_cell(row, statement, numbers) for row in found)])
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _cell(row: Any, statement: Statement, numbers: bool) -> str:
    """Return the verdict of a row, in its colour, with its numbers."""
    if row is None and isinstance(statement, PaperResult):
        return f'<span title="{escape(statement.not_run)}">not run</span>'
    if row is None:
        return ""
    verdict, words = escape(row.verdict), escape(row.words).replace("|", "&#124;")
    title, parts = words, [judged_numbers(row, statement), row.mark]
    if numbers:
        title, parts = "", [words.partition(";")[0].replace(", ", ",&nbsp;")]
    small_print = "".join(f"<br><small>{part}</small>" for part in parts if part)
    name = verdict_class(row.verdict)
    return f'<span class="verdict {name}" title="{title}">{verdict}</span>{small_print}'


def shown(table: pd.DataFrame, index: bool = False, **formats: Any) -> Styler:
    """Return a table for a page, with escaped text and the shown names of models.

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


def readings(rows: Iterable[tuple[str, str, str, Iterable[tuple[str, bool]]]]) -> Styler:
    """Return a table of the words that heads read, with matching words in bold.

    Args:
        rows: Model and head, kind of vector, text, and words in order with whether each one
            matches.
    """
    cells = []
    for *labels, words in rows:
        bold = (f"<b>{escape(word)}</b>" if counts else escape(word) for word, counts in words)
        cells.append((*map(escape, labels), ", ".join(bold)))
    names = ["model and head", "read", "at", "top ten words"]
    return pd.DataFrame(cells, columns=names).set_index(names[:3]).style


def note(text: str) -> None:
    """Show a sentence made in a cell as plain text, without Markdown or tags.

    Models have the names that pages show, except in commands.

    Args:
        text: The sentence.
    """
    display(HTML(f'<p class="note">{escape(shown_name(text))}</p>'))
