"""The final residual stream with heads ablated, computed without running again what stays the same.

    for indices, final in at_all(model, batch, [Ablation(heads), Ablation(heads, mean)]):
        ...                                   # final: (ablation, batch, d_model); indices [] is the plain run

Layers below the lowest ablated head are those of the plain run, so every ablated version of the batch starts at that
head's layer, and many versions run as one batch of stock blocks:

- heads ablated at **all** positions (`at_all`): the first block takes its attention output from the plain run, minus
  what the ablated heads wrote, and the last block computes only the last position. A head of layer l of L costs about
  L - l - 1 blocks; a whole run costs L.
- heads ablated at the **last** position (`at_last`): all other positions are those of the plain run, so a version is
  one row. The rows run beside the plain run, layer by layer, and attend to its keys and values.

The results equal those of whole runs up to rounding (tests/test_ablations.py).
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
from twotowers.model import query_key
from twotowers.model.attention_hooks import attending_to, reading_attention
from twotowers.model.hooks import attribute, changing_z
from twotowers.model.memory import halved
from twotowers.model.model import Model, matrix_of
from twotowers.prompts.prompt import Encoded


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

    def apply(self, layer: int, z: Float[Tensor, "*rows head d_head"]) -> None:
        """Replace the rows of the layer's ablated heads in place."""
        for head in self.heads_of(layer):
            z[..., head, :] = self.new_z(layer, head, z)


Results = Iterator[tuple[list[int], Float[Tensor, "ablation batch d_model"]]]
"""Indices of some ablations, and the final residual stream (before the final norm) at the last position under each"""


def at_all(model: Model, batch: Sequence[Encoded], ablations: Sequence[Ablation], max_rows: int = 1024) -> Results:
    """Heads ablated at all positions. First comes the plain run, with no index and one row, then the ablations.

    Memory: `max_rows` positions at a time, fewer where they do not fit, and four vectors of each position of the plain
    run in each layer.
    """
    calls, final = _record(model, batch)
    yield [], final[None]
    size = max(1, max_rows // (len(batch) * len(batch[0].ids)))
    same_layer = (chunk for indices in _by_first_layer(ablations) for chunk in _chunks(indices, size))
    yield from halved(lambda chunk: _restart(model, [ablations[i] for i in chunk], calls), same_layer)


def at_last(model: Model, batch: Sequence[Encoded], ablations: Sequence[Ablation], max_rows: int = 1024) -> Results:
    """As `at_all`, for heads ablated at the last position only.

    One plain run for every `max_rows // len(batch)` ablations. Memory: as many rows, and keys and values of one layer.
    """
    ordered = [i for indices in _by_first_layer(ablations) for i in indices]
    if not ordered:
        yield [], _run_to_final(model, batch)[None]

    def run(chunk: list[int]) -> tuple[Tensor, Tensor]:
        versions = _LastPositionVersions(model, [ablations[i] for i in chunk])
        plain = versions.run(batch)
        assert versions.rows is not None  # filled by the run
        return plain, versions.rows.transpose(0, 1)

    for chunk, (plain, ablated) in halved(run, _chunks(ordered, max(1, max_rows // len(batch)))):
        if chunk[0] == ordered[0]:
            yield [], plain[None]
        yield chunk, ablated


def _chunks(indices: list[int], size: int) -> list[list[int]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _by_first_layer(ablations: Sequence[Ablation]) -> Iterable[list[int]]:
    """Indices of the ablations that begin in the same layer, the lowest layer first."""
    out: dict[int, list[int]] = {}
    for i in sorted(range(len(ablations)), key=lambda i: ablations[i].first_layer):
        out.setdefault(ablations[i].first_layer, []).append(i)
    return out.values()


def _split_call(args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, tuple, dict[str, Any]]:
    """A module's arguments as (hidden states, other positional ones, keywords)."""
    kwargs = dict(kwargs)
    return (args[0], args[1:], kwargs) if args else (kwargs.pop("hidden_states"), (), kwargs)


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


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
            hooks = [
                block.register_forward_pre_hook(lambda _, args, kwargs: blocks.append(_split_call(args, kwargs)), with_kwargs=True),
                out.register_forward_pre_hook(lambda _, args: z.append(args[0])),
                attention_module.register_forward_hook(lambda _, args, output: attention.append(_first(output))),
            ]
            for hook in hooks:
                stack.callback(hook.remove)
        final = _run_to_final(model, batch)
    return [_Call(*b, m, a) for b, m, a in zip(blocks, z, attention, strict=True)], final


def _run_to_final(model: Model, batch: Sequence[Encoded]) -> Float[Tensor, "batch d_model"]:
    """Run the model; return what its final norm is given at the last position."""
    final = []
    handle = model.final_norm.register_forward_pre_hook(lambda _, args: final.append(args[0][:, -1]))
    try:
        model.logits(batch)
    finally:
        handle.remove()
    return final[0]


def _restart(
    model: Model, ablations: Sequence[Ablation], calls: list[_Call]
) -> Float[Tensor, "ablation batch d_model"]:
    """Run from the first layer of `ablations`, which is the same for all, on one copy of the batch for each."""
    first, top = ablations[0].first_layer, model.n_layers - 1
    versions, batch = len(ablations), len(calls[0].x)
    x = calls[first].x.repeat(versions, 1, 1)

    def change(layer: int, z: Float[Tensor, "rows position head d_head"]) -> None:
        for ablation, rows in zip(ablations, z.split(batch), strict=True):
            ablation.apply(layer, rows)

    above = {layer for ablation in ablations for layer, _ in ablation.heads if layer > first}
    with changing_z(model, {layer: partial(change, layer) for layer in above}):
        for layer in range(first, model.n_layers):
            args, kwargs = _repeated((calls[layer].args, calls[layer].kwargs), batch, versions)
            with ExitStack() as stack:
                if layer == first:
                    written = _without_heads(model, first, ablations, calls[first])
                    written = written if layer < top else written[:, -1:]
                    known = lambda *_, written=written, **__: (written, None)  # noqa: E731
                    stack.enter_context(attribute(model.part(layer, "attention"), "forward", known))
                elif layer == top:
                    stack.enter_context(_attention_of_last(model, x))
                # In the last block only attention needs the other positions, and it has them already.
                x = _first(model.blocks[layer](x if layer < top else x[:, -1:], *args, **kwargs))
    return x[:, -1].unflatten(0, (versions, batch))


def _without_heads(
    model: Model, layer: int, ablations: Sequence[Ablation], call: _Call
) -> Float[Tensor, "rows position d_model"]:
    """The plain run's attention output, with what the heads of each ablation wrote there replaced."""
    weight, d_head, out = matrix_of(model.part(layer, "attention_out")).T, model.d_head, []
    for ablation in ablations:
        written = call.attention.clone()
        for head in ablation.heads_of(layer):
            columns = slice(head * d_head, (head + 1) * d_head)
            z = call.z[..., columns]
            written -= (z - ablation.new_z(layer, head, z)) @ weight[columns]
        out.append(written)
    return torch.cat(out)


@contextmanager
def _attention_of_last(model: Model, x: Float[Tensor, "rows position d_model"]) -> Iterator[None]:
    """Let the last block, which is given only the last position, attend to all positions of its input x."""
    top = model.n_layers - 1
    stock = model.part(top, "attention").forward

    def forward(*args, **kwargs):
        _, args, kwargs = _split_call(args, kwargs)
        return stock(query_key.normed(model, top, x), *args, **kwargs)

    only_last = lambda _, args: (args[0][:, -1:], *args[1:])  # noqa: E731
    with ExitStack() as stack:
        stack.callback(model.part(top, "attention_out").register_forward_pre_hook(only_last).remove)
        stack.enter_context(attribute(model.part(top, "attention"), "forward", forward))
        yield


def _repeated(value: Any, batch: int, versions: int) -> Any:
    """A block's arguments for several versions of the batch; what all prompts share stays as it is."""
    if isinstance(value, dict):
        return {k: _repeated(v, batch, versions) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_repeated(v, batch, versions) for v in value)
    if isinstance(value, Tensor) and value.dim() > 1 and value.shape[0] == batch > 1:
        return value.repeat(versions, *[1] * (value.dim() - 1))
    return value


class _LastPositionVersions:
    """Versions of the last position that run beside a plain run, each from the first layer of its ablation on.

    `ablations` are sorted by first layer, so that the versions that have begun are always the first ones.
    """

    def __init__(self, model: Model, ablations: Sequence[Ablation]):
        self.model, self.ablations = model, ablations
        self.rows: Float[Tensor, "batch ablation d_model"] | None = None
        self._inside = False  # true while a block runs for the versions: its hooks must then do nothing

    def run(self, batch: Sequence[Encoded]) -> Float[Tensor, "batch d_model"]:
        """Run the model: the plain final residual stream; `rows` then holds that of every version."""
        with ExitStack() as stack:
            for layer in range(self.ablations[0].first_layer, self.model.n_layers):
                stack.enter_context(self._beside(layer))
            return _run_to_final(self.model, batch)

    @contextmanager
    def _beside(self, layer: int) -> Iterator[None]:
        """Run the layer for the versions too, as soon as the plain run has passed it."""
        plain: dict[str, Any] = {}

        def read(query, key, value, mask, scaling, softcap):
            if not self._inside:
                plain.update(key=key[:, :, :-1], value=value[:, :, :-1], mask=mask)

        def called(_, args, kwargs):
            if not self._inside:
                plain.update(call=_split_call(args, kwargs))

        def done(_, args, output):
            if not self._inside:
                self._inside = True
                try:
                    self._step(layer, **plain)
                finally:
                    self._inside = False
                plain.clear()

        block = self.model.blocks[layer]
        with ExitStack() as stack:
            stack.callback(block.register_forward_pre_hook(called, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(done).remove)
            stack.enter_context(reading_attention(self.model, layer, read))
            yield

    def _step(self, layer: int, key: Tensor, value: Tensor, mask: Tensor | None, call: tuple) -> None:
        x, args, kwargs = call
        begin = sum(ablation.first_layer == layer for ablation in self.ablations)
        rows = x[:, -1:].expand(-1, begin, -1)
        rows = rows if self.rows is None else torch.cat([self.rows.to(x.device), rows], 1)
        args, kwargs = _at_last((args, kwargs), x.shape[1], rows.shape[1])
        with (
            attending_to(self.model, layer, key, value, None if mask is None else _allowed(mask, x.shape[1])),
            changing_z(self.model, {layer: partial(self._change, layer)}),
        ):
            self.rows = _first(self.model.blocks[layer](rows, *args, **kwargs))

    def _change(self, layer: int, z: Float[Tensor, "batch ablation head d_head"]) -> None:
        for ablation, row in zip(self.ablations, z.unbind(1), strict=False):  # the others have not begun
            ablation.apply(layer, row)


def _allowed(mask: Tensor, length: int) -> Tensor:
    """Which other positions the last may attend to, from a layer's mask (True, or 0 where it is added)."""
    last = mask[:, :1, -1:, : length - 1]
    return last if last.dtype == torch.bool else last >= 0


def _at_last(value: Any, length: int, rows: int) -> Any:
    """A block's arguments for `rows` versions of the last position; masks are left to `attending_to`."""
    if isinstance(value, dict):
        return {k: None if k == "attention_mask" else _at_last(v, length, rows) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_at_last(v, length, rows) for v in value)
    if isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == length:  # positions, rotary cos and sin
        return value[:, -1:].expand(-1, rows, *[-1] * (value.dim() - 2))
    return value[-1:].expand(rows) if isinstance(value, Tensor) and value.shape == (length,) else value
