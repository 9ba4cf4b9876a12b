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

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from twotowers.architectures import Model
from twotowers.errors import TwoTowersError
from twotowers.intervene import Head, check_heads
from twotowers.models import capped
from twotowers.prompts import Encoded, batches
from twotowers.statistics import bootstrap_difference


@dataclass
class Traced:
    """What the model says with nothing changed (`plain_...`) and with each set of heads taken away."""

    encoded: list[Encoded]
    sets: list[tuple[Head, ...]]
    plain_top: Int[Tensor, "prompt"]
    plain_log_prob: Float[Tensor, "prompt label"]
    top: Int[Tensor, "set prompt"]
    log_prob: Float[Tensor, "set prompt label"]

    @property
    def true(self) -> Int[Tensor, "prompt"]:
        """Position of each prompt's true label among its labels."""
        return torch.tensor([list(e.label_ids).index(e.prompt.true_label) for e in self.encoded])

    @property
    def correct(self) -> Float[Tensor, "set prompt"]:
        return (self.top == torch.tensor([e.true_id for e in self.encoded])).double()

    @property
    def plain_correct(self) -> Float[Tensor, "prompt"]:
        return (self.plain_top == torch.tensor([e.true_id for e in self.encoded])).double()

    @property
    def log_prob_drop(self) -> Float[Tensor, "set prompt"]:
        """How many nats the true label loses when the heads are taken away."""
        true = self.true
        plain = self.plain_log_prob.gather(1, true[:, None])[:, 0]
        return plain - self.log_prob.gather(2, true.expand(len(self.sets), -1)[..., None])[..., 0]

    def table(self) -> pd.DataFrame:
        """One row per head: layer, head, name, accuracy, accuracy_drop, log_prob_drop (nats), means over prompts.

        Raises TwoTowersError when sets of several heads were taken away: they have no layer.
        """
        if any(len(one) != 1 for one in self.sets):
            raise TwoTowersError("sets of several heads have no layer of their own: read `correct` and `log_prob_drop`")
        heads = [one[0] for one in self.sets]
        accuracy, plain = self.correct.mean(1), self.plain_correct.mean()
        return pd.DataFrame(
            {
                "layer": [layer for layer, _ in heads],
                "head": [head for _, head in heads],
                "name": [f"{layer}-{head}" for layer, head in heads],
                "accuracy": accuracy,
                "accuracy_drop": plain - accuracy,
                "log_prob_drop": self.log_prob_drop.mean(1),
            }
        )


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
    sets = [[head] for head in check_heads(heads, model)]
    return zero_sets(model, encoded, sets, positions, instead, max_tokens, progress)


@torch.inference_mode()
def zero_sets(
    model: Model,
    encoded: Sequence[Encoded],
    sets: Sequence[Sequence[Head]],
    positions: str = "all",
    instead: Float[Tensor, "layer head d_head"] | None = None,
    max_tokens: int = 4096,
    progress: str | None = None,
) -> Traced:
    """As `zero_each`, but the heads of a set are taken away together; one named twice is taken away once."""
    if positions not in ("all", "last"):
        raise TwoTowersError(f"positions='{positions}': choose 'all' or 'last'")
    if not encoded or not sets:
        raise TwoTowersError("nothing to take away: give at least one prompt and one set of heads")
    sets = [tuple(sorted(set(check_heads(one, model)))) for one in sets]
    n, labels = len(encoded), len(encoded[0].label_ids)
    out = Traced(
        list(encoded), sets, torch.empty(n, dtype=torch.long), torch.empty(n, labels, dtype=torch.float64),
        torch.empty(len(sets), n, dtype=torch.long), torch.empty(len(sets), n, labels, dtype=torch.float64),
    )  # fmt: skip
    by_layer: dict[int, list[int]] = {}
    for i, one in enumerate(sets):
        by_layer.setdefault(one[0][0], []).append(i)
    with tqdm(total=len(sets) * n, desc=progress, disable=progress is None, unit="run", leave=False) as bar:
        for index, batch in batches(encoded, max_tokens):
            words = torch.tensor([list(e.label_ids.values()) for e in batch])
            calls, logits = _run(model, batch)
            out.plain_top[index], out.plain_log_prob[index] = _answers(logits, words)
            copies = max(1, max_tokens // (len(batch) * len(batch[0].ids)))
            for layer, of_layer in by_layer.items():
                for first in range(0, len(of_layer), copies):
                    some = of_layer[first : first + copies]
                    logits = _restart(model, layer, [sets[i] for i in some], calls, len(batch), positions, instead)
                    for i, rows in zip(some, logits.split(len(batch)), strict=True):
                        out.top[i, index], out.log_prob[i, index] = _answers(rows, words)
                    bar.update(len(some) * len(batch))
    return out


def ranked(increase: pd.DataFrame, drop: pd.DataFrame) -> pd.DataFrame:
    """Every head under two rankings, by `increase` and by accuracy drop (EMNLP 2024, as summarised).

    `increase` has layer, head, increase (`Increases.heads_table`); `drop` is `Traced.table`, whose ties in accuracy are
    broken by log_prob_drop. Adds by_increase and by_drop, ranks from 1, and `enters`, the better of the two: the
    smallest k at which the head is in the union of the two top k. Rows in the order in which heads enter. Raises
    TwoTowersError when the tables are not of the same heads.
    """
    table = increase[["layer", "head", "increase"]].merge(drop, on=["layer", "head"])
    if not len(table) == len(increase) == len(drop):
        raise TwoTowersError("two rankings of different heads cannot be joined: trace the heads that were located")
    ordered = {"by_increase": ["increase"], "by_drop": ["accuracy_drop", "log_prob_drop"]}
    for name, columns in ordered.items():
        table = table.sort_values(columns, ascending=False, kind="stable", ignore_index=True)
        table[name] = range(1, len(table) + 1)
    table["enters"] = table[list(ordered)].min(axis=1)
    table["both"] = table[list(ordered)].sum(axis=1)
    return table.sort_values(["enters", "both"], kind="stable", ignore_index=True).drop(columns="both")


def in_context_heads(table: pd.DataFrame, k: int) -> list[Head]:
    """Union of the top k by increase and the top k by accuracy drop, from `ranked`. Between k and 2 k heads."""
    if not 0 < k <= len(table):
        raise TwoTowersError(f"top_k={k}: the model has {len(table)} heads, ask for 1 to {len(table)}")
    chosen = table[table["enters"] <= k]
    return list(zip(chosen["layer"].astype(int), chosen["head"].astype(int), strict=True))


def label_heads(
    increases: dict[str, Float[np.ndarray, "prompt layer head"]], heads: Sequence[Head], seed: int = 0
) -> pd.DataFrame:
    """Which of two labels each head serves: the one it raises more where it is true.

    `increases[label]` are the increases of that label on prompts whose true label it is; the prompts of the two must be
    the same but for the labels, in the same order. Columns: head ("22-0"), serves (a label), lean (nats: mean increase
    of the first label less that of the second), low, high, n (prompts), clear (the interval leaves zero out).
    """
    (first, a), (second, b) = increases.items()
    rows = []
    for layer, head in heads:
        lean = bootstrap_difference(a[:, layer, head], b[:, layer, head], seed=seed)
        rows.append(
            {"head": f"{layer}-{head}", "serves": first if lean.estimate > 0 else second, **lean.as_row("lean"),
             "clear": not lean.low <= 0 <= lean.high}
        )  # fmt: skip
    return pd.DataFrame(rows)


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
    model: Model,
    layer: int,
    taken: list[tuple[Head, ...]],
    calls: list[_Call],
    batch: int,
    positions: str,
    instead: Tensor | None,
) -> Float[Tensor, "copy_x_batch vocabulary"]:
    """Last logits when copy i of the batch lacks the heads `taken[i]`, from the recorded input of `layer`."""
    copies = len(taken)
    x = calls[layer][0].repeat(copies, *[1] * (calls[layer][0].dim() - 1))
    with _taken_away(model, taken, batch, positions, instead):
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
    model: Model, taken: list[tuple[Head, ...]], batch: int, positions: str, instead: Tensor | None
) -> Iterator[None]:
    at = slice(None) if positions == "all" else slice(-1, None)

    def hook_of(layer: int):
        here = [(copy, head) for copy, heads in enumerate(taken) for place, head in heads if place == layer]

        def hook(_, args):
            mixed = args[0].clone()
            by_head = mixed.view(len(taken), batch, -1, model.n_heads, model.d_head)
            for copy, head in here:
                by_head[copy, :, at, head] = 0 if instead is None else instead[layer, head].to(mixed)
            return (mixed, *args[1:])

        return hook

    with ExitStack() as stack:
        for layer in sorted({layer for heads in taken for layer, _ in heads}):
            handle = model.part(layer, "attention_out").register_forward_pre_hook(hook_of(layer))
            stack.callback(handle.remove)
        yield
