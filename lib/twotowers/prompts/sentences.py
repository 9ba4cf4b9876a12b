"""Sentences in place of words (paper: v1 appendices A to D): sixty of the book's own, and six published sets.

    class_texts("sentences")["sport"]      # the book's own: data/sentences/own.csv, no download
    class_texts("published")               # class -> sentences of six sets, fetched or read from TWOTOWERS_DATA
    PAIRS["published"]                     # the class pairs that prompts are drawn of
    rows("trec")                           # the usable rows of one published set

No published sentence is in this repository, nor in any measurement (data/sentences/README.md).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

import pandas as pd

from twotowers.paths import data_folder
from twotowers.prompts import download
from twotowers.prompts.corpora import SETS

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
SHINGLE, NEARNESS, EVERY = 3, 0.5, 4
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]")  # those that str.split does not take for spaces


@cache
def class_texts(suite: str) -> dict[str, list[str]]:
    """Class -> sentences of a suite of PAIRS. Of the published sets only inputs, which no shipped miniature was trained on.

    Raises TwoTowersError when a file cannot be had.
    """
    if suite == "sentences":
        table = pd.read_csv(data_folder() / "sentences" / "own.csv")
        return table.groupby("class")["sentence"].agg(list).to_dict()
    out: dict[str, list[str]] = {}
    for name in SETS:
        inputs = rows(name).query("part == 'input'")
        short = inputs[inputs["text"].str.split().str.len() <= MOST_WORDS]
        out |= {f"{name} {cls}": group.tolist() for cls, group in short.groupby("class")["text"]}
    return out


def rows(name: str) -> pd.DataFrame:
    """The usable rows of a published set: text, class, part ("pool" or "input"). TwoTowersError when a file cannot be had.

    The test file, where there is one, gives the inputs; otherwise every fourth row of a class is in the pool and the rest
    are inputs. Rows of the pool that repeat an input, nearly or exactly, are left out.
    """
    return _prepared(name).copy()


@cache
def _prepared(name: str) -> pd.DataFrame:
    return prepare(name, [download.fetch(file) for file in SETS[name].files])


def prepare(name: str, raw: Sequence[bytes]) -> pd.DataFrame:
    """`rows` of a set from the bytes of its files: train and test, or one."""
    tables = [_usable(name, content) for content in raw]
    table = pd.concat(tables, ignore_index=True)
    in_pool = table.groupby("class").cumcount() % EVERY == 0 if len(raw) == 1 else table.index < len(tables[0])
    table["part"] = pd.Series(in_pool, index=table.index).map({True: "pool", False: "input"})
    pool, inputs = table[in_pool], table[~in_pool]
    close = pool.index[near(pool["text"].tolist(), inputs["text"].tolist())]
    return table.drop(index=close).reset_index(drop=True)


def _usable(name: str, content: bytes) -> pd.DataFrame:
    """Rows of one file, mended, every run of whitespace one space: no text twice, none without a word or in two classes."""
    rows = [
        (" ".join(_CONTROL.sub("", SETS[name].mend(row.text)).split()), row.cls)
        for row in SETS[name].read(content)
        if row.cls
    ]
    table = pd.DataFrame(rows, columns=["text", "class"])
    table["words"] = table["text"].map(words)
    table = table[table["words"].map(len) > 0]
    one_class = table.groupby("words")["class"].transform("nunique") == 1
    return table[one_class].drop_duplicates("words").drop(columns="words").reset_index(drop=True)


def words(text: str) -> tuple[str, ...]:
    """The words of a text without case and punctuation: what "the same text" means here."""
    return tuple(re.findall(r"\w+", text.casefold()))


def near(pool: Sequence[str], inputs: Sequence[str]) -> list[int]:
    """Places in `pool` of texts that repeat an input: half or more of the word triples of the two are shared (Jaccard).

    A text of fewer than three words is one such piece.
    """
    pieces = [_shingles(text) for text in inputs]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, of_input in enumerate(pieces):
        for piece in of_input:
            holders[piece].append(i)
    out = []
    for place, text in enumerate(pool):
        own = _shingles(text)
        shared = Counter(i for piece in own for i in holders.get(piece, ()))
        if any(n >= NEARNESS * (len(own) + len(pieces[i]) - n) for i, n in shared.items()):
            out.append(place)
    return out


def _shingles(text: str) -> set[tuple[str, ...]]:
    of_text = words(text)
    return {of_text[i : i + SHINGLE] for i in range(max(1, len(of_text) - SHINGLE + 1))}
