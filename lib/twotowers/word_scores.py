"""Heads of the measurement `word_towers` that were selected on other class pairs (chapter 13).

A head is judged on the classes of a pair only if it was selected without this pair, so the selected
heads may differ between classes.

    >>> coordinates = {"prompt": ["a", "b", "c"], "selected_head": ["0-0", "0-1"]}
    >>> selected = [[1, 0], [1, 1], [0, 0]]
    >>> is_selected = xr.DataArray(selected, coordinates, ("prompt", "selected_head"))
    >>> word_towers = xr.Dataset({"is_selected": is_selected})
    >>> scores = xr.DataArray([[[0.5, 0.1, 0.3]]] * 3, dims=("prompt", "layer", "head"))
    >>> selected_mean(word_towers, scores).to_series().to_dict()
    {'a': 0.5, 'b': 0.3}
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from twotowers.head_selection import select_heads
from twotowers.heads import Head

KINDS = ["by attention", "other heads"]
"""Kinds of heads: selected for some class pair by attention difference, and all others"""


def selected_mean(word_towers: xr.Dataset, values: xr.DataArray) -> xr.DataArray:
    """Return means over the heads that were selected on other class pairs.

    Args:
        word_towers: Measurement "word_towers", with its classes along `prompt`.
        values: Over (prompt, layer, head, ...).

    Returns:
        Over (prompt, ...), without classes for which no head was selected.
    """
    names = word_towers["selected_head"].values
    heads = [Head.parse(str(name)) for name in names]
    of_heads = select_heads(values, heads)
    is_selected = word_towers["is_selected"].drop_vars("selected_head")
    weights = is_selected.assign_coords(of_heads["selected_head"].coords)
    means = of_heads.weighted(weights).mean("selected_head")
    return means.dropna("prompt")


def kinds(word_towers: xr.Dataset) -> xr.DataArray:
    """Return the kind of every head, one of KINDS, over (layer, head).

        >>> roles = {"selected_head": ["0-0", "0-2"]}
        >>> role = xr.DataArray(["other", "by attention"], roles, ["selected_head"])
        >>> word_towers = xr.Dataset({"role": role, "x": (("layer", "head"), [[1, 2, 3]])})
        >>> kinds(word_towers).values.tolist()
        [['other heads', 'other heads', 'by attention']]

    Args:
        word_towers: Measurement "word_towers".
    """
    selected, others = KINDS
    role = word_towers["role"]
    is_selected = role == "by attention"
    names = word_towers["selected_head"][is_selected.values]
    n_layers = word_towers.sizes["layer"]
    n_heads = word_towers.sizes["head"]
    found = np.full((n_layers, n_heads), others, dtype=object)
    for name in names.values:
        head = Head.parse(str(name))
        found[head] = selected
    return xr.DataArray(found, dims=("layer", "head"))
