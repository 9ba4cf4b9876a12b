"""The paper's figures and tables: what each says, the rule that judges ours beside it, what came.

    exhibits()["figure 6"].says
    judge(exhibits()["figure 6"], 0.95)         # "agrees"

A chapter computes one number for each model (`Chapter.beside_paper`), the rule of data/figures.csv
judges it, and the page "Figure by figure" collects the rows. Rules are dated, and name the models
whose result was known when they were written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from pathlib import Path

import pandas as pd
from pydantic import model_validator

from twotowers.paths import data_folder
from twotowers.tables import Optional, Row, Text, read_table, read_written, shown_name

AGREES, IN_PART, DISAGREES, UNTESTABLE = "agrees", "in part", "does not agree", "not testable"
OF_NO_MODEL = ("section 6.2", "appendix E, sum", "appendix E, toy example")
"""A timing, an identity and arithmetic: they say nothing of a model, so no count has them"""


class Exhibit(Row):
    """A line of data/figures.csv: an exhibit of the paper, in its order.

    `says`: what the paper says, in our words; `published`: its printed value. `statistic`: the
    number that is judged, larger is nearer to the paper; `agrees`, `part`: from where on it agrees,
    or does in part. `rule`: date of the rule; `seen`: the models whose result was known then.
    `not_run`: why there is no statistic.
    """

    item: Text
    source: Text
    says: Text
    published: str
    statistic: str
    agrees: Optional
    part: Optional
    rule: str
    seen: str
    chapter: str
    not_run: str

    @model_validator(mode="after")
    def _judged_or_not_run(self) -> Exhibit:
        rule = (self.statistic, self.agrees, self.part, self.rule, self.chapter)
        if bool(self.not_run) == all(cell not in ("", None) for cell in rule):
            raise ValueError(
                "give statistic, agrees, part, rule and chapter, or say in not_run why not"
            )
        if not self.not_run and not self.part <= self.agrees:  # type: ignore[operator]
            raise ValueError("'part' lies above 'agrees'")
        return self


def exhibits() -> dict[str, Exhibit]:
    """Item -> exhibit, in the paper's order."""
    return {row.item: row for row in read_table(data_folder() / "figures.csv", Exhibit, ("item",))}


def judge(exhibit: Exhibit, value: float) -> str:
    """The verdict by the exhibit's rule."""
    if exhibit.agrees is None or exhibit.part is None or math.isnan(value):
        return UNTESTABLE
    return (
        AGREES
        if value >= exhibit.agrees - 1e-9
        else IN_PART
        if value >= exhibit.part - 1e-9
        else DISAGREES
    )


def rows(
    exhibit: Exhibit,
    figure: str,
    found: Mapping[str, tuple[float, str]],
    untestable: Mapping[str, str],
) -> list[dict]:
    """A row for each model: item, figure, model, verdict, value, words.

    Args:
        exhibit: of the paper.
        figure: the book's own, such as "4.1"; "" for none.
        found: model -> the number that the rule judges, and in words what it rests on.
        untestable: model -> why it has none.
    """
    about = {"item": exhibit.item, "chapter": exhibit.chapter, "figure": figure}
    every = {**found, **{model: (math.nan, why) for model, why in untestable.items()}}
    return [
        {**about, "model": model, "verdict": judge(exhibit, value), "value": value, "words": words}
        for model, (value, words) in every.items()
    ]


def sentence(exhibit: Exhibit, of_models: list[dict]) -> str:
    """What the paper says and whether ours agrees, model by model, as HTML."""
    item = escape(exhibit.item)
    lines = ""
    for row in of_models:
        verdict = f'<b class="{css(row["verdict"])}">{row["verdict"]}</b>'
        lines += f"<li>{escape(shown_name(row['model']))}: {verdict}, {escape(row['words'])}</li>"
    says = f"<p><b>The paper's {item}.</b> {escape(exhibit.says)}</p>"
    rule = f"{escape(exhibit.statistic)}. From {exhibit.agrees:g} on it agrees, "
    rule += f"from {exhibit.part:g} on in part."
    folded = f"<details><summary>Rule of {exhibit.rule}</summary>{rule}</details>"
    return f'<div class="claim paper" id="paper-{css(item)}">{says}<ul>{lines}</ul>{folded}</div>'


def css(text: str) -> str:
    """A text as a name in HTML."""
    return "".join(c if c.isalnum() else "-" for c in text)


def read(folder: Path) -> pd.DataFrame:
    """All rows that the chapters of a book wrote, in the paper's order. Empty where none did."""
    return read_written(
        folder,
        "item",
        exhibits(),
        ["item", "chapter", "figure", "model", "verdict", "value", "words"],
    )
