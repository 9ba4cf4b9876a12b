"""Widgets around what a chapter opened: choose a model, a head and prompts, and see the numbers.

    chapter.explore("looks", "effect", "direct_effect", over="pair")    # in a running notebook

On a page of the book, where no Python runs, one line stands in their place (`book/_ext/stage.py`).
See `table` for the numbers of a file. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import ipywidgets as widgets
import numpy as np
import pandas as pd
import xarray as xr

from twotowers import figures, pages
from twotowers.errors import TwoTowersError
from twotowers.heads import Head, named
from twotowers.tables import shown_name

Files = Mapping[str, xr.Dataset]
ALL = "all"
LISTED = ("listed_head", "named_head")  # dimensions of single heads by their names
PROMPTS = ("text", "query", "pair", "labels")  # coordinates by which prompts are chosen


def choices(data: xr.Dataset, over: str = "") -> dict[str, list[str]]:
    """What each control offers: heads, entries of other dimensions with names, and prompts.

    Args:
        data: variables that share their dimensions; a dimension without names is shown, not chosen.
        over: a coordinate of prompts; where it is given, they are averaged over its groups.

    Returns:
        Control -> entries, the one that is shown first before others; heads with most of the first
            variable come first.
    """
    found = {
        "head" if dim in LISTED else str(dim): data[dim].values.tolist()
        for dim in data.dims
        if data[dim].dtype.kind in "UO"
    }
    if {"layer", "head"} <= {*data.dims}:  # with most of the first variable first
        first = next(iter(data.values()))
        mean = first.mean([dim for dim in first.dims if dim not in ("layer", "head")]).to_series()
        found["head"] = named(
            mean.reorder_levels(["layer", "head"]).sort_values(ascending=False).index
        )
    if "prompt" in data.dims and not over:
        texts, pairs = (
            list(dict.fromkeys(map(_one_line, data[name].values))) for name in ("text", "pair")
        )
        found["prompts"] = (
            [*texts[:1], ALL, *pairs, *texts[1:]] if "place" in data.dims else [ALL, *pairs, *texts]
        )
    return found


def choose(data: xr.Dataset, name: str, value: str) -> xr.Dataset:
    """What one control chooses.

    Args:
        data: variables that share their dimensions.
        name: of the control, such as "head".
        value: one of its entries, such as "18-6".

    Raises:
        TwoTowersError: in one line, where there is no such thing.
    """
    value, offered = value.strip(), choices(data)[name]
    if name == "prompts":
        at = [
            value in (ALL, *map(_one_line, of))
            for of in zip(*(data[c].values for c in PROMPTS), strict=True)
        ]
        if any(at):
            return data.isel(prompt=np.flatnonzero(at))
    elif value in offered:
        if name == "head" and "layer" in data.dims:
            return data.sel(Head.parse(value)._asdict())
        return data.sel({next(dim for dim in (name, *LISTED) if dim in data.dims): value})
    some = ", ".join([word for word in offered if len(word) < 40][:4]) + ", ..." * (
        len(offered) > 4
    )
    raise TwoTowersError(
        f"no {name} '{value}' here, but {some}" if value else f"choose {name}, such as {some}"
    )


def table(data: xr.Dataset, over: str = "") -> pd.DataFrame:
    """Means over prompts: a column a variable, or the first variable over two dimensions.

        >>> of = {"pair": ("prompt", ["a/b", "a/b", "c/d"])}
        >>> effect = xr.DataArray([1.0, 2.0, 5.0], dims="prompt", attrs={"units": "nats"})
        >>> table(xr.Dataset({"effect": effect}, of), over="pair")["effect (nats)"].to_dict()
        {'a/b': 1.5, 'c/d': 5.0}

    Args:
        data: variables with units.
        over: a coordinate of prompts, such as "pair": then a row is the mean over a group.
    """
    names = {name: f"{_words(str(name))} ({x.attrs['units']})" for name, x in data.items()}
    if over:
        means = (
            data.groupby(over).mean().sel({over: list(dict.fromkeys(data[over].values.tolist()))})
        )
    else:
        means = data.mean("prompt")
    if "place" in means.dims:  # demonstrations, whose texts the control for prompts shows
        are_true = data["true"].all("prompt").values
        means = means.assign_coords(
            place=[f"{i}, true" if true else f"{i}" for i, true in enumerate(are_true, 1)]
        )
    frame = (
        (means if means.dims else means.expand_dims({"prompts": [ALL]}))
        .to_dataframe()[[*names]]
        .rename(columns=names)
    )
    frame = frame if frame.index.nlevels == 1 else frame.iloc[:, 0].unstack()
    return frame.rename(index=_entry, columns=_entry).rename_axis(index=_words, columns=_words)


def _entry(of: object) -> str:
    return f"{of:g}" if isinstance(of, float) else str(of)


def _words(name: str | None) -> str:
    return (name or "").replace("_", " ")


def _one_line(text: str) -> str:
    return " · ".join(text.splitlines())


def alert(error: object) -> str:
    """What went wrong, as a line of a widget."""
    return f"<span style='color:#c0392b' role='alert'>{escape(str(error))}</span>"


def explorer(files: Files, over: str = "", model: str = "") -> widgets.VBox:
    """Controls, and below them the numbers that they choose.

    Args:
        files: model -> variables that share their dimensions.
        over: a coordinate of prompts whose groups are rows; where it is empty, prompts are chosen.
        model: shown first.
    """
    first = model if model in files else next(iter(files))
    of_model = widgets.Dropdown(
        options=[(shown_name(m), m) for m in files], value=first, description="model"
    )
    controls = {"model": of_model}
    for name, offered in choices(files[first], over).items():
        # Where there are many entries, one can type.
        kind = widgets.Combobox if name in ("head", "prompts") else widgets.Dropdown
        width = {"width": "34em" if name == "prompts" else "18em"}
        late = {"continuous_update": False} if kind is widgets.Combobox else {}
        controls[name] = kind(
            options=offered, value=offered[0], description=_words(name), layout=width, **late
        )

    def offer(change: dict) -> None:
        for name, offered in choices(files[change["new"]], over).items():
            control, before = controls[name], controls[name].value
            control.options = offered
            control.value = before if before in offered else offered[0]

    def show(change: dict | None = None) -> None:
        data = files[of_model.value]
        try:
            for name in [*controls][1:]:
                data = choose(data, name, controls[name].value or "")
            below.value = shown(data, over)
        except TwoTowersError as error:
            below.value = alert(error)

    # Not an Output widget: papermill can wait for ever for a cell that displays one, since nbclient
    # then sends a message on the channel that it waits on.
    below = widgets.HTML()
    of_model.observe(offer, "value")
    for control in controls.values():
        control.observe(show, "value")
    show()
    return widgets.VBox(
        [widgets.HBox([*controls.values()], layout={"flex_flow": "row wrap"}), below]
    )


def shown(data: xr.Dataset, over: str = "") -> str:
    """The table of what is chosen, as HTML with a bar in each cell."""
    frame, n = table(data, over), data.sizes["prompt"]
    grid = bool(frame.columns.name)
    caption = f"{_words(str(next(iter(data))))}, " * grid + (
        f"mean over {n} prompts" if n > 1 else "one prompt"
    )
    styler = pages.shown(
        frame, index=True, na_rep="–", formatter=lambda x: f"{round(x, 3) + 0.0:,.6g}"
    ).set_caption(escape(caption))
    bars = {"align": "zero", "color": [figures.ORANGE, figures.BLUE], "props": "width: 7em;"}
    return styler.bar(axis=None if grid else 0, **bars).to_html()
