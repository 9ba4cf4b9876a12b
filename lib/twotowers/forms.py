"""How a prompt is written: its form and its label pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

from pydantic import model_validator

from twotowers.data_files import Row, damaged, read_table, unseen
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder

OWN_NAMES = "class names"
"""The label pair that is the two classes' own names; one assignment is natural, the other exchanges
them"""
SEPARATORS = {"space": " ", "line break": "\n"}
"""Name -> what stands between two demonstrations; a space is the paper's form."""


class Form(NamedTuple):
    """How a prompt is written: `k` demonstrations of each class, and what stands between two (a key
    of SEPARATORS)."""

    k: int
    separator: str

    def __str__(self) -> str:
        return f"k = {self.k}, {self.separator}"


class LabelPair(Row):
    """A line of data/words/labels.csv: two labels, or for OWN_NAMES none."""

    first: str
    second: str
    kind: Literal["nonsense", "plain", "class names"]

    @model_validator(mode="after")
    def _two_labels(self) -> LabelPair:
        labels = {self.first, self.second}
        if not (labels == {""} if self.kind == OWN_NAMES else len(labels - {""}) == 2):
            raise ValueError(f"give two different labels, or none for {OWN_NAMES}")
        if "/" in self.first + self.second:
            raise ValueError("'/' stands between the labels of a pair: give words without it")
        return self


@cache
def label_pairs(kinds: tuple[str, ...] = ("nonsense", "plain", OWN_NAMES)) -> tuple[str, ...]:
    """Label pairs of data/words/labels.csv of some kinds, such as "foo/bar", and OWN_NAMES."""
    path = data_folder() / "words" / "labels.csv"
    rows = read_table(path, LabelPair, ("first", "second"))
    for i, row in enumerate(rows):
        if any({of.first, of.second} == {row.first, row.second} for of in rows[:i]):
            raise damaged(path, "this pair stands before, the other way round", i + 2)
    return tuple(
        OWN_NAMES if row.kind == OWN_NAMES else f"{row.first}/{row.second}"
        for row in rows
        if row.kind in kinds
    )


def check_labels(labels: Sequence[str], true_label: str) -> None:
    """Raise TwoTowersError unless `labels` are two or more different words and `true_label` is one
    of them."""
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise TwoTowersError(
            f"equal labels or fewer than two ({', '.join(labels)}): give different ones, "
            "such as foo, bar"
        )
    for label in labels:
        if sign := unseen(label):
            raise TwoTowersError(
                f"the label {label!r} holds {sign}, which cannot be seen: write the word again"
            )
        if not label or label != label.strip():
            raise TwoTowersError(
                f"the label {label!r} is empty or has spaces at its edges: give a plain word"
            )
    if true_label not in labels:
        raise TwoTowersError(
            f"the true label '{true_label}' is not in play: choose one of {', '.join(labels)}"
        )
