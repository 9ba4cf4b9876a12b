"""Attention on labels: their positions, the attention difference, and swapped attention.

    >>> places = torch.tensor([[1, -1, 0]])  # a label of the query's class, one of the other
    >>> weights = torch.tensor([[[[0.6, 0.1, 0.3]]]])  # of one head at the last position
    >>> attention_difference(weights, places), swapped_weights(weights, places)
    (tensor([[[0.5000]]]), tensor([[[[0.1000, 0.6000, 0.3000]]]]))

*Swapped* attention exchanges the two classes in a head's attention. At every position that attends
to labels of both classes before it, the sums of attention on the two classes' labels are exchanged.
Within a class each label keeps its share of the sum, all other positions keep their weights, and
values do not change. If a class has no attention at all, there are no shares, and its new sum is
spread evenly over its labels. So the weights still add up to one, no number grows, and a head with
two equal sums does not change.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from towerlab.prompts.prompt import Prompts

Weights = Float[Tensor, "batch head row position"]
"""Attention of the last positions, one for each row, on every position"""


Places = Int[Tensor, "batch position"]
"""1 at labels of the query's class, -1 at those of the other class, 0 elsewhere"""


def places_of(batch: Prompts) -> Places:
    """Return the positions of the labels of prompts, with the sign of their class.

    Args:
        batch: Prompts of one token length.

    Returns:
        Signs (batch, position): see `Places`.
    """
    places = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.int8)
    for row, e in enumerate(batch):
        for label, is_true in zip(e.label_positions, e.prompt.is_true, strict=True):
            places[row, label] = 1 if is_true else -1
    return places


def attention_difference(weights: Weights, places: Places) -> Float[Tensor, "batch head row"]:
    """Return the attention on labels of the query's class minus the other labels.

    Args:
        weights: Attention weights (batch, head, row, position).
        places: Signs of the label positions (batch, position).

    Returns:
        Differences (batch, head, row), in [-1, 1].
    """
    return torch.einsum("bhqp,bp->bhq", weights, places.to(weights))


def swapped_weights(weights: Weights, places: Places) -> Weights:
    """Return attention weights with the sums on the two classes' labels exchanged.

    Only labels before each row count: see the module.

    Args:
        weights: Attention weights (batch, head, row, position).
        places: Signs of the label positions (batch, position).

    Returns:
        Swapped weights (batch, head, row, position).
    """
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
    """Return the share of each label in the attention on its class, or equal shares if it is 0."""
    own = weights * side
    total = own.sum(-1, keepdim=True)
    none = total < torch.finfo(weights.dtype).tiny
    return torch.where(
        none, side / side.sum(-1, keepdim=True).clamp_min(1), own / total.masked_fill(none, 1)
    )
