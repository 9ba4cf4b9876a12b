"""What later measurements are taken with, by rule from earlier ones: the form, and sets of heads.

Rules of 2026-11-22, written before any judging block was run (data/rules.csv):

- **form**: of those with at most MOST_K demonstrations of each class, the one with the highest
  accuracy (true label = top token of the vocabulary); ties go to fewer demonstrations.
- **located**: the TOP heads by mean contribution (what they add to the logit difference from label
  positions).
- **by writing**: the TOP heads by mean writing (attention times reading of a label, whichever it
  is), each above WRITES nats.
- **by attention**: the TOP heads by mean attention difference (labels of the query's class minus
  the others).
- **by increase**: the TOP heads by the paper's mean increase, where it is given (`with_increase`).
- **by effect**: the TOP heads by the total effect of their attention, either sign (`by_effect`).

Every function is pure: datasets of `measure.heads` in, lists of heads out. See `top`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr

from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads, listed
from twotowers.settings import Form

TOP = 5
MOST_K = 4
COMPARES, WRITES = 0.02, 0.1
RANDOM_LISTS, SINGLE_HEADS = 1000, 20
"""Random lists beside a list of heads, and heads beside a single one"""
RANKINGS = ("contribution", "increase", "attention difference", "writing")


def form(forms: xr.Dataset) -> Form:
    """The best-learned form of the grid (`says` over prompts with coordinates k and separator)."""
    table = forms["says"].to_dataframe()
    table = table[table["k"] <= max(MOST_K, table["k"].min())]
    # The groups are sorted by k: of equal accuracies the smallest k comes first.
    k, separator = (table["says"] == 0).groupby([table["k"], table["separator"]]).mean().idxmax()
    return Form(int(k), str(separator))


def attention_difference(heads: xr.Dataset) -> xr.DataArray:
    """Attention on labels of the query's class minus that on the others.

    Args:
        heads: the measurement "heads".

    Returns:
        (prompt, layer, head), in [-1, 1].
    """
    return heads["attention"].where(heads["true"], -heads["attention"]).sum("place")


def with_increase(heads: xr.Dataset, norms: xr.Dataset) -> xr.Dataset:
    """A measurement of heads with the paper's increase of the same prompts.

    Args:
        heads: the measurement "heads" or "locating".
        norms: the measurement "norms".
    """
    return heads.assign(increase=norms["increase"].sel(norm="frozen", drop=True))


def rankings(heads: xr.Dataset) -> dict[str, xr.DataArray]:
    """Every ranking of the heads: name -> mean over prompts (layer, head), larger is more."""
    values = {"attention difference": attention_difference(heads)} | {
        name: heads[name] for name in RANKINGS if name in heads
    }
    return {name: values[name].mean("prompt") for name in RANKINGS if name in values}


def top(ranking: xr.DataArray, k: int, least: float = 0.0) -> list[Head]:
    """The heads with the largest values, largest first.

        >>> of = xr.DataArray([[0.1, 0.4], [0.0, 0.3]], dims=("layer", "head"))
        >>> [str(head) for head in top(of, 3)]
        ['0-1', '1-1', '0-0']
        >>> [str(head) for head in top(of, 3, least=0.2)]
        ['0-1', '1-1']

    Args:
        ranking: (layer, head).
        k: at most so many.
        least: each has more than this.
    """
    values = ranking.transpose("layer", "head").values
    best = [
        Head(*map(int, np.unravel_index(i, values.shape)))
        for i in np.argsort(-values, axis=None, kind="stable")[:k]
    ]
    return [head for head in best if values[head] > least]


def top_mask(values: xr.DataArray, k: int) -> xr.DataArray:
    """Return which heads have the k largest values, over (..., layer, head), as booleans."""
    values = values.transpose(..., "layer", "head")
    flat = values.values.reshape(*values.shape[:-2], -1)
    return values >= np.partition(flat, -k)[..., -k, None, None]


def head_sets(heads: xr.Dataset, k: int = TOP) -> dict[str, list[Head]]:
    """Name -> heads, best first: the sets of the module, which may be short or empty.

    Args:
        heads: the measurement "heads" or "locating".
        k: how many heads a set holds.
    """
    means = rankings(heads)
    sets = {
        "located": top(means["contribution"], k),
        "by writing": top(means["writing"], k, WRITES),
        "by attention": top(means["attention difference"], k),
    }
    return sets | ({"by increase": top(means["increase"], k)} if "increase" in means else {})


def by_effect(looks: xr.Dataset, k: int = TOP) -> list[Head]:
    """The heads whose attention has the largest mean total effect, either sign.

    Args:
        looks: the measurement "looks".
        k: so many.
    """
    return top(abs(looks["effect"].sel(contrast="attention swapped", drop=True).mean("prompt")), k)


def matched_sets(
    heads: Heads,
    n_layers: int,
    n_heads: int,
    group: int,
    draws: int,
    measured: np.ndarray | None = None,
) -> list[list[Head]]:
    """Random sets of as many heads in the same layers, none from the key-value groups of `heads`.

    Where a layer has too few such heads, those of the nearest layers take part (the layer above
    before the one below).

    Args:
        heads: the set in question.
        n_layers: of the model.
        n_heads: of each layer.
        group: heads that share their keys and values.
        draws: so many sets; the same one may come again.
        measured: (layer, head), which heads can be drawn; by default all.

    Raises:
        NotTestable: when the model has too few heads left.
    """
    own_groups = {(layer, h // group) for layer, h in heads}
    free = {
        layer: [
            h
            for h in range(n_heads)
            if (layer, h // group) not in own_groups and (measured is None or measured[layer, h])
        ]
        for layer in range(n_layers)
    }
    if sum(map(len, free.values())) < len(heads):
        raise NotTestable(
            f"{len(heads)} heads leave too few of other key-value groups for a control: "
            "choose fewer (top_k)"
        )
    rng, out = np.random.default_rng([0, 44]), []
    for _ in range(draws):
        pools = {layer: rng.permutation(free[layer]).tolist() for layer in free}
        picks = []
        for layer, _ in heads:
            nearest = min(filter(pools.get, pools), key=lambda at: (abs(at - layer), -at))
            picks.append(Head(nearest, pools[nearest].pop()))
        out.append(picks)
    return out


def random_lists(heads: Sequence[Head], measured: xr.DataArray, group: int) -> list[list[Head]]:
    """Return different random lists of as many heads, as `matched_sets` draws them, or none.

    A single head has SINGLE_HEADS others, from its layer and the nearest ones.

    Args:
        heads: List of heads.
        measured: (layer, head), heads that can be drawn.
        group: Heads that share their keys and values.
    """
    free = measured.values.copy()
    if len(heads) == 1:
        layer, head = heads[0]
        free[layer, head // group * group :][:group] = False
        others = map(Head._make, np.argwhere(free).tolist())
        return [[of] for of in sorted(others, key=lambda of: abs(of.layer - layer))[:SINGLE_HEADS]]
    n_layers, n_heads = free.shape
    try:
        lists = matched_sets(heads, n_layers, n_heads, group, RANDOM_LISTS, free)
    except NotTestable:
        return []
    return list({tuple(sorted(of)): of for of in lists}.values())


def pick(values: xr.DataArray, heads: Sequence[Head]) -> xr.DataArray:
    """Values of some heads, or of none.

    Args:
        values: (..., layer, head).
        heads: single heads.

    Returns:
        (..., listed_head), with the coordinates of `heads.listed`.
    """
    at = xr.Dataset(coords=listed(heads))
    return values.isel(layer=at["layer"], head=at["head"])


def turns(data: Any, target: Any = None) -> Iterator[tuple[Any, Any]]:
    """(Prompts that choose, prompts that judge): no class pair and no label pair is in both.

    Class pairs and label pairs are halved by their names; where there is one label pair only, class
    pairs alone. Every prompt judges once.

    Args:
        data: a measurement, or an array of one, over prompts.
        target: another one, whose prompts are judged in place of those of `data`: what is chosen on
            other prompts, classes and labels is no luck of those on which it is judged.
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


def union(a: Sequence[Head], b: Sequence[Head], n: int) -> list[Head]:
    """Heads of two lists taken in turn, as the EMNLP version joins the tops of its two rankings.

    Args:
        a: a list, whose first head comes first.
        b: another.
        n: so many heads of both.
    """
    turns = [head for both in zip(a, b, strict=False) for head in both]
    return list(dict.fromkeys(turns))[:n]
