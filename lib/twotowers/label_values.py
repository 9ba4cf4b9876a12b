"""Values of heads at labels: of two kinds, of two words, and of the two halves of a list.

    >>> attention = xr.DataArray([0.2, 0.5], dims="demonstration")
    >>> by_kind = split_labels(attention, xr.DataArray([False, True], dims="demonstration"))
    >>> by_kind.sum("demonstration").to_series().to_dict()
    {'right label': 0.5, 'other label': 0.2}

Tables 3 to 6 of the EMNLP version are about a list whose first half are foo-heads, and whose second
half are bar-heads. The *own label* of a head is the word of its half. On blocks, which have other
labels as well, a head has an own label in each label pair (`leaning`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from twotowers.paper_results import LABELS

WORDS = ["foo", "bar"]
ANSWERS = ["own label", "other label"]
"""Answers of two prompts whose labels are exchanged, for one head"""
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
    first, second = slice(n), slice(n, None)
    for half in (first, second):
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


def at_own_label(attention: xr.DataArray) -> xr.DataArray:
    """Return attention on own labels, where they are the answer and where they are not.

        >>> names = {"answer": WORDS, "label": WORDS}
        >>> attention = xr.DataArray([[2, 20], [60, 6]], names, ("answer", "label"))
        >>> of_heads = attention.expand_dims(selected_head=["0-0", "0-1"])  # a foo-head, a bar-head
        >>> at_own = at_own_label(of_heads)
        >>> [at_own.sel(answer=name).values.tolist() for name in ANSWERS]
        [[2, 6], [60, 20]]

    Args:
        attention: Over (answer, label, ..., selected_head), with WORDS.

    Returns:
        Array over (answer, ..., selected_head), with ANSWERS.
    """
    own, other = own_and_other(attention)
    at_own = attention.sel(label=own)
    where_it_is = at_own.sel(answer=own).drop_vars("answer")
    where_it_is_not = at_own.sel(answer=other).drop_vars("answer")
    answer = pd.Index(ANSWERS, name="answer")
    return xr.concat([where_it_is, where_it_is_not], answer)


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
    both = [of_foo, of_bar]
    parts = []
    for part in both:
        means = part.mean("change")
        by_label = means.to_dataarray("label")
        named = by_label.assign_coords(label=WORDS)
        parts.append(named)
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


def leaning(increases: xr.Dataset) -> xr.DataArray:
    """Return by how much more heads raise the first label of a pair than the second one.

    The own label of a head is the first one if this is positive, and otherwise the second one.

        >>> pairs, is_first = ("prompt", ["x/y"] * 3), ("prompt", [True, True, False])
        >>> increase = ("prompt", "head"), [[0.1, 0.2], [0.3, 0.2], [0.1, 0.5]]
        >>> coordinates = {"label_pair": pairs, "true_first": is_first}
        >>> leaning(xr.Dataset({"increase": increase}, coordinates)).values.round(3).tolist()
        [[0.1, -0.3]]

    Args:
        increases: Measurement "selection_increases".

    Returns:
        Mean increase where the first label is right, less that where the second one is, over
            (label_pair, layer, head), in nats.
    """
    increase = increases["increase"]
    is_first = increases["true_first"]
    means = []
    for is_right in (is_first, ~is_first):
        of_label = increase.where(is_right)
        by_pair = of_label.groupby("label_pair")
        mean = by_pair.mean("prompt")
        means.append(mean)
    first, second = means
    return first - second


def of_exchanged_labels(values: xr.DataArray) -> list[xr.DataArray]:
    """Return values of prompts whose right label is the first of its pair, and of their partners.

    A partner is the prompt of the same block and order with exchanged labels.

        >>> names = {"block": [0, 0], "order": ["TF", "TF"], "true_first": [False, True]}
        >>> coordinates = {name: ("prompt", values) for name, values in names.items()}
        >>> first, second = of_exchanged_labels(xr.DataArray([3, 4], coordinates, ["prompt"]))
        >>> first.item(), second.item()
        (4, 3)

    Args:
        values: Over (..., prompt), on blocks.

    Returns:
        Two arrays over (..., prompt), with the coordinates of the first.
    """
    in_order = values.sortby(["block", "order"])
    is_first = in_order["true_first"].values
    first = in_order.isel(prompt=is_first)
    second = in_order.isel(prompt=~is_first)
    partners = first.copy(data=second.values)
    return [first, partners]


def at_own_label_of_pair(heads: xr.Dataset, leaning: xr.DataArray) -> xr.DataArray:
    """Return attention of all heads on their own labels, where these are the answer and are not.

    Args:
        heads: Measurement "heads".
        leaning: Result of `leaning`. Blocks with other label pairs are left out.

    Returns:
        Sums over label positions, over (answer, prompt, layer, head). A prompt stands for two
            prompts with exchanged labels, and `answer` says which is right (ANSWERS). The
            coordinate `flips` says whether the model answers all four prompts of the block rightly.
    """
    known_pairs = leaning["label_pair"]
    is_known = heads["label_pair"].isin(known_pairs)
    known = heads.isel(prompt=is_known.values)
    is_first = known["is_true_label"] == known["true_first"]
    by_label = split_labels(known["attention"], is_first, ["first", "second"])
    sums = by_label.sum("demonstration")
    first_right, second_right = of_exchanged_labels(sums)
    of_pair = leaning.sel(label_pair=first_right["label_pair"])
    own_is_first = of_pair > 0
    first_as_answer = first_right.sel(label="first", drop=True)
    second_as_answer = second_right.sel(label="second", drop=True)
    first_as_other = second_right.sel(label="first", drop=True)
    second_as_other = first_right.sel(label="second", drop=True)
    where_answer = xr.where(own_is_first, first_as_answer, second_as_answer)
    elsewhere = xr.where(own_is_first, first_as_other, second_as_other)
    answer = pd.Index(ANSWERS, name="answer")
    attention = xr.concat([where_answer, elsewhere], answer)
    flips = _is_right_in_block(known["logit_difference"])
    return attention.assign_coords(flips=flips)


def _is_right_in_block(logit_difference: xr.DataArray) -> xr.DataArray:
    """Return of each two prompts with exchanged labels whether their whole block is right.

    In such a block the answer flips with the labels, and right labels are as often near as far.
    """
    is_right = logit_difference > 0
    first, second = of_exchanged_labels(is_right)
    are_right = first & second
    blocks = are_right.groupby("block").all()
    of_pair = blocks.sel(block=first["block"])
    return of_pair.drop_vars("block")
