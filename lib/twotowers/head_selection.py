"""Rules that select the prompt template and the sets of heads from earlier measurements.

The rules were fixed on 2026-11-22 (data/rules.csv). The template is the one with the highest
accuracy (true label = top token of the vocabulary), of the templates with at most MAX_K
demonstrations of each class. Ties go to fewer demonstrations.

Each set has the HEADS_PER_SET heads with the largest mean of one quantity:

- `by attribution`: the contribution to the logit difference from label positions.
- `by written logit difference`: attention times the OV logit difference towards the label that
  is attended to, correct or not; above MIN_WRITTEN nats.
- `by attention`: the attention difference, labels of the query's class minus the others.
- `by increase`: the paper's increase, if it is given (`with_increase`).
- `by_effect`, a function: the total effect of the head's attention, of either sign.

Every function is pure: it takes datasets of `measure.heads` and returns lists of heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads, head_coordinates
from twotowers.settings import Template

HEADS_PER_SET = 5
MAX_K = 4
MIN_ATTENTION_DIFFERENCE, MIN_WRITTEN = 0.02, 0.1
RANDOM_LISTS = 1000
"""Number of random lists that a list is compared with"""
SINGLE_HEADS = 20
"""Number of other heads that a single head is compared with"""
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
    table = (templates["top_answer"] == 0).to_dataframe("is_top")
    table = table[table["k"] <= max(MAX_K, table["k"].min())]
    accuracies = table.groupby(["k", "separator"])["is_top"].mean()
    k, separator = accuracies.idxmax()  # groups are sorted: of equal accuracies, the smallest k
    return Template(int(k), str(separator))


def attention_difference(heads: xr.Dataset) -> xr.DataArray:
    """Return the attention on labels of the query's class minus the attention on the others.

    Args:
        heads: Measurement "heads".

    Returns:
        Over (prompt, layer, head), in [-1, 1].
    """
    return (
        heads["attention"].where(heads["is_true_label"], -heads["attention"]).sum("demonstration")
    )


def with_increase(heads: xr.Dataset, increase_by_norm: xr.Dataset) -> xr.Dataset:
    """Return a measurement of heads with the paper's increase of the same prompts.

    Args:
        heads: Measurement "heads" or "selection".
        increase_by_norm: Measurement "increase_by_norm".
    """
    return heads.assign(increase=increase_by_norm["increase"].sel(norm="frozen", drop=True))


def rankings(heads: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return every ranking of the heads by name.

    Args:
        heads: Measurement "heads" or "selection".

    Returns:
        Means over prompts (layer, head). A larger value means a higher rank.
    """
    heads = heads.assign(attention_difference=attention_difference(heads))
    return {
        name: heads[variable].mean("prompt")
        for name in RANKINGS
        if (variable := name.replace(" ", "_")) in heads
    }


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
    best = values.sort_values(ascending=False, kind="stable")[:k]
    return [Head(*map(int, indices)) for indices in best.index[best > minimum]]


def top_mask(values: xr.DataArray, k: int) -> xr.DataArray:
    """Return as booleans which heads have the k largest values.

    Args:
        values: Over (..., layer, head).
        k: Number of heads.
    """
    flat = values.stack(layer_and_head=("layer", "head"))
    return values >= flat.reduce(lambda x, axis: np.sort(x, axis).take(-k, axis), "layer_and_head")


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


def by_effect(effects: xr.Dataset, k: int = HEADS_PER_SET) -> list[Head]:
    """Return the heads whose attention has the largest mean total effect, of either sign.

    Args:
        effects: Measurement "head_effects".
        k: Number of heads.
    """
    return top_heads(
        abs(effects["effect"].sel(contrast="attention swapped", drop=True).mean("prompt")), k
    )


def matched_sets(
    heads: Heads, measured: np.ndarray, n_key_value_heads: int, n_sets: int
) -> list[list[Head]]:
    """Return random sets with the same number of heads in the same layers.

    No head is from the key-value groups of `heads`. If a layer has too few such heads, heads of the
    nearest layers are drawn (the layer above before the layer below).

    Args:
        heads: Set that random sets are matched to.
        measured: Booleans over (layer, head), true for heads that can be drawn.
        n_key_value_heads: Number of key-value heads of a layer.
        n_sets: Number of random sets. The same set may occur more than once.

    Raises:
        NotTestable: If the model has too few other heads.
    """
    free = _outside_groups(heads, measured, n_key_value_heads)
    if free.sum() < len(heads):
        raise NotTestable(
            f"{len(heads)} heads leave too few heads in other key-value groups for a control; "
            "choose a smaller top_k"
        )
    rng, sets = np.random.default_rng([0, 44]), []
    for _ in range(n_sets):
        pools = [rng.permutation(np.flatnonzero(in_layer)).tolist() for in_layer in free]
        drawn = []
        for layer, _ in heads:
            layers = [i for i, pool in enumerate(pools) if pool]
            nearest = min(layers, key=lambda i: (abs(i - layer), -i))
            drawn.append(Head(nearest, pools[nearest].pop()))
        sets.append(drawn)
    return sets


def _outside_groups(heads: Heads, measured: np.ndarray, n_key_value_heads: int) -> np.ndarray:
    """Return as booleans (layer, head) the measured heads outside the heads' key-value groups."""
    free, group = measured.copy(), measured.shape[1] // n_key_value_heads
    for layer, head in heads:
        free[layer, head // group * group :][:group] = False
    return free


def _other_heads(heads: Heads, measured: np.ndarray) -> np.ndarray:
    """Return as booleans (layer, head) the measured heads that are not among some heads."""
    free = measured.copy()
    for layer, head in heads:
        free[layer, head] = False
    return free


def random_lists(
    heads: Sequence[Head], measured: np.ndarray, n_key_value_heads: int
) -> list[list[Head]]:
    """Return different random lists of heads from other key-value groups than those of a list.

    As many heads as possible are from the layer of the head that they replace, and the others from
    the nearest layers (the layer above before the layer below). The lists do not depend on the
    order of `heads`, and each random head stands at the place of the head that it replaces. There
    are up to RANDOM_LISTS lists; for a single head, the SINGLE_HEADS nearest heads; and none if too
    few heads were measured.

    Args:
        heads: List of heads.
        measured: Booleans over (layer, head), true for heads that can be drawn.
        n_key_value_heads: Number of key-value heads of a layer.
    """
    free = _outside_groups(heads, measured, n_key_value_heads)
    if len(heads) == 1:
        layers_and_heads = np.argwhere(free).tolist()
        nearest = sorted(layers_and_heads, key=lambda place: abs(place[0] - heads[0].layer))
        return [[Head(*place)] for place in nearest[:SINGLE_HEADS]]
    return _draw_lists(heads, free) if free.sum() >= len(heads) else []


def random_lists_in_layers(heads: Sequence[Head], measured: np.ndarray) -> list[list[Head]]:
    """Return different random lists of any other heads of the same layers as those of a list.

    There are no lists if a layer has too few other heads.

    Args:
        heads: List of heads.
        measured: Booleans over (layer, head), true for heads that can be drawn.
    """
    free, n_in_layer = _other_heads(heads, measured), np.zeros(len(measured), dtype=int)
    for layer, _ in heads:
        n_in_layer[layer] += 1
    return _draw_lists(heads, free) if (free.sum(1) >= n_in_layer).all() else []


def _draw_lists(heads: Heads, free: np.ndarray) -> list[list[Head]]:
    """Return different lists of free heads, first from the layer of the head that they replace."""
    rng, lists = np.random.default_rng([0, 44]), {}
    for _ in range(RANDOM_LISTS):
        pools = [rng.permutation(np.flatnonzero(in_layer)).tolist() for in_layer in free]
        drawn = {head: pools[head[0]].pop() for head in sorted(heads) if pools[head[0]]}
        replacements = {head: Head(head[0], number) for head, number in drawn.items()}
        for head in sorted(heads):
            if head not in replacements:
                layers = [i for i, pool in enumerate(pools) if pool]
                nearest = min(layers, key=lambda i, layer=head[0]: (abs(i - layer), -i))
                replacements[head] = Head(nearest, pools[nearest].pop())
        random_list = [replacements[head] for head in heads]
        lists.setdefault(tuple(sorted(random_list)), random_list)
    return list(lists.values())


def share_in_layer(heads: Heads, lists: Sequence[Heads]) -> float:
    """Return the share of random heads that are in the layer of the head that they replace.

    Args:
        heads: List of heads.
        lists: Random lists in its place, in the same order.
    """
    same = [
        random[0] == head[0]
        for random_list in lists
        for head, random in zip(heads, random_list, strict=True)
    ]
    return float(np.mean(same)) if same else np.nan


def shuffle_heads(mask: xr.DataArray, dims: Sequence[str] = ("head",)) -> xr.DataArray:
    """Return random lists of heads with the same number of heads in each layer, or in all.

    Args:
        mask: Booleans over (layer, head), true for the heads of a list.
        dims: Dimensions along which heads are shuffled: the heads of each layer, or ("layer",
            "head") for all heads of the model.

    Returns:
        Booleans over (random_set, layer, head).
    """
    masks = mask.transpose("layer", "head").expand_dims(random_set=RANDOM_LISTS)
    flat = masks.stack(shuffled=dims)
    shuffled = np.random.default_rng(0).permuted(flat.values, axis=-1)
    return flat.copy(data=shuffled).unstack("shuffled").transpose("random_set", "layer", "head")


def select_heads(values: xr.DataArray, heads: Sequence[Head]) -> xr.DataArray:
    """Return the values of some heads, or of none.

    Args:
        values: Over (..., layer, head).
        heads: Single heads.

    Returns:
        Over (..., selected_head), with the coordinates of `heads.head_coordinates`.
    """
    indices = xr.Dataset(coords=head_coordinates(heads))
    return values.isel(layer=indices["layer"], head=indices["head"])


def select_sets(values: xr.DataArray, sets: Sequence[Heads]) -> xr.DataArray:
    """Return the values of the heads of each set.

    Args:
        values: Over (..., layer, head).
        sets: Sets of heads, all of the same size.

    Returns:
        Over (random_set, ..., selected_head).
    """
    indices = np.array(sets, dtype=int).reshape(len(sets), -1 if sets else 0, 2)
    dims = ("random_set", "selected_head")
    return values.isel(layer=(dims, indices[..., 0]), head=(dims, indices[..., 1]))


def mean_over_sets(values: xr.DataArray, sets: Sequence[Heads]) -> xr.DataArray:
    """Return the mean over the heads of each set, missing for an empty set.

    Args:
        values: Over (..., prompt, layer, head).
        sets: Sets of heads, all of the same size.

    Returns:
        Over (random_set, ..., prompt).
    """
    mean = select_sets(values, sets).mean("selected_head", skipna=False)
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
    target = data if target is None else target
    class_pairs, label_pairs = (
        sorted({*data[name].values, *target[name].values}) for name in ("class_pair", "label_pair")
    )
    for pairs in (class_pairs[::2], class_pairs[1::2]):
        for labels in (label_pairs[::2], label_pairs[1::2]):
            evaluates = target["class_pair"].isin(pairs) & target["label_pair"].isin(labels)
            other_labels = ~data["label_pair"].isin(labels) | (len(label_pairs) == 1)
            selects = ~data["class_pair"].isin(pairs) & other_labels
            if evaluates.any():
                yield data.isel(prompt=selects.values), target.isel(prompt=evaluates.values)
