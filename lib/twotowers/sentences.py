"""Six sets of real sentences: read, mended, split into a pool of demonstrations and inputs (paper: v1 appendices A-D).

    rows("trec")              # text, class, part ("pool" or "input"), file, line
    report("trec")            # how many rows were read, mended, left out and why, and what is left of each class
    pairs("trec")             # every (false class, true class); pairs("trec:location/human") is that one

Where a set has a test file, inputs are the test file and demonstrations come from the train file; otherwise every
fourth row of a class, in the order of the file, goes to the pool and the rest are inputs. Rows of the pool that repeat
an input, nearly or exactly, are left out. Every run of whitespace becomes one space. data/sentences/README.md is the card.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from twotowers import sources
from twotowers.errors import TwoTowersError
from twotowers.prompts import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNREADABLE, WORDLESS = "not in the file's form, left out", "without a word, left out"
UNDECIDED = "annotators undecided (0.5), kept as hate"
MENDED, CONTROL = "broken characters or markup mended", "control characters taken out"
BEYOND = "characters beyond ASCII after mending"
REPEATED, CONTRADICTED = "repeats an earlier row, left out", "the same text in two classes, left out"
NEAR = "near an input, left out of the pool"
LEFT_OUT = (UNREADABLE, WORDLESS, REPEATED, CONTRADICTED, NEAR)

SHINGLE, NEARNESS, EVERY = 3, 0.5, 4


class Row(NamedTuple):
    """A row as its file has it; cls is "" when the row cannot be read."""

    cls: str
    text: str
    note: str = ""


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
            yield Row("hate" if share >= 0.5 else "acceptable", fields[0], UNDECIDED if share == 0.5 else "")


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
    tags = r"</?(?:a|b|br|em|font|i|img|nobr|p|strong)\b[^<>]*>"
    return re.sub(tags, " ", text, flags=re.IGNORECASE).replace("\\$", "$").replace("\\", " ")


def mend_ethos(text: str) -> str:
    """UTF-8 once read as latin-1 and once as Mac Roman; what does not decode both ways stays."""

    def mend(run: re.Match) -> str:
        try:
            return run[0].encode("mac_roman").decode("utf-8").encode("latin-1").decode("utf-8")
        except UnicodeError:
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


def pairs(name: str) -> list[tuple[str, str]]:
    """(false class, true class) of "set:false/true", or every such pair of "set".

    Raises TwoTowersError, naming what there is, on an unknown set or class and on equal classes.
    """
    base, colon, rest = name.partition(":")
    if base not in SETS:
        raise TwoTowersError(f"unknown set of sentences '{base}': choose one of {', '.join(SETS)}")
    classes, pair = SETS[base].classes, tuple(rest.split("/"))
    if not colon:
        return list(permutations(classes, 2))
    if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(classes):
        raise TwoTowersError(f"unknown pair '{rest}' of {base}: write {base}:false/true with two of {', '.join(classes)}")
    return [pair]


def rows(name: str) -> pd.DataFrame:
    """The usable rows of a set: text, class, part ("pool" or "input"), file, line (of those that hold something).

    `name` may be "set" or "set:false/true"; both give all classes. Raises TwoTowersError when a file cannot be had.
    """
    pairs(name)
    return _read(name.partition(":")[0])[0].copy()


def report(name: str) -> pd.DataFrame:
    """What became of every row of a set's files: dataset, file, what, class ("" for all), rows."""
    pairs(name)
    return _read(name.partition(":")[0])[1].copy()


@lru_cache(maxsize=len(SETS))
def _read(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    return prepare(name, {file: sources.fetch(file) for file in SETS[name].files})


def prepare(name: str, raw: dict[str, bytes]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(`rows`, `report`) of a set from the bytes of its files, in the order train, test."""
    one, counts, frames = SETS[name], Counter(), []
    for file, content in raw.items():
        kept, found = _usable(list(one.read(content)), one.mend)
        counts.update({(file, what, ""): n for what, n in found.items()})
        frames.append(kept.assign(file=file))
    table = pd.concat(frames, ignore_index=True)
    if len(frames) == 1:
        in_pool = table.groupby("class").cumcount() % EVERY == 0
    else:
        in_pool = table["file"] == frames[0]["file"].iloc[0]
    table["part"] = in_pool.map({True: "pool", False: "input"})
    pool, inputs = table[in_pool], table[~in_pool]
    close = pool.index[near(pool["text"].tolist(), inputs["text"].tolist())]
    counts.update((file, NEAR, "") for file in table.loc[close, "file"])
    table = table.drop(index=close).reset_index(drop=True)
    counts.update((row.file, row.part, cls) for row, cls in zip(table.itertuples(), table["class"], strict=True))
    told = [(name, file, what, cls, n) for (file, what, cls), n in counts.items()]
    return table[["text", "class", "part", "file", "line"]], pd.DataFrame(
        told, columns=["dataset", "file", "what", "class", "rows"]
    )


def _usable(found: list[Row], mend: Callable[[str], str]) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows of one file that can be used, as text, class, line; and how many there were of each kind."""
    counts = dict.fromkeys(
        ("rows in the file", UNREADABLE, UNDECIDED, MENDED, CONTROL, BEYOND, WORDLESS, REPEATED, CONTRADICTED), 0
    )
    counts["rows in the file"] = len(found)
    kept: dict[tuple[str, ...], tuple[str, str, int]] = {}
    repeats, contradicted = Counter(), set()
    for line, row in enumerate(found):
        if not row.cls:
            counts[UNREADABLE] += 1
            continue
        mended = mend(row.text)
        clean = re.sub(r"[^\S ]|[\x00-\x1f\x7f-\x9f\ufeff]", lambda m: " " if m[0].isspace() else "", mended)
        text, key = " ".join(clean.split()), words(clean)
        for what, is_so in ((row.note, row.note), (MENDED, mended != row.text), (BEYOND, not text.isascii()),
                            (CONTROL, re.search(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]", mended))):  # fmt: skip
            counts[what or UNDECIDED] += bool(is_so)
        if not key:
            counts[WORDLESS] += 1
        elif key in kept:
            repeats[key] += 1
            if kept[key][1] != row.cls:
                contradicted.add(key)
        else:
            kept[key] = (text, row.cls, line)
    counts[CONTRADICTED] = sum(repeats[key] + 1 for key in contradicted)
    counts[REPEATED] = sum(n for key, n in repeats.items() if key not in contradicted)
    good = [row for key, row in kept.items() if key not in contradicted]
    return pd.DataFrame(good, columns=["text", "class", "line"]), counts


def words(text: str) -> tuple[str, ...]:
    """The words of a text without case and punctuation: what "the same text" means here."""
    return tuple(re.findall(r"\w+", text.casefold()))


def near(pool: Sequence[str], inputs: Sequence[str]) -> list[int]:
    """Places in `pool` of texts that repeat an input: half or more of the word triples of the two are shared (Jaccard).

    A text of fewer than three words is one such piece.
    """
    pieces = [_shingles(text) for text in inputs]
    holders: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, one in enumerate(pieces):
        for piece in one:
            holders[piece].append(i)
    out = []
    for place, text in enumerate(pool):
        mine = _shingles(text)
        shared = Counter(i for piece in mine for i in holders.get(piece, ()))
        if any(n >= NEARNESS * (len(mine) + len(pieces[i]) - n) for i, n in shared.items()):
            out.append(place)
    return out


def _shingles(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {found[i : i + SHINGLE] for i in range(max(1, len(found) - SHINGLE + 1))}


def fit(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, max_tokens: int, long: str = "drop"
) -> tuple[list[Prompt], pd.DataFrame]:
    """Prompts that the model can read, and how many were touched: what, prompts.

    A prompt over `max_tokens` tokens (the beginning token counted) is left out with long="drop"; with "truncate" its
    longest texts are cut at their ends, all to the same number of tokens, just enough. A prompt whose texts hold a
    special token of the tokenizer is left out. Raises TwoTowersError on another `long`.
    """
    if long not in ("drop", "truncate"):
        raise TwoTowersError(f"long='{long}': choose drop or truncate")
    special = [str(token) for token in tokenizer.all_special_tokens]
    counts = dict.fromkeys(("kept", "special token, left out", "too long, left out", "too long, truncated"), 0)
    out = []
    lengths = _lengths([p.text for p in prompts], tokenizer)
    for prompt, length in zip(prompts, lengths, strict=True):
        if any(token in prompt.text for token in special):
            counts["special token, left out"] += 1
            continue
        if length > max_tokens:
            prompt = _truncated(prompt, tokenizer, max_tokens) if long == "truncate" else None
            counts["too long, truncated" if prompt else "too long, left out"] += 1
        else:
            counts["kept"] += 1
        out += [prompt] if prompt else []
    return out, pd.DataFrame({"what": list(counts), "prompts": list(counts.values())})


def _lengths(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]] if texts else []
