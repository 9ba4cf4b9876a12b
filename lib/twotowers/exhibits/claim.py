"""Claims: what a page says of a saved table. A claim is a verdict, one plain sentence, and where its numbers stand.

    def overall(t):
        effect, more = estimate(t, "mrr", source=IN), estimate(t, "difference", source=IN)
        return Claim(judge(effect, more, null=chance), f"... {effect:.2f} ...")

No claim holds when its control does as well: `judge` asks for both. No torch here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import SupportsInt

import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.stats.intervals import Interval


class Verdict(StrEnum):
    """What a claim of the paper comes to on one model."""

    HOLDS = "holds"
    CONTROL = "no more than its control"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    UNTESTABLE = "not testable here"


@dataclass(frozen=True)
class Claim:
    """A verdict (None for what is no claim of the paper, only a finding) and a plain sentence with six numbers at most.

    Raises TwoTowersError when the sentence says "nan": what cannot be computed is said in words.
    """

    verdict: Verdict | None
    sentence: str

    def __post_init__(self) -> None:
        if re.search(r"\bnan\b|\binf\b", SPAN.sub("", self.sentence), re.IGNORECASE):
            raise TwoTowersError(f"a sentence would say 'nan': {self.sentence[:80]!r}")

    @property
    def markdown(self) -> str:
        """A box whose title is the verdict, as HTML, which Jupyter and the book both show; a finding is a paragraph."""
        sentence = inert(self.sentence)
        if self.verdict is None:
            return f"**Found here.** {sentence}"
        kind = self.verdict.name.lower()
        title = f'<p class="admonition-title"><strong>{self.verdict.capitalize()}</strong></p>'
        return f'<div class="admonition verdict {kind}">\n{title}\n\n{sentence}\n\n</div>'


def finding(sentence: str) -> Claim:
    """What is no claim of the paper."""
    return Claim(None, sentence)


def untestable(sentence: str) -> Claim:
    """A claim that this model or these data cannot decide."""
    return Claim(Verdict.UNTESTABLE, sentence)


def judge(effect: Interval, over_control: Interval | None, null: float = 0.0, sign: int = 1) -> Verdict:
    """HOLDS when the effect lies clearly beyond `null` and clearly beyond its control; both by their intervals.

    `over_control` is the effect less its control, paired where it can be; None when there is no control to be had,
    and then nothing holds. `sign` -1 is for claims that something falls.
    """
    low, high = sorted(sign * (bound - null) for bound in (effect.low, effect.high))
    if math.isnan(low) or effect.n < 2 or over_control is None:
        return Verdict.UNDECIDED
    if high <= 0:
        return Verdict.FAILS
    if low <= 0:
        return Verdict.UNDECIDED
    beyond = min(sign * bound for bound in (over_control.low, over_control.high))
    return Verdict.HOLDS if beyond > 0 else Verdict.CONTROL


ALLOWED = 0.05  # of other heads, or sets of them, may do as well, and a claim about some heads still holds


def among_others(verdict: Verdict, outdone: int, others: int) -> Verdict:
    """What becomes of HOLDS where `outdone` of `others` do as well: an average of them is beaten by many a head.

    CONTROL beyond the share ALLOWED; UNDECIDED where they are too few for so small a share: the first of three would be
    no rare thing.
    """
    if verdict is not Verdict.HOLDS:
        return verdict
    if outdone > ALLOWED * others:
        return Verdict.CONTROL
    return verdict if ALLOWED * others >= 1 else Verdict.UNDECIDED


def apart(a: Interval, b: Interval) -> Interval:
    """a less b, of which only the intervals are known: as wide as they allow, whether they are paired or not."""
    return Interval(a.estimate - b.estimate, a.low - b.high, a.high - b.low, min(a.n, b.n))


def between(a: Interval, b: Interval) -> Interval:
    """The mean of two estimates of which only the intervals are known: as wide as they allow."""
    return Interval((a.estimate + b.estimate) / 2, (a.low + b.low) / 2, (a.high + b.high) / 2, min(a.n, b.n))


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for a claim of several parts: the weakest of them; UNTESTABLE for none."""
    weakest = (Verdict.FAILS, Verdict.CONTROL, Verdict.UNDECIDED, Verdict.UNTESTABLE, Verdict.HOLDS)
    return min(verdicts, key=weakest.index) if verdicts else Verdict.UNTESTABLE


def either_way(low: pd.Series, learned: Iterable[str], null: float) -> Verdict:
    """Is it the query's class, or one class that is liked whatever is asked about? CONTROL where the mirror of a pair does
    not clearly hold, UNDECIDED where none is there.

    In the set a/b only b is asked about, so each learned pair of classes stands beside its mirror b/a: a liking for the
    labels of one class has the other sign there. A set of all its classes ("trec") asks about each. `low`: lower bound
    of the effect on each set, by its name.
    """
    pairs, alone = set(), 0
    for name in learned:
        source, colon, classes = name.rpartition(":")
        mirror = source + colon + "/".join(classes.split("/")[::-1])
        if mirror != name and mirror in low.index:
            pairs.add(frozenset((name, mirror)))
        alone += mirror != name
    if any(low[list(pair)].min() <= null for pair in pairs):
        return Verdict.CONTROL
    return Verdict.UNDECIDED if alone and not pairs else Verdict.HOLDS


UNLEARNED = "No set is learned, so this is no test of learning. "


def about_learning(claim: Callable[[pd.DataFrame], Claim]) -> Callable[[pd.DataFrame], Claim]:
    """A claim that counts only where the task is learned; elsewhere its sentence stands, and it is UNTESTABLE.

    Its table has a column `learned`: whether a set that it is judged on passes the rule of chapter 1 (`studies.forms`).
    """

    @wraps(claim)
    def judged(t: pd.DataFrame) -> Claim:
        found = claim(t)
        if t["learned"].any():
            return found
        return untestable(f"{UNLEARNED}{found.sentence}")

    return judged


# --- wording: the one place where names, labels and words become Markdown ---


def code(text: object) -> str:
    """A name, label or word of data as inline code: nothing in it is Markdown or HTML, whatever it holds."""
    shown = re.sub(r"\s+", " ", "".join(c for c in str(text) if c.isprintable() or c.isspace())).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


SPAN = re.compile(r"(?<!`)(`+)(?!`)(.*?[^`])\1(?!`)")  # inline code, as CommonMark finds it


def inert(sentence: str) -> str:
    """A sentence as one paragraph of Markdown in which, beside code, only emphasis is markup.

    What a table holds may have come into it without `code`: no HTML, link, role, formula or block is made of that.
    """
    parts, at, line = [], 0, " ".join(sentence.split())
    for span in SPAN.finditer(line):
        parts += [_escaped(line[at : span.start()]), span[0]]
        at = span.end()
    return "".join([*parts, _escaped(line[at:])])


def _escaped(text: str, also: str = "") -> str:
    text = re.sub(rf"[\\`<>{{}}\[\]$&|~^#:@{also}]", r"\\\g<0>", text)
    text = re.sub(r"\A[-+=*_%]", r"\\\g<0>", text)  # what makes a list or a comment of a line
    return re.sub(r"\A(\d+)([.)])", r"\1\\\2", text)


def plain(text: object) -> str:
    """Words of data inside a sentence: nothing in them is Markdown or HTML, not even emphasis, and they stay on one line."""
    return _escaped(" ".join(str(text).split()), also="*_")


def listed(items: Iterable[object], most: int = 8) -> str:
    """Names as inline code, with commas; how many more where there are many."""
    items = [code(item) for item in items]
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest


def plural(n: SupportsInt, word: str) -> str:
    """ "1 head", "2 heads"."""
    return f"{int(n):,} {word}" + ("" if int(n) == 1 else "s")


def counted(values: Iterable[SupportsInt]) -> str:
    """One n, or the smallest and the largest where they differ: "20", "17 to 20"."""
    low, high = min(values := [int(value) for value in values]), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
