"""A head's preference among labels, and runs in which it is reversed: what if the head had looked the other way round?

    places = places_of(batch)
    preference(weights, places)                           # labels of the query's class minus the others
    reversed_weights(weights, places)                     # the two sums have changed places
    with reversing(model, of_layers, at): ...             # a whole run with such weights at some positions

*Reversed*: at every position that looks back at labels of both classes, the sums of attention on the two classes' labels
change places. Within a class each label keeps its share of the sum, all else keeps its weight, and values stay. Where a
class has no attention at all there are no shares: what it is given is spread evenly over its labels. So the weights still
add up to one, no number grows, and a head whose two sums are equal stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from towerlab.model.attention_hooks import masked, reading_attention, scores
from towerlab.model.hooks import changing_z
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded

Weights = Float[Tensor, "batch head row position"]
"""Attention of the last positions, as many as there are rows, on every position"""


class Places(NamedTuple):
    """Where the labels of a batch stand."""

    true: Bool[Tensor, "batch position"]
    """of demonstrations of the query's class"""
    other: Bool[Tensor, "batch position"]


def places_of(batch: Sequence[Encoded]) -> Places:
    """Of prompts of one length."""
    true, other = torch.zeros(2, len(batch), len(batch[0].ids), dtype=torch.bool)
    for row, e in enumerate(batch):
        for label, is_true in zip(e.label_positions, e.prompt.is_true, strict=True):
            (true if is_true else other)[row, label] = True
    return Places(true, other)


def attention_weights(
    query: Float[Tensor, "batch head position d_head"],
    key: Float[Tensor, "batch kv_head position d_head"],
    mask: Tensor | None,
    scaling: float,
    softcap: float | None,
) -> Weights:
    """Attention of every position from what a layer's attention is given (`reading_attention`)."""
    values, length = scores(query, key, scaling, softcap), key.shape[2]
    if mask is None:  # transformers leaves a plain causal mask away
        mask = torch.ones(length, length, dtype=torch.bool, device=key.device).tril()[None, None]
    return masked(values, mask[..., :length]).softmax(-1)


def preference(weights: Weights, places: Places) -> Float[Tensor, "batch head row"]:
    """Attention of every row on labels of the query's class minus that on the others, in [-1, 1]."""
    sign = (places.true.int() - places.other.int()).to(weights)
    return torch.einsum("bhqp,bp->bhq", weights, sign)


def reversed_weights(weights: Weights, places: Places) -> Weights:
    """The weights with the preference of every row reversed among the labels before it: see the module."""
    length, rows = weights.shape[-1], weights.shape[-2]
    before = torch.ones(length, length, dtype=torch.bool, device=weights.device).tril(-1)[-rows:]
    true, other = ((side.to(weights.device)[:, None, None] & before).to(weights) for side in places)
    sums = [(weights * side).sum(-1, keepdim=True) for side in (true, other)]
    new_weights = weights * (1 - true - other)
    for side, own, new in ((true, *sums), (other, *reversed(sums))):
        none = own < torch.finfo(weights.dtype).tiny
        share = torch.where(none, side / side.sum(-1, keepdim=True).clamp_min(1), weights * side / own.masked_fill(none, 1))
        new_weights = new_weights + share * new
    both = (true.sum(-1, keepdim=True) > 0) & (other.sum(-1, keepdim=True) > 0)
    return torch.where(both, new_weights, weights)


def weighted(weights: Weights, value: Float[Tensor, "batch kv_head position d_head"]) -> Float[Tensor, "batch head row d_head"]:
    """z of the rows: the values of each head's key-value group, weighted."""
    groups = weights.to(value.dtype).unflatten(1, (value.shape[1], -1))
    return torch.einsum("bkgqp,bkpd->bkgqd", groups, value).flatten(1, 2)


def reversing(model: Model, of_layers: Mapping[int, Weights], at: Bool[Tensor, "batch position"]) -> AbstractContextManager[None]:
    """A whole run of one batch in which the positions `at` have these weights, in all heads of these layers.

    Values are the run's own, and so is all attention of other positions.
    """
    return with_outputs(model, of_layers, lambda layer, _, __, value, *___: weighted(of_layers[layer].to(value.device), value), at)


@contextmanager
def with_outputs(
    model: Model,
    layers: Collection[int],
    output: Callable[..., Float[Tensor, "batch head position d_head"]],
    at: Bool[Tensor, "batch position"],
) -> Iterator[None]:
    """A whole run of one batch in which all heads of some layers feed `output(layer, query, key, value, mask, scaling, softcap)`
    to W_O at the positions `at`."""
    z: dict[int, Tensor] = {}

    def read(layer: int, *arguments) -> None:
        z[layer] = output(layer, *arguments).transpose(1, 2)

    def put(layer: int, own: Float[Tensor, "batch position head d_head"]) -> None:
        own[at.to(own.device)] = z.pop(layer)[at.to(own.device)].to(own)

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(reading_attention(model, layer, partial(read, layer)))
        stack.enter_context(changing_z(model, {layer: partial(put, layer) for layer in layers}))
        yield
