"""Rules that select the prompt template and the sets of heads from earlier measurements.

The rules were fixed on 2026-11-22 (data/rules.csv). The template is the one with the highest
accuracy (right label = top token of the vocabulary), of the templates with at most MAX_K
demonstrations of each class. Ties go to fewer demonstrations.

Each set has the HEADS_PER_SET heads with the largest mean of one quantity:

- `by attribution`: the contribution to the logit difference from label positions.
- `by written logit difference`: attention times the OV logit difference towards the label that
  is attended to, correct or not; above MIN_WRITTEN nats.
- `by attention`: the attention difference, labels of the query's class minus the others.
- `by increase`: the paper's increase, if it is given (`with_increase`).
- `by_effect`, a function: the total effect of the head's attention, of either sign.

Every function is pure: it takes measurements of heads and returns lists of heads.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr

from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads, head_coordinates
from twotowers.settings import SEEDS, Template

HEADS_PER_SET = 5
MAX_K = 4
MIN_ATTENTION_DIFFERENCE = 0.02
MIN_WRITTEN = 0.1
DRAWS = 1000
"""Maximum number of draws of random sets, of which equal ones count once"""
SINGLE_HEADS = 20
"""Number of other heads that a single head is compared with, if its layer has not more"""
SETS = {
    "by attribution": ("attribution", 0.0),
    "by written logit difference": ("written logit difference", MIN_WRITTEN),
    "by attention": ("attention difference", 0.0),
    "by increase": ("increase", 0.0),
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
    max_k = max(MAX_K, table["k"].min())
    table = table[table["k"] <= max_k]
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
    signed = attention.where(heads["is_true_label"], -attention)
    return signed.sum("demonstration")


def with_increase(heads: xr.Dataset, increase_by_norm: xr.Dataset) -> xr.Dataset:
    """Return a measurement of heads with the paper's increase of the same prompts.

    Args:
        heads: Measurement "heads" or "selection".
        increase_by_norm: Measurement "increase_by_norm".
    """
    increase = increase_by_norm["increase"]
    frozen = increase.sel(norm="frozen", drop=True)
    return heads.assign(increase=frozen)


def rankings(heads: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return every ranking of the heads by name.

    Args:
        heads: Measurement "heads" or "selection".

    Returns:
        Means over prompts (layer, head). A larger value means a higher rank.
    """
    heads = heads.assign(attention_difference=attention_difference(heads))
    means = {}
    for name in RANKINGS:
        variable = name.replace(" ", "_")
        if variable in heads:
            means[name] = heads[variable].mean("prompt")
    return means


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
    values = ranking.transpose("layer", "head").to_series()
    descending = values.sort_values(ascending=False, kind="stable")
    best = descending[:k]
    exceeds = best > minimum
    indices = best.index[exceeds]
    return [Head(int(layer), int(head)) for layer, head in indices]


def top_mask(values: xr.DataArray, k: int) -> xr.DataArray:
    """Return as booleans which heads have the k largest values.

    Args:
        values: Over (..., layer, head).
        k: Number of heads.
    """
    flat = values.stack(layer_and_head=("layer", "head"))

    def kth_largest(x: np.ndarray, axis: int) -> Any:
        ascending = np.sort(x, axis)
        return ascending.take(-k, axis)

    lowest = flat.reduce(kth_largest, "layer_and_head")
    return values >= lowest


def head_sets(heads: xr.Dataset, k: int = HEADS_PER_SET) -> dict[str, list[Head]]:
    """Return the sets of heads of this module by name, best head first.

    Sets may be short or empty.

    Args:
        heads: Measurement "heads" or "selection".
        k: Maximum number of heads of a set.
    """
    means = rankings(heads)
    return {
        name: top_heads(means[ranking], k, minimum)
        for name, (ranking, minimum) in SETS.items()
        if ranking in means
    }


def by_increase(increases: xr.Dataset, k: int) -> list[Head]:
    """Return the heads with the largest mean increase, of any sign, as the paper lists them.

    Args:
        increases: Measurement "increase_by_norm", on selection blocks.
        k: Number of heads.
    """
    increase = increases["increase"]
    frozen = increase.sel(norm="frozen")
    mean = frozen.mean("prompt")
    return top_heads(mean, k, minimum=-np.inf)


def halves(data: xr.Dataset) -> list[xr.Dataset]:
    """Return the prompts of every second class pair, and the prompts of the other class pairs.

    Args:
        data: A measurement on blocks.
    """
    pairs = np.unique(data["class_pair"])
    is_first = data["class_pair"].isin(pairs[::2])
    first = data.isel(prompt=is_first.values)
    second = data.isel(prompt=~is_first.values)
    return [first, second]


def attention_on_labels(heads: xr.Dataset) -> xr.DataArray:
    """Return the mean attention on all labels together, over (layer, head).

    Args:
        heads: Measurement "heads" or "selection".
    """
    return heads["attention"].sum("demonstration").mean("prompt")


def prefers_no_class(heads: xr.Dataset) -> xr.DataArray:
    """Return as booleans whose attention difference is below MIN_ATTENTION_DIFFERENCE.

    The mean difference may have either sign.

    Args:
        heads: Measurement "heads" or "selection".

    Returns:
        Over (layer, head).
    """
    difference = attention_difference(heads).mean("prompt")
    return abs(difference) < MIN_ATTENTION_DIFFERENCE


def label_heads_without_preference(heads: xr.Dataset, judged: Sequence[Head]) -> list[Head]:
    """Return heads that attend to labels about as much as some heads, but prefer no class.

    They have at least half of the attention that the judged heads have on labels
    (`prefers_no_class`).

    Args:
        heads: Measurement "heads".
        judged: Heads to compare with.
    """
    on_labels = attention_on_labels(heads)
    usual = select_heads(on_labels, judged).mean()
    has_attention = on_labels >= usual / 2
    found = has_attention & prefers_no_class(heads)
    by_layer = found.transpose("layer", "head")
    places = np.argwhere(by_layer.values)
    return [Head(*place) for place in places.tolist()]


def by_effect(effects: xr.Dataset, k: int = HEADS_PER_SET) -> list[Head]:
    """Return the heads whose attention has the largest mean total effect, of either sign.

    Args:
        effects: Measurement "head_effects".
        k: Number of heads.
    """
    swapped = effects["effect"].sel(contrast="attention swapped", drop=True)
    mean = swapped.mean("prompt")
    return top_heads(abs(mean), k)


def draw_random_sets(heads: Heads, free: np.ndarray, n_sets: int = DRAWS) -> list[list[Head]]:
    """Return different random sets of heads in place of a set, or of a list.

    As many heads as possible are from the layer of the head that they replace, and the others from
    the nearest layers (the layer above before the layer below). A single head is replaced by each
    head of its layer, and by heads of the nearest layers until there are SINGLE_HEADS.

    The sets do not depend on the order of `heads`, and each random head stands at the place of the
    head that it replaces. Sets are drawn one after the other, so fewer sets are the first of more.

        >>> free = in_other_groups([Head(0, 0)], np.ones((1, 4), bool), n_key_value_heads=4)
        >>> sorted(draw_random_sets([Head(0, 0)], free))
        [[Head(layer=0, head=1)], [Head(layer=0, head=2)], [Head(layer=0, head=3)]]

    Args:
        heads: Heads to replace.
        free: Booleans over (layer, head), true for heads that can be drawn (`in_other_groups`,
            `in_same_layers`).
        n_sets: Number of different sets; fewer if DRAWS draws have fewer.

    Returns:
        Sets of heads, or nothing if fewer heads are free than a set has.
    """
    if not 0 < len(heads) <= free.sum():
        return []
    if len(heads) == 1:
        (single,) = heads
        nearest = _nearest_heads(Head(*single), free)
        return nearest[:n_sets]
    rng = np.random.default_rng([0, SEEDS["random sets"]])
    sets: dict[tuple[Head, ...], list[Head]] = {}
    pools_of_draws = _shuffled_pools(rng, free)
    for pools in islice(pools_of_draws, DRAWS):
        random_set = _take(pools, heads)
        key = tuple(sorted(random_set))
        sets.setdefault(key, random_set)
        if len(sets) == n_sets:
            break
    return list(sets.values())


def _nearest_heads(single: Head, free: np.ndarray) -> list[list[Head]]:
    """Return all free heads of the layer of a head, or more of near layers, each as a set."""
    places = np.argwhere(free)
    others = [Head(*place) for place in places.tolist()]
    nearest = sorted(others, key=lambda head: abs(head.layer - single.layer))
    n_in_layer = free[single.layer].sum()
    n = max(SINGLE_HEADS, n_in_layer)
    return [[head] for head in nearest[:n]]


def _shuffled_pools(rng: np.random.Generator, free: np.ndarray) -> Iterator[list[list[int]]]:
    """Yield the numbers of the free heads of each layer in random orders, again and again."""
    numbers = [np.flatnonzero(in_layer) for in_layer in free]
    while True:
        yield [rng.permutation(in_layer).tolist() for in_layer in numbers]


def _take(pools: Sequence[list[int]], heads: Heads) -> list[Head]:
    """Take a head out of the pools for each head, first where the own layer has one."""
    replacements = {}
    ordered = sorted(heads)
    for head in ordered:
        layer, _ = head
        if pools[layer]:
            replacements[head] = _take_nearest(pools, layer)
    for head in ordered:
        if head not in replacements:
            layer, _ = head
            replacements[head] = _take_nearest(pools, layer)
    return [replacements[head] for head in heads]


def _take_nearest(pools: Sequence[list[int]], layer: int) -> Head:
    """Take a head out of the nearest pool that is not empty, of two the one above."""
    nearest = layer
    if not pools[layer]:
        layers = [i for i, pool in enumerate(pools) if pool]
        nearest = min(layers, key=lambda i: (abs(i - layer), -i))
    number = pools[nearest].pop()
    return Head(nearest, number)


def in_other_groups(heads: Heads, measured: np.ndarray, n_key_value_heads: int) -> np.ndarray:
    """Return which measured heads are outside the key-value groups of some heads.

    Args:
        heads: Heads to replace.
        measured: Booleans over (layer, head), true for heads that were measured.
        n_key_value_heads: Number of key-value heads of a layer.

    Returns:
        Booleans over (layer, head).
    """
    free = measured.copy()
    _, n_heads = measured.shape
    size = n_heads // n_key_value_heads
    for layer, head in heads:
        first = head // size * size
        free[layer, first : first + size] = False
    return free


def in_same_layers(heads: Heads, measured: np.ndarray) -> np.ndarray:
    """Return which measured heads are other heads of the layers of some heads.

    Args:
        heads: Heads to replace.
        measured: Booleans over (layer, head), true for heads that were measured.

    Returns:
        Booleans over (layer, head), all false if a layer has too few other heads.
    """
    free = np.zeros_like(measured)
    n_in_layer = np.zeros(len(measured), dtype=int)
    for layer, _ in heads:
        free[layer] = measured[layer]
        n_in_layer[layer] += 1
    for layer, head in heads:
        free[layer, head] = False
    is_enough = (free.sum(1) >= n_in_layer).all()
    return free & is_enough


def control_sets(heads: Heads, sizes: Mapping[Hashable, Any], n_sets: int) -> list[list[Head]]:
    """Return different random sets of any heads of a model, in other key-value groups.

    Args:
        heads: Set that random sets are matched to.
        sizes: Numbers of `layers`, `heads` and `key_value_heads` of the model, from the attributes
            of a measurement.
        n_sets: Number of different sets, fewer if there are fewer.

    Raises:
        NotTestable: If the model has too few other heads.
    """
    shape = sizes["layers"], sizes["heads"]
    every_head = np.ones(shape, dtype=bool)
    free = in_other_groups(heads, every_head, sizes["key_value_heads"])
    sets = draw_random_sets(heads, free, n_sets)
    if not sets:
        raise NotTestable(
            f"{len(heads)} heads leave too few heads in other key-value groups for a control; "
            "choose a smaller top_k"
        )
    return sets


def share_in_layer(heads: Heads, lists: Sequence[Heads]) -> float:
    """Return the share of random heads that are in the layer of the head that they replace.

    Args:
        heads: List of heads.
        lists: Random lists in its place, in the same order.
    """
    if not lists:
        return np.nan
    layers = [layer for layer, _ in heads]
    random_layers = [[layer for layer, _ in random_list] for random_list in lists]
    is_same = np.equal(random_layers, layers)
    return float(is_same.mean())


def shuffle_heads(mask: xr.DataArray, dims: Sequence[str] = ("head",)) -> xr.DataArray:
    """Return random lists of heads with the same number of heads in each layer, or in all.

    Args:
        mask: Booleans over (layer, head), true for the heads of a list.
        dims: Dimensions along which heads are shuffled: the heads of each layer, or ("layer",
            "head") for all heads of the model.

    Returns:
        Booleans over (random_set, layer, head).
    """
    mask = mask.transpose("layer", "head")
    masks = mask.expand_dims(random_set=DRAWS)
    flat = masks.stack(shuffled=dims)
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(flat.values, axis=-1)
    flat = flat.copy(data=shuffled)
    sets = flat.unstack("shuffled")
    return sets.transpose("random_set", "layer", "head")


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
    shape = len(sets), n_heads, 2
    pairs = np.array(sets, dtype=int).reshape(shape)
    dims = "random_set", "selected_head"
    layers = dims, pairs[..., 0]
    numbers = dims, pairs[..., 1]
    return values.isel(layer=layers, head=numbers)


def mean_over_sets(values: xr.DataArray, sets: Sequence[Heads]) -> xr.DataArray:
    """Return the mean over the heads of each set, missing for an empty set.

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
    class_pairs = _all_values("class_pair", data, target)
    label_pairs = _all_values("label_pair", data, target)
    has_one = len(label_pairs) == 1
    halves_of_classes = class_pairs[::2], class_pairs[1::2]
    halves_of_labels = label_pairs[::2], label_pairs[1::2]
    for pairs in halves_of_classes:
        evaluates_pair = target["class_pair"].isin(pairs)
        selects_pair = ~data["class_pair"].isin(pairs)
        for labels in halves_of_labels:
            evaluates_labels = target["label_pair"].isin(labels)
            evaluates = evaluates_pair & evaluates_labels
            other_labels = ~data["label_pair"].isin(labels)
            selects = selects_pair & (other_labels | has_one)
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
        sets = head_sets(selecting, k) if selecting.sizes["prompt"] else {}
        yield sets, evaluating


def _all_values(name: str, data: Any, target: Any) -> list[str]:
    """Return the values of a coordinate in two measurements, sorted."""
    selecting = data[name].values
    evaluating = target[name].values
    return sorted({*selecting, *evaluating})
