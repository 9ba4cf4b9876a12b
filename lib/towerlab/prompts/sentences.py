"""Sentences in place of words (paper: v1 appendices A to D): sixty of the book's own, and six published sets.

    class_texts("sentences")["sport"]      # the book's own: data/sentences/own.csv, no download
    class_texts("published")               # class -> sentences of six sets, fetched or read from TWOTOWERS_DATA
    PAIRS["published"]                     # the class pairs that prompts are drawn of
    rows("trec")                           # the usable rows of one published set

No published sentence is in this repository, nor in any measurement (data/sentences/README.md).
"""

from __future__ import annotations

import re
from functools import cache

import pandas as pd
from pydantic import Field
from twotowers.data_files import ClassName, Row, Text, damaged, read_table
from twotowers.paths import data_folder

from towerlab.progress import say
from towerlab.prompts import download
from towerlab.prompts.corpora import SETS

PAIRS = {
    "sentences": ("negative/positive", "science/sport"),
    "published": (
        "sst2 negative/sst2 positive", "trec human/trec location", "trec entity/trec number", "agnews world/agnews sports",
        "agnews business/agnews technology", "ethos acceptable/ethos hate", "financial negative/financial positive",
        "amazon negative/amazon positive",
    ),
}  # fmt: skip
"""Suite -> its class pairs. They share no class, since class pairs are the clusters of every interval"""
MOST_WORDS = 60
"""Longer texts of the published sets are left out, so that eight demonstrations fit into 1,024 tokens or so"""
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]")  # those that str.split does not take for spaces


class Sentence(Row):
    """A line of data/sentences/own.csv."""

    cls: ClassName = Field(alias="class")
    sentence: Text


@cache
def class_pairs(suite: str) -> tuple[str, ...]:
    """The class pairs of a suite: those of PAIRS that are there, and other classes of one's own sentences two by two.

    Raises TwoTowersError where there is one class alone; one without a partner is left out, and told.
    """
    if suite != "sentences":
        return PAIRS[suite]
    path = data_folder() / "sentences" / "own.csv"
    classes = list(dict.fromkeys(row.cls for row in read_table(path, Sentence)))
    known = tuple(pair for pair in PAIRS[suite] if {*pair.split("/")} <= {*classes})
    rest = [cls for cls in classes if cls not in "/".join(known).split("/")]
    if len(classes) < 2:
        raise damaged(path, f"it has one class alone, {classes[0]}")
    if len(rest) % 2:
        say(f"{path.name}: the class {rest[-1]} is left out, since there is no other to pair it with")
    return (*known, *map("/".join, zip(rest[::2], rest[1::2], strict=False)))


@cache
def class_texts(suite: str) -> dict[str, list[str]]:
    """Class -> sentences of a suite of PAIRS; of the published sets those of at most MOST_WORDS words.

    Raises TwoTowersError when a file cannot be had.
    """
    if suite == "sentences":
        out: dict[str, list[str]] = {}
        for row in read_table(data_folder() / "sentences" / "own.csv", Sentence, ("sentence",)):
            out.setdefault(row.cls, []).append(row.sentence)
        return dict(sorted(out.items()))
    return {cls: texts for name in SETS for cls, texts in set_texts(name).items()}


@cache
def set_texts(name: str) -> dict[str, list[str]]:
    """Class, such as "trec human" -> sentences of one published set, of at most MOST_WORDS words. Raises as `class_texts`."""
    table = rows(name)
    short = table[table["text"].str.split().str.len() <= MOST_WORDS]
    return {f"{name} {cls}": group.tolist() for cls, group in short.groupby("class")["text"]}


def rows(name: str) -> pd.DataFrame:
    """The usable rows of a published set: text, class. TwoTowersError when its file cannot be had."""
    return usable(name, download.fetch(SETS[name].file))


def usable(name: str, content: bytes) -> pd.DataFrame:
    """Rows of one file, mended, every run of whitespace one space: no text twice, none without a word or in two classes."""
    rows = [(" ".join(_CONTROL.sub("", SETS[name].mend(row.text)).split()), row.cls) for row in SETS[name].read(content) if row.cls]
    table = pd.DataFrame(rows, columns=["text", "class"])
    table["words"] = table["text"].map(words)
    table = table[table["words"].map(len) > 0]
    one_class = table.groupby("words")["class"].transform("nunique") == 1
    return table[one_class].drop_duplicates("words").drop(columns="words").reset_index(drop=True)


def words(text: str) -> tuple[str, ...]:
    """The words of a text without case and punctuation: what "the same text" means here."""
    return tuple(re.findall(r"\w+", text.casefold()))
