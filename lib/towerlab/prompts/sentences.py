r"""Sentences in place of words: the book's own, and four published sets.

Source: v1 appendices A to D. The published files are in the folder TWOTOWERS_DATA, by default the
system's cache folder, and are downloaded there once. data/sentences/files.csv pins each file to a
commit and its SHA-256. No published sentence is in this repository or in any measurement
(data/sentences/README.md).

    >>> class_pairs("sentences")
    ('negative/positive', 'science/sport')
    >>> sorted(class_texts("sentences"))
    ['negative', 'positive', 'science', 'sport']
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

import pandas as pd
import pooch
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.tables import read_csv, unreadable

from towerlab.prompts import blocks

PAIRS = (
    "sst2 negative/sst2 positive", "trec human/trec location", "trec entity/trec number",
    "agnews world/agnews sports", "agnews business/agnews technology",
    "ethos acceptable/ethos hate",
)  # fmt: skip
"""Class pairs of the published sets. No class is in two of them, since class pairs are the clusters
of every interval"""
MAX_WORDS = 60
"""Maximum number of words of a published sentence, so that eight demonstrations fit into about
1,024 tokens"""
DATA = "TWOTOWERS_DATA"
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


@cache
def class_pairs(suite: str) -> tuple[str, ...]:
    """Return the class pairs of a suite.

    The book's own sentences are paired in the order of their classes.

    Args:
        suite: "words", "sentences" or "published".

    Returns:
        Class pairs, such as "science/sport".

    Raises:
        TwoTowersError: If own.csv has an odd number of classes.
    """
    if suite == "words":
        return blocks.class_pairs()
    if suite == "published":
        return PAIRS
    classes = [*class_texts(suite)]
    if not classes or len(classes) % 2:
        fault = f"expected an even number of classes, got {len(classes)} ({', '.join(classes)})"
        raise unreadable(data_folder() / "sentences" / "own.csv", fault)
    pairs = zip(classes[::2], classes[1::2], strict=True)
    return tuple("/".join(sorted(pair)) for pair in pairs)


@cache
def class_texts(suite: str) -> Mapping[str, list[str]]:
    """Return the texts of each class of a suite.

    Args:
        suite: "words", "sentences" or "published".

    Returns:
        Class -> texts.

    Raises:
        TwoTowersError: If a file cannot be read or downloaded.
    """
    if suite == "words":
        return blocks.class_words()
    if suite == "published":
        texts: dict[str, list[str]] = {}
        for name in SETS:
            texts |= set_texts(name)
        return texts
    table = read_csv(data_folder() / "sentences" / "own.csv", str)
    return table.groupby("class", sort=False)["sentence"].agg(list).to_dict()


@cache
def set_texts(name: str) -> dict[str, list[str]]:
    """Return the sentences of one published set for each class.

    Args:
        name: Published set, such as "trec".

    Returns:
        Class, such as "trec human" -> sentences.

    Raises:
        TwoTowersError: If the file cannot be downloaded.
    """
    return usable(name, fetch(name))


def usable(name: str, content: bytes) -> dict[str, list[str]]:
    r"""Return the texts of each class of one file, mended and with single spaces.

    A text is left out if it is a duplicate, is in two classes, has no words, or is too long.

        >>> content = b"0\tgood one\n1\tfine  film\n1\tFine film!\n0\tboth ways\n1\tboth ways\n"
        >>> usable("sst2", content + b"0\t...\n1\t" + b"long " * 61)
        {'sst2 negative': ['good one'], 'sst2 positive': ['fine film']}

    Args:
        name: Published set.
        content: File of the set.

    Returns:
        Class -> texts.
    """
    table = pd.DataFrame(labelled_texts(name, content), columns=["class", "text"])
    table["class"] = f"{name} " + table["class"]
    text = table["text"].map(mended) if name == "agnews" else table["text"]
    text = text.str.replace(_CONTROL, "", regex=True)
    table["text"] = text.str.split().str.join(" ")
    # Two texts are the same if their words are, without case and punctuation.
    words = table["text"].str.casefold().str.findall(r"\w+")
    table["words"] = words.str.join(" ")
    n_classes = table.groupby("words")["class"].transform("nunique")
    has_one_class = (n_classes == 1) & (table["words"] != "")
    first = table[has_one_class].drop_duplicates("words")
    short = first[first["text"].str.count(" ") < MAX_WORDS]
    return short.groupby("class")["text"].agg(list).to_dict()


def labelled_texts(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    r"""Yield the class and the text of every line that fits the pattern of the set.

    Tokens of the publishers (-lrb-, ``) and damaged letters in the files (12 lines of ethos) are
    not changed.

        >>> list(labelled_texts("sst2", b"0\tDull .\n1\tA joy\n\nbroken\n"))
        [('negative', 'Dull .'), ('positive', 'A joy')]
        >>> list(labelled_texts("trec", b"HUM:ind Who is Zo\xeb ?\r\nXXX:a b\r\n"))
        [('human', 'Who is Zoë ?')]
        >>> list(labelled_texts("agnews", b'"2","The ""final"" cup","It is on"\n9,a,b\n'))
        [('sports', 'The "final" cup It is on')]
        >>> list(labelled_texts("ethos", b"comment;isHate\nyou; 0.5\nyou;0.5\nnice;0.49\nno;2\n"))
        [('hate', 'you'), ('acceptable', 'nice')]

    Args:
        name: Published set.
        content: File of the set.

    Yields:
        Class and text.
    """
    encoding, pattern, classes = SETS[name]
    text = content.decode(encoding)
    # str.splitlines would also cut inside of texts.
    lines: Iterable[str] = text.replace("\r\n", "\n").split("\n")
    if name in TABLES:
        cells = csv.reader(io.StringIO(text, newline=""), delimiter=TABLES[name])
        lines = (f"{first}\t{' '.join(rest)}" for first, *rest in cells)
    for line in lines:
        match = re.fullmatch(pattern, line, re.DOTALL)
        if match and match["cls"] in classes:
            yield classes[match["cls"]], match["text"]


def mended(text: str) -> str:
    r"""Return a text of AG News without broken entities, HTML tags, and backslashes.

        >>> mended("It #39;s quot;on quot; <b>now</b> \\$5")
        'It\'s"on"  now  $5'
        >>> mended("AT&T #5 up; <EM.N> a < b")
        'AT&T #5 up; <EM.N> a < b'

    Args:
        text: A text of the file.

    Returns:
        The mended text.
    """
    text = html.unescape(text)
    text = _ENTITY.sub(lambda match: html.unescape(f"&{match[1]};"), text)
    return _TAG.sub(" ", text).replace("\\$", "$").replace("\\", " ")


@cache
def pins() -> pd.DataFrame:
    """Return data/sentences/files.csv, with a row for each published set.

    Returns:
        Table with the address, the file name and the SHA-256 of each set.
    """
    return read_csv(data_folder() / "sentences" / "files.csv").set_index("set")


def fetch(name: str) -> bytes:
    """Return the file of a published set, and download it if it is missing or another file.

    Args:
        name: Published set.

    Returns:
        Content of the file.

    Raises:
        TwoTowersError: If the pinned file cannot be downloaded.
    """
    pin = pins().loc[name]
    folder = Path(os.environ.get(DATA) or pooch.os_cache("twotowers"))
    path = folder.expanduser() / pin.file
    pooch.get_logger().setLevel("WARNING")  # pages of the book would show its notices
    try:
        found = pooch.retrieve(pin.url, f"sha256:{pin.sha256}", path.name, path.parent)
        return Path(found).read_bytes()
    except (OSError, ValueError) as error:  # a ValueError if the SHA-256 is another
        raise TwoTowersError(
            f"cannot download {pin.url}: {type(error).__name__}; connect to the internet, or set "
            f"{DATA} to a folder with {pin.file} (SHA-256 {pin.sha256[:12]}...)"
        ) from None
