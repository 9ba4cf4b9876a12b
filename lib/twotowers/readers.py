"""Heads that are read as words: tables 1 and 3 of the paper, in chapters 2 and 8.

A row of such a table is a vector of a head, with its kind (value, key or query), its text, the top
words with whether each one counts, and whether the row fits. A kind is read if at least half of its
rows fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import xarray as xr

Words = Sequence[tuple[str, bool]]
Row = tuple[str, str, Words, bool]
"""Kind of vector, text, words with whether each one counts, and whether the row fits"""


class Readers(NamedTuple):
    """Numbers of kinds that the heads of a model read, and the listed head that reads most.

    Attributes:
        kinds: Number of kinds over (selected_head,).
        best: Name of the head.
        words: Number of its rows that fit, by kind, in words.
    """

    kinds: xr.DataArray
    best: str
    words: str


def read_row(
    kind: str,
    text: str,
    words: Sequence[str],
    accepted: Collection[str],
    rejected: Collection[str] = (),
    among: int | None = None,
) -> Row:
    """Return a row of the table. It fits if an accepted word is there, and no rejected one.

        >>> read_row("key", "love : bar", ["-Love", "eight"], {"love"}, {"one"})
        ('key', 'love : bar', [('-Love', True), ('eight', False)], True)
        >>> read_row("key", "love : bar", ["-Love", "one"], {"love"}, {"one"})[3]
        False
        >>> read_row("value", "love : bar", ["eight", "bar"], {"bar"}, among=1)[3]
        False

    Args:
        kind: Kind of vector.
        text: Text at its position.
        words: Top words. A hyphen marks a token from inside a word.
        accepted: Words that count, in lower case.
        rejected: Words that must not be among the top words.
        among: Number of first words, one of which has to count; by default all.
    """
    plain = [word.lstrip("-").casefold() for word in words]
    counts = [word in accepted for word in plain]
    is_rejected = any(word in rejected for word in plain)
    fits = any(counts[:among]) and not is_rejected
    return kind, text, list(zip(words, counts, strict=True)), fits


def find_readers(
    tables: Mapping[str, Sequence[Row]], listed: Iterable[str], n_rows: Mapping[str, int]
) -> Readers:
    """Return how many kinds of vectors each head reads, and the listed head that reads most.

        >>> value, key = ("value", "", [], True), ("key", "", [], True)
        >>> tables = {"0-0": [value], "0-1": [value, value], "0-2": [key], "0-3": [value, key]}
        >>> found = find_readers(tables, ["0-2", "0-0", "0-1"], {"value": 2, "key": 2})
        >>> found.kinds.to_series().to_dict()  # half of the rows of a kind are enough
        {'0-0': 1, '0-1': 1, '0-2': 1, '0-3': 2}
        >>> found.words  # of the given heads, that with most rows
        'head 0-1: 2 of 2 value rows, 0 of 2 key rows'

    Args:
        tables: Rows by the name of the head.
        listed: Names of the heads among which the best is chosen. Of heads that read as many kinds,
            it is the one with most rows that fit.
        n_rows: Number of rows by kind.
    """
    n_fitting = {}
    n_kinds = {}
    for head, rows in tables.items():
        fitting = Counter(kind for kind, *_, fits in rows if fits and kind in n_rows)
        is_read = [fitting[kind] >= n / 2 for kind, n in n_rows.items()]
        n_fitting[head] = fitting
        n_kinds[head] = sum(is_read)
    best = max(listed, key=lambda head: (n_kinds[head], n_fitting[head].total()))
    parts = [f"{n_fitting[best][kind]} of {n} {kind} rows" for kind, n in n_rows.items()]
    words = ", ".join(parts)
    kinds = xr.DataArray([*n_kinds.values()], {"selected_head": [*n_kinds]})
    return Readers(kinds, best, f"head {best}: {words}")
