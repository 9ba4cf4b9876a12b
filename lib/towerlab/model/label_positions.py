"""What a capture holds of labels: values at label positions, and the row that reads a vector as a logit difference.

row = logit_difference_rows(capture, model)              # row . v: what v adds to the logit of the true label over the other
label_values(capture, model, layer) @ W_O                # the value-output vectors at label positions
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from twotowers.errors import TwoTowersError

from towerlab.model import unembed
from towerlab.model.capture import Capture
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded


def check_labels_left(encoded: Sequence[Encoded]) -> None:
    """Raise TwoTowersError unless every prompt has both kinds of labels, and all have as many demonstrations."""
    if not encoded:
        raise TwoTowersError("no prompts to measure: draw at least one block")
    if any(len(set(e.prompt.is_true)) != 2 for e in encoded):
        raise TwoTowersError("a prompt lacks a true or a false demonstration: draw with k of at least 1")
    if len({len(e.label_positions) for e in encoded}) != 1:
        raise TwoTowersError("prompts with different numbers of demonstrations: measure them apart")


def logit_difference_rows(capture: Capture, model: Model) -> Float[Tensor, "batch d_model"]:
    """The true label's row of E minus the other's, the final norm's weight and centring folded in, divided by its scale
    at the last position: `row . v` is what a vector v adds to the logit difference (nats)."""
    unembedding = model.unembedding
    wide = torch.promote_types(unembedding.weight.dtype, torch.float32)
    true, other = torch.tensor([e.label_pair for e in capture.prompts], device=unembedding.weight.device).T
    rows = unembed.fold_norm(unembedding, unembedding.weight[true].to(wide) - unembedding.weight[other].to(wide), wide)
    return rows / unembed.norm_scale(capture.resid_final, unembedding).to(wide)[:, None]


def label_values(capture: Capture, model: Model, layer: int) -> Float[Tensor, "batch head place d_head"]:
    """Every query head's value vector at every label position (grouped-query attention: shared ones repeated)."""
    capture.require("values")
    assert capture.values is not None
    values, at = capture.values[layer], capture.label_positions
    values = values.gather(2, at[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[-1]))
    return values.repeat_interleave(model.n_heads // model.n_key_value_heads, dim=1)


def own_label_sign(capture: Capture, like: Tensor) -> Float[Tensor, "batch place"]:
    """+1 at the positions of the true label, -1 at those of the other."""
    return torch.tensor([[1.0 if true else -1.0 for true in e.prompt.is_true] for e in capture.prompts]).to(like)
