"""What the book says, as tables: claims with their rules, the findings that rest on their verdicts, and how rules changed.

    claims()["learned"].statement       # 'The model learns the classes from the demonstrations.'

Each table is read through one model (`data_files`): a wrong cell is named with its line. No torch here.
"""

from __future__ import annotations

from typing import Literal

import pandas as pd
from pydantic import Field, field_validator, model_validator

from twotowers.choose import SETS
from twotowers.data_files import Row, Text, damaged, read_table
from twotowers.paths import data_folder

HOLDS, SMALL, NOT_SPECIFIC, ABSENT = "holds", "small", "not specific", "absent"
FAILS, UNDECIDED, NOT_TESTABLE = "does not hold", "undecided", "not testable"
VERDICTS = {
    HOLDS: "the effect is there, large enough to matter, and larger than in other heads where they are the control",
    SMALL: "the effect is there, but smaller than the smallest effect of interest",
    NOT_SPECIFIC: "the effect is there, but the control does as much",
    ABSENT: "no effect that would matter: the interval lies within the smallest effect of interest",
    FAILS: "the effect is clearly less than claimed, or has the other sign",
    UNDECIDED: "too few observations to tell",
    NOT_TESTABLE: "the model does not learn the task, or too few blocks tell whether it does; the rule names no heads; or there is "
    "nothing to be a share of",
}
THRESHOLD = 0.5
"""The null of a claim that says "at least half": it has no smallest effect"""


class Claim(Row):
    """A line of data/claims.csv: what is claimed, how it is measured, what it needs, and when the rule was written.

    `null`: the effect lies above it. `smallest`: effect of interest, in `unit`; empty where it is a share of the model's
    choice (`evidence.SHARE_OF_CHOICE`). `heads`: the set that is judged, empty where none is. `control`: what its effect must
    exceed. `rule`: date on which null, smallest and measure were fixed; `seen`: what had been seen then.
    """

    id: Text
    chapter: Text
    statement: Text = Field(pattern=r"\.$")
    measure: Text
    null: float
    smallest: float | None
    unit: Literal["nats", "share", "AUC", "words of ten"]
    heads: str
    control: Literal["random sets", "random directions", "random sets and directions", "none"]
    source: Text
    rule: Text
    seen: Text

    @field_validator("smallest", mode="before")
    @classmethod
    def _empty_is_none(cls, cell: object) -> object:
        return None if cell == "" else cell

    @field_validator("heads")
    @classmethod
    def _a_rule_defines_them(cls, heads: str) -> str:
        if heads and heads not in SETS:
            raise ValueError(f"no rule defines these heads: choose one of {', '.join(SETS)}, or none")
        return heads

    @model_validator(mode="after")
    def _smallest_fits(self) -> Claim:
        if self.smallest is None and self.unit != "nats":
            raise ValueError("only where the unit is nats may 'smallest' be empty")
        if self.smallest is not None and not (self.smallest > 0 or self.null == THRESHOLD):
            raise ValueError(f"give a 'smallest' above 0; 0 is for a null of {THRESHOLD}")
        return self


def claims() -> dict[str, Claim]:
    """id -> claim, in the order of data/claims.csv. Raises TwoTowersError, naming the line, for a wrong table."""
    return {claim.id: claim for claim in read_table(data_folder() / "claims.csv", Claim, ("id",))}


class Finding(Row):
    """A line of data/findings.csv: a verdict on which a sentence rests. Page, sentence and chapter stand in its first line."""

    page: str
    sentence: str
    chapter: str
    claim: Text
    model: Text
    verdict: str

    @field_validator("verdict")
    @classmethod
    def _is_one(cls, verdict: str) -> str:
        if verdict not in VERDICTS:
            raise ValueError(f"no verdict: choose one of {', '.join(VERDICTS)}")
        return verdict

    @model_validator(mode="after")
    def _begins_or_goes_on(self) -> Finding:
        if len({bool(cell) for cell in (self.page, self.sentence, self.chapter)}) > 1:
            raise ValueError("give page, sentence and chapter, or leave all three empty to go on with the sentence before")
        return self


def findings() -> pd.DataFrame:
    """Each hand-written finding of the opening page ("intro") and of chapters, a row for each verdict that it rests on.

    Columns page, sentence, chapter (where it is shown how we know), claim, model, verdict. Raises TwoTowersError for a
    claim that is no more, and for a verdict that a sentence names twice.
    """
    path, every_claim = data_folder() / "findings.csv", claims()
    rows: list[Finding] = []
    verdicts: set[tuple[str, str]] = set()  # of one sentence
    for line, row in enumerate(read_table(path, Finding), 2):
        if row.sentence:
            verdicts = set()
        elif not rows:
            raise damaged(path, "the first line has no sentence", line)
        else:
            row = row.model_copy(update=rows[-1].model_dump(include={"page", "sentence", "chapter"}))
        if row.claim not in every_claim:
            raise damaged(path, f"no claim '{row.claim}' in data/claims.csv", line)
        if (row.claim, row.model) in verdicts:
            twice = f"'{row.claim}' of {row.model} stands twice under a sentence: has the next one lost its first line?"
            raise damaged(path, twice, line)
        verdicts.add((row.claim, row.model))
        rows.append(row)
    return pd.DataFrame([row.model_dump() for row in rows])


class Rule(Row):
    """A line of data/rules.csv: a change of rules, what had been seen by then, and the verdicts under the rule before."""

    date: Text
    rule: Text
    seen: Text
    before: Text


def rules() -> pd.DataFrame:
    """data/rules.csv, checked."""
    return pd.DataFrame([row.model_dump() for row in read_table(data_folder() / "rules.csv", Rule)])
