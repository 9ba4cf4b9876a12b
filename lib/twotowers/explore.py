"""Widgets of a running notebook, which show numbers of a chosen model, head and prompts.

    chapter.explore("head_effects", "effect", "direct_effect", over="class_pair")

A page of the book, where no Python runs, shows one line in their place (`assemble_pages.py`).
This module does not load torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets
import numpy as np
import pandas as pd
import xarray as xr

from twotowers import figures, pages
from twotowers.head_selection import top_heads
from twotowers.tables import shown_name

Files = Mapping[str, xr.Dataset]
ALL = "all"


def choices(data: xr.Dataset, group_by: str = "") -> dict[str, dict[str, dict[str, Any]]]:
    """Return the entries of each control, with the selection that belongs to each entry.

        >>> choices(xr.Dataset({"effect": ("change", [1.0, 2.0])}, {"change": ["swap", "drop"]}))
        {'change': {'swap': {'change': 'swap'}, 'drop': {'change': 'drop'}}}

    Args:
        data: Variables that share their dimensions. A dimension without names has no control.
        group_by: Coordinate of prompts whose groups become rows. Then prompts have no control.

    Returns:
        Argument of `data.sel` by control and entry. The entry that is shown at first comes first.
            Heads are in descending order of the first variable.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {
        dim: {x: {dim: x} for x in data[dim].values.tolist()}
        for dim in map(str, data.dims)
        if data[dim].dtype.kind in "UO"
    }
    if {"layer", "head"} <= {*data.dims}:
        means = next(iter(data.values())).mean({*data.dims} - {"layer", "head"})
        heads = top_heads(means, means.size, minimum=-np.inf)
        found["head"] = {str(head): head._asdict() for head in heads}
    if "prompt" in data.dims and not group_by:
        pairs, texts = (
            {
                x.replace("\n", " · "): {"prompt": np.flatnonzero(of == x).tolist()}
                for x in of.values
            }
            for of in (data["class_pair"], data["text"])
        )
        # A table of demonstrations is read next to the text of one prompt.
        first = dict([*texts.items()][:1]) if "demonstration" in data.dims else {}
        found["prompts"] = first | {ALL: {"prompt": slice(None)}} | pairs | texts
    return found


def table(data: xr.Dataset, group_by: str = "") -> pd.DataFrame:
    """Return means over prompts, with a column for each variable, or for each of its entries.

        >>> pairs = {"class_pair": ("prompt", ["a/b", "a/b", "c/d"])}
        >>> effect = xr.DataArray([1.0, 2.0, 5.0], dims="prompt", attrs={"units": "nats"})
        >>> table(xr.Dataset({"effect": effect}, pairs), "class_pair")["effect (nats)"].to_dict()
        {'a/b': 1.5, 'c/d': 5.0}

    Args:
        data: Variables with units.
        group_by: Coordinate of prompts, such as "class_pair". Then a row is the mean over a group.
    """
    means = data.groupby(group_by).mean() if group_by else data.mean("prompt")
    if "demonstration" in means.dims:  # demonstrations, whose texts the control for prompts shows
        are_true = data["is_true_label"].all("prompt").values
        means["demonstration"] = [
            f"{i}{', true' * true}" for i, true in enumerate(are_true.tolist(), 1)
        ]
    means = means if means.dims else means.expand_dims("prompts")
    frame = means.to_dataframe()[[*data]]
    frame.columns = [f"{name} ({x.attrs['units']})".replace("_", " ") for name, x in data.items()]
    return frame.unstack() if frame.index.nlevels > 1 else frame


def explorer(files: Files, group_by: str = "", model: str = "") -> widgets.VBox:
    """Return controls, and below them the numbers of their selection.

    The numbers are in a `widgets.HTML`. An Output widget, which `widgets.interactive` also makes,
    lets papermill wait for ever: nbclient then sends a message on the channel on which it waits for
    the cell's reply.

    Args:
        files: Variables that share their dimensions, by model.
        group_by: Coordinate of prompts whose groups become rows; "" lets the reader choose prompts.
        model: Model that is shown at first.
    """
    models = widgets.Dropdown(
        options=[(shown_name(m), m) for m in files],
        value=model if model in files else next(iter(files)),
        description="model",
    )
    controls, numbers = widgets.HBox(layout={"flex_flow": "row wrap"}), widgets.HTML()

    def offer(_: object = None) -> None:
        controls.children = [
            widgets.Dropdown(options=[*entries.items()], description=name.replace("_", " "))
            for name, entries in choices(files[models.value], group_by).items()
        ]
        for control in controls.children:
            control.observe(show, "value")
        show()

    def show(_: object = None) -> None:
        data = files[models.value]
        for control in controls.children:
            data = data.sel(control.value)
        numbers.value = shown(data, group_by)

    models.observe(offer, "value")
    offer()
    return widgets.VBox([models, controls, numbers])


def shown(data: xr.Dataset, group_by: str = "") -> str:
    """Return the table of a selection as HTML, with a bar in each cell.

    Args:
        data: Selected variables with units.
        group_by: Coordinate of prompts whose groups are rows.
    """
    frame = table(data, group_by)
    styler = pages.shown(frame, index=True, na_rep="–", formatter="{:,.3f}")
    styler.set_caption(f"mean over prompts: {data.sizes['prompt']}")
    bars = {"align": "zero", "color": [figures.ORANGE, figures.BLUE], "props": "width: 7em;"}
    return styler.bar(axis=None if frame.columns.nlevels > 1 else 0, **bars).to_html()
