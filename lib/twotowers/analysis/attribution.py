"""Attribution patching: what taking a head away would cost, estimated for all heads from one backward pass.

    attribution_patching(model, encoded)                      # each head zeroed
    attribution_patching(model, encoded, replacement=mean)    # each head replaced by its mean (edit_heads.mean_fed)
    attribution_patching(model, encoded, corrupt)             # each head replaced by what it does in other prompts

The first-order estimate of `ablate.ablate_heads`: gradient of a metric with respect to what every head feeds to W_O,
times what would change there (Nanda 2023, Attribution patching; Syed et al. 2023, Attribution patching outperforms
automated circuit discovery). It is exact where the rest of the model is linear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from twotowers.errors import TwoTowersError
from twotowers.model.memory import in_memory
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded, batches

Metric = Callable[[Float[Tensor, "batch vocabulary"], Sequence[Encoded]], Float[Tensor, "batch"]]


def margin(logits: Float[Tensor, "batch vocabulary"], encoded: Sequence[Encoded]) -> Float[Tensor, "batch"]:
    """log p(true label) - log p(other label) in nats; the mean of the others where a prompt has more than two."""
    words = torch.tensor([list(e.label_ids.values()) for e in encoded], device=logits.device)
    true = torch.tensor([e.true_id for e in encoded], device=logits.device)
    sign = torch.where(words == true[:, None], 1.0, -1 / (words.shape[1] - 1)).to(logits)
    return (logits.gather(1, words) * sign).sum(-1)


def attribution_patching(
    model: Model,
    encoded: Sequence[Encoded],
    corrupt: Sequence[Encoded] | None = None,
    *,
    replacement: Float[Tensor, "layer head d_head"] | None = None,
    positions: str = "all",
    metric: Metric = margin,
    max_tokens: int = 512,
    progress: str | None = None,
) -> Float[np.ndarray, "prompt layer head"]:
    """Estimated loss of the metric (nats of margin) when each head is replaced: above zero, the head helps.

    In place of a head's own output comes what it does in the prompt of `corrupt` with the same number, or a row of
    `replacement`, or zero when neither is given; at "all" positions or the "last". Cost: a forward and a backward pass,
    and with `corrupt` one more forward pass. Memory: all activations of `max_tokens` tokens. Raises TwoTowersError for
    no prompts, both replacements, and pairs of unequal length.
    """
    if positions not in ("all", "last"):
        raise TwoTowersError(f"positions='{positions}': choose 'all' or 'last'")
    if not encoded:
        raise TwoTowersError("no prompts to attribute: draw at least one")
    if corrupt is not None and replacement is not None:
        raise TwoTowersError("two things in place of a head: give other prompts or a replacement, not both")
    if corrupt is not None and [len(e.ids) for e in corrupt] != [len(e.ids) for e in encoded]:
        raise TwoTowersError("each prompt needs one of as many tokens in its place: see datasets.with_other_class_text")

    def run(index: list[int], batch: list[Encoded]) -> Float[np.ndarray, "batch layer head"]:
        with torch.enable_grad():
            z, logits = _run(model, batch)
            gradients = torch.autograd.grad(metric(logits, batch).sum(), z)
        with torch.no_grad():
            others = None if corrupt is None else _run(model, [corrupt[i] for i in index])[0]
        found = np.empty((len(batch), model.n_layers, model.n_heads))
        for layer, (own, gradient) in enumerate(zip(z, gradients, strict=True)):
            other = 0.0
            if others is not None:
                other = others[layer]
            elif replacement is not None:
                other = replacement[layer].flatten().to(own)
            lost = (own.detach() - other) * gradient
            lost = lost if positions == "all" else lost[:, -1:]
            found[:, layer] = lost.unflatten(-1, (model.n_heads, -1)).sum((1, 3)).cpu().numpy()
        return found

    out = np.empty((len(encoded), model.n_layers, model.n_heads))
    with tqdm(total=len(encoded), desc=progress, disable=progress is None, unit="prompt", leave=False) as bar:
        for index, found in in_memory(run, batches(encoded, max_tokens)):
            out[index] = found
            bar.update(len(index))
    return out


def _run(model: Model, batch: Sequence[Encoded]) -> tuple[list[Tensor], Float[Tensor, "batch vocabulary"]]:
    """What the heads of each layer feed to W_O, (batch, position, head * d_head), and the logits, in one graph."""
    z: list[Tensor] = []
    with _collecting(model, z):
        logits = model.logits(batch)
    return z, logits.to(torch.promote_types(logits.dtype, torch.float32))


@contextmanager
def _collecting(model: Model, z: list[Tensor]) -> Iterator[None]:
    def hook(_, args):
        # The parameters have no gradient, so the graph begins at the first layer's heads.
        found = args[0] if args[0].requires_grad or not torch.is_grad_enabled() else args[0].detach().requires_grad_()
        z.append(found)
        return (found, *args[1:])

    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.callback(model.part(layer, "attention_out").register_forward_pre_hook(hook).remove)
        yield
