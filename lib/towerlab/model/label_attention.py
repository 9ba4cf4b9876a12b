"""Attention on labels: where they stand, the attention difference, and attention swapped between
the classes.

    >>> places = torch.tensor([[1, -1, 0]])  # a label of the query's class, one of the other
    >>> weights = torch.tensor([[[[0.6, 0.1, 0.3]]]])  # of one head at the last position
    >>> attention_difference(weights, places), swapped_weights(weights, places)
    (tensor([[[0.5000]]]), tensor([[[[0.1000, 0.6000, 0.3000]]]]))

*Swapped* attention asks: what if the head had looked the other way round? At every position that
looks back at labels of both classes, the sums of attention on the two classes' labels change
places. Within a class each label keeps its share of the sum, all else keeps its weight, and values
stay. Where a class has no attention at all there are no shares: what it is given is spread evenly
over its labels. So the weights still add up to one, no number grows, and a head whose two sums are
equal stays as it is.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from towerlab.prompts.prompt import Prompts

Weights = Float[Tensor, "batch head row position"]
"""Attention of the last positions, as many as there are rows, on every position"""


Places = Int[Tensor, "batch position"]
"""1 at labels of the query's class, -1 at those of the other class, 0 elsewhere"""


def places_of(batch: Prompts) -> Places:
    """Return where the labels of prompts of one length are."""
    places = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.int8)
    for row, e in enumerate(batch):
        for label, is_true in zip(e.label_positions, e.prompt.is_true, strict=True):
            places[row, label] = 1 if is_true else -1
    return places


def attention_difference(weights: Weights, places: Places) -> Float[Tensor, "batch head row"]:
    """Attention of every row on labels of the query's class minus that on the others, in [-1,
    1]."""
    return torch.einsum("bhqp,bp->bhq", weights, places.to(weights))


def swapped_weights(weights: Weights, places: Places) -> Weights:
    """The weights with the attention difference of every row turned round among the labels before
    it: see the module."""
    rows, length = weights.shape[-2:]
    before = torch.ones(length, length, dtype=torch.bool, device=weights.device).tril(-1)[-rows:]
    labels = places.to(weights.device)[:, None, None] * before
    true, other = ((labels == side).to(weights) for side in (1, -1))
    on_true, on_other = ((weights * side).sum(-1, keepdim=True) for side in (true, other))
    swapped = (
        weights * (1 - true - other)
        + _shares(weights, true) * on_other
        + _shares(weights, other) * on_true
    )
    both = true.any(-1, keepdim=True) & other.any(-1, keepdim=True)
    return torch.where(both, swapped, weights)


def _shares(weights: Weights, side: Float[Tensor, "batch 1 row position"]) -> Weights:
    """The share of each label of a class in the attention on them; where there is none, all
    alike."""
    own = weights * side
    total = own.sum(-1, keepdim=True)
    none = total < torch.finfo(weights.dtype).tiny
    return torch.where(
        none, side / side.sum(-1, keepdim=True).clamp_min(1), own / total.masked_fill(none, 1)
    )
