"""Tables of verdicts in chapters, filled from the evidence when the pages are put together.

    <!-- verdicts figure 8; more than the softmax takes = more-beyond-softmax -->
    <!-- verdicts meanings -->

A mark names results of the paper or claims, each with the text of its line before "=", if it is not
the name itself. The mark "meanings" is the table of the meaning of each verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd
from twotowers import claims, evidence, pages
from twotowers.claims import (
    ABSENT,
    AGREES,
    DISAGREES,
    FAILS,
    HOLDS,
    IN_PART,
    NOT_COMPARED,
    NOT_JUDGED,
    NOT_SPECIFIC,
    NOT_TESTABLE,
    SMALL,
    TOO_FEW,
    UNDECIDED,
)
from twotowers.errors import TwoTowersError
from twotowers.tables import ordered_models, shown_name

SECOND = ", on counterbalanced prompts"
MARK = re.compile(r"<!-- verdicts (.+?) -->")
VERDICTS = {
    HOLDS: "the effect is there, large enough to matter, and larger than in other heads where "
    "they are the control",
    SMALL: "the effect is there, but smaller than the smallest effect of interest",
    NOT_SPECIFIC: "the effect is there, but the control does as much",
    ABSENT: "no effect that would matter: the interval lies within the smallest effect of interest",
    FAILS: "the effect is clearly less than claimed, or has the other sign",
    TOO_FEW: "added to holds: fewer than 20 different random sets exist, or were measured",
    UNDECIDED: "too few observations to tell, or less than 60% of the resamples of the prompts "
    "have the same verdict; the reason stands beside it",
    NOT_TESTABLE: "the model does not learn the task, or too few blocks tell whether it does; "
    "the rule names no heads; or there is nothing to be a share of",
}
"""Meanings of the verdicts on claims"""
RESULT_VERDICTS = {
    AGREES: "the number reaches the rule, and random heads do not, if the result is about heads",
    IN_PART: "the number reaches the lower bound of the rule",
    NOT_SPECIFIC: "added to agrees or in part: more than 5% of the random lists do as well",
    TOO_FEW: "added to agrees or in part: fewer than 20 different random lists exist, or were "
    "measured",
    NOT_COMPARED: "a remark: the result is about no heads, so no random heads stand beside it",
    DISAGREES: "the number does not reach the rule",
    UNDECIDED: VERDICTS[UNDECIDED],
    NOT_JUDGED: "a number that says nothing for or against the paper; the reason stands beside it",
    NOT_TESTABLE: "there is no number, for the reason that stands beside it",
}
"""Meanings of the verdicts on results of the paper"""
IDEAS = {
    "so it is": ((AGREES,), (HOLDS,)),
    "to some degree": ((IN_PART,), (SMALL,)),
    "random heads do as well": ((NOT_SPECIFIC,), (NOT_SPECIFIC,)),
    "too few random heads, or none": ((TOO_FEW, NOT_COMPARED), (TOO_FEW,)),
    "so it is not": ((DISAGREES,), (FAILS, ABSENT)),
    "open": ((UNDECIDED,), (UNDECIDED,)),
    "no verdict": ((NOT_JUDGED, NOT_TESTABLE), (NOT_TESTABLE,)),
}
"""Idea -> verdicts on results of the paper, and verdicts on claims, that say it"""


def drawn(build: Path, mark: str) -> str:
    """Return the table of a mark.

    Args:
        build: Folder of built files.
        mark: Content of the mark.

    Raises:
        TwoTowersError: If the mark names no claim and no result of the paper.
    """
    if mark == "meanings":
        return meanings()
    if not any((build / "evidence").glob("*.csv")):
        return ""  # a preview without any chapter
    statements = {**claims.claims(), **claims.paper_results()}
    both = (evidence.read(build / "evidence", statements, solved) for solved in (False, True))
    return table(mark, pd.concat(both))


def meanings() -> str:
    """Return the table of all verdicts with meanings, with a line for each idea."""
    lines = ["| idea | of a result of the paper | of a claim |", "| --- | --- | --- |"]
    for idea, (of_results, of_claims) in IDEAS.items():
        cells = (_explained(of_results, RESULT_VERDICTS), _explained(of_claims, VERDICTS))
        lines.append(f"| {idea} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _explained(verdicts: Sequence[str], meanings: Mapping[str, str]) -> str:
    """Return verdicts with their meanings, as a cell of a Markdown table."""
    return "<br>".join(f"{_badge(verdict)} {meanings[verdict]}" for verdict in verdicts)


def table(mark: str, rows: pd.DataFrame) -> str:
    """Return the table of a mark, with a line for each statement and a column for each model.

    A result of the paper with a second verdict has a second line. Lines with the same verdict in
    all of several models stand above the table, after that verdict.

    Args:
        mark: Content of the mark.
        rows: Rows of evidence, with those of the second verdict.

    Raises:
        TwoTowersError: If the mark names no claim and no result of the paper.
    """
    asked = [_title_and_name(part) for part in mark.split(";")]
    judged = rows[rows["claim"].isin([name for _, name in asked])]
    models = ordered_models(judged["model"])
    cells = {(row.claim, row.model, row.prompt_set): row for row in judged.itertuples()}
    same: dict[str, list[str]] = {}  # verdict -> lines with this verdict in all models
    prompt_sets = {(claim, prompt_set): None for claim, _, prompt_set in cells}
    text = [
        ["statement", *(escape(shown_name(model)) for model in models)],
        ["---"] * (len(models) + 1),
    ]
    for title, name in asked:
        for prompt_set in (of for claim, of in prompt_sets if claim == name):
            found = [cells.get((name, model, prompt_set)) for model in models]
            words = escape(title + SECOND * (prompt_set == claims.ON_SOLVED))
            verdicts = {row and row.verdict for row in found}
            if len(verdicts) == 1 < len(models):
                same.setdefault(found[0].verdict, []).append(words)
            else:
                text.append([words, *("–" if row is None else _cell(row) for row in found)])
    above = "".join(
        f"In all {len(models)} models {_badge(verdict)}: {'; '.join(words)}.\n\n"
        for verdict, words in same.items()
    )
    lines = text if len(text) > 2 else []
    return above + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title_and_name(part: str) -> tuple[str, str]:
    """Return the title and the statement of a line."""
    title, _, name = (text.strip() for text in part.rpartition(" = "))
    if name not in claims.claims() and name not in claims.paper_results():
        raise TwoTowersError(
            f"unknown statement '{name}' in a mark of verdicts: expected an id of data/claims.csv "
            "or data/figures.csv; correct the mark"
        )
    return title or name, name


def _cell(row) -> str:
    """Return a verdict in its colour, with its reason as a tooltip."""
    reason = escape(row.reason or row.words).replace("|", "&#124;")
    return _badge(row.verdict, reason)


def _badge(verdict: str, reason: str = "") -> str:
    """Return a verdict in its colour."""
    title = f' title="{reason}"' if reason else ""
    name = pages.verdict_class(verdict)
    return f'<span class="verdict {name}"{title}>{escape(verdict)}</span>'
