"""What a vector adds to the logit of a word, and to the lead of one label over another: no walk over the vocabulary.

For v added at x, and the followed word w (paper, Definitions), the increase has two parts, in nats:

    I = log p(w | x + v) - log p(w | x) = change of w's logit - change of the log-sum-exp of all logits

The second is the same for every word. So between two labels it cancels, whatever the reading of the norm:

    margin = I_true - I_other = change of (logit of the true label - logit of the other)

A logit is one inner product: `logit(y) = row . y / s`, with a row for each prompt from `word_rows` or `margin_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from twotowers.model.capture import Capture
from twotowers.model.model import Model, Unembedding
from twotowers.model.unembed import divisor, fold_norm, norm_scale


@dataclass
class Changes:
    """One number (nats) of every attention block, FFN block and head for n prompts."""

    attention: Float[np.ndarray, "prompt layer"]
    ffn: Float[np.ndarray, "prompt layer"]
    heads: Float[np.ndarray, "prompt layer head"]

    @classmethod
    def empty(cls, prompts: int, layers: int, heads: int) -> Changes:
        return cls(np.empty((prompts, layers)), np.empty((prompts, layers)), np.empty((prompts, layers, heads)))

    def put(self, at: Sequence[int], attention: Tensor, ffn: Tensor, heads: Tensor) -> None:
        """Fill in the prompts `at`."""
        for into, found in ((self.attention, attention), (self.ffn, ffn), (self.heads, heads)):
            into[at] = found.cpu().numpy()


def word_rows(model: Model, words: Int[Tensor, "batch"], norm: str = "frozen") -> Float[Tensor, "batch d_model"]:
    """Rows of E for one word a prompt, the final norm's weight and centring folded in."""
    e = model.unembedding
    return fold_norm(e, e.weight[words], norm, torch.promote_types(e.weight.dtype, torch.float32))


def margin_rows(capture: Capture, model: Model, norm: str = "frozen") -> Float[Tensor, "batch d_model"]:
    """The true label's row less that of the other label (the mean of the others where a prompt has more than two)."""
    e = model.unembedding
    wide = torch.promote_types(e.weight.dtype, torch.float32)
    words = torch.tensor([list(p.label_ids.values()) for p in capture.prompts], device=e.weight.device)
    sign = torch.where(words == capture.true_ids[:, None], 1.0, -1 / (words.shape[1] - 1)).to(wide)
    return fold_norm(e, torch.einsum("bl,bld->bd", sign, e.weight[words].to(wide)), norm, wide)


def logits(
    y: Float[Tensor, "batch *vectors d_model"],
    rows: Float[Tensor, "batch d_model"],
    unembedding: Unembedding,
    norm: str = "frozen",
    scale: Float[Tensor, "batch"] | None = None,
) -> Float[Tensor, "batch *vectors"]:
    """`row . y / s`: the bs-value of each prompt's word, or the difference of two. `scale` is the frozen s."""
    y = y.to(rows.dtype)
    if scale is not None:
        scale = scale.reshape(-1, *[1] * (y.dim() - 2))
    return torch.einsum("b...d,bd->b...", y, rows) / divisor(y, unembedding, norm, scale)


def logit_change(
    x: Float[Tensor, "batch d_model"],
    v: Float[Tensor, "batch *vectors d_model"],
    rows: Float[Tensor, "batch d_model"],
    unembedding: Unembedding,
    norm: str = "frozen",
    scale: Float[Tensor, "batch"] | None = None,
) -> Float[Tensor, "batch *vectors"]:
    """What each vector adds to the logit (nats) when it is added at x. Linear in v unless the norm is recomputed."""
    if norm != "recomputed":
        return logits(v, rows, unembedding, norm, scale)
    x = x.reshape(len(x), *[1] * (v.dim() - 2), -1)
    return logits(x + v, rows, unembedding, norm) - logits(x, rows, unembedding, norm)


def block_changes(
    capture: Capture, model: Model, rows: Float[Tensor, "batch d_model"], norm: str = "frozen"
) -> tuple[Float[Tensor, "batch layer"], Float[Tensor, "batch layer"], Float[Tensor, "batch layer head"]]:
    """What every attention block, FFN block and head adds to a logit, each at the x of its increase (see `locate`)."""
    e, found = model.unembedding, []
    scale = norm_scale(capture.resid_final, e)
    for layer in range(model.n_layers):
        x, attention, ffn, z = (
            of[layer].to(rows) for of in (capture.resid_pre, capture.attention_output, capture.ffn_output, capture.z)
        )
        heads = torch.einsum("bhk,hkd->bhd", z, model.output_weight(layer).to(rows))
        added = ((x, attention), (x + attention, ffn), (x, heads))
        found.append([logit_change(at, v, rows, e, norm, scale) for at, v in added])
    attention, ffn, heads = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
    return attention, ffn, heads


def position_changes(
    capture: Capture, model: Model, rows: Float[Tensor, "batch d_model"], heads: Sequence[tuple[int, int]]
) -> Float[Tensor, "batch head position"]:
    """What some heads add to a logit (nats) from each position, `alpha * vo` with the scale frozen: over the positions
    of a head these add up to what the head adds. Needs want={"weights", "values"}."""
    capture.require("weights", "values")
    e, found = model.unembedding, []
    scale = norm_scale(capture.resid_final, e)
    for layer, head in heads:
        values = capture.values[layer][:, head // (model.n_heads // model.n_key_value_heads)]
        weighted = (capture.weights[layer][:, head, :, None].to(values.dtype) * values).to(rows)
        written = weighted @ model.output_weight(layer)[head].to(rows)
        found.append(logits(written, rows, e, "frozen", scale))
    return torch.stack(found, 1)
