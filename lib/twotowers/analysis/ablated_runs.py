"""What the model would end with, were some heads taken away: whole runs avoided where nothing changes.

Below the lowest head that is taken away nothing changes, so a version of the prompt starts there, many versions as one
batch. Stock blocks run in between; only what they need not compute again is kept from the plain run:

- heads away at **all** positions (`at_all`): the first block takes its attention from the plain run, less what the
  heads wrote, and of the last block only the last position is computed. For a head of layer l of L that is some
  L - l - 1 blocks, against L for a whole run;
- heads away at the **last** position (`at_last`): no other position changes, so each version is one row. The rows ride
  along with the plain run, layer by layer, and attend to the keys and values of its other positions.

The numbers are those of whole runs (tests/test_tracing.py), but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

Sets = Sequence[tuple[Head, ...]]  # each sorted, so that its first head is one of the lowest layer
Instead = Float[Tensor, "layer head d_head"] | None


class _Call(NamedTuple):
    """How one block was called in the plain run, and what its attention made of it."""

    x: Float[Tensor, "batch position d_model"]
    args: tuple
    kwargs: dict[str, Any]
    z: Float[Tensor, "batch position head_d_head"]
    attention: Float[Tensor, "batch position d_model"]


def at_all(
    model: Model, batch: Sequence[Encoded], sets: Sets, replacement: Instead = None, max_rows: int = 1024
) -> Iterator[tuple[list[int], Float[Tensor, "version batch d_model"]]]:
    """Final residual stream at the last position: first of the plain run ([], one version), then of the sets.

    Yields the places in `sets` of each batch of versions. Memory: `max_rows` positions in flight, fewer where they do not
    fit (`halved`), and four vectors of each position of the plain run in each layer.
    """
    calls, final = _recorded(model, batch)
    yield [], final[None]
    together = max(1, max_rows // (len(batch) * len(batch[0].ids)))
    of_one_layer = (some for places in _by_layer(sets).values() for some in _chunks(places, together))
    yield from halved(lambda some: _restarted(model, [sets[i] for i in some], calls, replacement), of_one_layer)


def at_last(
    model: Model, batch: Sequence[Encoded], sets: Sets, replacement: Instead = None, max_rows: int = 1024
) -> Iterator[tuple[list[int], Float[Tensor, "version batch d_model"]]]:
    """As `at_all`, for heads away at the last position only.

    One plain run for every `max_rows // len(batch)` sets. Memory: so many rows, and the keys and values of one layer.
    """
    together = max(1, max_rows // len(batch))
    ordered = [i for places in _by_layer(sets).values() for i in places]

    def run(some: list[int]) -> tuple[Tensor, Tensor]:
        versions = LastPositionVersions(model, [sets[i] for i in some], replacement)
        return versions.run(batch), versions.rows.transpose(0, 1)

    for some, (final, rows) in halved(run, _chunks(ordered, together)):
        if some[0] == ordered[0]:
            yield [], final[None]
        yield some, rows


def _chunks(places: list[int], size: int) -> list[list[int]]:
    return [places[first : first + size] for first in range(0, len(places), size)]


def _by_layer(sets: Sets) -> dict[int, list[int]]:
    """Places of the sets that start in each layer, the lowest layer first."""
    out: dict[int, list[int]] = {}
    for i in sorted(range(len(sets)), key=lambda i: sets[i][0][0]):
        out.setdefault(sets[i][0][0], []).append(i)
    return out


def _given(args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, tuple, dict[str, Any]]:
    """The hidden states that a module was called with, and the rest, as (x, args, kwargs)."""
    kwargs = dict(kwargs)
    return (args[0], args[1:], kwargs) if args else (kwargs.pop("hidden_states"), (), kwargs)


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _recorded(model: Model, batch: Sequence[Encoded]) -> tuple[list[_Call], Float[Tensor, "batch d_model"]]:
    """One plain run: how each block was called, and the final residual stream at the last position."""
    blocks, z, attention, final = [], [], [], []
    with ExitStack() as stack:
        for layer, block in enumerate(model.blocks):
            for module, hook in (
                (block, lambda _, args, kwargs: blocks.append(_given(args, kwargs))),
                (model.part(layer, "attention_out"), lambda _, args, kwargs: z.append(args[0])),
            ):
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            hook = lambda _, args, output: attention.append(_first(output))  # noqa: E731
            stack.callback(model.part(layer, "attention").register_forward_hook(hook).remove)
        hook = lambda _, args: final.append(args[0][:, -1])  # noqa: E731
        stack.callback(model.final_norm.register_forward_pre_hook(hook).remove)
        model.logits(batch)
    calls = [_Call(*b, m, a) for b, m, a in zip(blocks, z, attention, strict=True)]
    return calls, final[0]


def _restarted(
    model: Model, ablated: Sets, calls: list[_Call], replacement: Instead
) -> Float[Tensor, "version batch d_model"]:
    (layer, _), *_ = ablated[0]  # of all of them
    versions, batch, top = len(ablated), len(calls[0].x), model.n_layers - 1
    x = calls[layer].x.repeat(versions, 1, 1)
    above = {at for heads in ablated for at, _ in heads if at > layer}

    def away(at: int, z: Float[Tensor, "version_x_batch position head d_head"]) -> None:
        for heads, mine in zip(ablated, z.split(batch), strict=True):
            _take_away(mine, at, heads, replacement)

    with changing_z(model, {at: partial(away, at) for at in above}):
        for at in range(layer, model.n_layers):
            _, args, kwargs, *_ = calls[at]
            args, kwargs = _repeated((args, kwargs), batch, versions)
            with ExitStack() as stack:
                if at == layer:
                    written = _without(model, layer, ablated, calls[layer], replacement)
                    written = written if at < top else written[:, -1:]
                    known = lambda *_, w=written, **__: (w, None)  # noqa: E731
                    stack.enter_context(attribute(model.part(at, "attention"), "forward", known))
                elif at == top:
                    stack.enter_context(_attention_at_last(model, x))
                # Where attention is known at the last position, the rest of the last block needs no other.
                x = _first(model.blocks[at](x if at < top else x[:, -1:], *args, **kwargs))
    return x[:, -1].unflatten(0, (versions, batch))


def _without(
    model: Model, layer: int, ablated: Sets, call: _Call, replacement: Instead
) -> Float[Tensor, "version_x_batch position d_model"]:
    """The plain run's attention output, less what the heads of each version wrote there."""
    weight, d_head = matrix_of(model.part(layer, "attention_out")).T, model.d_head
    out = []
    for heads in ablated:
        written = call.attention.clone()
        for head in (h for at, h in heads if at == layer):
            own = slice(head * d_head, (head + 1) * d_head)
            less = call.z[..., own]
            less = less if replacement is None else less - replacement[layer, head].to(less)
            written -= less @ weight[own]
        out.append(written)
    return torch.cat(out)


@contextmanager
def _attention_at_last(model: Model, x: Float[Tensor, "batch position d_model"]) -> Iterator[None]:
    """Let the last block, which is given only the last position, attend to all positions of its input x."""
    top = model.n_layers - 1
    stock = model.part(top, "attention").forward

    def forward(*args, **kwargs):
        _, args, kwargs = _given(args, kwargs)
        return stock(query_key.normed(model, top, x), *args, **kwargs)

    only_last = lambda _, args: (args[0][:, -1:], *args[1:])  # noqa: E731
    with ExitStack() as stack:
        stack.callback(model.part(top, "attention_out").register_forward_pre_hook(only_last).remove)
        stack.enter_context(attribute(model.part(top, "attention"), "forward", forward))
        yield


def _repeated(value: Any, batch: int, versions: int) -> Any:
    """A block's arguments for several versions of the batch; what has one row for all prompts stays as it is."""
    if isinstance(value, dict):
        return {k: _repeated(v, batch, versions) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_repeated(v, batch, versions) for v in value)
    if isinstance(value, Tensor) and value.dim() > 1 and value.shape[0] == batch > 1:
        return value.repeat(versions, *[1] * (value.dim() - 1))
    return value


def _take_away(z: Float[Tensor, "*rows head d_head"], layer: int, heads: Sequence[Head], replacement: Instead) -> None:
    for head in (head for at, head in heads if at == layer):
        z[..., head, :] = 0 if replacement is None else replacement[layer, head].to(z)


class LastPositionVersions:
    """Versions of the last position that ride along with a plain run: each boards at the layer of its lowest head."""

    def __init__(self, model: Model, ablated: Sets, replacement: Instead):
        self.model, self.ablated, self.replacement = model, ablated, replacement
        self.first_layer = [heads[0][0] for heads in ablated]  # in order: `taken` is sorted by it
        self.rows: Float[Tensor, "batch version d_model"] | None = None
        self._riding = False  # a block that runs for the riders must not take them along again

    def run(self, batch: Sequence[Encoded]) -> Float[Tensor, "batch d_model"]:
        """Run the model; `rows` then holds the versions' final residual streams, in the order of `taken`."""
        final = []
        with ExitStack() as stack:
            for layer in range(min(self.first_layer), self.model.n_layers):
                stack.enter_context(self._along(layer))
            hook = lambda _, args: final.append(args[0][:, -1])  # noqa: E731
            stack.callback(self.model.final_norm.register_forward_pre_hook(hook).remove)
            self.model.logits(batch)
        return final[0]

    @contextmanager
    def _along(self, layer: int) -> Iterator[None]:
        seen: dict[str, Any] = {}

        def read(query, key, value, mask, scaling, softcap):
            if not self._riding:
                seen.update(key=key[:, :, :-1], value=value[:, :, :-1], mask=mask)

        def called(_, args, kwargs):
            if not self._riding:
                seen.update(call=_given(args, kwargs))

        def done(_, args, output):
            if not self._riding:
                self._riding = True
                try:
                    self._step(layer, **seen)
                finally:
                    self._riding = False
                seen.clear()

        block = self.model.blocks[layer]
        with ExitStack() as stack:
            stack.callback(block.register_forward_pre_hook(called, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(done).remove)
            stack.enter_context(reading_attention(self.model, layer, read))
            yield

    def _step(self, layer: int, key: Tensor, value: Tensor, mask: Tensor | None, call: tuple) -> None:
        x, args, kwargs = call
        own = x[:, -1:].expand(-1, self.first_layer.count(layer), -1)
        rows = own if self.rows is None else torch.cat([self.rows.to(own.device), own], 1)
        args, kwargs = _at_last((args, kwargs), x.shape[1], rows.shape[1])
        with (
            attending_to(self.model, layer, key, value, None if mask is None else _allowed(mask, x.shape[1])),
            changing_z(self.model, {layer: partial(self._take_away, layer)}),
        ):
            self.rows = _first(self.model.blocks[layer](rows, *args, **kwargs))

    def _take_away(self, layer: int, z: Float[Tensor, "batch version head d_head"]) -> None:
        for heads, mine in zip(self.ablated, z.unbind(1), strict=False):  # later versions do not ride along yet
            _take_away(mine, layer, heads, self.replacement)


def _allowed(mask: Tensor, length: int) -> Tensor:
    """Which other positions the last may see, from the mask that a layer was given (True, or 0 where it is added)."""
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
