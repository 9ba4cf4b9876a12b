"""Six published sets of sentences as their files have them: where they are, how each is read, and how it is mended.

    for row in SETS["trec"].read(raw): ...      # Row(cls="location", text="...")

Reading never drops a row: what is not in the file's form comes with the class "". Tokens that the publishers made
(-lrb-, ``) stay as they are.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd


class Row(NamedTuple):
    """A row as its file has it; cls is "" when the row cannot be read."""

    cls: str
    text: str
    undecided: bool = False


def read_sst2(raw: bytes) -> Iterator[Row]:
    """Lines "0<tab>sentence"; UTF-8."""
    return _lines(raw, "utf-8", "\t", {"0": "negative", "1": "positive"})


def read_trec(raw: bytes) -> Iterator[Row]:
    """Lines "CLASS:subclass question"; latin-1, CRLF."""
    for row in _lines(raw, "latin-1", " ", None):
        yield row._replace(cls=_TREC.get(row.cls.partition(":")[0], ""))


def read_amazon(raw: bytes) -> Iterator[Row]:
    """Lines "__label__1 title: review"; UTF-8."""
    return _lines(raw, "utf-8", " ", {"__label__1": "negative", "__label__2": "positive"})


def read_agnews(raw: bytes) -> Iterator[Row]:
    """CSV of class number, title, description; UTF-8. The text is the title and the description."""
    for fields in csv.reader(io.StringIO(raw.decode("utf-8"), newline="")):
        good = len(fields) == 3 and fields[0] in _AGNEWS
        yield Row(_AGNEWS[fields[0]], f"{fields[1]} {fields[2]}") if good else Row("", " ".join(fields))


def read_ethos(raw: bytes) -> Iterator[Row]:
    """CSV with semicolons of comment, isHate (the share of annotators who said so); UTF-8. Hate from 0.5 on."""
    for fields in list(csv.reader(io.StringIO(raw.decode("utf-8"), newline=""), delimiter=";"))[1:]:
        share = pd.to_numeric(fields[-1], errors="coerce") if len(fields) == 2 else float("nan")
        if not 0 <= share <= 1:
            yield Row("", " ".join(fields))
        else:
            yield Row("hate" if share >= 0.5 else "acceptable", fields[0], undecided=bool(share == 0.5))


def read_financial(raw: bytes) -> Iterator[Row]:
    """Lines "sentence@class"; latin-1."""
    for line in _split(raw, "latin-1"):
        text, _, cls = line.rpartition("@")
        yield Row(cls, text) if cls in ("negative", "neutral", "positive") else Row("", line)


_TREC = {"ABBR": "abbreviation", "DESC": "description", "ENTY": "entity", "HUM": "human", "LOC": "location",
         "NUM": "number"}  # fmt: skip
_AGNEWS = {"1": "world", "2": "sports", "3": "business", "4": "technology"}


def _split(raw: bytes, encoding: str) -> list[str]:
    """Lines that hold something; not str.splitlines, which also cuts at characters that stand inside texts."""
    return [line for line in raw.decode(encoding).replace("\r\n", "\n").split("\n") if line]


def _lines(raw: bytes, encoding: str, separator: str, classes: dict[str, str] | None) -> Iterator[Row]:
    for line in _split(raw, encoding):
        cls, found, text = line.partition(separator)
        known = cls if classes is None else classes.get(cls, "")
        yield Row(known, text) if found and known else Row("", line)


def mend_agnews(text: str) -> str:
    """Entities that lost their "&" ("It #39;s", " quot;"), HTML tags, and backslashes that stood for line ends."""
    text = re.sub(r" ?(#\d+|quot|amp|lt|gt|hellip);", lambda m: html.unescape(f"&{m[1]};"), html.unescape(text))
    tags = r"</?(?:a|b|br|em|font|i|img|nobr|p|strong)(?:\s[^<>]*)?/?>"  # but not <A.N>, the mark of a stock
    return re.sub(tags, " ", text, flags=re.IGNORECASE).replace("\\$", "$").replace("\\", " ")


def mend_ethos(text: str) -> str:
    """UTF-8 once read as latin-1, and most of it once more as Mac Roman; what does not decode that way stays."""

    def mend(run: re.Match) -> str:
        for turns in (("mac_roman", "latin-1"), ("latin-1",)):
            try:
                out = run[0]
                for wrong in turns:
                    out = out.encode(wrong).decode("utf-8")
                return out
            except UnicodeError:
                continue
        return run[0]

    return re.sub(r"[^\x00-\x7f]{2,}", mend, text)


def mend_financial(text: str) -> str:
    """UTF-8 once read as code page 850, whose box drawings then became "+" (of C3) and "-" (of C2)."""

    def mend(pair: re.Match) -> str:
        if pair[0] == "-¦":
            return "'"  # an acute accent in place of an apostrophe
        try:
            return ({"+": b"\xc3", "-": b"\xc2"}[pair[1]] + pair[2].encode("cp850")).decode("utf-8")
        except UnicodeError:
            return pair[0]

    return re.sub(r"([+-])([^\x00-\x7f])", mend, text)


class SentenceSet(NamedTuple):
    """`files`: (train, test), or one that is split here."""

    title: str
    classes: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[bytes], Iterator[Row]]
    mend: Callable[[str], str] = str


_POLAR = ("negative", "positive")
SETS = {
    "sst2": SentenceSet("SST-2", _POLAR, ("sst2-sentences/train.tsv", "sst2-sentences/test.tsv"), read_sst2),
    "trec": SentenceSet(
        "TREC", tuple(_TREC.values()), ("trec/train_5500.label.txt", "trec/test_TREC_10.label.txt"), read_trec
    ),
    "agnews": SentenceSet("AG News", tuple(_AGNEWS.values()), ("agnews/test.csv",), read_agnews, mend_agnews),
    "ethos": SentenceSet(
        "ETHOS", ("acceptable", "hate"), ("ethos/Ethos_Dataset_Binary.csv",), read_ethos, mend_ethos
    ),
    "financial": SentenceSet(
        "Financial PhraseBank", ("negative", "neutral", "positive"), ("financial-phrasebank/Sentences_AllAgree.txt",),
        read_financial, mend_financial,
    ),
    "amazon": SentenceSet("Amazon polarity", _POLAR, ("amazon-polarity/test.ft.txt",), read_amazon),
}  # fmt: skip
