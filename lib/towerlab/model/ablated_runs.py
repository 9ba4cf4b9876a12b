"""Answers with heads ablated, computed without running again what stays the same.

    top, log_prob = at_all(model, batch, [Ablation(heads), Ablation(heads, mean)])        # the plain run comes first
    top, log_prob = at_last(model, batch, [Ablation(heads)])

Layers below the lowest ablated head are those of the plain run, so every ablated version of the batch starts at that
head's layer, and many versions run as one batch of stock blocks. Ablated at all positions, the first block takes its
attention output from the plain run, minus what the ablated heads wrote, and the last block computes only the last
position: a head of layer l of L costs about L - l - 1 blocks, a whole run L. Ablated at the last position only, a version
is a row of `last_position`. The results equal those of whole runs up to rounding (tests/test_ablations.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from twotowers.heads import Head

from towerlab.model import query_key
from towerlab.model.hooks import attribute, changing_z, hidden_states, split_call
from towerlab.model.last_position import UNCHANGED, Edit, LastPosition, LayerState, TopAndLogProbs, answers_of
from towerlab.model.memory import halved
from towerlab.model.model import Model, matrix_of
from towerlab.prompts.prompt import Encoded


@dataclass(frozen=True, eq=False)
class Ablation:
    """Heads (at least one) whose input to W_O is replaced: by `replacement`, by default zero."""

    heads: frozenset[Head]
    replacement: Float[Tensor, "layer head d_head"] | None = None

    @property
    def first_layer(self) -> int:
        return min(layer for layer, _ in self.heads)

    def heads_of(self, layer: int) -> list[int]:
        return sorted(head for at, head in self.heads if at == layer)

    def new_z(self, layer: int, head: int, like: Tensor) -> Float[Tensor, "d_head"]:
        """What takes the place of the head's input to W_O."""
        return like.new_zeros(like.shape[-1]) if self.replacement is None else self.replacement[layer, head].to(like)

    def edit(self) -> Edit:
        """The same at the last position only."""

        def output(layer: int, heads: list[int], state: LayerState) -> Float[Tensor, "batch head d_head"]:
            z = state.z.clone()
            self.apply(layer, z)
            return z[:, heads]

        return Edit(sorted(self.heads), output)

    def apply(self, layer: int, z: Float[Tensor, "*rows head d_head"]) -> None:
        """Replace the rows of the layer's ablated heads in place."""
        for head in self.heads_of(layer):
            z[..., head, :] = self.new_z(layer, head, z)


def at_all(model: Model, batch: Sequence[Encoded], ablations: Sequence[Ablation], max_rows: int = 1024) -> TopAndLogProbs:
    """The answers of the plain run, then with heads ablated at all positions.

    Memory: `max_rows` positions at a time, fewer where they do not fit, and four vectors of each position of the plain
    run in each layer.
    """
    calls, final = _record(model, batch)
    size = max(1, max_rows // (len(batch) * len(batch[0].ids)))
    chunks = (chunk for indices in _by_first_layer(ablations) for chunk in _chunks(indices, size))
    top, log_prob = (x.expand(1 + len(ablations), *x.shape[1:]).clone() for x in answers_of(model, final[None], batch))
    for chunk, final in halved(lambda chunk: _restart(model, [ablations[i] for i in chunk], calls), chunks):
        rows = [1 + i for i in chunk]
        top[rows], log_prob[rows] = answers_of(model, final, batch)
    return top, log_prob


def at_last(model: Model, batch: Sequence[Encoded], ablations: Sequence[Ablation], max_rows: int = 1024) -> TopAndLogProbs:
    """As `at_all`, for heads ablated at the last position only. Memory: see `last_position`."""
    return LastPosition(model, batch).answers([UNCHANGED, *(ablation.edit() for ablation in ablations)], max_rows)


def _chunks(indices: list[int], size: int) -> list[list[int]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _by_first_layer(ablations: Sequence[Ablation]) -> Iterable[list[int]]:
    """Indices of the ablations that begin in the same layer, the lowest layer first."""
    out: dict[int, list[int]] = {}
    for i in sorted(range(len(ablations)), key=lambda i: ablations[i].first_layer):
        out.setdefault(ablations[i].first_layer, []).append(i)
    return out.values()


class _Call(NamedTuple):
    """How a block was called in the plain run, and what its attention computed."""

    x: Float[Tensor, "batch position d_model"]
    args: tuple
    kwargs: dict[str, Any]
    z: Float[Tensor, "batch position head_d_head"]
    attention: Float[Tensor, "batch position d_model"]


def _record(model: Model, batch: Sequence[Encoded]) -> tuple[list[_Call], Float[Tensor, "batch d_model"]]:
    """One plain run: every block's call, and the final residual stream at the last position."""
    blocks, z, attention = [], [], []
    with ExitStack() as stack:
        for layer, block in enumerate(model.blocks):
            attention_module, out = model.part(layer, "attention"), model.part(layer, "attention_out")
            keep_call = lambda _, args, kwargs: blocks.append(split_call(args, kwargs))  # noqa: E731
            stack.enter_context(block.register_forward_pre_hook(keep_call, with_kwargs=True))
            stack.enter_context(out.register_forward_pre_hook(lambda _, args: z.append(args[0])))
            keep_output = lambda _, args, output: attention.append(hidden_states(output))  # noqa: E731
            stack.enter_context(attention_module.register_forward_hook(keep_output))
        final = _run_to_final(model, batch)
    return [_Call(*b, m, a) for b, m, a in zip(blocks, z, attention, strict=True)], final


def _run_to_final(model: Model, batch: Sequence[Encoded]) -> Float[Tensor, "batch d_model"]:
    """Run the model; return what its final norm is given at the last position."""
    final = []
    with model.final_norm.register_forward_pre_hook(lambda _, args: final.append(args[0][:, -1])):
        model.logits(batch)
    return final[0]


def _restart(model: Model, ablations: Sequence[Ablation], calls: list[_Call]) -> Float[Tensor, "ablation batch d_model"]:
    """Run from the first layer of `ablations`, which is the same for all, on one copy of the batch for each."""
    bottom, top = ablations[0].first_layer, model.n_layers - 1
    versions, batch = len(ablations), len(calls[0].x)
    x = calls[bottom].x.repeat(versions, 1, 1)

    def change(layer: int, z: Float[Tensor, "rows position head d_head"]) -> None:
        for ablation, rows in zip(ablations, z.split(batch), strict=True):
            ablation.apply(layer, rows)

    above = {layer for ablation in ablations for layer, _ in ablation.heads if layer > bottom}
    with changing_z(model, {layer: partial(change, layer) for layer in above}):
        for layer in range(bottom, model.n_layers):
            args, kwargs = _repeat((calls[layer].args, calls[layer].kwargs), batch, versions)
            with ExitStack() as stack:
                if layer == bottom:
                    output = _without_heads(model, bottom, ablations, calls[bottom])
                    output = output if layer < top else output[:, -1:]
                    from_plain = lambda *_, output=output, **__: (output, None)  # noqa: E731
                    stack.enter_context(attribute(model.part(layer, "attention"), "forward", from_plain))
                elif layer == top:
                    stack.enter_context(_attention_of_last(model, x))
                # In the last block only attention needs the other positions, and it has them already.
                x = hidden_states(model.blocks[layer](x if layer < top else x[:, -1:], *args, **kwargs))
    return x[:, -1].unflatten(0, (versions, batch))


def _without_heads(model: Model, layer: int, ablations: Sequence[Ablation], call: _Call) -> Float[Tensor, "rows position d_model"]:
    """The plain run's attention output, with what the heads of each ablation wrote there replaced."""
    weight, d_head, out = matrix_of(model.part(layer, "attention_out")).T, model.d_head, []
    for ablation in ablations:
        output = call.attention.clone()
        for head in ablation.heads_of(layer):
            columns = slice(head * d_head, (head + 1) * d_head)
            z = call.z[..., columns]
            output -= (z - ablation.new_z(layer, head, z)) @ weight[columns]
        out.append(output)
    return torch.cat(out)


@contextmanager
def _attention_of_last(model: Model, x: Float[Tensor, "rows position d_model"]) -> Iterator[None]:
    """Let the last block, which is given only the last position, attend to all positions of its input x."""
    top = model.n_layers - 1
    stock = model.part(top, "attention").forward

    def forward(*args, **kwargs):
        _, args, kwargs = split_call(args, kwargs)
        return stock(query_key.normed(model, top, x), *args, **kwargs)

    only_last = lambda _, args: (args[0][:, -1:], *args[1:])  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(model.part(top, "attention_out").register_forward_pre_hook(only_last))
        stack.enter_context(attribute(model.part(top, "attention"), "forward", forward))
        yield


def _repeat(value: Any, batch: int, versions: int) -> Any:
    """A block's arguments for several versions of the batch; what all prompts share stays as it is."""
    if isinstance(value, dict):
        return {k: _repeat(v, batch, versions) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_repeat(v, batch, versions) for v in value)
    if isinstance(value, Tensor) and value.dim() > 1 and value.shape[0] == batch > 1:
        return value.repeat(versions, *[1] * (value.dim() - 1))
    return value
