"""Answers with heads ablated, at all positions or at the last one.

    top, log_prob = at_all(model, batch, [Ablation(heads), Ablation(others)])        # the plain run comes first
    top, log_prob = at_last(model, batch, [Ablation(heads)])

Layers below the lowest ablated head are those of the plain run, so an ablated run begins at that head's layer: a head of layer
l of L costs L - l blocks. Ablated at the last position only, a version is a row of `last_position`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from twotowers.heads import Head

from towerlab.model.capture import label_log_probs
from towerlab.model.hooks import block_outputs, changing_z, restarted
from towerlab.model.last_position import UNCHANGED, Edit, LastPosition, LayerState, TopAndLogProbs
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded


@dataclass(frozen=True, eq=False)
class Ablation:
    """Heads (at least one) whose input to W_O is replaced by zero."""

    heads: frozenset[Head]

    def apply(self, layer: int, z: Float[Tensor, "*rows head d_head"]) -> None:
        """Replace the rows of the layer's ablated heads in place."""
        z[..., [head for at, head in self.heads if at == layer], :] = 0

    def edit(self) -> Edit:
        """The same at the last position only."""

        def output(layer: int, heads: list[int], state: LayerState) -> Float[Tensor, "batch head d_head"]:
            z = state.z.clone()
            self.apply(layer, z)
            return z[:, heads]

        return Edit(sorted(self.heads), output)


@torch.inference_mode()
def at_all(model: Model, batch: Sequence[Encoded], ablations: Sequence[Ablation]) -> TopAndLogProbs:
    """The answers of the plain run, then with heads ablated at all positions: (version, prompt), (version, prompt, label)."""
    begins = [min(layer for layer, _ in ablation.heads) for ablation in ablations]
    with block_outputs(model, [layer - 1 for layer in set(begins) if layer]) as outputs:
        answers = [label_log_probs(model.logits(batch), batch)]
    for first, ablation in zip(begins, ablations, strict=True):
        changes = {layer: partial(ablation.apply, layer) for layer, _ in ablation.heads}
        with restarted(model, first, outputs.get(first - 1)), changing_z(model, changes):
            answers.append(label_log_probs(model.logits(batch), batch))
    return tuple(map(torch.stack, zip(*answers, strict=True)))


def at_last(model: Model, batch: Sequence[Encoded], ablations: Sequence[Ablation]) -> TopAndLogProbs:
    """As `at_all`, for heads ablated at the last position only. Memory: see `last_position`."""
    return LastPosition(model, batch).answers([UNCHANGED, *(ablation.edit() for ablation in ablations)])
