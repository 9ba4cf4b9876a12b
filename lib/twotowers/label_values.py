"""Values of heads at labels: of two kinds, of two words, and of the two halves of a list.

    >>> attention = xr.DataArray([0.2, 0.5], dims="demonstration")
    >>> by_kind = split_labels(attention, xr.DataArray([False, True], dims="demonstration"))
    >>> by_kind.sum("demonstration").to_series().to_dict()
    {'right label': 0.5, 'other label': 0.2}

Tables 3 to 6 of the EMNLP version are about a list whose first half are foo-heads, and whose second
half are bar-heads. The *own label* of a head is the word of its half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from twotowers.paper_results import LABELS

WORDS = ["foo", "bar"]
HALVES = ["foo-heads", "bar-heads"]
"""Halves of a list, whose own labels are WORDS"""


def split_labels(
    values: xr.DataArray, is_first: xr.DataArray, names: Sequence[str] = LABELS
) -> xr.DataArray:
    """Return values at labels of two kinds.

    Args:
        values: Over (..., demonstration).
        is_first: Booleans over (..., demonstration), true for labels of the first kind.
        names: Names of the kinds.

    Returns:
        Over (label, ..., demonstration), missing at labels of the other kind.
    """
    of_first = values.where(is_first)
    of_second = values.where(~is_first)
    label = pd.Index(names, name="label")
    return xr.concat([of_first, of_second], label)


def sums_by_word(values: xr.DataArray, ds: xr.Dataset) -> xr.DataArray:
    """Return sums over the positions of foo, and over those of bar.

    Args:
        values: Over (..., prompt, demonstration).
        ds: Measurement of the paper's prompts.

    Returns:
        Over (label, ..., prompt).
    """
    is_foo_right = ds.true_label == WORDS[0]
    is_foo = ds.is_true_label == is_foo_right
    by_word = split_labels(values, is_foo, WORDS)
    return by_word.sum("demonstration")


def by_half(values: xr.DataArray) -> xr.DataArray:
    """Return means over the first and over the second half of the heads of a list.

        >>> by_half(xr.DataArray([1.0, 3.0, 5.0, 7.0], dims="selected_head")).to_series().to_dict()
        {'foo-heads': 2.0, 'bar-heads': 6.0}

    Args:
        values: Over (..., selected_head).

    Returns:
        Over (head_set, ...), with HALVES.
    """
    n_heads = values.sizes["selected_head"]
    n = n_heads // 2
    means = []
    for half in (slice(n), slice(n, None)):
        of_half = values.isel(selected_head=half)
        means.append(of_half.mean("selected_head"))
    head_set = pd.Index(HALVES, name="head_set")
    return xr.concat(means, head_set)


def own_and_other(values: xr.DataArray) -> list[xr.DataArray]:
    """Return the own label of each head of a list, and the other label.

        >>> own, other = own_and_other(xr.DataArray([0.1, 0.2], dims="selected_head"))
        >>> own.values.tolist(), other.values.tolist()
        (['foo', 'bar'], ['bar', 'foo'])

    Args:
        values: Over (..., selected_head).

    Returns:
        Two arrays over (selected_head,).
    """
    n_heads = values.sizes["selected_head"]
    n = n_heads // 2
    labels = []
    for words in (WORDS, WORDS[::-1]):
        of_heads = np.repeat(words, n)
        labels.append(xr.DataArray(of_heads, dims="selected_head"))
    return labels


def at_own_label(attention: xr.DataArray) -> list[xr.DataArray]:
    """Return attention on own labels, where they are the answer and where the other label is.

        >>> names = {"answer": WORDS, "label": WORDS}
        >>> attention = xr.DataArray([[2, 20], [60, 6]], names, ("answer", "label"))
        >>> of_heads = attention.expand_dims(selected_head=["0-0", "0-1"])  # a foo-head, a bar-head
        >>> [values.values.tolist() for values in at_own_label(of_heads)]
        [[2, 6], [60, 20]]

    Args:
        attention: Over (answer, label, ..., selected_head), with WORDS.

    Returns:
        Two arrays over (..., selected_head).
    """
    own, other = own_and_other(attention)
    at_own = attention.sel(label=own)
    where_it_is = at_own.sel(answer=own)
    where_it_is_not = at_own.sel(answer=other)
    return [where_it_is, where_it_is_not]


def by_answer(
    ds: xr.Dataset, foo: Sequence[str], bar: Sequence[str], prefix: str = ""
) -> xr.DataArray:
    """Return attention on both labels, where each of them is the answer.

        >>> on_true, on_other = ("change", [1.0, 3.0, 5.0]), ("change", [10.0, 30.0, 50.0])
        >>> variables = {"attention_true": on_true, "attention_other": on_other}
        >>> ds = xr.Dataset(variables, {"change": ["a", "b", "c"]})
        >>> by_answer(ds, ["a", "b"], ["c"]).values.tolist()  # foo and bar, where each is right
        [[2.0, 20.0], [50.0, 5.0]]

    Args:
        ds: Measurement with attention on labels of the query's class and on the other labels.
        foo: Changes of the prompts with the right label foo.
        bar: Changes of the prompts with the right label bar.
        prefix: Start of the names of the variables, such as "mean_".

    Returns:
        Means over changes, over (answer, label, ...).
    """
    on_true = f"{prefix}attention_true"
    on_other = f"{prefix}attention_other"
    of_foo = ds[[on_true, on_other]].sel(change=[*foo])
    of_bar = ds[[on_other, on_true]].sel(change=[*bar])
    parts = []
    for part in (of_foo, of_bar):
        means = part.mean("change")
        by_label = means.to_dataarray("label")
        parts.append(by_label.assign_coords(label=WORDS))
    answer = pd.Index(WORDS, name="answer")
    return xr.concat(parts, answer)


def with_others(values: xr.DataArray, others: xr.DataArray, listed: Sequence[str]) -> xr.DataArray:
    """Return means of the heads of a list, and of heads in no list, which random lists consist of.

        >>> dims = ("prompt", "selected_head")
        >>> two, three = {"selected_head": ["0-0", "0-1"]}, {"selected_head": ["0-0", "1-1", "2-2"]}
        >>> of_list = xr.DataArray([[1.0, 2.0], [3.0, 4.0]], two, dims)
        >>> others = xr.DataArray([[9.0, 9.0, 5.0]], three, dims)
        >>> with_others(of_list, others, ["0-0", "0-1", "1-1", "3-3"]).to_series().to_dict()
        {'0-0': 2.0, '0-1': 3.0, '2-2': 5.0}

    Args:
        values: Values of the list, over (..., prompt, selected_head).
        others: The same values of more heads, on prompts of their own.
        listed: Names of all heads that are in a list.

    Returns:
        Over (..., selected_head).
    """
    unlisted = others.drop_sel(selected_head=listed, errors="ignore")
    of_listed = values.mean("prompt")
    of_unlisted = unlisted.mean("prompt")
    means = [of_listed, of_unlisted]
    return xr.concat(means, "selected_head", join="override", coords="minimal", compat="override")
