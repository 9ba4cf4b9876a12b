"""Edit heads while the model runs: zero, scale or replace what they write, then restore the model.

    with edited(model, [Edit(heads=((22, 0), (19, 11)))]):       # zero two heads at all positions
        increases(model, encoded)

An edit is data: which heads, which positions, what. Edits compose; the model is always restored, also after an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from twotowers.architectures import Model
from twotowers.capture import predict
from twotowers.errors import TwoTowersError
from twotowers.prompts import Encoded

Head = tuple[int, int]


@dataclass(frozen=True)
class Edit:
    """Multiply the mixed values of some heads by `scale` (0 = zero them), then add `replacement` when given.

    `heads` are (layer, head); `positions` is "all" or "last". `replacement` (head, d_head), one row per head, is what a
    head writes instead when `scale` is 0, for example its mean over prompts.
    """

    heads: tuple[Head, ...]
    scale: float = 0.0
    positions: str = "all"
    replacement: Float[Tensor, "head d_head"] | None = None

    def __post_init__(self):
        if self.positions not in ("all", "last"):
            raise TwoTowersError(f"positions='{self.positions}': choose 'all' or 'last'")


def check_heads(heads: Sequence[Head], model: Model) -> tuple[Head, ...]:
    """Return the heads as tuples; raise TwoTowersError for an empty set or a head outside the model."""
    if not heads:
        raise TwoTowersError("no heads given: name at least one as layer-head, for example 2-5")
    for layer, head in heads:
        if not (0 <= layer < model.n_layers and 0 <= head < model.n_heads):
            raise TwoTowersError(
                f"head {layer}-{head} is not in {model.name}: layers go to {model.n_layers - 1}, "
                f"heads to {model.n_heads - 1}"
            )
    return tuple((int(layer), int(head)) for layer, head in heads)


@contextmanager
def edited(model: Model, edits: Sequence[Edit]) -> Iterator[None]:
    """The model under `edits`, in their order; restored on the way out, whatever happens inside."""
    with ExitStack() as stack:
        for edit in edits:
            check_heads(edit.heads, model)
            for layer in sorted({layer for layer, _ in edit.heads}):
                handle = model.part(layer, "attention_out").register_forward_pre_hook(_hook(model, edit, layer))
                stack.callback(handle.remove)
        yield


def _hook(model: Model, edit: Edit, layer: int):
    rows = [(i, head) for i, (at, head) in enumerate(edit.heads) if at == layer]

    def hook(_, args):
        mixed = args[0].clone()
        by_head = mixed.view(*mixed.shape[:-1], model.n_heads, model.d_head)
        target = by_head if edit.positions == "all" else by_head[:, -1:]
        for i, head in rows:
            target[..., head, :] *= edit.scale
            if edit.replacement is not None:
                target[..., head, :] += edit.replacement[i].to(mixed)
        return (mixed, *args[1:])

    return hook


def effect_of_zeroing(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[Head],
    positions: str = "all",
    progress: str | None = None,
) -> pd.DataFrame:
    """Zero each head in turn, one run of the model a head (causal mediation, v1 section 6.2).

    One row per head: layer, head, accuracy, accuracy_drop, log_prob_drop (nats, of the true label, mean over prompts).
    """
    true = torch.tensor([e.true_id for e in encoded])
    column = torch.tensor([list(e.label_ids).index(e.prompt.true_label) for e in encoded])

    def score() -> tuple[float, float]:
        top, labels = predict(model, encoded)
        return float((top == true).double().mean()), float(labels.gather(1, column[:, None]).mean())

    accuracy, log_prob = score()
    rows = []
    for layer, head in tqdm(check_heads(heads, model), desc=progress, disable=progress is None, leave=False):
        with edited(model, [Edit(((layer, head),), positions=positions)]):
            a, p = score()
        rows.append(
            {"layer": layer, "head": head, "accuracy": a, "accuracy_drop": accuracy - a, "log_prob_drop": log_prob - p}
        )
    return pd.DataFrame(rows)


def all_heads(model: Model) -> list[Head]:
    """Every head of the model as (layer, head), layer by layer."""
    return [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]


