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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from twotowers import claims, intervals
from twotowers.claims import (
    AGREES,
    BY_POSITION,
    BY_WORD,
    DISAGREES,
    IN_PART,
    NOT_COMPARED,
    NOT_JUDGED,
    NOT_SPECIFIC,
    NOT_TESTABLE,
    TASK,
    TOO_FEW,
    UNDECIDED,
    PaperResult,
)
from twotowers.evidence import MAX_EXCEEDANCE, MIN_RANDOM_SETS, different_sets, reach_text
from twotowers.head_selection import select_heads, select_sets, top_mask
from twotowers.heads import Head, Sizes, head_coordinates, head_names
from twotowers.random_heads import (
    draw_random_sets,
    in_other_groups,
    in_same_layers,
    share_in_layer,
    shuffle_heads,
)

BALANCED = ["as it is", "labels exchanged", "true first", "true first, labels exchanged"]
"""Four versions of the paper's prompts: the right label last or first, both label assignments"""
MIN_STABILITY = 0.6
"""Share of the resamples of the prompts that have the verdict; below it, it is undecided"""
LABELS = ["right label", "other label"]
MIN_DIFFERENCE = 0.01
"""Difference in attention below which no share of it is taken"""
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
        in_layers: The same number in random lists of any other heads of the same layers.
        share_in_layer: Share of the heads of `random` that are in the layer of the head that they
            replace. NaN if they replace no head, as in lists of heads of the whole model.
        prompts: Number of prompts behind `value`, 0 if it is a mean of recorded means.
    """

    value: float
    words: str
    random: ArrayLike | None = None
    resampled: ArrayLike | None = None
    in_layers: ArrayLike | None = None
    share_in_layer: float = math.nan
    prompts: int = 0


class Solved(NamedTuple):
    """The second comparison of a result of the paper: the same number on counterbalanced prompts.

    Attributes:
        data: Values on counterbalanced blocks by model, as in `book.Chapter.compare_with_paper`.
        statistic: Function of these values, if it is not that of the first comparison.
        heads, control, edited, words: As in `book.Chapter.compare_with_paper`.
    """

    data: Mapping[str, Any]
    statistic: Statistic | None = None
    heads: Mapping[str, Sequence[Head]] | None = None
    control: Mapping[str, Any] | None = None
    edited: Mapping[str, Sequence[Sequence[Head | str]]] | None = None
    words: Mapping[str, str] | Callable[[Any], str] | None = None


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
    sizes: Sizes | None = None,
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
        control: Values of random heads that were measured, with the dimension `random_set`. Equal
            sets count once. Sets of heads that it lacks, such as "none", have the values of
            `values`.
        sizes: Numbers of `layers`, `heads` and `key_value_heads` of the model, from the attributes
            of a measurement, for a result about a list of heads.
    """
    if heads is not None:
        listed = [Head.parse(str(head)) for head in heads]
        grid = on_grid(mean_over_prompts(values) if every_head is None else every_head, sizes or {})
        values = _of_list(values, listed)
        resamples = None if resamples is None else _of_list(resamples, listed)
    means = mean_over_prompts(values) if every_head is None else select_heads(grid, listed)
    resamples = resample(values) if resamples is None else resamples
    value = float(statistic(means)) if heads is None or listed else math.nan
    found = Result(
        value,
        words if isinstance(words, str) else words(means),
        resampled=None if resamples is None else statistic(resamples),
        prompts=values.sizes.get("prompt", 0),
    )
    if control is not None:
        random = _with_named_sets(mean_over_prompts(different_sets(control)), means)
        return found._replace(random=statistic(random))
    if heads is None:
        return found
    measured = _drawable(grid, others)
    other_groups = in_other_groups(listed, measured, (sizes or {})["key_value_heads"])
    same_layers = in_same_layers(listed, measured)
    lists, in_layers = (draw_random_sets(listed, free) for free in (other_groups, same_layers))
    return found._replace(
        random=_in_lists(statistic, grid, lists),
        share_in_layer=share_in_layer(listed, lists),
        in_layers=_in_lists(statistic, grid, in_layers),
    )


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
    judged, *others = (top_mask(values.mean("prompt"), n) for values in increases.values())
    shuffled_lists = shuffle_heads(judged, shuffled)
    resamples = [top_mask(intervals.resample(values), n) for values in increases.values()]
    measured, random, resampled = (
        xr.concat(lists, "list").assign_coords(list=[*increases])
        for lists in ([judged, *others], [shuffled_lists, *others], resamples)
    )
    text = words if isinstance(words, str) else words(measured)
    value = float(statistic(measured))
    found = Result(value, text, statistic(random), statistic(resampled))
    first, *_ = increases.values()
    in_layer = 1.0 if tuple(shuffled) == ("head",) else math.nan
    return found._replace(prompts=first.sizes["prompt"], share_in_layer=in_layer)


def mean_of_results(results: Mapping[str, Result], reason: str) -> Result:
    """Return the mean of the results that can be tested, with the words of each.

        >>> half, all_of = Result(0.5, "half", [0, 1], [0, 1]), Result(1.0, "all", [0, 0], [1, 1])
        >>> found = mean_of_results({"a": half, "b": all_of, "c": Result(math.nan, "few")}, "none")
        >>> found.value, found.words, found.random.tolist(), found.resampled.tolist()
        (0.75, 'a: half; b: all', [0.0, 0.5], [0.5, 1.0])
        >>> mean_of_results({"c": Result(math.nan, "few")}, "none").words
        'none'

    Args:
        results: Results of one model, with random lists and resamples.
        reason: Reason why there is no mean, if none of them can be tested.
    """
    tested = {name: found for name, found in results.items() if not math.isnan(found.value)}
    if not tested:
        return Result(math.nan, reason)
    fields = "value", "random", "resampled"
    means = []
    for name in fields:
        of_sets = [getattr(found, name) for found in tested.values()]
        means.append(np.mean(of_sets, axis=0))
    value, random, resampled = means
    words = "; ".join(f"{name}: {found.words}" for name, found in tested.items())
    shares = {found.share_in_layer for found in tested.values()}
    in_layer = shares.pop() if len(shares) == 1 else math.nan
    return Result(float(value), words, random, resampled, share_in_layer=in_layer)


def random_band(found: Result) -> dict[str, float]:
    """Return the mean of a number in random lists of heads, and the band with 90% of them.

        >>> random_band(Result(19.5, "", random=range(21)))
        {'value': 10.0, 'low': 1.0, 'high': 19.0}
        >>> random_band(Result(19.5, "")), random_band(Result(19.5, "", [math.nan, *range(19)]))
        ({}, {})

    Args:
        found: The number in a model.

    Returns:
        Columns value, low and high of a chart. Empty with fewer than MIN_RANDOM_SETS lists.
    """
    numbers = _numbers(found.random)
    if numbers.size < MIN_RANDOM_SETS:
        return {}
    low, high = np.quantile(numbers, [0.05, 0.95])
    mean = numbers.mean()
    return {"value": float(mean), "low": float(low), "high": float(high)}


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
    """Return the mark of a model that fails the task, "" for another.

    Args:
        balance: Measurement `paper_balance` of the model.
    """
    is_right = _is_right(balance)
    accuracy = float(is_right.mean())
    task = claims.paper_results()[TASK[0]]
    if task.judge(accuracy) != DISAGREES:
        return ""
    nearest, word_share, _ = _habits(is_right)
    return BY_WORD if word_share > nearest else BY_POSITION


def _is_right(balance: xr.Dataset) -> xr.DataArray:
    """Return in which prompts the right label is likelier, over (change, prompt)."""
    return balance["logit_difference"] > 0


def _habits(is_right: xr.DataArray) -> tuple[float, float, str]:
    """Return how often a model says the nearest label, and its more frequent word, with the word.

    They follow from where the model is right.
    """
    true_first = is_right["change"].str.startswith("true first")
    exchanged = is_right["change"].str.contains("exchanged")
    nearest = float((is_right ^ true_first).mean())
    foo_share = float((is_right ^ exchanged).mean())
    return nearest, *max((foo_share, "foo"), (1 - foo_share, "bar"))


def by_label(measurement: xr.Dataset, name: str) -> xr.DataArray:
    """Return attention on right and on other labels as one array, over (label, ...).

        >>> attention = ("prompt", [0.5, 0.75]), ("prompt", [0.25, 0.25])
        >>> names = ATTENTION["attention"]
        >>> both = by_label(xr.Dataset(dict(zip(names, attention, strict=True))), "attention")
        >>> both.mean("prompt").to_series().to_dict()
        {'right label': 0.625, 'other label': 0.25}

    Args:
        measurement: Measurement of the paper's prompts.
        name: Key of ATTENTION.
    """
    both = measurement[ATTENTION[name]]
    return both.to_dataarray("label").assign_coords(label=LABELS)


def content_share(attention: xr.DataArray) -> float:
    """Return how much of the attention difference of a list of heads is due to content.

    Attention that goes by position or by label word leaves nothing of the difference between true
    and other labels in the mean over both orders and both assignments of the labels.

    Args:
        attention: Attention on LABELS, over (label, change, ..., selected_head), with all versions
            of the prompts in BALANCED.

    Returns:
        Mean difference over BALANCED, as a share of that in the paper's order. NaN if the latter is
        smaller than MIN_DIFFERENCE, of either sign.
    """
    true, false = (attention.sel(label=label, change=BALANCED) for label in LABELS)
    others = [dim for dim in true.dims if dim != "change"]
    difference = (true - false).mean(others)
    in_paper = float(difference.sel(change=BALANCED[0]))
    if abs(in_paper) < MIN_DIFFERENCE:
        return math.nan
    return float(difference.mean()) / in_paper


def share_in_words(share: float) -> str:
    """Return a share of `content_share` in words.

        >>> share_in_words(0.125), share_in_words(math.nan)
        ('12%', 'no share (a difference below 0.01)')

    Args:
        share: The share, or NaN.
    """
    if math.isnan(share):
        return f"no share (a difference below {MIN_DIFFERENCE})"
    return f"{share:.0%}"


def judge(result: PaperResult, found: Result) -> dict[str, Any]:
    """Return the verdict on a result of the paper, with its control and stability.

    The first rule that applies decides:

    1. `not testable` if there is no number, and `no verdict` if the rule judges none.
    2. `undecided` if fewer than MIN_STABILITY of the resamples have the same verdict.
    3. `does not agree` as the rule says.
    4. `agrees` or `in part`, which is `not specific` if more than MAX_EXCEEDANCE of the random
       lists do as well: of other key-value groups, or of the same layers.

    Args:
        result: A line of data/figures.csv.
        found: The number that is judged.

    Returns:
        Fields of `EvidenceRow`.
    """
    verdict = result.judge(found.value)
    row: dict[str, Any] = {"effect": found.value, "verdict": verdict, "words": found.words}
    row["prompts"] = found.prompts
    if found.resampled is not None and verdict not in (NOT_TESTABLE, NOT_JUDGED):
        values = np.ravel(found.resampled)
        has_verdict = [result.judge(x) == verdict for x in values]
        row["stability"] = np.mean(has_verdict)
    random, in_layers = _numbers(found.random), _numbers(found.in_layers)
    row |= {"share_in_layer": found.share_in_layer, "n_lists_in_layers": in_layers.size}
    if random.size:
        low, high = np.quantile(random, [0.05, 0.95])
        row |= {"control": random.mean(), "control_low": low, "control_high": high}
        row["n_random_sets"] = random.size
    if verdict in (AGREES, IN_PART):
        row["exceedance"] = _reach(result, random, verdict)
        row["exceedance_in_layers"] = _reach(result, in_layers, verdict)
        row |= _with_control(row, found, result.control)
    if verdict == NOT_JUDGED:
        row["reason"] = result.no_verdict
    if row.get("stability", 1.0) < MIN_STABILITY:
        row["verdict"] = UNDECIDED
        row["reason"] = f"{verdict} in only {row['stability']:.0%} of resamples"
    return row


def _numbers(lists: ArrayLike | None) -> np.ndarray:
    """Return the numbers of random lists. A list without a number is no test, and counts nowhere.

    Otherwise a list whose number does not exist would count as one that does not reach the verdict.
    """
    values = np.ravel(np.asarray([] if lists is None else lists, dtype=float))
    return values[~np.isnan(values)]


def _reach(result: PaperResult, lists: np.ndarray, verdict: str) -> float:
    """Return the share of random lists that reach a verdict, NaN if there are none."""
    reached = [result.judge(value) in (AGREES, verdict) for value in lists]
    return float(np.mean(reached)) if reached else math.nan


def _with_control(row: dict[str, Any], found: Result, control: str) -> dict[str, Any]:
    """Return the verdict on a result that agrees, also in part, with what random lists say."""
    verdict, n_lists = row["verdict"], row.get("n_random_sets", 0)
    if found.random is None:
        return {"reason": control or f"{NOT_COMPARED} with random lists of heads"}
    shares = {
        "random lists": (row["exceedance"], n_lists),
        "lists from the same layers": (row["exceedance_in_layers"], row["n_lists_in_layers"]),
    }
    reached = {
        name: share
        for name, (share, n) in shares.items()
        if n >= MIN_RANDOM_SETS and share > MAX_EXCEEDANCE
    }
    if reached:
        words = ", ".join(f"{reach_text(share)} of {name}" for name, share in reached.items())
        reason = f"{words} do as well"
        return {"verdict": claims.with_control(verdict, NOT_SPECIFIC), "reason": reason}
    if n_lists < MIN_RANDOM_SETS:
        reason = f"{n_lists} different random list{'s' * (n_lists != 1)}"
        return {"verdict": claims.with_control(verdict, TOO_FEW), "reason": reason}
    n_in_layers = row["n_lists_in_layers"]
    if found.in_layers is not None and n_in_layers < MIN_RANDOM_SETS:
        return {"reason": f"{n_in_layers or 'no'} lists from the same layers, too few for a test"}
    return {}


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


def _of_list(values: Any, heads: Sequence[Head]) -> Any:
    """Return the values of the heads of a list, over (..., selected_head)."""
    if "selected_head" in values.dims:
        return values.sel(selected_head=head_names(heads))
    return select_heads(values, heads)


def _with_named_sets(control: Any, means: Any) -> Any:
    """Return means of random sets of heads, and the means of all sets without random ones."""
    if "head_set" not in control.dims:
        return control
    named = means.drop_sel(head_set=control["head_set"].values)
    named = named.expand_dims(random_set=control.sizes["random_set"])
    return xr.concat([control, named], "head_set", coords="minimal", compat="override")


def on_grid(values: xr.DataArray, sizes: Sizes) -> xr.DataArray:
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


def _drawable(grid: xr.DataArray, others: Sequence[Head | str] | None) -> np.ndarray:
    """Return as booleans (layer, head) which heads can be drawn: those measured, among `others`."""
    other_dims = {*grid.dims} - {"layer", "head"}
    is_measured = grid.notnull().all(other_dims)
    measured = is_measured.transpose("layer", "head").values
    if others is None:
        return measured
    is_other = np.zeros_like(measured)
    for layer, head in (Head.parse(str(name)) for name in others):
        is_other[layer, head] = True
    return measured & is_other


def _in_lists(statistic: Statistic, grid: xr.DataArray, lists: Sequence[list[Head]]) -> Any:
    """Return a statistic of lists of heads, over (random_set,)."""
    if not lists:
        return xr.DataArray([], dims="random_set")
    return statistic(select_sets(grid, lists))
