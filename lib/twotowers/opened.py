"""A measurement as chapters see it: with the logit difference, random sets as a dimension, and labels of one kind.

    data, control = opened(dataset)            # data (heads, prompt); control (heads, draw, prompt), None where there is none
    names, _ = opened(dataset, "names")        # the prompts whose labels are the classes' own names

All that chapters read goes through here, so that no chapter takes names apart or has a logit difference of its own. No torch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import xarray as xr

from twotowers.errors import TwoTowersError

LABELS = ("arbitrary", "names", "all")
"""Kinds of labels: words that mean nothing for the classes (those judge), the classes' own names, or both"""
RANDOM = re.compile(r"(?P<heads>.+), random (?P<direction>direction )?(?P<draw>\d+)")
"""How files name random sets of heads, or random directions of one set, until they have a dimension for them"""


class Opened(NamedTuple):
    """`data` over named sets of heads; `control`: the same of the random sets matched to each, with a dimension `draw` more.

    The scalar coordinate `control` tells the kind: "random sets" or "random directions".
    """

    data: xr.Dataset
    control: xr.Dataset | None


def opened(dataset: xr.Dataset, labels: str = "arbitrary") -> Opened:
    """A measurement with `logit_difference` (nats), prompts with labels of one kind, and its random sets apart."""
    return draws_apart(by_heads(with_logit_difference(of_labels(dataset, labels))))


def of_labels(dataset: xr.Dataset, labels: str) -> xr.Dataset:
    """Prompts with labels of one kind. A prompt's labels are the classes' own names where `labels` equals `pair`."""
    if labels not in LABELS:
        raise TwoTowersError(f"no labels '{labels}': choose one of {', '.join(LABELS)}")
    if labels == "all" or "labels" not in dataset.coords:
        return dataset
    are_names = (dataset["labels"] == dataset["pair"]).values
    return dataset.isel(prompt=np.flatnonzero(are_names == (labels == "names")))


def with_logit_difference(dataset: xr.Dataset) -> xr.Dataset:
    """Adds log-probability of the true label minus that of the other (nats), also of the base and source of an exchange."""
    for side in ("", "base_", "source_"):
        if f"{side}log_prob_true" in dataset:
            difference = dataset[f"{side}log_prob_true"] - dataset[f"{side}log_prob_other"]
            dataset = dataset.assign({f"{side}logit_difference": difference.assign_attrs(units="nats")})
    return dataset


def by_heads(dataset: xr.Dataset) -> xr.Dataset:
    """Path patching: variants "NAME, total" and "NAME, direct" as dimensions `heads` and `way`; others stand in both ways."""
    if "variant" not in dataset.dims:
        return dataset
    names = [str(name) for name in dataset["variant"].values]
    parts = []
    for way in ("total", "direct"):
        other = ", direct" if way == "total" else ", total"
        of_way = [name for name in names if not name.endswith(other)]
        heads = [name.removesuffix(f", {way}") for name in of_way]
        parts.append(dataset.sel(variant=of_way).rename(variant="heads").assign_coords(heads=heads))
    return xr.concat(parts, xr.Variable("way", ["total", "direct"]), data_vars="different", coords="different", compat="equals")


def draws_apart(dataset: xr.Dataset) -> Opened:
    """Entries "NAME, random 3" of `heads` as (heads, draw) of a dataset of their own: `heads` holds each NAME once."""
    if "heads" not in dataset.dims:
        return Opened(dataset, None)
    draws: dict[str, dict[int, int]] = {}  # name -> draw -> place along `heads`
    kinds, named = set(), []
    for place, name in enumerate(dataset["heads"].values):
        if parts := RANDOM.fullmatch(str(name)):
            draws.setdefault(parts["heads"], {})[int(parts["draw"])] = place
            kinds.add("random directions" if parts["direction"] else "random sets")
        else:
            named.append(place)
    data = dataset.isel(heads=named)
    if not draws:
        return Opened(data, None)
    places = xr.DataArray([[of[draw] for draw in sorted(of)] for of in draws.values()], dims=("heads", "draw"))
    control = dataset.drop_vars("heads").isel(heads=places).assign_coords(heads=list(draws), draw=range(places.sizes["draw"]))
    return Opened(data, control.assign_coords(control=" and ".join(sorted(kinds))))
