"""Settings of a measurement, checked before weights are read; prompt templates and label pairs.

    >>> Settings.of({"model": "mini-gpt2", "blocks": "50"}).blocks
    50
    >>> str(Form(4, "line break"))
    'k = 4, line break'

A notebook's parameter cell, `papermill -p` and `twotowers measure` all end here. No torch here.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from twotowers.errors import TwoTowersError
from twotowers.paths import build_folder, data_folder
from twotowers.tables import Row, damaged, first_fault, read_table, unseen

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


AUTO = (None, "", "auto")
OUT = "_build/measurements"
MOST = 100_000
"""Of anything that is counted: so many blocks take days"""


def _auto(value: Any) -> Any:
    """ "auto" means: chosen by rule."""
    return None if value in AUTO else value


def _pairs(value: Any) -> list[str]:
    """ "foo/bar,left/right" or a list -> label pairs; auto or nothing: all."""
    texts = (
        value if isinstance(value, list | tuple) else [] if value in AUTO else str(value).split(",")
    )
    pairs = [str(text).strip() for text in texts]
    for pair in pairs:
        labels = pair.split("/")
        if pair != OWN_NAMES and len(labels) != 2:
            raise ValueError(
                f"'{pair}' is no pair: write such as foo/bar, several separated by commas"
            )
        if pair != OWN_NAMES:
            check_labels(labels, labels[0])
    if len({frozenset(pair.split("/")) for pair in pairs}) < len(pairs):
        raise ValueError("a pair stands twice; blocks have both of its assignments: leave one out")
    return pairs


def _name(value: Any) -> Any:
    """A name that looks like a whole number is a name (papermill's -p makes a number of it); "~" is
    the home folder."""
    if isinstance(value, float):
        raise ValueError(
            "papermill's -p makes a number of such a name: give it as text, with -r in place of -p"
        )
    return (
        os.path.expanduser(str(value))
        if isinstance(value, int | str) and not isinstance(value, bool)
        else value
    )


def _out(value: Any) -> Any:
    """The default folder hangs on the project, any other on where the command was called."""
    value = _name(value)
    return str(build_folder() / "measurements") if value == OUT else value


def _none(value: Any) -> Any:
    return None if value in ("", "none", "None") else value


Count = Annotated[int, Field(ge=1, le=MOST)]


class Settings(BaseModel):
    """Every setting with its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Annotated[str, BeforeValidator(_name), Field(min_length=1)] = "mini-gpt2"
    """a shipped or named model, a folder, a GGUF file, or a hub id"""
    suite: Literal["words", "sentences", "published"] = "words"
    """texts: word lists, the book's own sentences, or sentences of published sets"""
    blocks: Count = 50
    """blocks of four prompts to judge on, where every head is measured"""
    locate: Count = 40
    """other blocks, on which the form is chosen and heads are located"""
    k: Annotated[Count | None, BeforeValidator(_auto)] = None
    """demonstrations of each class; auto: the best-learned form of the grid"""
    separator: Annotated[Literal["space", "line break"] | None, BeforeValidator(_auto)] = None
    """between demonstrations: space, line break, or auto"""
    labels: Annotated[list[str], BeforeValidator(_pairs)] = []
    """label pairs such as foo/bar,left/right; auto: all of data/words/labels.csv"""
    prompts: Annotated[Count | None, BeforeValidator(_auto)] = None
    """prompts of each of the paper's own sets; auto: 200 of a shipped model, else 20"""
    top_k: Count = 5
    """how many heads a set holds"""
    seed: Annotated[int, Field(ge=0)] = 0
    """of every draw"""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """of the weights"""
    device: Annotated[str, Field(min_length=1)] = "cpu"
    """cpu, cuda, cuda:1 or mps"""
    device_map: Annotated[
        Literal["auto", "balanced", "balanced_low_0", "sequential"] | None, BeforeValidator(_none)
    ] = None
    """auto: spread the model over all devices, whatever `device` says; none: do not"""
    out: Annotated[str, BeforeValidator(_out), Field(min_length=1, validate_default=True)] = OUT
    """folder of the measurements"""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Settings:
        """Checked. Raises TwoTowersError, in one line that names the remedy."""
        for name in values.keys() - cls.model_fields:
            near = difflib.get_close_matches(name, cls.model_fields, 1)
            remedy = (
                f"did you mean '{near[0]}'?" if near else "known are " + ", ".join(cls.model_fields)
            )
            raise TwoTowersError(f"unknown parameter '{name}': {remedy}")
        try:
            return cls(**values)
        except ValidationError as error:
            raise TwoTowersError(first_fault(error)) from None

    def deciding(self) -> dict[str, Any]:
        """The settings that decide numbers: all but the model's name, and where things run and
        lie."""
        return self.model_dump(exclude={"model", "device", "device_map", "out"})

    def changed(self) -> dict[str, Any]:
        """Those of them that are not the default ones; the suite is a place of its own."""
        default = Settings(model=self.model, suite=self.suite).deciding()
        return {name: value for name, value in self.deciding().items() if value != default[name]}
