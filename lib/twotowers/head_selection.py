"""Rules that select the prompt template and the sets of heads from earlier measurements.

The rules were fixed on 2026-11-22 (data/rules.csv). The template is the one with the highest
accuracy (right label = top token of the vocabulary), of the templates with at most MAX_K
demonstrations of each class. Ties go to fewer demonstrations.

Each set has the HEADS_PER_SET heads with the largest mean of one quantity:

- `by attribution`: the contribution to the logit difference from label positions.
- `by written logit difference`: attention times the OV logit difference towards the label that
  is attended to, correct or not; above MIN_WRITTEN nats.
- `by attention`: the attention difference, labels of the query's class minus the others.
- `by_increase`, a function: the paper's increase, of either sign.
- `by_effect`, a function: the total effect of the head's attention, if it raises the right answer.

Every function is pure: it takes measurements of heads and returns lists of heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from twotowers.heads import Head, Heads, head_coordinates
from twotowers.settings import Template

HEADS_PER_SET = 5
MAX_K = 4
MIN_ATTENTION_DIFFERENCE = 0.02
MIN_WRITTEN = 0.1
SETS = {
    "by attribution": ("attribution", 0.0),
    "by written logit difference": ("written logit difference", MIN_WRITTEN),
    "by attention": ("attention difference", 0.0),
}
"""Set of heads -> its ranking, and the lower bound that every value exceeds"""
RANKINGS = ("attribution", "increase", "attention difference", "written logit difference")


def select_template(templates: xr.Dataset) -> Template:
    """Return the prompt template with the highest accuracy.

    Args:
        templates: Measurement "templates": `top_answer` over prompts with coordinates k and
            separator.
    """
    is_top = templates["top_answer"] == 0
    table = is_top.to_dataframe("is_top")
    fewest = table["k"].min()
    max_k = max(MAX_K, fewest)
    is_allowed = table["k"] <= max_k
    table = table[is_allowed]
    groups = table.groupby(["k", "separator"])
    accuracies = groups["is_top"].mean()
    k, separator = accuracies.idxmax()  # groups are sorted: of equal accuracies, the smallest k
    return Template(int(k), str(separator))


def attention_difference(heads: xr.Dataset) -> xr.DataArray:
    """Return the attention on labels of the query's class minus the attention on the others.

    Args:
        heads: Measurement "heads".

    Returns:
        Over (prompt, layer, head), in [-1, 1].
    """
    attention = heads["attention"]
    is_true = heads["is_true_label"]
    signed = attention.where(is_true, -attention)
    return signed.sum("demonstration")


def rankings(heads: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return every ranking of the heads by name.

    Args:
        heads: Measurement "heads" or "selection".

    Returns:
        Means over prompts (layer, head). A larger value means a higher rank.
    """
    difference = attention_difference(heads)
    heads = heads.assign(attention_difference=difference)
    means = {}
    for name in RANKINGS:
        variable = name.replace(" ", "_")
        if variable in heads:
            means[name] = heads[variable].mean("prompt")
    return means


def one_percent(n_heads: int) -> int:
    """Return 1% of the heads of a model, rounded, at least one (EMNLP abstract).

        >>> one_percent(32), one_percent(704)
        (1, 7)

    Args:
        n_heads: Number of heads of the model.
    """
    return max(1, round(n_heads / 100))


def n_listed(n_heads: int) -> int:
    """Return how many heads of a model are listed: 20, as in the paper, or 5 of fewer than 200.

        >>> n_listed(4), n_listed(32), n_listed(704)
        (4, 5, 20)

    Args:
        n_heads: Number of heads of the model.
    """
    if n_heads >= 200:
        return 20
    return min(5, n_heads)


def top_heads(ranking: xr.DataArray, k: int, minimum: float = 0.0) -> list[Head]:
    """Return the heads with the largest values, largest first.

        >>> ranking = xr.DataArray([[0.1, 0.4], [0.0, 0.3]], dims=("layer", "head"))
        >>> [str(head) for head in top_heads(ranking, 3)]
        ['0-1', '1-1', '0-0']
        >>> [str(head) for head in top_heads(ranking, 3, minimum=0.2)]
        ['0-1', '1-1']

    Args:
        ranking: Values over (layer, head).
        k: Maximum number of heads.
        minimum: Lower bound, which every value exceeds.
    """
    by_layer = ranking.transpose("layer", "head")
    values = by_layer.to_series()
    descending = values.sort_values(ascending=False, kind="stable")
    best = descending[:k]
    exceeds = best > minimum
    places = best.index[exceeds]
    return [Head(*place) for place in places.tolist()]


def top_mask(values: xr.DataArray, k: int) -> xr.DataArray:
    """Return as booleans which heads have the k largest values.

        >>> top_mask(xr.DataArray([[3, 1, 2], [0, 5, 4]], dims=("layer", "head")), 2).values
        array([[False, False, False],
               [False,  True,  True]])

    Args:
        values: Over (..., layer, head).
        k: Number of heads.
    """
    flat = values.stack(layer_and_head=("layer", "head"))
    ascending = xr.apply_ufunc(
        np.sort, flat, input_core_dims=[["layer_and_head"]], output_core_dims=[["rank"]]
    )
    lowest = ascending.isel(rank=-k)
    return values >= lowest


def unlisted(ds: xr.Dataset) -> np.ndarray:
    """Return the names of the measured heads that are in no list of the paper's method.

    Args:
        ds: Measurement `paper` of a model.
    """
    measured = ds["selected_head"]
    is_listed = measured.isin(ds["in_context_head"])
    return measured[~is_listed].values


def head_sets(heads: xr.Dataset, k: int) -> dict[str, list[Head]]:
    """Return the sets of heads of this module by name, best head first.

    Sets may be short or empty.

    Args:
        heads: Measurement "heads" or "selection".
        k: Maximum number of heads of a set.
    """
    means = rankings(heads)
    sets = {}
    for name, (ranking, minimum) in SETS.items():
        if ranking in means:
            sets[name] = top_heads(means[ranking], k, minimum)
    return sets


def by_increase(increases: xr.Dataset, k: int) -> list[Head]:
    """Return the heads with the largest mean increase, of any sign, as the paper lists them.

        >>> increase = ("prompt", "layer", "head"), [[[0.1, -0.9], [0.4, -0.2]]]
        >>> [str(head) for head in by_increase(xr.Dataset({"increase": increase}), 3)]
        ['1-0', '0-0', '1-1']

    Args:
        increases: Measurement "selection_increases".
        k: Number of heads.
    """
    mean = increases["increase"].mean("prompt")
    return top_heads(mean, k, minimum=-np.inf)


def listed(increases: xr.Dataset) -> list[Head]:
    """Return the heads with the largest mean increase, as many as `n_listed` says.

    Args:
        increases: Measurement "selection_increases".
    """
    n_heads = increases.sizes["layer"] * increases.sizes["head"]
    n = n_listed(n_heads)
    return by_increase(increases, n)


def interleave(first: Sequence[Head], second: Sequence[Head], n: int) -> list[Head]:
    """Return the heads of two lists taken in turn.

    The EMNLP version of the paper joins the tops of its two rankings in this way.

        >>> heads = interleave([Head(0, 1), Head(0, 2)], [Head(0, 2), Head(1, 0)], 3)
        >>> [str(head) for head in heads]
        ['0-1', '0-2', '1-0']

    Args:
        first: List whose first head comes first.
        second: Another list.
        n: Number of heads of the result.

    Returns:
        Heads, best first.
    """
    pairs = zip(first, second, strict=False)
    heads = [head for pair in pairs for head in pair]
    different = list(dict.fromkeys(heads))
    return different[:n]


def n_leading(n_heads: int) -> int:
    """Return how many heads stand for the paper's twelve: at most an eighth of all, and even.

        >>> n_leading(32), n_leading(72), n_leading(704)
        (4, 8, 12)

    Args:
        n_heads: Number of heads of the model.
    """
    eighth = n_heads // 16 * 2
    return min(12, max(2, eighth))


def leading_on_blocks(increases: xr.Dataset, ablated: xr.Dataset) -> list[Head]:
    """Return the heads that stand for the paper's twelve on blocks, best first.

        >>> dims, values = ("prompt", "layer", "head"), np.eye(16, 6)[None]
        >>> increases = xr.Dataset({"increase": (dims, values)})
        >>> ablated = xr.Dataset({"log_prob_lost": (dims, values[:, ::-1])})
        >>> list(map(str, leading_on_blocks(increases, ablated)))[:4]
        ['0-0', '10-5', '1-1', '11-4']

    Args:
        increases: Measurement "selection_increases".
        ablated: Measurement "single_head_ablations".
    """
    lost = ablated["log_prob_lost"].mean("prompt")
    n = n_leading(lost.size)
    by_ablation = top_heads(lost, n, minimum=-np.inf)
    by_mean = by_increase(increases, n)
    return interleave(by_mean, by_ablation, n)


def halves(data: xr.Dataset) -> list[xr.Dataset]:
    """Return the prompts of every second class pair, and the prompts of the other class pairs.

        >>> data = xr.Dataset(coords={"class_pair": ("prompt", ["a/b", "c/d", "a/b", "e/f"])})
        >>> [half["class_pair"].values.tolist() for half in halves(data)]
        [['a/b', 'a/b', 'e/f'], ['c/d']]

    Args:
        data: A measurement on blocks.
    """
    pairs = np.unique(data["class_pair"])
    first_pairs = pairs[::2]
    is_first = data["class_pair"].isin(first_pairs)
    first = data.isel(prompt=is_first.values)
    second = data.isel(prompt=~is_first.values)
    return [first, second]


def attention_on_labels(heads: xr.Dataset) -> xr.DataArray:
    """Return the mean attention on all labels together, over (layer, head).

    Args:
        heads: Measurement "heads" or "selection".
    """
    attention = heads["attention"]
    on_labels = attention.sum("demonstration")
    return on_labels.mean("prompt")


def prefers_no_class(heads: xr.Dataset) -> xr.DataArray:
    """Return as booleans whose attention difference is below MIN_ATTENTION_DIFFERENCE.

    The mean difference may have either sign.

    Args:
        heads: Measurement "heads" or "selection".

    Returns:
        Over (layer, head).
    """
    difference = attention_difference(heads)
    mean = difference.mean("prompt")
    return abs(mean) < MIN_ATTENTION_DIFFERENCE


def label_heads_without_preference(heads: xr.Dataset, judged: Sequence[Head]) -> list[Head]:
    """Return heads that attend to labels about as much as some heads, but prefer no class.

    They have at least half of the attention that the judged heads have on labels
    (`prefers_no_class`). Those with most attention on labels come first.

    Args:
        heads: Measurement "heads" or "selection".
        judged: Heads to compare with.
    """
    on_labels = attention_on_labels(heads)
    of_judged = select_heads(on_labels, judged)
    half = float(of_judged.mean()) / 2
    has_none = prefers_no_class(heads)
    ranking = on_labels.where(has_none, 0.0)
    found = top_heads(ranking, ranking.size, minimum=half)
    return [head for head in found if head not in judged]


def by_effect(
    effects: xr.Dataset, k: int = HEADS_PER_SET, *, either_sign: bool = False
) -> list[Head]:
    """Return the heads whose attention raises the right answer most, by mean total effect.

        >>> dims = ("contrast", "prompt", "layer", "head")
        >>> effect = [[[[0.1, -0.9], [0.4, 0.0]]], [[[5.0, 5.0], [5.0, 5.0]]]]
        >>> contrasts = {"contrast": ["attention swapped", "texts exchanged"]}
        >>> effects = xr.Dataset({"effect": (dims, effect)}, contrasts)
        >>> [str(head) for head in by_effect(effects, 3)]
        ['1-0', '0-0']
        >>> [str(head) for head in by_effect(effects, 2, either_sign=True)]
        ['0-1', '1-0']

    Args:
        effects: Measurement "head_effects".
        k: Maximum number of heads.
        either_sign: Whether heads that lower the right answer count as well, by the size of their
            effect.
    """
    effect = effects["effect"]
    swapped = effect.sel(contrast="attention swapped")
    mean = swapped.mean("prompt")
    return top_heads(abs(mean) if either_sign else mean, k)


def places(values: xr.DataArray, heads: Heads) -> list[int]:
    """Return the places of some heads if all heads are ranked by their mean, the largest first.

        >>> values = xr.DataArray([[[0.1, 0.5], [0.5, 0.2]]], dims=("prompt", "layer", "head"))
        >>> places(values, [(0, 0), (0, 1), (1, 0), (1, 1)])
        [4, 1, 1, 3]

    Args:
        values: Over (prompt, layer, head).
        heads: Heads whose places are returned.
    """
    means = values.mean("prompt")
    by_layer = means.transpose("layer", "head").values
    found = []
    for head in heads:
        own_mean = by_layer[tuple(head)]
        is_larger = by_layer > own_mean
        n_larger = int(is_larger.sum())
        found.append(1 + n_larger)
    return found


def others_in_layers(values: xr.DataArray, heads: Sequence[Head]) -> list[Head]:
    """Return the other heads of the layers of some heads.

        >>> values = xr.DataArray([[1, 2], [3, 4]], dims=("layer", "head"))
        >>> [str(head) for head in others_in_layers(values, [Head(1, 0)])]
        ['1-1']

    Args:
        values: Over (..., layer, head).
        heads: Heads that are left out.
    """
    layers = {head.layer for head in heads}
    numbers = range(values.sizes["head"])
    in_order = sorted(layers)
    every = [Head(layer, number) for layer in in_order for number in numbers]
    return [head for head in every if head not in heads]


def select_heads(values: xr.DataArray, heads: Heads) -> xr.DataArray:
    """Return the values of some heads, or of none.

        >>> values = xr.DataArray([[1, 2], [3, 4]], dims=("layer", "head"))
        >>> of_heads = select_heads(values, [Head(1, 0), Head(0, 1)])
        >>> of_heads["selected_head"].values.tolist(), of_heads.values.tolist()
        (['1-0', '0-1'], [3, 2])

    Args:
        values: Over (..., layer, head).
        heads: Single heads.

    Returns:
        Over (..., selected_head), with the coordinates of `heads.head_coordinates`.
    """
    indices = xr.Dataset(coords=head_coordinates(heads))
    layers = indices["layer"]
    numbers = indices["head"]
    return values.isel(layer=layers, head=numbers)


def select_sets(values: xr.DataArray, sets: Sequence[Heads]) -> xr.DataArray:
    """Return the values of the heads of each set.

    Args:
        values: Over (..., layer, head).
        sets: Sets of heads, all of the same size.

    Returns:
        Over (random_set, ..., selected_head).
    """
    n_heads = len(sets[0]) if sets else 0
    pairs = np.array(sets, dtype=int)
    pairs = pairs.reshape(len(sets), n_heads, 2)
    dims = "random_set", "selected_head"
    layers = dims, pairs[..., 0]
    numbers = dims, pairs[..., 1]
    return values.isel(layer=layers, head=numbers)


def mean_over_sets(values: xr.DataArray, sets: Sequence[Heads]) -> xr.DataArray:
    """Return the mean over the heads of each set, missing for an empty set.

        >>> values = xr.DataArray([[[1.0, 2.0], [3.0, np.nan]]], dims=("prompt", "layer", "head"))
        >>> mean_over_sets(values, [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]).values.tolist()
        [[2.0], [nan]]
        >>> mean_over_sets(values, [[]]).values.tolist()
        [[nan]]

    Args:
        values: Over (..., prompt, layer, head).
        sets: Sets of heads, all of the same size.

    Returns:
        Over (random_set, ..., prompt).
    """
    selected = select_sets(values, sets)
    mean = selected.mean("selected_head", skipna=False)
    return mean.transpose("random_set", ..., "prompt")


def cross_fit_splits(data: Any, target: Any = None) -> Iterator[tuple[Any, Any]]:
    """Yield cross-fit splits of prompts, without a common class pair or label pair.

    Class pairs and label pairs are halved by their names. If there is only one label pair, only
    class pairs are halved. Every prompt is evaluated once. Heads are selected and evaluated on
    different prompts, classes and labels, so selection does not bias their effect upwards.

    Args:
        data: A measurement, or an array of one, over prompts.
        target: Another measurement or array, whose prompts are evaluated in place of those of
            `data`.

    Yields:
        The prompts that select, and the prompts that evaluate.
    """
    if target is None:
        target = data
    halves_of = {}
    for name in ("class_pair", "label_pair"):
        names = {*data[name].values, *target[name].values}
        in_order = sorted(names)
        halves_of[name] = in_order[::2], in_order[1::2]
    has_one = halves_of["label_pair"][1] == []
    for pairs in halves_of["class_pair"]:
        evaluates_pair = target["class_pair"].isin(pairs)
        selects_pair = ~data["class_pair"].isin(pairs)
        for labels in halves_of["label_pair"]:
            evaluates_labels = target["label_pair"].isin(labels)
            evaluates = evaluates_pair & evaluates_labels
            other_labels = ~data["label_pair"].isin(labels)
            may_select = other_labels | has_one
            selects = selects_pair & may_select
            if evaluates.any():
                selecting = data.isel(prompt=selects.values)
                evaluating = target.isel(prompt=evaluates.values)
                yield selecting, evaluating


def cross_fit_sets(
    selection: xr.Dataset, target: Any, k: int
) -> Iterator[tuple[dict[str, list[Head]], Any]]:
    """Yield sets of heads for the prompts of each cross-fit split, selected on other prompts.

    Args:
        selection: Measurement "selection".
        target: Measurement or array, whose prompts are evaluated.
        k: Maximum number of heads of a set.

    Yields:
        The sets, none if no selection prompt has other classes and other labels; and the prompts
        that evaluate.
    """
    for selecting, evaluating in cross_fit_splits(selection, target):
        sets = {}
        if selecting.sizes["prompt"]:
            sets = head_sets(selecting, k)
        yield sets, evaluating
