"""Causal tracing: take each head away in turn and see what the model answers (v1 section 6.2; EMNLP, as summarised).

Nothing below the head's layer changes when a head is zeroed, so the model runs whole once a batch. Every head
then starts again from the recorded input of its own layer, several heads as one batch. The numbers are those of whole
runs.

    traced = zero_each(model, encoded, all_heads(model), progress="zeroing heads")
    traced.table()                          # layer, head, accuracy, accuracy_drop, log_prob_drop

Cost: for a head of layer l, the blocks l .. L-1 instead of the whole model, so about half of one run a head on average.
Memory: at most `max_tokens` tokens in flight, beside the layer inputs of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from twotowers.architectures import Model
from twotowers.intervene import Head, check_heads
from twotowers.models import capped
from twotowers.prompts import Encoded, batches


@dataclass
class Traced:
    """What the model says with nothing changed (`plain_...`) and with each head taken away, for every prompt."""

    encoded: list[Encoded]
    heads: list[Head]
    plain_top: Int[Tensor, "prompt"]
    plain_log_prob: Float[Tensor, "prompt label"]
    top: Int[Tensor, "head prompt"]
    log_prob: Float[Tensor, "head prompt label"]

    @property
    def true(self) -> Int[Tensor, "prompt"]:
        """Position of each prompt's true label among its labels."""
        return torch.tensor([list(e.label_ids).index(e.prompt.true_label) for e in self.encoded])

    @property
    def correct(self) -> Float[Tensor, "head prompt"]:
        return (self.top == torch.tensor([e.true_id for e in self.encoded])).double()

    @property
    def plain_correct(self) -> Float[Tensor, "prompt"]:
        return (self.plain_top == torch.tensor([e.true_id for e in self.encoded])).double()

    @property
    def log_prob_drop(self) -> Float[Tensor, "head prompt"]:
        """How many nats the true label loses when the head is taken away."""
        true = self.true
        plain = self.plain_log_prob.gather(1, true[:, None])[:, 0]
        return plain - self.log_prob.gather(2, true.expand(len(self.heads), -1)[..., None])[..., 0]

    def table(self) -> pd.DataFrame:
        """One row per head: layer, head, name, accuracy, accuracy_drop, log_prob_drop (nats), means over prompts."""
        accuracy, plain = self.correct.mean(1), self.plain_correct.mean()
        return pd.DataFrame(
            {
                "layer": [layer for layer, _ in self.heads],
                "head": [head for _, head in self.heads],
                "name": [f"{layer}-{head}" for layer, head in self.heads],
                "accuracy": accuracy,
                "accuracy_drop": plain - accuracy,
                "log_prob_drop": self.log_prob_drop.mean(1),
            }
        )


@torch.inference_mode()
def zero_each(
    model: Model,
    encoded: Sequence[Encoded],
    heads: Sequence[Head],
    positions: str = "all",
    instead: Float[Tensor, "layer head d_head"] | None = None,
    max_tokens: int = 4096,
    progress: str | None = None,
) -> Traced:
    """Take each head away at all positions, or at the "last" one, and read the answer of every prompt.

    `instead` is what a head feeds to W_O in place of zero, for example its mean over prompts
    (`capture.attention_out_input`). Raises TwoTowersError on a head outside the model.
    """
    heads = list(check_heads(heads, model))
    n, labels = len(encoded), len(encoded[0].label_ids)
    out = Traced(
        list(encoded), heads, torch.empty(n, dtype=torch.long), torch.empty(n, labels, dtype=torch.float64),
        torch.empty(len(heads), n, dtype=torch.long), torch.empty(len(heads), n, labels, dtype=torch.float64),
    )  # fmt: skip
    by_layer: dict[int, list[int]] = {}
    for i, (layer, _) in enumerate(heads):
        by_layer.setdefault(layer, []).append(i)
    with tqdm(total=len(heads) * n, desc=progress, disable=progress is None, unit="run", leave=False) as bar:
        for index, batch in batches(encoded, max_tokens):
            words = torch.tensor([list(e.label_ids.values()) for e in batch])
            calls, logits = _run(model, batch)
            out.plain_top[index], out.plain_log_prob[index] = _answers(logits, words)
            copies = max(1, max_tokens // (len(batch) * len(batch[0].ids)))
            for layer, of_layer in by_layer.items():
                for first in range(0, len(of_layer), copies):
                    some = of_layer[first : first + copies]
                    taken = [heads[i][1] for i in some]
                    logits = _restart(model, layer, taken, calls, len(batch), positions, instead)
                    for i, rows in zip(some, logits.split(len(batch)), strict=True):
                        out.top[i, index], out.log_prob[i, index] = _answers(rows, words)
                    bar.update(len(some) * len(batch))
    return out


def _answers(logits: Float[Tensor, "batch vocabulary"], words: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    return logits.argmax(-1).cpu(), logits.gather(-1, words.to(logits.device)).cpu().double()


_Call = tuple[Tensor, tuple, dict[str, Any]]


def _run(model: Model, batch: list[Encoded]) -> tuple[list[_Call], Tensor]:
    """The whole model once: how each block was called (its input, its other arguments), and the last logits."""
    calls: list[_Call] = []

    def hook(_, args, kwargs):
        kwargs = dict(kwargs)
        x = args[0] if args else kwargs.pop("hidden_states")
        calls.append((x, args[1:], kwargs))

    with ExitStack() as stack:
        for block in model.blocks:
            stack.callback(block.register_forward_pre_hook(hook, with_kwargs=True).remove)
        ids = torch.tensor([e.ids for e in batch], device=model.hf.get_input_embeddings().weight.device)
        logits = model.hf(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    return calls, logits


def _restart(
    model: Model, layer: int, taken: list[int], calls: list[_Call], batch: int, positions: str, instead: Tensor | None
) -> Float[Tensor, "copy_x_batch vocabulary"]:
    """Last logits when copy i of the batch lacks head `taken[i]` of `layer`, from that layer's recorded input."""
    copies = len(taken)
    x = calls[layer][0].repeat(copies, *[1] * (calls[layer][0].dim() - 1))
    with _taken_away(model, layer, taken, batch, positions, None if instead is None else instead[layer]):
        for block, (_, args, kwargs) in zip(model.blocks[layer:], calls[layer:], strict=True):
            x = block(x, *_repeated(args, batch, copies), **_repeated(kwargs, batch, copies))
            x = x[0] if isinstance(x, tuple) else x
    head = model.hf.get_output_embeddings()
    return capped(head(model.final_norm(x[:, -1])), model.unembedding.softcap)


def _repeated(value: Any, batch: int, copies: int) -> Any:
    """A block's arguments for several copies of the batch; what has one row for all prompts stays as it is."""
    if isinstance(value, dict):
        return {k: _repeated(v, batch, copies) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_repeated(v, batch, copies) for v in value)
    if isinstance(value, Tensor) and value.dim() > 1 and value.shape[0] == batch > 1:
        return value.repeat(copies, *[1] * (value.dim() - 1))
    return value


@contextmanager
def _taken_away(
    model: Model, layer: int, taken: list[int], batch: int, positions: str, instead: Tensor | None
) -> Iterator[None]:
    def hook(_, args):
        mixed = args[0].clone()
        by_head = mixed.view(len(taken), batch, -1, model.n_heads, model.d_head)
        for copy, head in enumerate(taken):
            at = slice(None) if positions == "all" else slice(-1, None)
            by_head[copy, :, at, head] = 0 if instead is None else instead[head].to(mixed)
        return (mixed, *args[1:])

    handle = model.part(layer, "attention_out").register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
