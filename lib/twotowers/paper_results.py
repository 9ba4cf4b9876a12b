"""The comparison of a model with a result of the paper, from values to a verdict.

A chapter states a statistic once, as a function of arrays with named dimensions. `compare` applies
it to the measured means, to random lists of heads and to resamples of the prompts, and `judge`
applies the rule of data/figures.csv.

    >>> from twotowers.claims import paper_results
    >>> figure_6 = paper_results()["figure 6"]
    >>> judge(figure_6, Result(0.95, "19 of 20 heads", random=[0.5] * 40))["verdict"]
    'agrees'
    >>> judge(figure_6, Result(0.95, "19 of 20 heads", random=[1.0] * 40))["verdict"]
    'agrees, not specific'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from twotowers import claims, head_selection, intervals
from twotowers.claims import (
    AGREES,
    AGREES_UNSPECIFIC,
    AGREES_UNTESTED,
    BY_POSITION,
    BY_WORD,
    DISAGREES,
    IN_PART,
    NOT_TESTABLE,
    TASK,
    PaperResult,
)
from twotowers.evidence import MAX_EXCEEDANCE, MIN_RANDOM_SETS
from twotowers.heads import Head, head_coordinates, head_names

BALANCED = ["as it is", "labels exchanged", "true first", "true first, labels exchanged"]
"""Four versions of the paper's prompts: the true label last or first, both label assignments"""
LABELS = ["true label", "false label"]
ATTENTION = {
    "attention": ["attention_true", "attention_other"],
    "mean_attention": ["mean_attention_true", "mean_attention_other"],
}
"""Variables with the attention on labels: of listed heads by prompt, and means of all heads"""

Values = xr.DataArray | xr.Dataset
Statistic = Callable[[Any], Any]
"""Function of values with named dimensions. It keeps `random_set` and `resample`."""


class Result(NamedTuple):
    """A number that is judged by a rule of data/figures.csv, in one model.

    Attributes:
        value: The number. NaN if it cannot be judged.
        words: Basis of the number, or the reason why there is none.
        random: The same number in random lists of heads. None for a result about no heads.
        resampled: The same number in resamples of the prompts. None for a result on one prompt.
    """

    value: float
    words: str
    random: ArrayLike | None = None
    resampled: ArrayLike | None = None


def compare(
    statistic: Statistic,
    values: Values,
    words: str | Callable[[Any], str],
    *,
    heads: Sequence[Head | str] | None = None,
    others: Sequence[Head | str] | None = None,
    every_head: xr.DataArray | None = None,
    resamples: xr.DataArray | None = None,
    control: Values | None = None,
    sizes: Mapping[Hashable, Any] | None = None,
) -> Result:
    """Return a statistic of a model, of random heads, and of resamples of its prompts.

    The statistic is applied to means over prompts. If a result is about a list of heads, the
    statistic takes the heads of the list along `selected_head`.

    Args:
        statistic: Function that returns a number for each random list and resample.
        values: Values over (..., prompt), or means over prompts. A result about heads has the
            dimension `selected_head`, or layer and head. Means have no resamples.
        words: Description of the basis, or a function of the means that returns it.
        heads: Heads of the list, for a result about a list of heads.
        others: Heads from which random lists are drawn, by default all heads.
        every_head: Means from which random lists are drawn, over (..., layer, head) or
            (..., selected_head), by default the means of `values`. Missing heads are not drawn.
        resamples: Values of resampled prompts, over (resample, ...), if they are not means of
            `values`.
        control: Values of random heads that were measured, with the dimension `random_set`. Sets
            of heads that it lacks, such as "none", have the values of `values`.
        sizes: Numbers of `layers`, `heads` and `key_value_heads` of the model, from the attributes
            of a measurement, for a result about a list of heads.
    """
    means = mean_over_prompts(values)
    resamples = resample(values) if resamples is None else resamples
    random = None
    if control is not None:
        random = statistic(_with_named_sets(mean_over_prompts(control), means))
    if heads is not None:
        listed = [Head.parse(str(head)) for head in heads]
        grid = on_grid(means if every_head is None else every_head, sizes or {})
        means = head_selection.select_heads(grid, listed)
        random = in_random_lists(statistic, listed, grid, sizes or {}, others)
        if resamples is not None:
            resamples = resamples.sel(selected_head=head_names(listed))
    value = math.nan if heads is not None and not listed else float(statistic(means))
    text = words if isinstance(words, str) else words(means)
    return Result(value, text, random, None if resamples is None else statistic(resamples))


def compare_lists(
    statistic: Statistic,
    increases: Mapping[str, xr.DataArray],
    n: int,
    words: str | Callable[[Any], str],
    shuffled: Sequence[str] = ("head",),
) -> Result:
    """Return a statistic of lists of heads, with random lists in place of the first.

    Args:
        statistic: Function of booleans over (list, layer, head), true for the listed heads.
        increases: Increases by list, over (prompt, layer, head). The first list is judged.
        n: Number of heads of a list.
        words: Description of the basis, or a function of the booleans that returns it.
        shuffled: Dimensions along which heads of the first list are shuffled for random lists.
    """
    judged, *others = (
        head_selection.top_mask(values.mean("prompt"), n) for values in increases.values()
    )
    random_lists = head_selection.shuffle_heads(judged, shuffled)
    resamples = [
        head_selection.top_mask(intervals.resample(values), n) for values in increases.values()
    ]
    measured, random, resampled = (
        xr.concat(lists, "list").assign_coords(list=[*increases])
        for lists in ([judged, *others], [random_lists, *others], resamples)
    )
    text = words if isinstance(words, str) else words(measured)
    return Result(float(statistic(measured)), text, statistic(random), statistic(resampled))


def compare_task(balance: xr.Dataset) -> Result:
    """Return how often a model solves the task of the paper's prompts.

    Prompts are balanced over both orders and both assignments of the labels.

    Args:
        balance: Measurement `paper_balance` of the model.
    """
    is_right = _is_right(balance)
    nearest, word_share, word = _habits(is_right)
    words = (
        f"{float(is_right.mean()):.0%} right; says the nearest label in {nearest:.0%}, {word} in "
        f"{word_share:.0%}"
    )
    return compare(lambda right: right.mean("change"), is_right, words)


def task_mark(balance: xr.Dataset) -> str:
    """Return the mark of a model that does not solve the task, "" for one that does.

    Args:
        balance: Measurement `paper_balance` of the model.
    """
    is_right = _is_right(balance)
    if claims.paper_results()[TASK[0]].judge(float(is_right.mean())) != DISAGREES:
        return ""
    nearest, word_share, _ = _habits(is_right)
    return BY_WORD if word_share > nearest else BY_POSITION


def _is_right(balance: xr.Dataset) -> xr.DataArray:
    """Return in which prompts the true label is likelier, over (change, prompt)."""
    return balance["logit_difference"] > 0


def _habits(is_right: xr.DataArray) -> tuple[float, float, str]:
    """Return how often a model says the nearest label, and its more frequent word, with the word.

    They follow from where the model is right.
    """
    nearest = float((is_right ^ is_right["change"].str.startswith("true first")).mean())
    foo_share = float((is_right ^ is_right["change"].str.contains("exchanged")).mean())
    return nearest, *max((foo_share, "foo"), (1 - foo_share, "bar"))


def by_label(measurement: xr.Dataset, name: str) -> xr.DataArray:
    """Return attention on true and on false labels as one array, over (label, ...).

    Args:
        measurement: Measurement of the paper's prompts.
        name: Key of ATTENTION.
    """
    both = measurement[ATTENTION[name]]
    return both.to_dataarray("label").assign_coords(label=LABELS)


def judge(result: PaperResult, found: Result) -> dict[str, Any]:
    """Return the verdict on a result of the paper, with its control and stability.

    Args:
        result: A line of data/figures.csv.
        found: The number that is judged.

    Returns:
        Fields of `EvidenceRow`.
    """
    verdict = result.judge(found.value)
    row: dict[str, Any] = {"effect": found.value, "verdict": verdict, "words": found.words}
    if found.resampled is not None and verdict != NOT_TESTABLE:
        row["stability"] = np.mean([result.judge(x) == verdict for x in np.ravel(found.resampled)])
    if found.random is None:
        return row
    lists = np.asarray(found.random, dtype=float)
    if lists.size:
        row |= {"control": np.nanmean(lists), "n_random_sets": lists.size}
        if verdict in (AGREES, IN_PART):
            row["exceedance"] = np.mean([result.judge(x) in (AGREES, verdict) for x in lists])
    if verdict == AGREES and lists.size < MIN_RANDOM_SETS:
        row["verdict"] = AGREES_UNTESTED
    elif verdict == AGREES and row["exceedance"] > MAX_EXCEEDANCE:
        row["verdict"] = AGREES_UNSPECIFIC
    return row


def mean_over_prompts(values: Values) -> Any:
    """Return means over prompts of all variables that are measured by prompt.

    Args:
        values: Values, or means over prompts.
    """
    return values.mean("prompt") if "prompt" in values.dims else values


def resample(values: Values) -> Any:
    """Return means over resampled prompts, over (resample, ...), or None if there are no prompts.

    Args:
        values: Values, or means over prompts. Variables without prompts stay as they are.
    """
    if "prompt" not in values.dims:
        return None
    if isinstance(values, xr.DataArray):
        return intervals.resample(values)
    return values.map(lambda x: intervals.resample(x) if "prompt" in x.dims else x)


def _with_named_sets(control: Any, means: Any) -> Any:
    """Return means of random sets of heads, and the means of all sets without random ones."""
    if "head_set" not in control.dims:
        return control
    named = means.drop_sel(head_set=control["head_set"].values)
    named = named.expand_dims(random_set=control.sizes["random_set"])
    return xr.concat([control, named], "head_set", coords="minimal", compat="override")


def on_grid(values: xr.DataArray, sizes: Mapping[Hashable, Any]) -> xr.DataArray:
    """Return values of named heads over all layers and heads, missing for the other heads.

    Args:
        values: Over (..., selected_head); or over (..., layer, head), which stay as they are.
        sizes: Numbers of `layers` and `heads` of the model.
    """
    if "selected_head" not in values.dims:
        return values
    coordinates = head_coordinates([*map(Head.parse, values["selected_head"].values)])
    values = values.assign_coords(coordinates).set_index(selected_head=["layer", "head"])
    every_head = {name: range(sizes[f"{name}s"]) for name in ("layer", "head")}
    return values.unstack("selected_head").reindex(every_head)


def in_random_lists(
    statistic: Statistic,
    heads: Sequence[Head],
    grid: xr.DataArray,
    sizes: Mapping[Hashable, Any],
    others: Sequence[Head | str] | None = None,
) -> xr.DataArray:
    """Return a statistic of random lists of heads, over (random_set,).

    Args:
        statistic: Function of values over (random_set, ..., selected_head).
        heads: List that is judged.
        grid: Values over (..., layer, head), missing for heads that cannot be drawn.
        sizes: Number of `key_value_heads` of the model.
        others: Heads that can be drawn, by default all.
    """
    is_measured = grid.notnull().all({*grid.dims} - {"layer", "head"})
    measured = is_measured.transpose("layer", "head").values
    if others is not None:
        can_be_drawn = np.zeros_like(measured)
        for layer, head in (Head.parse(str(name)) for name in others):
            can_be_drawn[layer, head] = True
        measured = measured & can_be_drawn
    lists = head_selection.random_lists(heads, measured, sizes["key_value_heads"])
    if not lists:
        return xr.DataArray([], dims="random_set")
    return statistic(head_selection.select_sets(grid, lists))
