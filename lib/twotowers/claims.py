"""What the book says, as tables: claims with their rules, and findings that rest on their verdicts.

    claims()["learned"].statement       # 'The model learns the classes from the demonstrations.'

Each table is read through one model (`tables`): a wrong cell is named with its line.
"""

from __future__ import annotations

from typing import Literal

import pandas as pd
from pydantic import Field, model_validator

from twotowers.paths import data_folder
from twotowers.tables import Optional, Row, Text, read_csv, read_table, unreadable

HOLDS, SMALL, NOT_SPECIFIC, ABSENT = "holds", "small", "not specific", "absent"
FAILS, UNDECIDED, NOT_TESTABLE = "does not hold", "undecided", "not testable"
VERDICTS = {
    HOLDS: "the effect is there, large enough to matter, and larger than in other heads where "
    "they are the control",
    SMALL: "the effect is there, but smaller than the smallest effect of interest",
    NOT_SPECIFIC: "the effect is there, but the control does as much",
    ABSENT: "no effect that would matter: the interval lies within the smallest effect of interest",
    FAILS: "the effect is clearly less than claimed, or has the other sign",
    UNDECIDED: "too few observations, or too few different random sets of heads, to tell",
    NOT_TESTABLE: "the model does not learn the task, or too few blocks tell whether it does; "
    "the rule names no heads; or there is nothing to be a share of",
}
THRESHOLD = 0.5
"""The null of a claim that says "at least half": it has no smallest effect"""


class Claim(Row):
    """A line of data/claims.csv: what is claimed, how it is measured, what it needs, and when the
    rule was written.

    `null`: the effect lies above it. `smallest`: effect of interest, in `unit`; empty where it is a
    share of the model's choice (`evidence.SHARE_OF_CHOICE`). `heads`: the set that is judged, of
    `choose` or of the ablations; empty where none is. `control`: what its effect must exceed.
    `rule`: date on which null, smallest and measure were fixed; `seen`: what had been seen then.
    """

    id: Text
    chapter: Text
    statement: Text = Field(pattern=r"\.$")
    measure: Text
    null: float
    smallest: Optional
    unit: Literal["nats", "share", "words of ten"]
    heads: Literal["", "located", "by writing", "by attention", "by increase", "paper's twelve"]
    control: Literal["random sets", "random sets and directions", "none"]
    source: Text
    rule: Text
    seen: Text

    @model_validator(mode="after")
    def _smallest_fits(self) -> Claim:
        if self.smallest is None and self.unit != "nats":
            raise ValueError("only where the unit is nats may 'smallest' be empty")
        if self.smallest is not None and not (self.smallest > 0 or self.null == THRESHOLD):
            raise ValueError(f"give a 'smallest' above 0; 0 is for a null of {THRESHOLD}")
        return self


def claims() -> dict[str, Claim]:
    """id -> claim, in the order of data/claims.csv. Raises TwoTowersError, naming the line, for a
    wrong table."""
    return {claim.id: claim for claim in read_table(data_folder() / "claims.csv", Claim, ("id",))}


def findings() -> pd.DataFrame:
    """The hand-written findings of the opening page ("intro") and of chapters.

    Returns:
        A row for each verdict that a finding rests on: page, sentence, chapter (where it is shown
        how we know), claim, model, verdict.

    Raises:
        TwoTowersError: for a claim that is no more, and a verdict that a sentence names twice.
    """
    path, first = data_folder() / "findings.csv", ["page", "sentence", "chapter"]
    table = read_csv(path, str)
    rows = table.assign(**table[first].ffill())  # these stand in the first line of a sentence
    faults = {
        "no such claim in data/claims.csv": ~rows["claim"].isin(claims()),
        f"no such verdict: choose one of {', '.join(VERDICTS)}": ~rows["verdict"].isin(VERDICTS),
        "give page, sentence and chapter, or leave all empty to go on with the sentence before": (
            table[first].notna().sum(axis=1).isin([1, 2]) | rows["sentence"].isna()
        ),
        "it stands twice under a sentence: has the next one lost its first line?": rows.duplicated(
            [*first, "claim", "model"]
        ),
    }
    for what, wrong in faults.items():
        if wrong.any():
            raise unreadable(path, what, int(wrong.argmax()) + 2)
    return rows
