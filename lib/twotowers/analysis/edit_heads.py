"""Edit heads while the model runs: zero, scale or replace what they write, then restore the model.

    with edited(model, [Edit(heads=((22, 0), (19, 11)))]):       # zero two heads at all positions
        increases(model, encoded)

An edit is data: which heads, which positions, what. Edits compose; the model is always restored, also after an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from twotowers.analysis.locate import Head, check_heads
from twotowers.errors import TwoTowersError
from twotowers.model.capture import answer
from twotowers.model.hooks import changing_z
from twotowers.model.memory import in_memory
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded, batches


@dataclass(frozen=True)
class Edit:
    """Multiply the mixed values of some heads by `scale` (0 = zero them), then add `replacement` when given.

    `heads` are (layer, head); `positions` is "all" or "last". `replacement` (head, d_head), one row per head, is what a
    head writes instead when `scale` is 0, for example the mean over prompts of `capture.attention_out_input`.
    """

    heads: tuple[tuple[int, int], ...]
    scale: float = 0.0
    positions: str = "all"
    replacement: Float[Tensor, "head d_head"] | None = None

    def __post_init__(self):
        if self.positions not in ("all", "last"):
            raise TwoTowersError(f"positions='{self.positions}': choose 'all' or 'last'")


@contextmanager
def edited(model: Model, edits: Sequence[Edit]) -> Iterator[None]:
    """The model under `edits`, in their order; restored on the way out, whatever happens inside."""
    with ExitStack() as stack:
        for edit in edits:
            layers = {layer for layer, _ in check_heads(edit.heads, model)}
            stack.enter_context(changing_z(model, {layer: partial(_change, edit, layer) for layer in layers}))
        yield


def _change(edit: Edit, layer: int, z: Float[Tensor, "batch position head d_head"]) -> None:
    z = z if edit.positions == "all" else z[:, -1:]
    for i, (at, head) in enumerate(edit.heads):
        if at == layer:
            z[..., head, :] *= edit.scale
            if edit.replacement is not None:
                z[..., head, :] += edit.replacement[i].to(z)


def all_heads(model: Model) -> list[Head]:
    """Every head of the model as (layer, head), layer by layer."""
    return [Head(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]


@torch.inference_mode()
def mean_fed(
    model: Model, encoded: Sequence[Encoded], positions: str = "last", max_tokens: int = 4096
) -> Float[Tensor, "layer head d_head"]:
    """What every head feeds to W_O, averaged over prompts at the last position, or over "all" positions of all prompts.

    What a mean ablation puts in a head's place: `tracing.zero_each(instead=...)`, or the rows of `Edit.replacement`.
    """
    if positions not in ("all", "last"):
        raise TwoTowersError(f"positions='{positions}': choose 'all' or 'last'")
    if not encoded:
        raise TwoTowersError("no prompts to average over: draw at least one")
    total, sums = torch.zeros(2, model.n_layers, model.n_heads, model.d_head, dtype=torch.float64)

    def adding(layer: int):
        def hook(_, args):
            rows = args[0] if positions == "all" else args[0][:, -1:]
            sums[layer] = rows.double().sum((0, 1)).reshape(model.n_heads, model.d_head).cpu()

        return hook

    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.callback(model.part(layer, "attention_out").register_forward_pre_hook(adding(layer)).remove)
        # Added only when a batch is done: one that does not fit in memory ends halfway up.
        for _ in in_memory(lambda _, batch: answer(model, batch), batches(encoded, max_tokens)):
            total += sums
    return total / sum(len(e.ids) if positions == "all" else 1 for e in encoded)
