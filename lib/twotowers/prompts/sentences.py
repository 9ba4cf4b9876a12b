"""Sentences to draw prompts from: a pool of demonstrations and inputs (paper: v1 appendices A to D).

    rows("trec")              # text, class, part ("pool" or "input"), file, line
    report("trec")            # how many rows were read, mended, left out and why, and what is left of each class
    pairs("trec")             # every (false class, true class); pairs("trec:location/human") is that one
    fit(prompts, tokenizer, 1024)      # the prompts that a model can read, and how many it cannot

Where a set has a test file, inputs are the test file and demonstrations come from the train file; otherwise every
fourth row of a class, in the order of the file, goes to the pool and the rest are inputs. Rows of the pool that repeat
an input, nearly or exactly, are left out. Every run of whitespace becomes one space. data/sentences/README.md is the
card.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, permutations, product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.prompts import download
from twotowers.prompts.corpora import SETS, Row
from twotowers.prompts.prompt import Demonstration, Prompt, check_special
from twotowers.prompts.sampling import deal_round_robin, distinct_codes, take_distinct

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
LONG = ("drop", "truncate")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff]")  # those that str.split does not take for spaces


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
        raise TwoTowersError(
            f"unknown pair '{rest}' of {base}: write {base}:false/true with two of {', '.join(classes)}"
        )
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
    return prepare(name, {file: download.fetch(file) for file in SETS[name].files})


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
    counts[next(iter(raw)), NEAR, ""] = len(close)
    table = table.drop(index=close).reset_index(drop=True)
    for part, cls in product(("pool", "input"), one.classes):
        file = list(raw)[-1 if part == "input" else 0]
        counts[file, part, cls] = int(((table["part"] == part) & (table["class"] == cls)).sum())
    told = [(name, file, what, cls, n) for (file, what, cls), n in counts.items()]
    told = pd.DataFrame(told, columns=["dataset", "file", "what", "class", "rows"])
    return table[["text", "class", "part", "file", "line"]], told


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
        clean = _CONTROL.sub("", mended)
        text, key = " ".join(clean.split()), words(clean)
        counts[UNDECIDED] += row.undecided
        counts[MENDED] += mended != row.text
        counts[CONTROL] += clean != mended
        counts[BEYOND] += not text.isascii()
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
    if not any(row.undecided for row in found):
        del counts[UNDECIDED]  # only some publishers tell
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


def draw_sentences(
    name: str,
    n: int,
    *,
    seed: int,
    labels: tuple[str, str],
    true_label: str,
    k: int,
    words: str = "all",
    table: pd.DataFrame | None = None,
) -> list[Prompt]:
    """n different prompts of a set of sentences; see `draw`, which checks what this takes for granted.

    Every input is the query once before any is the query twice, and in a set named without a pair meets its other
    classes in turn. Raises TwoTowersError when a class has fewer than k demonstrations or no input.
    """
    if words != "all":
        raise TwoTowersError(f"words='{words}': sets of sentences have no such words, take 'all'")
    table = rows(name) if table is None else table
    texts = {key: group["text"].tolist() for key, group in table.groupby(["part", "class"])}
    for cls in dict.fromkeys(cls for pair in pairs(name) for cls in pair):
        if (have := len(texts.get(("pool", cls), ()))) < k:
            raise TwoTowersError(f"k={k} needs {k} demonstrations of the class {cls} and {name} has {have}: take fewer")
    rng = np.random.default_rng([seed, *name.encode()])
    queries: dict[str, list[str]] = {}
    for false, true in pairs(name):
        queries.setdefault(true, []).append(false)
    rounds = [[] for _ in max(queries.values(), key=len)]  # every input once a round, with another false class
    inputs = [(text, true) for true in queries for text in texts.get(("input", true), ())]
    for place in rng.permutation(len(inputs)):
        text, true = inputs[place]
        for i, false in enumerate(rng.permutation(queries[true])):
            rounds[i].append((text, str(false), true))
    asked = list(chain.from_iterable(rounds))
    sizes = {(f, t): [len(texts["pool", c]) - i for c in (f, t) for i in range(k)] for f, t in pairs(name)}
    dealt = deal_round_robin([math.prod(sizes[f, t]) for _, f, t in asked], n, name)
    other = labels[1] if true_label == labels[0] else labels[0]
    drawn = []
    for at, ((text, false, true), share) in enumerate(zip(asked, dealt, strict=False)):
        for turn, code in enumerate(distinct_codes(sizes[false, true], share, rng, name)):
            demonstrations = [Demonstration(d, other, false) for d in take_distinct(texts["pool", false], code[:k])]
            demonstrations += [Demonstration(d, true_label, true) for d in take_distinct(texts["pool", true], code[k:])]
            drawn.append((turn, at, Prompt(tuple(demonstrations), text, true_label, labels, true, name)))
    return [prompt for _, _, prompt in sorted(drawn, key=lambda one: one[:2])]


def fit(
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    long: str = "drop",
    forms: Callable[[Prompt], Sequence[Prompt]] = lambda prompt: (prompt,),
) -> tuple[list[Prompt], pd.DataFrame]:
    """Prompts that the model can read, and how many were touched: what, prompts.

    A prompt over `max_tokens` tokens (the beginning token counted) is left out with long="drop"; with "truncate" its
    longest texts are cut at their ends, all to the same number of tokens. A prompt whose texts hold a
    special token of the tokenizer is left out. `forms` gives the variants in which a prompt will be compared with
    itself: the longest of them counts, so that what is kept can be read in all of them, with the same texts. They are
    asked for of prompts over half of `max_tokens` only. Raises TwoTowersError on another `long`, and for a special token
    in a label, which no prompt would survive.
    """
    check_long(long)
    special = [str(token) for token in tokenizer.all_special_tokens]
    check_special(dict.fromkeys(label for prompt in prompts for label in prompt.labels), special)
    counts = dict.fromkeys(("kept", "special token, left out", "too long, left out", "too long, truncated"), 0)
    out = []
    for prompt, length in zip(prompts, lengths([p.text for p in prompts], tokenizer), strict=True):
        if any(token in prompt.text for token in special):
            counts["special token, left out"] += 1
            continue
        if length > max_tokens // 2 and (length <= max_tokens or long == "truncate"):
            length = _longest(prompt, tokenizer, forms)
        if length > max_tokens:
            prompt = _truncated(prompt, length, tokenizer, max_tokens, forms) if long == "truncate" else None
            counts["too long, truncated" if prompt else "too long, left out"] += 1
        else:
            counts["kept"] += 1
        out += [prompt] if prompt else []
    return out, pd.DataFrame({"what": list(counts), "prompts": list(counts.values())})


def check_long(long: str) -> str:
    """Raise TwoTowersError unless it is one of LONG, the ways with a prompt that is too long."""
    if long not in LONG:
        raise TwoTowersError(f"long='{long}': choose {' or '.join(LONG)}")
    return long


def _longest(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, forms: Callable[[Prompt], Sequence[Prompt]]) -> int:
    return max(lengths([one.text for one in forms(prompt)], tokenizer))


def lengths(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of each text, the beginning token counted."""
    return [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]] if texts else []


def _truncated(
    prompt: Prompt,
    length: int,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    forms: Callable[[Prompt], Sequence[Prompt]],
) -> Prompt | None:
    """The prompt with the same limit of tokens for each text; None when one token of each is too many."""
    texts = [*(d.text for d in prompt.demonstrations), prompt.query]
    batch = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = [[stop for _, stop in offsets] for offsets in batch["offset_mapping"]]
    sizes = [len(e) for e in ends]
    fixed = length - sum(sizes)  # labels, colons, the beginning token
    limits = range(max(sizes), 0, -1)
    first = next((i for i, most in enumerate(limits) if fixed + sum(min(n, most) for n in sizes) <= max_tokens), None)
    for limit in limits[first:] if first is not None else ():  # cut texts may tokenise otherwise: look, then go lower
        cut = [t if n <= limit else t[: e[limit - 1]].rstrip() for t, e, n in zip(texts, ends, sizes, strict=True)]
        if not all(cut):
            return None
        demonstrations = [replace(d, text=t) for d, t in zip(prompt.demonstrations, cut, strict=False)]
        shorter = replace(prompt, demonstrations=tuple(demonstrations), query=cut[-1])
        if _longest(shorter, tokenizer, forms) <= max_tokens:
            return shorter
    return None
