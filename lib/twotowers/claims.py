"""Tables of the book's claims, of the paper's results, and of findings that rest on verdicts.

    >>> claims()["learned"].statement
    'The model learns the classes from the demonstrations.'
    >>> paper_results()["figure 6"].judge(1.0)
    'agrees'

Each table is read with one class per row (`tables`), so an error names the line of a wrong cell.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import pandas as pd

from twotowers.paths import data_folder
from twotowers.tables import Optional, Row, Text, read_csv, read_table

HOLDS, SMALL, NOT_SPECIFIC, ABSENT = "holds", "small", "not specific", "absent"
FAILS, UNDECIDED, NOT_TESTABLE = "does not hold", "undecided", "not testable"
AGREES, IN_PART, DISAGREES, NOT_JUDGED = "agrees", "in part", "does not agree", "no verdict"
TOO_FEW, NOT_COMPARED = "too few other heads", "not compared"
HOLDS_TOO_FEW = f"{HOLDS}, {TOO_FEW}"
VERDICTS = (
    HOLDS, HOLDS_TOO_FEW, SMALL, NOT_SPECIFIC, ABSENT, FAILS, UNDECIDED, NOT_TESTABLE
)  # fmt: skip
"""Verdicts on claims"""
AGREES_UNSPECIFIC, PART_UNSPECIFIC = f"{AGREES}, {NOT_SPECIFIC}", f"{IN_PART}, {NOT_SPECIFIC}"
AGREES_TOO_FEW, PART_TOO_FEW = f"{AGREES}, {TOO_FEW}", f"{IN_PART}, {TOO_FEW}"
"""Additions to a verdict that agrees, also in part: random heads do as well, or they ran out. A
claim has the second one as well."""
WITHOUT_VERDICT = (NOT_JUDGED, NOT_TESTABLE)
WITHOUT_MODEL = ("section 6.2", "appendix E, sum", "appendix E, toy example")
"""Results of the paper (a timing, an identity, arithmetic) that are about no model"""
TASK = ("word prompts", "sentence prompts")
"""Rows on whether a model solves the task (AGREES) or fails it (DISAGREES, so others are marked)"""
UNCOUNTED = (*WITHOUT_MODEL, *TASK, "figure 13", "figure 14", "figure 15", "figure 22", "figure 25",
             "appendix E, neurons", "appendix E, coefficients")  # fmt: skip
"""Rows in no count: also repeated questions, and two results that are near arithmetic"""
BY_WORD, BY_POSITION = "by label word", "by position"
"""Marks of the answers of a model that fails the task: mostly one word, or the nearest label"""
MARK_NAMES = {BY_POSITION: "says the nearest label", BY_WORD: "says one label word"}
"""Mark -> its name on pages"""
ROUNDING = 1e-9
"""A number that is below a bound by rounding reaches it"""
ON_PAPER, ON_SOLVED = "paper", "solved"
"""Prompts of the first and of the second verdict on a result: the paper's, and counterbalanced
blocks of a model that learns the task there"""
SECOND = ", on counterbalanced prompts"
"""Addition to the name of a result in tables that have its second verdict as well"""
NEEDED = "needed"
"""Said of a comparison of texts without which a result cannot agree"""
THRESHOLD = 0.5
"""The null of a claim that says "at least half": it has no smallest effect"""


class Statement(Row):
    """A sentence that has a verdict for each model: a claim, or a result of the paper.

    Attributes:
        id: Id of the claim, or name of the result.
        chapter: Chapter that judges the statement.
        statement: The sentence.
        source: Source of the statement.
        measure: Description of the judged number.
        rule: Date on which the rule of the statement was fixed.
        seen: Results that were known on that date.
    """

    id: Text
    chapter: str
    statement: Text
    source: Text
    measure: str
    rule: str
    seen: str

    @property
    def anchor(self) -> str:
        """Id of the statement as a name in a page, such as "figure-6"."""
        return re.sub(r"\W", "-", self.id)


class Claim(Statement):
    """A row of data/claims.csv: a claim with its measure and its requirements.

    Attributes:
        null_value: Value that the effect must exceed.
        smallest_effect: Smallest effect of interest, in `unit`. It is empty if it is a share of the
            model's logit difference (`evidence.SMALLEST_EFFECT_RATIO`).
        unit: Unit of the effect. SD is a standard deviation.
        heads: Set of heads that is judged, of `head_selection` or of the ablations. It is empty for
            a claim without a set.
        control: Control that the effect must exceed.
    """

    chapter: Text
    measure: Text
    null_value: float
    smallest_effect: Optional
    unit: Literal["nats", "share", "words of ten", "SD", "correlation"]
    heads: Literal[
        "", "by attribution", "by written logit difference", "by attention", "by increase",
        "paper's twelve", "1% of the heads",
    ]  # fmt: skip
    control: Literal["random sets", "random sets and directions", "random forms", "none"]
    rule: Text
    seen: Text

    @property
    def format(self) -> str:
        """Format of the claim's numbers. Shares have a sign unless one half is their null."""
        if self.unit != "share":
            return "+z.2f"  # z: no -0.00
        return "z.0%" if self.null_value == THRESHOLD else "+z.1%"


class PaperResult(Statement):
    """A row of data/figures.csv: a figure, table or other result of the paper, in its order.

    Attributes:
        statement: Statement of the paper, in our words.
        measure: Description of the judged number. A larger number is nearer to the paper.
        seen: Models whose result was known when the rule was written.
        published: Printed values of the paper.
        published_value: The printed value in the measure of the rule, if there is one.
        agrees, part: Smallest number that agrees, and smallest number that agrees in part.
        no_verdict: Reason why a number is not judged.
        control: What the judged number itself compares the heads with, if no random lists do.
        not_run: Reason why there is no number.
    """

    published: str
    published_value: Optional = None
    agrees: Optional
    part: Optional
    not_run: str
    no_verdict: str = ""
    control: str = ""

    def judge(self, value: float) -> str:
        """Return the verdict on a value.

        Args:
            value: Value of the result's measure. NaN is not testable.
        """
        if math.isnan(value):
            return NOT_TESTABLE
        if self.agrees is None or self.part is None:
            return NOT_JUDGED
        if value >= self.agrees - ROUNDING:
            return AGREES
        return IN_PART if value >= self.part - ROUNDING else DISAGREES


class SolvedRule(Row):
    """A row of data/solved.csv: the rule of the second verdict on a result of the paper.

    Attributes:
        id: Name of the result.
        measurements: Measurements of blocks that the verdict needs, with spaces between them.
        measure: Description of the judged number. Its thresholds are those of the result.
        none: Reason why there is no second verdict.
        rule: Date on which the rule was fixed.
        seen: Results that were known on that date.
        differs: Difference between the judged numbers of both verdicts, if they are two measures.
        comparison: Whether only heads or answers that compare texts can agree.
    """

    id: Text
    measurements: str
    measure: str
    none: str
    rule: Text
    seen: str
    differs: str = ""
    comparison: Literal["", "needed", "not needed"] = ""


def with_control(verdict: str, control: str) -> str:
    """Return a verdict with what random heads say of it, such as "agrees, not specific".

    Args:
        verdict: AGREES or IN_PART.
        control: NOT_SPECIFIC or TOO_FEW.
    """
    return f"{verdict}, {control}"


def answer(verdict: str) -> str:
    """Return a verdict without what random heads say of it.

    Args:
        verdict: A verdict on a result of the paper.
    """
    return verdict.partition(", ")[0]


def about_control(verdict: str) -> str:
    """Return what random heads say of a verdict: NOT_SPECIFIC, TOO_FEW, or "".

    Args:
        verdict: A verdict on a result of the paper.
    """
    return verdict.partition(", ")[2]


def claims() -> dict[str, Claim]:
    """Return the claims by their id, in order.

    Raises:
        TwoTowersError: If the table has a wrong line, which the message names.
    """
    return _by_id("claims.csv", Claim)


def paper_results() -> dict[str, PaperResult]:
    """Return the results of the paper by their name, such as "figure 6", in the paper's order."""
    return _by_id("figures.csv", PaperResult)


def solved_rules() -> dict[str, SolvedRule]:
    """Return the rules of the second verdicts, on counterbalanced prompts, by result."""
    return _by_id("solved.csv", SolvedRule)


def _by_id(name: str, kind: type[Row]) -> dict[str, Any]:
    """Return the rows of a table of the data folder by their id."""
    rows: list[Any] = read_table(data_folder() / name, kind, ("id",))
    return {row.id: row for row in rows}


def written_findings() -> pd.DataFrame:
    """Return the hand-written findings of the opening page ("intro") and of chapters.

    Returns:
        Columns page, sentence, chapter, claim, model, verdict. A row is a verdict on which a
            sentence rests, and `chapter` is the chapter that shows its basis. A claim that ends
            with SECOND means the second verdict on a result of the paper.
    """
    table = read_csv(data_folder() / "findings.csv", str)
    # Only the first line of a sentence has these cells.
    return table.assign(**table[["page", "sentence", "chapter"]].ffill())


def rules_in_words(result: PaperResult) -> str:
    """Return the rules of both verdicts on a result of the paper, and when they were written.

    Args:
        result: A result of data/figures.csv.
    """
    words = f"Rule of {result.rule}"
    if result.seen != "none":
        words += f", written after the results of {result.seen} were seen"
    words += f": {result.measure}. "
    if result.no_verdict:
        words += f"No verdict: {result.no_verdict}."
    else:
        words += f"It agrees at {result.agrees or 0:g} or more"
        has_part = result.part != result.agrees
        words += f", and in part at {result.part or 0:g} or more." * has_part
        words += "; there is no in part." * (not has_part)
    second = solved_rules().get(result.id)
    if second is not None and second.measure:
        words += f" On counterbalanced prompts: {second.measure}."
    return words
