"""What later measurements are taken with, chosen by rule from earlier ones on locating blocks: the
form, and sets of heads.

Rules of 2026-11-22, written before any judging block was run (data/rules.csv):

- **form**: of those with at most MOST_K demonstrations of each class, the one with the highest
  accuracy (true label = top token of the vocabulary); ties go to fewer demonstrations. More
  demonstrations cost more in every measurement.
- **located**: the TOP heads by mean contribution (what they add to the logit difference from label
  positions).
- **by writing**: the TOP heads by mean writing (attention times reading of a label, whichever it
  is), each at least WRITES nats.
- **by attention**: the TOP heads by mean attention difference (labels of the query's class minus
  the others).
- **by increase**: the TOP heads by the paper's mean increase, where it is given (`with_increase`).
- **by effect**: the TOP heads by the total effect of their attention, either sign (`by_effect`).

Every function is pure: datasets of `measure.heads` in, lists of heads out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from twotowers.errors import NotTestable
from twotowers.forms import Form
from twotowers.heads import Head, listed

TOP = 5
MOST_K = 4
COMPARES, WRITES = 0.02, 0.1
RANKINGS = ("contribution", "increase", "attention difference", "writing")


def form(forms: xr.Dataset) -> Form:
    """The best-learned form of the grid (`says` over prompts with coordinates k and separator)."""
    few = forms.isel(prompt=(forms["k"] <= max(MOST_K, int(forms["k"].min()))).values)
    table = pd.DataFrame({name: few[name].values for name in ("k", "separator", "says")})
    accuracy = (table["says"] == 0).groupby([table["k"], table["separator"]]).mean()
    k, separator = accuracy.index[
        int(accuracy.to_numpy().argmax())
    ]  # sorted by k: of equal ones, the smallest
    return Form(int(k), str(separator))


def attention_difference(heads: xr.Dataset) -> xr.DataArray:
    """Attention on labels of the query's class minus that on the others, (prompt, layer, head), in
    [-1, 1]."""
    return heads["attention"].where(heads["true"], -heads["attention"]).sum("place")


def with_increase(heads: xr.Dataset, norms: xr.Dataset) -> xr.Dataset:
    """A measurement of heads with the paper's increase of the same prompts, from the measurement
    "norms"."""
    return heads.assign(increase=norms["increase"].sel(norm="frozen", drop=True))


def rankings(heads: xr.Dataset) -> dict[str, xr.DataArray]:
    """Every ranking of the heads (layer, head), larger is more: means over prompts."""
    values = {"attention difference": attention_difference(heads)} | {
        name: heads[name] for name in RANKINGS if name in heads
    }
    return {name: values[name].mean("prompt") for name in RANKINGS if name in values}


def top(ranking: xr.DataArray, k: int, least: float = 0.0) -> list[Head]:
    """The k heads (layer, head) with the largest values above `least`, largest first."""
    values = ranking.transpose("layer", "head").values
    best = [
        Head(*map(int, np.unravel_index(i, values.shape)))
        for i in np.argsort(-values, axis=None, kind="stable")[:k]
    ]
    return [head for head in best if values[head] > least]


def head_sets(heads: xr.Dataset, k: int = TOP) -> dict[str, list[Head]]:
    """Name -> heads, best first: the sets of the module. A set may be short or empty, as the rule
    says."""
    means = rankings(heads)
    sets = {
        "located": top(means["contribution"], k),
        "by writing": top(means["writing"], k, WRITES),
        "by attention": top(means["attention difference"], k),
    }
    return sets | ({"by increase": top(means["increase"], k)} if "increase" in means else {})


def by_effect(looks: xr.Dataset, k: int = TOP) -> list[Head]:
    """The k heads whose attention has the largest mean total effect, either sign, from the
    measurement "looks"."""
    return top(abs(looks["effect"].sel(contrast="reversed", drop=True).mean("prompt")), k)


def matched_sets(
    heads: Sequence[Head], n_layers: int, n_heads: int, group: int, draws: int
) -> list[list[Head]]:
    """Random sets of as many heads in the same layers, none from the key-value groups of `heads`.

    Where a layer has too few such heads, those of the nearest layers take part (the layer above
    before the one below). Raises NotTestable when the model has too few heads left.
    """
    own_groups = {(layer, h // group) for layer, h in heads}
    free = {
        layer: [h for h in range(n_heads) if (layer, h // group) not in own_groups]
        for layer in range(n_layers)
    }
    if sum(map(len, free.values())) < len(heads):
        raise NotTestable(
            f"{len(heads)} heads leave too few of other key-value groups for a control: "
            "choose fewer (top_k)"
        )
    rng, out = np.random.default_rng([0, 44]), []
    for _ in range(draws):
        pools = {layer: list(rng.permutation(free[layer])) for layer in free}
        picks = []
        for layer, _ in heads:
            near = sorted((at for at in pools if pools[at]), key=lambda at: (abs(at - layer), -at))
            picks.append(Head(near[0], int(pools[near[0]].pop())))
        out.append(picks)
    return out


def pick(values: xr.DataArray, heads: Sequence[Head]) -> xr.DataArray:
    """Values (..., layer, head) of some heads, or of none: (..., listed_head), with the coordinates
    of `heads.listed`."""
    layer, head = (
        xr.DataArray([int(at[axis]) for at in heads], dims="listed_head").astype(int)
        for axis in (0, 1)
    )
    return values.isel(layer=layer, head=head).assign_coords(listed(heads))


def turns(data: Any, target: Any = None) -> Iterator[tuple[Any, Any]]:
    """(prompts that choose, prompts that judge), so that no class pair and no label pair is in
    both; every prompt judges once.

    Class pairs and label pairs are halved by their names; where there is one label pair only, class
    pairs alone. Prompts of `target`, another measurement or an array of one, are judged in place of
    those of `data`: what is chosen on other prompts, classes and labels is no luck of those on
    which it is judged.
    """
    target = data if target is None else target
    names = {
        name: sorted({*data[name].values, *target[name].values}) for name in ("pair", "labels")
    }
    first, judging = (
        [of[name].isin(every[::2]) for name, every in names.items()] for of in (data, target)
    )
    for pair, label in itertools.product((True, False), repeat=2):
        others = (first[0] != pair) & ((first[1] != label) | (len(names["labels"]) == 1))
        judges = target.isel(prompt=((judging[0] == pair) & (judging[1] == label)).values)
        if judges.sizes["prompt"]:
            yield data.isel(prompt=others.values), judges


def overlap(a: Sequence[Head], b: Sequence[Head]) -> list[Head]:
    """Heads in both lists, in the order of the first."""
    return [head for head in a if head in set(b)]


def union(a: Sequence[Head], b: Sequence[Head], n: int) -> list[Head]:
    """n heads of two lists taken in turn, as the EMNLP version joins the tops of its two
    rankings."""
    turns = [head for both in zip(a, b, strict=False) for head in both]
    return list(dict.fromkeys(turns))[:n]
