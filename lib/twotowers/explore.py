"""Widgets of a running notebook, which show numbers of a chosen model, head and prompts.

    chapter.explore("head_effects", "effect", "direct_effect")

A page of the book, where no Python runs, shows one line in their place (`assemble_pages.py`).
This module does not load torch.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd
import xarray as xr

from twotowers import colours, pages
from twotowers.head_selection import top_heads
from twotowers.tables import shown_name


def choices(data: xr.Dataset) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the entries of each dropdown, with the selection that belongs to each entry.

        >>> choices(xr.Dataset({"effect": ("change", [1.0, 2.0])}, {"change": ["swap", "drop"]}))
        {'change': {'swap': {'change': 'swap'}, 'drop': {'change': 'drop'}}}

    Args:
        data: Variables that share their dimensions. A dimension without names has no dropdown.

    Returns:
        Argument of `data.sel` by dropdown and entry. The entry that is shown at first comes first.
            Heads are in descending order of the first variable.
    """
    entries: dict[str, dict[str, dict[str, Any]]] = {
        dim: {name: {dim: name} for name in data[dim].values.tolist()}
        for dim in map(str, data.dims)
        if data[dim].dtype.kind in "UO"
    }
    if {"layer", "head"} <= {*data.dims}:
        means = next(iter(data.values())).mean({*data.dims} - {"layer", "head"})
        heads = top_heads(means, means.size, minimum=-np.inf)
        entries["head"] = {str(head): head._asdict() for head in heads}
    if "prompt" in data.dims:
        entries["prompts"] = {"all": {"prompt": slice(None)}} | {
            name.replace("\n", " · "): {"prompt": np.flatnonzero(names == name).tolist()}
            for names in (data["class_pair"], data["text"])
            for name in names.values
        }
    return entries


def _in_words(name: Hashable) -> str:
    """Return the name of a dimension or a variable in words."""
    return re.sub(r"\bov\b", "OV", str(name).replace("_", " "))


def table(data: xr.Dataset) -> pd.DataFrame:
    """Return means over prompts, with a column for each variable, or for each of its entries.

        >>> effect = xr.DataArray([1.0, 2.0, 6.0], dims="prompt", attrs={"units": "nats"})
        >>> table(xr.Dataset({"ov_effect": effect})).loc["mean", "OV effect (nats)"].item()
        3.0

    Args:
        data: Variables with units.
    """
    means = data.mean("prompt")
    means = means if means.dims else means.expand_dims(prompts=["mean"])
    frame = means.rename({dim: _in_words(dim) for dim in means.dims}).to_dataframe()[[*data]]
    frame.columns = [f"{_in_words(name)} ({x.attrs['units']})" for name, x in data.items()]
    return frame.unstack() if frame.index.nlevels > 1 else frame


def shown(data: xr.Dataset) -> str:
    """Return the table of a selection as HTML, with a bar in each cell.

    Args:
        data: Selected variables with units.
    """
    frame = table(data)
    styler = pages.shown(frame, index=True, na_rep="–", formatter="{:,.3f}")
    styler.set_caption(f"mean over prompts: {data.sizes['prompt']}").bar(
        axis=None if frame.columns.nlevels > 1 else 0,
        align="zero",
        color=[colours.ORANGE, colours.BLUE],
        props="width: 7em;",
    )
    return styler.to_html()


def _dropdown(name: str, options: list[tuple[str, Any]]) -> widgets.Dropdown:
    """Return a dropdown with its whole name next to it."""
    style = {"description_width": "initial"}  # the default cuts a name of more than ten letters
    return widgets.Dropdown(description=name, options=options, style=style)


def explorer(measurements: Mapping[str, xr.Dataset], model: str) -> widgets.VBox:
    """Return dropdowns, and below them the numbers of their selection.

    The numbers are in a `widgets.HTML`. An Output widget, which `widgets.interactive` also makes,
    lets papermill wait for ever: nbclient then sends a message on the channel on which it waits for
    the cell's reply.

    Args:
        measurements: Variables that share their dimensions, by model.
        model: Model that is shown at first. Without its measurement it is the first one.
    """
    names = sorted(measurements, key=lambda name: name != model)  # the given model, then the others
    models = _dropdown("model", [(shown_name(name), name) for name in names])
    dropdowns, numbers = widgets.HBox(layout={"flex_flow": "row wrap"}), widgets.HTML()

    def update_dropdowns(_: object = None) -> None:
        dropdowns.children = [
            _dropdown(_in_words(name), [*entries.items()])
            for name, entries in choices(measurements[models.value]).items()
        ]
        for dropdown in dropdowns.children:
            dropdown.observe(update_numbers, "value")
        update_numbers()

    def update_numbers(_: object = None) -> None:
        data = measurements[models.value]
        for dropdown in dropdowns.children:
            data = data.sel(dropdown.value)
        numbers.value = shown(data)

    models.observe(update_dropdowns, "value")
    update_dropdowns()
    return widgets.VBox([models, dropdowns, numbers])
