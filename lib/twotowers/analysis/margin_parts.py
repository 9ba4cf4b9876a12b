"""The margin between two labels, part by part: what each head, block and the embedding adds, and where heads look.

    parts = margin_parts(model, encoded)       # one forward pass, in a stream of batches
    parts.margin                               # log p(a) - log p(b) (nats); a, b: the first and second label
    parts.heads[i, layer, head]                # what the head adds to it, directly

With the final norm's scale frozen bs is linear (v1 appendix E), and the normaliser of the softmax cancels between two
words, so a vector v adds exactly `bs(v)[a] - bs(v)[b]` to the margin, and parts add up. Effects through later layers
are in the later layers' parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from twotowers.analysis.logit_changes import block_changes, logits
from twotowers.errors import TwoTowersError
from twotowers.model import unembed
from twotowers.model.capture import Capture, read_all
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded

MASKED = -1e4  # a score below it comes from a mask


@dataclass
class MarginParts:
    """Margins of n prompts and their parts, in nats, in float64.

    `embedding + attention.sum(1) + ffn.sum(1) + constant` is the margin, before a soft cap of the logits where a model
    has one (Gemma 2). `attention` is the sum of the layer's `heads` and of its output bias.
    """

    margin: Float[np.ndarray, " prompt"]
    """the model's own log p(a) - log p(b)"""
    embedding: Float[np.ndarray, " prompt"]
    attention: Float[np.ndarray, "prompt layer"]
    ffn: Float[np.ndarray, "prompt layer"]
    heads: Float[np.ndarray, "prompt layer head"]
    constant: Float[np.ndarray, " prompt"]
    """the biases of the final norm and of the unembedding, which bs-values leave out"""
    scores: Float[np.ndarray, "prompt layer head"] | None = None
    """mean attention score (before the softmax) of the last position on labels a less that on labels b"""


def margin_parts(
    model: Model, encoded: Sequence[Encoded], scores: bool = True, max_tokens: int = 4096, progress: str | None = None
) -> MarginParts:
    """The margin of every prompt between its first and second label, and its parts; `scores` costs one product a layer.

    Raises TwoTowersError for no prompts, other than two labels, and for `scores` a prompt that shows one label only or
    has labels outside a layer's sliding window.
    """
    if not encoded:
        raise TwoTowersError("no prompts to take apart: draw at least one")
    if wrong := next((e for e in encoded if len(e.label_ids) != 2), None):
        raise TwoTowersError(f"a prompt has {len(wrong.label_ids)} labels: a margin is between two")
    shape = (len(encoded), model.n_layers, model.n_heads)
    sizes = {"attention": shape[:2], "ffn": shape[:2], "heads": shape, "scores": shape}
    names = [field.name for field in fields(MarginParts) if scores or field.name != "scores"]
    out = {name: np.empty(sizes.get(name, shape[:1])) for name in names}

    def read(seen: Capture) -> None:
        for name, found in _parts(seen, model, scores).items():
            out[name][seen.index] = found.double().cpu().numpy()

    read_all(model, encoded, {"scores"} if scores else (), read, max_tokens, progress)
    return MarginParts(**out)


@torch.inference_mode()
def _parts(seen: Capture, model: Model, scores: bool) -> dict[str, Tensor]:
    e = model.unembedding
    words = torch.tensor([list(p.label_ids.values()) for p in seen.prompts], device=e.weight.device)
    of_words = e.weight[words].to(torch.promote_types(e.weight.dtype, torch.float32))
    difference = of_words[:, 0] - of_words[:, 1]  # E[a] - E[b]
    rows, scale = unembed.fold_norm(e, difference, "frozen", difference.dtype), unembed.norm_scale(seen.resid_final, e)
    attention, ffn, heads = block_changes(seen, model, rows)
    constant = torch.zeros_like(difference[:, 0])
    if e.norm_bias is not None:
        constant = constant + difference @ e.norm_bias.to(difference)
    if e.bias is not None:
        constant = constant + (e.bias[words[:, 0]] - e.bias[words[:, 1]]).to(constant)
    of_labels = seen.logits.to(rows.dtype).gather(1, words)
    found = {
        "margin": of_labels[:, 0] - of_labels[:, 1], "attention": attention, "ffn": ffn, "heads": heads,
        "embedding": logits(seen.resid_pre[0], rows, e, scale=scale), "constant": constant,
    }  # fmt: skip
    return found | ({"scores": _label_scores(seen)} if scores else {})


def _label_scores(seen: Capture) -> Float[Tensor, "batch layer head"]:
    sign = torch.zeros(seen.scores.shape[1], seen.scores.shape[3], dtype=seen.scores.dtype, device=seen.scores.device)
    for row, one in enumerate(seen.prompts):
        first = one.prompt.labels[0]
        shows_first = [d.label == first for d in one.prompt.demonstrations]
        if len(set(shows_first)) != 2:
            raise TwoTowersError("a prompt shows one label only, so attention has nothing to choose: draw both classes")
        for place, is_first in zip(one.label_positions, shows_first, strict=True):
            sign[row, place] = 1 / sum(shows_first) if is_first else -1 / shows_first.count(False)
    at_labels = seen.scores.masked_fill(sign[None, :, None] == 0, 0.0)
    if (at_labels < MASKED).any():
        raise TwoTowersError("a sliding window hides labels from the last position: take shorter prompts")
    return torch.einsum("lbhp,bp->blh", at_labels, sign)
