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
    entries: dict[str, dict[str, dict[str, Any]]] = {}
    for dim in map(str, data.dims):
        if data[dim].dtype.kind in "UO":
            names = data[dim].values.tolist()
            entries[dim] = {name: {dim: name} for name in names}
    dims = {*data.dims}
    if {"layer", "head"} <= dims:
        first, *_ = data.values()
        others = dims - {"layer", "head"}
        means = first.mean(others)
        heads = top_heads(means, means.size, minimum=-np.inf)
        entries["head"] = {str(head): head._asdict() for head in heads}
    if "prompt" in data.dims:
        prompts: dict[str, dict[str, Any]] = {"all": {"prompt": slice(None)}}
        for names in (data["class_pair"].values, data["text"].values):
            for name in names:
                one_line = name.replace("\n", " · ")
                numbers = np.flatnonzero(names == name)
                prompts[one_line] = {"prompt": numbers.tolist()}
        entries["prompts"] = prompts
    return entries


def _in_words(name: Hashable) -> str:
    """Return the name of a dimension or a variable in words."""
    words = str(name).replace("_", " ")
    return re.sub(r"\bov\b", "OV", words)


def means_table(data: xr.Dataset) -> pd.DataFrame:
    """Return means over prompts, with a column for each variable, or for each of its entries.

        >>> effect = xr.DataArray([1.0, 2.0, 6.0], dims="prompt", attrs={"units": "nats"})
        >>> means_table(xr.Dataset({"ov_effect": effect})).loc["mean", "OV effect (nats)"].item()
        3.0

    Args:
        data: Variables with units.
    """
    means = data.mean("prompt")
    if not means.dims:
        means = means.expand_dims(prompts=["mean"])
    in_words = {dim: _in_words(dim) for dim in means.dims}
    frame = means.rename(in_words).to_dataframe()[[*data]]
    columns = []
    for name, x in data.items():
        units = x.attrs["units"]
        columns.append(f"{_in_words(name)} ({units})")
    frame.columns = columns
    if frame.index.nlevels == 1:
        return frame
    return frame.unstack()


def html_table(data: xr.Dataset) -> str:
    """Return the table of a selection as HTML, with a bar in each cell.

    Args:
        data: Selected variables with units.
    """
    frame = means_table(data)
    n_prompts = data.sizes["prompt"]
    styler = pages.shown(frame, index=True, na_rep="–", formatter="{:,.3f}")
    styler.set_caption(f"mean over prompts: {n_prompts}")
    styler.bar(
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
    options = [(shown_name(name), name) for name in names]
    models = _dropdown("model", options)
    dropdowns = widgets.HBox(layout={"flex_flow": "row wrap"})
    numbers = widgets.HTML()

    def update_dropdowns(_: object = None) -> None:
        children = []
        data = measurements[models.value]
        for name, entries in choices(data).items():
            dropdown = _dropdown(_in_words(name), [*entries.items()])
            dropdown.observe(update_numbers, "value")
            children.append(dropdown)
        dropdowns.children = children
        update_numbers()

    def update_numbers(_: object = None) -> None:
        data = measurements[models.value]
        for dropdown in dropdowns.children:
            data = data.sel(dropdown.value)
        numbers.value = html_table(data)

    models.observe(update_dropdowns, "value")
    update_dropdowns()
    return widgets.VBox([models, dropdowns, numbers])
