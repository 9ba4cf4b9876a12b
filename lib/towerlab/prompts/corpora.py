"""Six published sets of sentences as their files have them: where they are, how each is read, and how it is mended.

    for row in SETS["trec"].read(raw): ...      # Row(cls="location", text="...")

Reading never drops a row: what is not in the file's form comes with the class "". Tokens that the publishers made
(-lrb-, ``) and letters that were broken on the way (47 rows of financial, 12 of ethos) stay as they are.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple


class Row(NamedTuple):
    """A row as its file has it; cls is "" when the row cannot be read."""

    cls: str
    text: str


def _text_lines(raw: bytes, encoding: str) -> list[str]:
    """Lines that hold something; not str.splitlines, which also cuts at characters that stand inside texts."""
    return [line for line in raw.decode(encoding).replace("\r\n", "\n").split("\n") if line]


def _lines(raw: bytes, encoding: str, separator: str, name: Callable[[str], str | None]) -> Iterator[Row]:
    """Lines of a class, a separator and a text; `name` gives the class's name."""
    for line in _text_lines(raw, encoding):
        cls, match, text = line.partition(separator)
        name_of = name(cls)
        yield Row(name_of, text) if match and name_of else Row("", line)


_TREC = {"ABBR": "abbreviation", "DESC": "description", "ENTY": "entity", "HUM": "human", "LOC": "location", "NUM": "number"}
_AGNEWS = {"1": "world", "2": "sports", "3": "business", "4": "technology"}

# Lines "0<tab>sentence", "CLASS:subclass question" and "__label__1 title: review".
read_sst2 = partial(_lines, encoding="utf-8", separator="\t", name={"0": "negative", "1": "positive"}.get)
read_trec = partial(_lines, encoding="latin-1", separator=" ", name=lambda cls: _TREC.get(cls.partition(":")[0]))
read_amazon = partial(_lines, encoding="utf-8", separator=" ", name={"__label__1": "negative", "__label__2": "positive"}.get)


def read_agnews(raw: bytes) -> Iterator[Row]:
    """CSV of class number, title, description; UTF-8. The text is the title and the description."""
    for fields in csv.reader(io.StringIO(raw.decode("utf-8"), newline="")):
        good = len(fields) == 3 and fields[0] in _AGNEWS
        yield Row(_AGNEWS[fields[0]], f"{fields[1]} {fields[2]}") if good else Row("", " ".join(fields))


def read_ethos(raw: bytes) -> Iterator[Row]:
    """CSV with semicolons of comment, isHate (the share of annotators who said so); UTF-8. Hate from 0.5 on."""
    for fields in list(csv.reader(io.StringIO(raw.decode("utf-8"), newline=""), delimiter=";"))[1:]:
        share = float(fields[-1]) if len(fields) == 2 and re.fullmatch(r"[01](\.\d+)?", fields[-1]) else -1.0
        yield Row(("acceptable", "hate")[share >= 0.5], fields[0]) if 0 <= share <= 1 else Row("", " ".join(fields))


def read_financial(raw: bytes) -> Iterator[Row]:
    """Lines "sentence@class"; latin-1."""
    for line in _text_lines(raw, "latin-1"):
        text, _, cls = line.rpartition("@")
        yield Row(cls, text) if cls in ("negative", "neutral", "positive") else Row("", line)


def mend_agnews(text: str) -> str:
    """Entities that lost their "&" ("It #39;s", " quot;"), HTML tags, and backslashes that stood for line ends."""
    text = re.sub(r" ?(#\d+|quot|amp|lt|gt|hellip);", lambda m: html.unescape(f"&{m[1]};"), html.unescape(text))
    tags = r"</?(?:a|b|br|em|font|i|img|nobr|p|strong)(?:\s[^<>]*)?/?>"  # but not <A.N>, the mark of a stock
    return re.sub(tags, " ", text, flags=re.IGNORECASE).replace("\\$", "$").replace("\\", " ")


class SentenceSet(NamedTuple):
    """`file`: as in data/sentences/files.csv; the test file where there are several."""

    file: str
    read: Callable[[bytes], Iterator[Row]]
    mend: Callable[[str], str] = str


SETS = {
    "sst2": SentenceSet("sst2-sentences/test.tsv", read_sst2),
    "trec": SentenceSet("trec/test_TREC_10.label.txt", read_trec),
    "agnews": SentenceSet("agnews/test.csv", read_agnews, mend_agnews),
    "ethos": SentenceSet("ethos/Ethos_Dataset_Binary.csv", read_ethos),
    "financial": SentenceSet("financial-phrasebank/Sentences_AllAgree.txt", read_financial),
    "amazon": SentenceSet("amazon-polarity/test.ft.txt", read_amazon),
}
