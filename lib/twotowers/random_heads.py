"""Random heads in place of a set or a list of heads: the control of effects of heads.

    >>> free = in_other_groups([Head(0, 0)], np.ones((1, 4), bool), n_key_value_heads=4)
    >>> sorted(draw_random_sets([Head(0, 0)], free))
    [[Head(layer=0, head=1)], [Head(layer=0, head=2)], [Head(layer=0, head=3)]]

Random heads are of other key-value groups, because heads of a group share their keys and values
(`in_other_groups`), or other heads of the same layers (`in_same_layers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import xarray as xr

from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads, Sizes
from twotowers.settings import SEEDS

DRAWS = 1000
"""Maximum number of draws of random sets, of which equal ones count once"""
SINGLE_HEADS = 20
"""Number of other heads that a single head is compared with, if its layer has not more"""
Sets = list[list[Head]]
"""Random sets of heads"""


def draw_random_sets(heads: Heads, free: np.ndarray, n_sets: int = DRAWS) -> Sets:
    """Return different random sets of heads in place of a set, or of a list.

    As many heads as possible are from the layer of the head that they replace, and the others from
    the nearest layers (the layer above before the layer below). A single head is replaced by each
    head of its layer, and by heads of the nearest layers until there are SINGLE_HEADS.

    The sets do not depend on the order of `heads`, and each random head stands at the place of the
    head that it replaces. Sets are drawn one after the other, so fewer sets are the first of more.

        >>> two, free = [Head(0, 0), Head(0, 1)], np.zeros((2, 6), bool)
        >>> free[0, 2:] = True  # four heads, so six sets
        >>> sets = draw_random_sets(two, free)
        >>> len(sets), len({frozenset(heads) for heads in sets})
        (6, 6)
        >>> len(draw_random_sets(two, free[:, :4])), draw_random_sets(two, free[:, :3])
        (1, [])
        >>> draw_random_sets(two, free, 4) == sets[:4]
        True
        >>> draw_random_sets(two[::-1], free) == [heads[::-1] for heads in sets]
        True
        >>> of_two_layers = draw_random_sets([Head(1, 0), *two], np.ones((2, 6), bool))
        >>> {tuple(head.layer for head in heads) for heads in of_two_layers}
        {(1, 0, 0)}
        >>> free = np.ones((3, 12), bool)
        >>> free[1, 0] = False
        >>> layers = [head.layer for [head] in draw_random_sets([Head(1, 0)], free)]
        >>> len(layers), set(layers[:11]), set(layers[11:])
        (20, {1}, {0})
        >>> free = np.ones((3, 30), bool)
        >>> free[1, 0] = False
        >>> layers = [head.layer for [head] in draw_random_sets([Head(1, 0)], free)]
        >>> len(layers), set(layers)
        (29, {1})

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
        ((layer, _),) = heads
        nearest = _nearest_heads(layer, free)
        return [[head] for head in nearest[:n_sets]]
    rng = np.random.default_rng([0, SEEDS["random sets"]])
    numbers = [np.flatnonzero(in_layer) for in_layer in free]
    # Neighbouring layers with equally many free heads are permuted in one call, with equal draws.
    runs = [np.stack([*run]) for _, run in groupby(numbers, len)]
    replaced = sorted(heads)
    from_nearest = {layer: _layers_from_nearest(layer, len(free)) for layer, _ in replaced}
    sets: dict[tuple[Head, ...], list[Head]] = {}
    for _ in range(DRAWS):
        pools = []
        for run in runs:
            permuted = rng.permuted(run, axis=1)
            pools.extend(permuted.tolist())
        replacements = _take(pools, replaced, from_nearest)
        random_set = [replacements[head] for head in heads]
        key = tuple(sorted(random_set))
        sets.setdefault(key, random_set)
        if len(sets) == n_sets:
            break
    return list(sets.values())


def _nearest_heads(layer: int, free: np.ndarray) -> list[Head]:
    """Return all free heads of a layer, and of the nearest layers up to SINGLE_HEADS."""
    places = np.argwhere(free)
    others = [Head(*place) for place in places.tolist()]
    nearest = sorted(others, key=lambda head: abs(head.layer - layer))
    n_in_layer = free[layer].sum()
    n = max(SINGLE_HEADS, n_in_layer)
    return nearest[:n]


def _layers_from_nearest(layer: int, n_layers: int) -> list[int]:
    """Return all layers, the nearest first, of two the one above."""
    return sorted(range(n_layers), key=lambda other: (abs(other - layer), -other))


def _take(
    pools: Sequence[list[int]], heads: Heads, from_nearest: Mapping[int, Sequence[int]]
) -> dict[tuple[int, int], Head]:
    """Take a head out of the pools for each head, first where the own layer has one."""
    replacements: dict[tuple[int, int], Head] = {}
    for may_leave_layer in (False, True):
        for head in heads:
            layer, _ = head
            if head not in replacements and (pools[layer] or may_leave_layer):
                nearest = next(other for other in from_nearest[layer] if pools[other])
                number = pools[nearest].pop()
                replacements[head] = Head(nearest, number)
    return replacements


def in_other_groups(heads: Heads, measured: np.ndarray, n_key_value_heads: int) -> np.ndarray:
    """Return which measured heads are outside the key-value groups of some heads.

        >>> measured = np.array([[True] * 6, [True] * 5 + [False]])
        >>> in_other_groups([Head(0, 1)], measured, n_key_value_heads=2)
        array([[False, False, False,  True,  True,  True],
               [ True,  True,  True,  True,  True, False]])
        >>> int(measured.sum())  # as before
        11

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
    groups = np.arange(n_heads) // size
    for layer, head in heads:
        is_own_group = groups == groups[head]
        free[layer, is_own_group] = False
    return free


def in_same_layers(heads: Heads, measured: np.ndarray) -> np.ndarray:
    """Return which measured heads are other heads of the layers of some heads.

    Args:
        heads: Heads to replace.
        measured: Booleans over (layer, head), true for heads that were measured.

    Returns:
        Booleans over (layer, head), all false if a layer has too few other heads.
    """
    listed = np.zeros_like(measured)
    for layer, head in heads:
        listed[layer, head] = True
    n_listed = listed.sum(1)
    has_listed = n_listed > 0
    free = measured & ~listed & has_listed[:, None]
    is_enough = free.sum(1) >= n_listed
    return free & is_enough.all()


def control_sets(heads: Heads, sizes: Sizes, n_sets: int) -> Sets:
    """Return different random sets of any heads of a model, in other key-value groups.

        >>> sizes = {"layers": 3, "heads": 2, "key_value_heads": 2}
        >>> (heads,) = control_sets([Head(1, 0), Head(1, 1)], sizes, 3)  # in place of a whole layer
        >>> sorted(map(str, heads))
        ['2-0', '2-1']

    Args:
        heads: Set that random sets are matched to.
        sizes: Sizes of the model.
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
    layers = np.array(heads)[:, 0]
    random_layers = np.array(lists)[..., 0]
    is_same = random_layers == layers
    return float(is_same.mean())


def largest_share_in_layer(heads: Heads, sizes: Sizes) -> float:
    """Return the largest share of the heads of random sets that can be in the layer they replace.

    Sets that were recorded do not name their heads. As many as possible are in the layer.

        >>> sizes = {"layers": 2, "heads": 4, "key_value_heads": 4}
        >>> largest_share_in_layer([Head(0, 0), Head(0, 1), Head(0, 2), Head(1, 0)], sizes)
        0.5
        >>> largest_share_in_layer([Head(0, 0)], sizes)  # its layer has three others, of 20
        0.15

    Args:
        heads: Set that random sets are matched to.
        sizes: Sizes of the model.
    """
    shape = sizes["layers"], sizes["heads"]
    every_head = np.ones(shape, dtype=bool)
    free = in_other_groups(heads, every_head, sizes["key_value_heads"])
    n_free = free.sum(1).tolist()
    layers = [layer for layer, _ in heads]
    if len(heads) == 1:
        (layer,) = layers
        n = n_free[layer]
        return n / max(SINGLE_HEADS, n)
    n_same = 0
    for layer in set(layers):
        n_replaced = layers.count(layer)
        n_same += min(n_replaced, n_free[layer])
    return n_same / len(heads)


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
