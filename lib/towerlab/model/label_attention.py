"""Attention on labels: the difference between the two classes, and weights with other sums.

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

from towerlab.model.attention import Weights
from towerlab.prompts.prompt import Prompts

Places = Int[Tensor, "batch position"]
"""1 at labels of the query's class, -1 at those of the other class, 0 elsewhere"""


def places_of(batch: Prompts) -> Places:
    """Return the positions of the labels of prompts, with the sign of their class.

    Args:
        batch: Prompts of one token length.

    Returns:
        Signs (batch, position): see `Places`.
    """
    n_prompts = len(batch)
    n_tokens = len(batch[0].ids)
    places = torch.zeros(n_prompts, n_tokens, dtype=torch.int8)
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
    signs = places.to(weights)
    return torch.einsum("bhqp,bp->bhq", weights, signs)


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
    device = weights.device
    square = torch.ones(length, length, dtype=torch.bool, device=device)
    before = square.tril(-1)[-rows:]
    labels = places.to(device)[:, None, None] * before
    true = (labels == 1).to(weights)
    other = (labels == -1).to(weights)
    true_sum = (weights * true).sum(-1, keepdim=True)
    other_sum = (weights * other).sum(-1, keepdim=True)
    swapped = (
        weights * (1 - true - other)
        + _shares(weights, true) * other_sum
        + _shares(weights, other) * true_sum
    )
    has_true = true.any(-1, keepdim=True)
    has_other = other.any(-1, keepdim=True)
    return torch.where(has_true & has_other, swapped, weights)


def with_class_sums(
    weights: Weights,
    places: Places,
    true_sum: Float[Tensor, "batch head row 1"],
    other_sum: Float[Tensor, "batch head row 1"],
) -> Weights:
    """Return attention weights with given sums on the labels of the two classes.

    Within a class each label keeps its share of the sum, and all other positions keep their shares
    of the rest. If a class, or the rest, has no attention at all, its new sum is spread evenly.

        >>> weights = torch.tensor([[[[0.1, 0.3, 0.2, 0.0, 0.4]]]])
        >>> true_sum, other_sum = torch.tensor([[[[0.2]]]]), torch.tensor([[[[0.5]]]])
        >>> with_class_sums(weights, torch.tensor([[1, 1, -1, -1, 0]]), true_sum, other_sum)
        tensor([[[[0.0500, 0.1500, 0.5000, 0.0000, 0.3000]]]])
        >>> with_class_sums(weights, torch.tensor([[1, 1, 0, -1, 0]]), true_sum, other_sum)
        tensor([[[[0.0500, 0.1500, 0.1000, 0.5000, 0.2000]]]])

    Args:
        weights: Attention weights (batch, head, row, position).
        places: Signs of the label positions (batch, position).
        true_sum: Attention on labels of the query's class (batch, head, row, 1).
        other_sum: Attention on labels of the other class (batch, head, row, 1).

    Returns:
        Weights with these sums, which add up to 1 (batch, head, row, position).
    """
    labels = places.to(weights.device)[:, None, None]
    true = (labels == 1).to(weights)
    other = (labels == -1).to(weights)
    rest = (labels == 0).to(weights)
    true_sum = true_sum.to(weights)
    other_sum = other_sum.to(weights)
    return (
        _shares(weights, true) * true_sum
        + _shares(weights, other) * other_sum
        + _shares(weights, rest) * (1 - true_sum - other_sum)
    )


def _shares(weights: Weights, side: Float[Tensor, "batch 1 row position"]) -> Weights:
    """Return the share of each label in the attention on its class, or equal shares if it is 0."""
    on_side = weights * side
    total = on_side.sum(-1, keepdim=True)
    tiny = torch.finfo(weights.dtype).tiny
    no_attention = total < tiny
    shares = on_side / total.masked_fill(no_attention, 1)
    n_labels = side.sum(-1, keepdim=True)
    equal_shares = side / n_labels.clamp_min(1)
    return torch.where(no_attention, equal_shares, shares)
