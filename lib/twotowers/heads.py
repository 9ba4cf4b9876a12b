"""A head's name, and heads to compare located heads with: the others of their layers, or random ones.

Every claim about in-context heads needs such a control: v1 section 4.3 draws one random other head of the same layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError


class Head(NamedTuple):
    """A head of a model, layer and head counted from 0. `str(Head(22, 0))` is "22-0"; `Head.parse` reads it back."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}-{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """A head from "22-0". Raises TwoTowersError on any other form."""
        if not re.fullmatch(r"\d+-\d+", text.strip()):
            raise TwoTowersError(f"'{text}' is no head: write layer-head, such as 2-5")
        return cls(*map(int, text.split("-")))


Heads = Sequence[tuple[int, int]]  # heads given to a function: pairs do, such as (22, 0)


def named(heads: Iterable[tuple[int, int]]) -> list[str]:
    """["22-0", ...] of (layer, head) pairs."""
    return [f"{layer}-{head}" for layer, head in heads]


def other_heads_of_layers(heads: Sequence[tuple[int, int]], n_heads: int) -> list[Head]:
    """All heads of the same layers that are not among `heads`: the stronger control of every claim about `heads`."""
    layers = sorted({layer for layer, _ in heads})
    return [Head(layer, head) for layer in layers for head in range(n_heads) if (layer, head) not in set(heads)]


def random_heads(heads: Sequence[tuple[int, int]], n_heads: int, seed: int = 0) -> list[Head]:
    """For every head one random other of its layer, none of them in `heads`, no head twice while there are enough.

    v1 section 4.3. Aligned with `heads`. Raises TwoTowersError when a layer has no head left to draw.
    """
    rng = np.random.default_rng([seed, 43])
    left: dict[int, list[int]] = {}
    out = []
    for layer, _ in heads:
        if not left.get(layer):
            left[layer] = rng.permutation(
                [h for at, h in other_heads_of_layers(heads, n_heads) if at == layer]
            ).tolist()
        if not left[layer]:
            raise TwoTowersError(f"every head of layer {layer} is chosen: choose fewer, or there is no control")
        out.append(Head(layer, left[layer].pop()))
    return out


def others_of_layer(head: tuple[int, int], n_heads: int, k: int, seed: int = 0) -> list[Head]:
    """`k` random other heads of one head's layer, or all there are. Raises TwoTowersError when there is none."""
    rest = other_heads_of_layers([head], n_heads)
    if not rest:
        raise TwoTowersError(f"layer {head[0]} has one head only, so there is none to compare it with")
    rng = np.random.default_rng([seed, 45])
    return [rest[i] for i in rng.permutation(len(rest))[:k]]


def nearest_heads(head: tuple[int, int], n_layers: int, n_heads: int, least: int) -> list[Head]:
    """All other heads of one head's layer, and of the nearest layers too until they are `least`, or all of the model.

    Whole layers at a time, those at equal distance together, so that no draw decides.
    """
    out = other_heads_of_layers([head], n_heads)
    for away in range(1, n_layers):
        if len(out) >= least:
            break
        layers = [layer for layer in (head[0] - away, head[0] + away) if 0 <= layer < n_layers]
        out += [Head(layer, h) for layer in layers for h in range(n_heads)]
    return out


def lacking(heads: Sequence[tuple[int, int]], n_heads: int) -> int:
    """How many of `control_heads` have to come from other layers, since their own have too few others."""
    return sum(max(0, 2 * n - n_heads) for n in Counter(layer for layer, _ in heads).values())


def check_inside(heads: Iterable[tuple[int, int]], n_layers: int, n_heads: int, name: str) -> None:
    """Raise TwoTowersError for a head that a model of this name and size does not have."""
    for layer, head in heads:
        if not (0 <= layer < n_layers and 0 <= head < n_heads):
            raise TwoTowersError(
                f"head {layer}-{head} is not in {name}: layers go to {n_layers - 1}, heads to {n_heads - 1}"
            )


def repeat_per_head(
    table: pd.DataFrame, heads: Sequence[tuple[int, int]], peers: Sequence[tuple[int, int]], column: str = "head"
) -> pd.DataFrame:
    """Rows of the random peers, once for every located head they stand for, which `of` names.

    A layer with few heads left lends one peer to several located heads.
    """
    pairs = [(f"{a}-{b}", f"{c}-{d}") for (a, b), (c, d) in zip(heads, peers, strict=True)]
    return pd.concat([table[table[column] == peer].assign(of=head) for head, peer in pairs], ignore_index=True)


def control_heads(
    heads: Sequence[tuple[int, int]],
    n_layers: int,
    n_heads: int,
    seed: int = 0,
    same_layers: bool = True,
    beside: Sequence[tuple[int, int]] = (),
) -> list[Head]:
    """As many random heads, all different, none in `heads` or `beside`: of the same layers, or of the whole model.

    Where a layer has too few others left for `same_layers`, those that are missing come from the other layers. Raises
    TwoTowersError when the model has not as many heads left.
    """
    rng, given = np.random.default_rng([seed, 44]), list(dict.fromkeys(heads))
    left = [Head(*divmod(int(i), n_heads)) for i in rng.permutation(n_layers * n_heads)]
    left = [head for head in left if head not in {*given, *beside}]
    if len(left) < len(given):
        raise TwoTowersError(f"{len(given)} heads leave {len(left)} others for a control: name fewer")
    out: list[Head] = []
    for layer, _ in given if same_layers else ():
        out += [head for head in left if head[0] == layer and head not in out][:1]
    return out + [head for head in left if head not in out][: len(given) - len(out)]
