"""Sentences in place of words (paper: v1 appendices A to D): our own, and four published sets.

The published files are in the folder TWOTOWERS_DATA, by default the system's cache folder, and are
downloaded there once. data/sentences/files.csv pins each to a commit and its SHA-256. No published
sentence is in this repository or in any measurement (data/sentences/README.md).

    >>> class_pairs("sentences")
    ('negative/positive', 'science/sport')
    >>> sorted(class_texts("sentences"))
    ['negative', 'positive', 'science', 'sport']
    >>> list(read("sst2", b"0\\tDull .\\nno line of the set"))
    [('negative', 'Dull .')]
"""

from __future__ import annotations

import csv
import html
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pooch
from pydantic import Field
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.tables import ClassName, Row, Text, read_table, unreadable

from towerlab.progress import say
from towerlab.prompts import blocks

PAIRS = {
    "sentences": ("negative/positive", "science/sport"),
    "published": (
        "sst2 negative/sst2 positive", "trec human/trec location", "trec entity/trec number",
        "agnews world/agnews sports", "agnews business/agnews technology",
        "ethos acceptable/ethos hate",
    ),
}  # fmt: skip
"""Class pairs of each suite. No class is in two of them, since class pairs are the clusters of
every interval"""
MOST_WORDS = 60
"""Maximum number of words of a published sentence, so that eight demonstrations fit into about
1,024 tokens"""
DATA = "TWOTOWERS_DATA"
SERVER = "https://raw.githubusercontent.com"
_TREC = {
    "ABBR": "abbreviation", "DESC": "description", "ENTY": "entity", "HUM": "human",
    "LOC": "location", "NUM": "number",
}  # fmt: skip
_AGNEWS = {"1": "world", "2": "sports", "3": "business", "4": "technology"}
# The share of annotators who said hate, to its first digit: hate from a half on.
_ETHOS = {f"{tenths / 10}": "hate" if tenths >= 5 else "acceptable" for tenths in range(11)}
SETS: dict[str, tuple[str, str, dict[str, str]]] = {
    "sst2": ("utf8", r"(?P<cls>.)\t(?P<text>.*)", {"0": "negative", "1": "positive"}),
    "trec": ("latin-1", r"(?P<cls>[A-Z]+)(:\S*)? (?P<text>.*)", _TREC),
    "agnews": ("utf8", r"(?P<cls>.)\t(?P<text>.*)", _AGNEWS),
    "ethos": ("utf8", r"(?P<text>.*)\t(?P<cls>[01](\.\d)?)\d*",
              _ETHOS | {"0": "acceptable", "1": "hate"}),
}  # fmt: skip
"""Encoding of the file of each published set, pattern of a line, and names of its classes"""
TABLES = {"agnews": ",", "ethos": ";"}
"""Sets whose files are CSV -> what separates cells; read as lines of the first cell, a tab and the
others"""
# Control characters that str.split does not take for spaces.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]")
# Entities that lost their "&" ("It #39;s", " quot;"); tags, but not <A.N>, the mark of a stock.
_ENTITY = re.compile(r" ?(#\d+|quot|amp|lt|gt|hellip);")
_TAG = re.compile(r"</?(?:a|b|br|em|font|i|img|nobr|p|strong)(?:\s[^<>]*)?/?>", re.IGNORECASE)


class Sentence(Row):
    """A line of data/sentences/own.csv."""

    cls: ClassName = Field(alias="class")
    sentence: Text


class Pin(Row):
    """A line of data/sentences/files.csv: the file of a set, where it lies on the server, and what
    it is."""

    set: Text
    file: Text
    repository: Text
    path: Text
    commit: Text
    sha256: Text
    bytes: Text


@cache
def class_pairs(suite: str) -> tuple[str, ...]:
    """The class pairs of a suite: of words, those of `blocks`; else those of PAIRS that are there,
    and other classes of one's own sentences two by two.

    Raises TwoTowersError where there is one class alone; one without a partner is left out, and
    told.
    """
    if suite != "sentences":
        return blocks.class_pairs() if suite == "words" else PAIRS[suite]
    path = data_folder() / "sentences" / "own.csv"
    classes = list(dict.fromkeys(row.cls for row in read_table(path, Sentence)))
    known = tuple(pair for pair in PAIRS[suite] if {*pair.split("/")} <= {*classes})
    rest = [cls for cls in classes if cls not in "/".join(known).split("/")]
    if len(classes) < 2:
        raise unreadable(path, f"it has one class alone, {classes[0]}")
    if len(rest) % 2:
        say(
            f"{path.name}: the class {rest[-1]} is left out, since there is no other to pair it "
            "with"
        )
    return (*known, *map("/".join, zip(rest[::2], rest[1::2], strict=False)))


@cache
def class_texts(suite: str) -> Mapping[str, list[str]]:
    """Class -> texts of a suite; of the published sets as `set_texts`.

    Raises TwoTowersError when a file cannot be had.
    """
    if suite == "sentences":
        out: dict[str, list[str]] = {}
        for row in read_table(data_folder() / "sentences" / "own.csv", Sentence, ("sentence",)):
            out.setdefault(row.cls, []).append(row.sentence)
        return dict(sorted(out.items()))
    if suite == "words":
        return blocks.class_words()
    return {cls: texts for name in SETS for cls, texts in set_texts(name).items()}


@cache
def set_texts(name: str) -> dict[str, list[str]]:
    """Class, such as "trec human" -> sentences of one published set, of at most MOST_WORDS words.
    Raises as `class_texts`."""
    return usable(name, fetch(name))


def usable(name: str, content: bytes) -> dict[str, list[str]]:
    """Class -> texts of one file, mended, whitespace one space; none twice, of two classes, without
    words or too long."""
    first: dict[tuple[str, ...], tuple[str, str]] = {}
    classes: dict[tuple[str, ...], set[str]] = {}
    for cls, text in read(name, content):
        text = " ".join(_CONTROL.sub("", mended(text) if name == "agnews" else text).split())
        # Two texts are the same when their words are, without case and punctuation.
        words = tuple(re.findall(r"\w+", text.casefold()))
        first.setdefault(words, (cls, text))
        classes.setdefault(words, set()).add(cls)
    out: dict[str, list[str]] = {}
    for words, (cls, text) in first.items():
        if words and len(classes[words]) == 1 and len(text.split()) <= MOST_WORDS:
            out.setdefault(f"{name} {cls}", []).append(text)
    return dict(sorted(out.items()))


def read(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Class and text of every line that has the form of the set.

    Tokens that the publishers made (-lrb-, ``) and letters that were broken on the way (47 lines of
    financial, 12 of ethos) stay.
    """
    encoding, form, classes = SETS[name]
    text = content.decode(encoding)
    # str.splitlines would also cut inside of texts.
    lines: Iterable[str] = text.replace("\r\n", "\n").split("\n")
    if name in TABLES:
        cells = csv.reader(io.StringIO(text, newline=""), delimiter=TABLES[name])
        lines = (f"{first}\t{' '.join(rest)}" for first, *rest in cells)
    for line in lines:
        match = re.fullmatch(form, line, re.DOTALL)
        if match and match["cls"] in classes:
            yield classes[match["cls"]], match["text"]


def mended(text: str) -> str:
    """A text of AG News without what its making left: broken entities, HTML tags, backslashes that
    stood for line ends."""
    text = _ENTITY.sub(lambda match: html.unescape(f"&{match[1]};"), html.unescape(text))
    return _TAG.sub(" ", text).replace("\\$", "$").replace("\\", " ")


@cache
def pins() -> dict[str, Pin]:
    """Published set -> line of data/sentences/files.csv."""
    return {
        pin.set: pin for pin in read_table(data_folder() / "sentences" / "files.csv", Pin, ("set",))
    }


def fetch(name: str) -> bytes:
    """Return the file of a published set, which is downloaded if it is not in the folder yet.

    Raises:
        TwoTowersError: If the file is another than the pinned one, or cannot be downloaded.
    """
    pin = pins()[name]
    path = Path(os.environ.get(DATA) or pooch.os_cache("twotowers")).expanduser() / pin.file
    if path.is_file() and pooch.file_hash(path) != pin.sha256:
        raise TwoTowersError(
            f"'{path}' is not the pinned file: expected the SHA-256 {pin.sha256[:12]}...; move it "
            "away to download it again"
        )
    url = f"{SERVER}/{pin.repository}/{pin.commit}/{quote(pin.path)}"
    pooch.get_logger().setLevel("WARNING")  # pages of the book would show its notices
    try:
        return Path(
            pooch.retrieve(url, f"sha256:{pin.sha256}", path.name, path.parent)
        ).read_bytes()
    except (OSError, ValueError) as error:  # a ValueError if the SHA-256 is another
        raise TwoTowersError(
            f"cannot download {url} ({type(error).__name__}): set {DATA} to a folder that has "
            f"{pin.file} with the SHA-256 {pin.sha256[:12]}..., or connect and try again"
        ) from None
