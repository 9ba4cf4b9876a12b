"""Attribution patching: what ablating each head would cost, estimated for all heads from one backward pass.

The first-order estimate of zero ablation: the gradient of the logit difference with respect to what a head feeds to
W_O, times what it feeds there, summed over positions (Nanda 2023, "Attribution patching"; Syed et al. 2023,
"Attribution patching outperforms automated circuit discovery"). Exact where the rest of the model is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from towerlab.model.memory import run_batches
from towerlab.model.model import Model, widen
from towerlab.prompts.prompt import Encoded


def attribution_patching(model: Model, encoded: Sequence[Encoded], max_tokens: int = 512) -> Float[np.ndarray, "prompt layer head"]:
    """Estimated logit difference (nats) lost when each head is zeroed at all positions: above zero, the head helps.

    Cost: a forward and a backward pass. Memory: all activations of `max_tokens` tokens.
    """

    out = np.empty((len(encoded), model.n_layers, model.n_heads))

    def run(index: list[int], batch: list[Encoded]) -> None:
        z: list[Tensor] = []

        def collect(_, args):
            # No parameter needs a gradient, so the graph begins at the first layer's heads.
            heads_input = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
            z.append(heads_input)
            return (heads_input, *args[1:])

        with torch.enable_grad(), ExitStack() as stack:
            for layer in range(model.n_layers):
                stack.enter_context(model.part(layer, "attention_out").register_forward_pre_hook(collect))
            gradients = torch.autograd.grad(_logit_difference(model.logits(batch), batch).sum(), z)
        cost = [(x * slope).detach().unflatten(-1, (model.n_heads, -1)) for x, slope in zip(z, gradients, strict=True)]
        out[index] = torch.stack([x.sum((1, 3)).cpu() for x in cost], 1).double().numpy()

    run_batches("attribution", encoded, max_tokens, run)
    return out


def _logit_difference(logits: Float[Tensor, "batch vocabulary"], batch: Sequence[Encoded]) -> Float[Tensor, "batch"]:
    """Logit of the true label minus that of the other (nats)."""
    words = [e.label_pair for e in batch]
    pair = widen(logits).gather(1, torch.tensor(words, device=logits.device))
    return pair[:, 0] - pair[:, 1]
