"""What the last position looks at, in every head at once: weights and scores on label positions (v1 section 4.4).

    found = read_labels(model, encoded)     # one forward pass
    found.difference()                      # (prompt, layer, head): attention on true labels less that on false ones
    found.separation()                      # (prompt, layer, head): AUC within the prompt

`attention` reads a few heads more closely: increases, and the queries and keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from twotowers.analysis.attention import check_labels_left
from twotowers.model.answers import Answers
from twotowers.model.capture import Capture, read_all
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded


@dataclass
class AtLabels:
    """Attention of the last position on every label position. `true`: does it carry the query's label?

    `scores` are in nats, as the model compares them (rotated, with a soft cap where there is one); `margin` is log p of
    the true label less that of the likeliest other label (nats).
    """

    weights: Float[np.ndarray, "prompt layer head label"]
    scores: Float[np.ndarray, "prompt layer head label"]
    true: Bool[np.ndarray, "prompt label"]
    margin: Float[np.ndarray, "prompt"]

    def __getitem__(self, at: slice) -> AtLabels:
        """Some of the prompts."""
        return AtLabels(self.weights[at], self.scores[at], self.true[at], self.margin[at])

    def total(self, kind: bool) -> Float[np.ndarray, "prompt layer head"]:
        """Weight summed over true labels, or over false ones."""
        return np.einsum("nlhk,nk->nlh", self.weights, (self.true == kind).astype(self.weights.dtype))

    def difference(self) -> Float[np.ndarray, "prompt layer head"]:
        """Weight on all true labels less that on all false ones, in [-1, 1]."""
        return self.total(True) - self.total(False)

    def separation(self) -> Float[np.ndarray, "prompt layer head"]:
        """Share of (true label, false label) pairs of a prompt in which the true one scores higher; ties count half.

        Its mean is the area under the ROC curve within prompts (AUC): 0.5 is chance, 1 is never wrong.
        """
        out = np.zeros(self.scores.shape[:3])
        for i in range(self.true.shape[1]):
            for j in range(self.true.shape[1]):
                a, b = self.scores[..., i], self.scores[..., j]
                pair = (self.true[:, i] & ~self.true[:, j])[:, None, None]
                out += pair * ((a > b) + 0.5 * (a == b))
        return out / (self.true.sum(1) * (~self.true).sum(1))[:, None, None]


def read_labels(
    model: Model, encoded: Sequence[Encoded], max_tokens: int = 4096, progress: str | None = None
) -> AtLabels:
    """Weights and scores of every head at every label position.

    Raises TwoTowersError for prompts without both a true and a false demonstration, and for sets whose prompts differ
    in their number of demonstrations.
    """
    check_labels_left(encoded)
    shape = (len(encoded), model.n_layers, model.n_heads, len(encoded[0].label_positions))
    weights, scores = np.empty((2, *shape))
    margin = np.empty(len(encoded))

    def read(seen: Capture) -> None:
        at = seen.label_positions[:, None].expand(-1, model.n_heads, -1)
        for layer in range(model.n_layers):
            weights[seen.index, layer] = seen.weights[layer].gather(2, at).float().cpu().numpy()
            scores[seen.index, layer] = seen.scores[layer].gather(2, at).float().cpu().numpy()
        margin[seen.index] = Answers.of(seen).margin

    read_all(model, encoded, {"weights", "scores"}, read, max_tokens, progress)
    return AtLabels(weights, scores, np.array([e.prompt.is_true for e in encoded]), margin)
