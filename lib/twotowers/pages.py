"""What pages show beside charts: sentences, tables and notes, in which all text is escaped.

    >>> table = pd.DataFrame({"model": ["a"], "heads": ["all"], "value": 0.31})
    >>> grid(table.assign(low=0.08, high=0.54), ["heads"], "model").data.loc["all", "a"]
    '31% [8%, 54%]'
    >>> "&lt;b&gt;" in shown(pd.DataFrame({"word": ["<b>"]})).to_html()
    True

`note("A sentence made in a cell.")` shows a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown, display
from pandas.io.formats.style import Styler

from twotowers import claims, evidence, exhibits
from twotowers.claims import NOT_TESTABLE, Claim
from twotowers.errors import TwoTowersError
from twotowers.intervals import Interval
from twotowers.paths import book_folder, chapter_number, evidence_folder
from twotowers.tables import shown_name

CHANCE, LEARNS = 0.5, 0.6
"""Accuracy between two labels by guessing; and one that a model which does not learn the task
cannot have, with 95% confidence"""
QUICK = 15
"""Fewer class pairs than these are a quick look; so few blocks have one each"""


def share(part: Interval) -> str:
    """A share with its interval, which cannot reach beyond 0% and 100%: a bound that does is cut,
    and marked."""
    if np.isnan(part.low):
        return f"{part:.0%}"
    low, high = (
        f"{np.clip(bound, 0, 1):.0%}{'' if 0 <= bound <= 1 else ' (cut)'}"
        for bound in (part.low, part.high)
    )
    return f"{part.estimate:.0%} [{low}, {high}]"


def not_learned(accuracy: Interval) -> str:
    """Why a model whose accuracy between the labels is not clear of CHANCE is not judged: it does
    not learn the task, or nobody can tell, where accuracies of LEARNS and more are possible."""
    why = (
        "does not learn the task"
        if accuracy.high < LEARNS
        else f"too few {'blocks' if accuracy.n[0] > 1 else 'class pairs'} to tell whether it "
        "learns the task"
    )
    return f"{why}: accuracy {share(accuracy)}"


def _format(claim: Claim) -> str:
    """How a claim's numbers are written."""
    if claim.unit != "share":
        return "+z.2f"  # z: no -0.00
    # Other shares are of something lost, or differences: they have a sign.
    return "z.0%" if claim.null == CHANCE else "+z.1%"


def _effect(claim: Claim, row: Mapping[Hashable, Any]) -> str:
    """A row's effect with its interval."""
    return "{:{f}} [{:{f}},\u00a0{:{f}}]".format(
        *(row[name] for name in ("effect", "effect_low", "effect_high")), f=_format(claim)
    )


def sentence(claim: Claim, table: pd.DataFrame, elsewhere: Collection[str] = ()) -> str:
    """The one sentence form of the book: the claim, then verdict and numbers, model by model.

    Args:
        claim: a line of data/claims.csv.
        table: its rows of evidence.
        elsewhere: models whose random sets are of other layers.

    Returns:
        HTML; folded, what the numbers rest on.
    """
    items, alike = "", {shown_name(model) for model in elsewhere}
    rests_on: dict[str, list[str]] = {}
    for row in table.assign(model=table["model"].map(shown_name)).to_dict("records"):
        text = f"<b>{escape(row['verdict'])}</b>"
        if row["verdict"] == NOT_TESTABLE:
            text += f": {escape(row['note'])}"
        else:
            text += f", {_effect(claim, row)}"
            if row["draws"]:
                reach = round(row["share"] * row["draws"])
                p = evidence.p_of_sets(row["share"], row["draws"])
                of = f"{reach:,} of {row['draws']:,} different {escape(claim.control)}"
                text += f"; control {row['control']:{_format(claim)}}, {of} reach it (p = {p:.2g})"
                text += (
                    ", from other layers, since all heads of a layer share their keys"
                    if row["model"] in alike
                    else ""
                )
            each = f"{row['prompts'] / row['n']:.3g} prompts a class pair"
            pairs = f"{row['n']} × {row['label_pairs']} class and label pairs"
            basis = f"{each}, {pairs}, {escape(row['form'])}"
            rests_on.setdefault(basis, []).append(escape(row["model"]))
        items += f"<li>{escape(row['model'])}: {text}</li>"
    every = "; ".join(f"{', '.join(models)}: {what}" for what, models in rests_on.items())
    folded = f"<details><summary>Prompts</summary>{every}</details>" if every else ""
    says = f"<p>{escape(claim.statement)}</p>"
    return f'<div class="claim" id="claim-{claim.id}">{says}<ul>{items}</ul>{folded}</div>'


def all_evidence() -> pd.DataFrame:
    """Every row of evidence of the book being built: what the opening page and the scorecard are
    drawn from."""
    rows = evidence.read(evidence_folder())
    if rows.empty:
        raise TwoTowersError(
            f"no chapter has written evidence yet to '{evidence_folder()}': run `make book`, "
            "or some chapters"
        )
    for model, pairs in rows.groupby("model", sort=False)["n"].max().items():
        if pairs < QUICK:
            quick_look(str(model), int(pairs))
    return rows


def quick_look(model: str, pairs: int) -> None:
    """Say that what a page shows of a model rests on few class pairs."""
    note(
        f"A quick look at {shown_name(model)}: {pairs} class pairs, so intervals are wide, and few "
        "claims can be decided. Verdicts of the book rest on blocks=50 or more."
    )


def _chapters() -> dict[str, str]:
    """Number of a chapter -> the name of its file."""
    return {chapter_number(path.stem): path.stem for path in book_folder().glob("*-*.ipynb")}


def verdict_table(rows: pd.DataFrame, only: Sequence[str] = ()) -> HTML:
    """Claims x models, the verdict in each cell.

    Args:
        rows: of evidence.
        only: ids of claims, in the order wanted: then numbers stand in the cells, else where these
            are pointed at.
    """
    models, every_claim, chapters = list(dict.fromkeys(rows["model"])), claims.claims(), _chapters()
    titles = ["claim", *(escape(shown_name(model)) for model in models)]
    lines = ["<tr>" + "".join(f'<th scope="col">{title}</th>' for title in titles) + "</tr>"]
    cells = {(row["claim"], row["model"]): row for row in rows.to_dict("records")}
    for name in only or dict.fromkeys(rows["claim"]):
        claim = every_claim[name]
        page = f"{chapters.get(claim.chapter)}.html"
        link = f'<a href="{page}#claim-{name}">{escape(claim.statement)}</a>'
        source = "" if only else f"<br><small>{escape(claim.source)}</small>"
        parts = "".join(
            _cell(claim, cells.get((name, model), {"verdict": ""}), bool(only)) for model in models
        )
        lines.append(
            f'<tr><th scope="row" title="{escape(claim.measure)}">{link}{source}</th>{parts}</tr>'
        )
    return HTML(f'<table class="verdicts">{"".join(lines)}</table>')


def _cell(claim: Claim, row: Mapping[Hashable, Any], numbers: bool) -> str:
    """A cell of the verdict table: the verdict in its colour, and what it rests on, below it or
    where it is pointed at."""
    verdict = escape(row["verdict"])
    if verdict in ("", NOT_TESTABLE):
        detail = row.get("note", "")
    else:
        detail = f"{_effect(claim, row)} {claim.unit if claim.unit != 'share' else ''}".strip()
        detail += (
            f"; control {row['control']:{_format(claim)}}" if row["draws"] and not numbers else ""
        )
    visible, title = (
        (f"<br><small>{escape(detail)}</small>", "") if numbers else ("", escape(detail))
    )
    return f'<td class="{verdict.replace(" ", "-")}" title="{title}">{verdict}{visible}</td>'


def exhibits_table(rows: pd.DataFrame) -> Markdown:
    """Every exhibit of the paper, a line each in its order: what the paper says, and the verdict in
    each model.

    Item and printed values are main entries of the index (`!`), so that the search box leads to
    their line first.
    """
    models, chapters = list(dict.fromkeys(rows["model"])), _chapters()
    cells = {(row["item"], row["model"]): row for row in rows.to_dict("records")}
    lines = [
        "| the paper | says | " + " | ".join(escape(shown_name(model)) for model in models) + " |",
        "|---" * (2 + len(models)) + "|",
    ]
    for item, exhibit in exhibits.exhibits().items():
        values = re.split("( to | and |; |, )", exhibit.published)
        published = "".join(
            f"{{index}}`{v} <!{v}>`" if v.strip("%.-+").replace(".", "").isdigit() else v
            for v in values
        )
        of = [cells.get((item, model)) for model in models]
        first = next((row for row in of if row), None)
        name = f'<a id="row-{exhibits.css(item)}"></a>{{index}}`!{item}`'
        if first and first["chapter"] in chapters:
            figure = "" if pd.isna(first["figure"]) else first["figure"]
            at = f"fig-{figure.replace('.', '-')}" if figure else f"paper-{exhibits.css(item)}"
            link = f'<a href="{chapters[first["chapter"]]}.html#{at}">ours{": " * bool(figure)}'
            name += f" <br> {link}{figure}</a>"
        says = escape(exhibit.says, quote=False) + (f" *{published}*" if published else "")
        parts = [_exhibit_cell(exhibit, row) for row in of] or [_exhibit_cell(exhibit, None)]
        lines.append("| " + " | ".join([name, says, *parts]) + " |")
    return Markdown("\n".join(lines))


def _exhibit_cell(exhibit: exhibits.Exhibit, row: Mapping[Hashable, Any] | None) -> str:
    if row is None:
        return f'<span title="{escape(exhibit.not_run)}">not run</span>'
    verdict, words = row["verdict"], escape(str(row["words"]))
    return f'<span class="verdict {exhibits.css(verdict)}" title="{words}">{verdict}</span>'


def grid(table: pd.DataFrame, rows: Sequence[str], column: str, fmt: str = ".0%") -> Styler:
    """A table with "31% [8%, 54%]" in its cells; rows and columns in the order in which they come.

    Args:
        table: of `Chapter.table`.
        rows: columns of it, whose entries become rows.
        column: whose entries become columns; where many models would be, they are rows.
        fmt: of numbers.
    """
    fmt = fmt.replace(".", "z.")  # no -0.00
    cell = [
        "" if pd.isna(value) else f"{value:{fmt}} [{low:{fmt}},\u00a0{high:{fmt}}]"
        for value, low, high in table[["value", "low", "high"]].itertuples(index=False)
    ]
    wide = table.assign(cell=cell).pivot_table(
        index=list(rows), columns=column, values="cell", aggfunc="first", sort=False
    )
    wide = wide.T if column == "model" and wide.shape[1] > max(3, wide.shape[0]) else wide
    return shown(wide.fillna(""), index=True)


def shown(table: pd.DataFrame, index: bool = False, **form: Any) -> Styler:
    """A table for a page, every text in it escaped, models under the names that pages show.

    Args:
        table: of numbers and texts.
        index: whether its index is shown.
        **form: as of `Styler.format`.
    """

    def named(cell: Any) -> Any:
        return shown_name(cell) if isinstance(cell, str) else cell

    table = table.map(named).rename(index=named, columns=named)
    if "precision" in form:  # no -0.00
        table = table.map(
            lambda cell: round(cell, form["precision"]) + 0.0 if isinstance(cell, float) else cell
        )
    styler = table.style.format(escape="html", **form)
    for axis in (0, 1):
        styler = styler.format_index(escape="html", axis=axis).format_index_names(
            escape="html", axis=axis
        )
    return styler if index else styler.hide(axis="index")


def readings(rows: Iterable[tuple[str, str, str, Iterable[tuple[str, bool]]]]) -> Styler:
    """A table of what heads read, words that count in bold.

    Args:
        rows: model and head, what is read, at which text, and words in order with whether each
            counts.
    """
    cells = []
    for *of, words in rows:
        bold = (f"<b>{escape(word)}</b>" if counts else escape(word) for word, counts in words)
        cells.append((*map(escape, of), ", ".join(bold)))
    names = ["model and head", "read", "at", "top ten words"]
    return pd.DataFrame(cells, columns=names).set_index(names[:3]).style


def note(text: str) -> None:
    """Show a sentence made in a cell, as it stands: nothing in it is Markdown or a tag. Models have
    the names that pages show, but in commands."""
    words = re.sub(
        r"(?<!record )(?<!check )(?<!verdicts )(?<![\w./-])[\w.-]*\w(?![\w/-])",
        lambda word: shown_name(word[0]),
        text,
    )
    display(HTML(f'<p class="note">{escape(words)}</p>'))
