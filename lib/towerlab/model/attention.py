"""Attention where the model makes it, and runs of a stock model changed for as long as asked.

    with reading_attention(model, layer, read):   # it sees query, key, value and mask
    with changing_z(model, {layer: change}):      # what heads feed to W_O, changed in place
    with restarted(model, layer, output):         # runs that begin at a layer

    >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 3, 2)
    >>> value, mask = torch.arange(6.0).view(1, 1, 3, 2), torch.ones(1, 1, 1, 3, dtype=torch.bool)
    >>> Attention(query, key, value, mask, 1.0, None).z()  # equal scores: the mean of the values
    tensor([[[[2., 3.]]]])

An attention function registered with transformers under the name `twotowers` calls SDPA for the
model's own output and shows a reader what went in. Two exceptions. A soft cap (Gemma 2), which SDPA
refuses, is computed plainly. An attention that transformers does not route through its interface
(GPT-J, GPT-Neo) is read by hiding the one method that gets query, key and value behind a function
that calls it. Nothing in transformers is edited, and all is undone at the end, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from towerlab.model.architectures import Architecture
from towerlab.model.model import Model, widen

ATTENTION = "twotowers"  # the name under which transformers finds `attention_function`
# attribute of an attention module: functions that see what it is given
READERS = "twotowers_readers"


class Attention(NamedTuple):
    """What the attention of one layer is given. Rows are the last positions, as many as there are
    queries.

    Queries and keys are after any rotation. Under grouped-query attention several query heads share
    a key and a value.
    """

    query: Float[Tensor, "batch head row d_head"]
    key: Float[Tensor, "batch kv_head position d_head"]
    value: Float[Tensor, "batch kv_head position d_head"]
    mask: Bool[Tensor, "batch_or_1 1 row position"]
    """Which positions a row may attend to"""
    scaling: float
    softcap: float | None

    def last(self) -> Attention:
        """That of the last position alone."""
        return self._replace(query=self.query[:, :, -1:], mask=self.mask[:, :, -1:])

    def of(self, heads: Sequence[int]) -> Attention:
        """That of some heads, each with its own copy of keys and values."""
        group = self.query.shape[1] // self.key.shape[1]
        kv_heads = [head // group for head in heads]
        return self._replace(
            query=self.query[:, heads], key=self.key[:, kv_heads], value=self.value[:, kv_heads]
        )

    def scores(self) -> Float[Tensor, "batch head row position"]:
        """Scores before the softmax (nats), soft-capped and masked as the model's own."""
        return products(self.query, self.key, self.scaling, self.softcap).masked_fill(
            ~self.mask, -torch.inf
        )

    def weights(self) -> Float[Tensor, "batch head row position"]:
        return self.scores().softmax(-1)

    def z(
        self, weights: Float[Tensor, "batch head row position"] | None = None
    ) -> Float[Tensor, "batch head row d_head"]:
        """What the heads feed to W_O: the sum of values with these weights, or their own."""
        weights = self.weights() if weights is None else weights
        groups = weights.to(self.value.dtype).unflatten(1, (self.value.shape[1], -1))
        return torch.einsum("bkgqp,bkpd->bkgqd", groups, self.value).flatten(1, 2)


def products(
    query: Float[Tensor, "batch head row d_head"],
    key: Float[Tensor, "batch kv_head position d_head"],
    scaling: float,
    softcap: float | None = None,
) -> Float[Tensor, "batch head row position"]:
    """Scaled query-key products, soft-capped where the model does so, in at least float32; no
    mask."""
    groups = widen(query).unflatten(1, (key.shape[1], -1))
    scores = torch.einsum("bkgqd,bkpd->bkgqp", groups, widen(key)).flatten(1, 2) * scaling
    return scores if softcap is None else softcap * (scores / softcap).tanh()


def _allowed(
    mask: Tensor | None, query: Tensor, key: Tensor, window: int | None = None
) -> Bool[Tensor, "batch_or_1 1 row position"]:
    """Which positions each row may attend to. Masks of transformers say so, are added to scores, or
    left away where causal."""
    rows, length = query.shape[2], key.shape[2]
    if mask is None:
        mask = torch.ones(1, 1, rows, length, dtype=torch.bool, device=key.device).tril(
            length - rows
        )
    mask = (mask if mask.dtype == torch.bool else mask >= 0)[:, :, -rows:, :length]
    return mask if window is None else mask & torch.ones_like(mask).triu(length - rows + 1 - window)


def implementation(architecture: Architecture) -> str:
    """The attention implementation to load a model of this architecture with."""
    return "eager" if architecture.attention_method else ATTENTION


def attention_function(
    module, query, key, value, attention_mask, scaling=None, softcap=None, **kwargs
):
    """SDPA for the model's own output; readers set on the module by `reading_attention` see what
    went in."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if READERS in vars(module) or softcap is not None:
        attention = Attention(
            query, key, value, _allowed(attention_mask, query, key), scaling, softcap
        )
        z = _shown(module, attention)
        if z is None and softcap is not None:
            z = attention.z()
        if z is not None:
            return z.transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **kwargs
    )


AttentionInterface.register(ATTENTION, attention_function)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _method(model: Model, layer: int, stock: Callable, query, key, value, attention_mask=None):
    """The same for a model that has a method for it, `stock`; GPT-Neo's hides by itself what is
    beyond its window."""
    mask = _allowed(attention_mask, query, key, model.window(layer))
    attention = Attention(query, key, value, mask, model.score_scaling(layer), None)
    z = _shown(model.part(layer, "attention"), attention)
    return stock(query, key, value, attention_mask) if z is None else (z, None)


def _shown(module: nn.Module, attention: Attention) -> Tensor | None:
    """What one of the module's readers, which see the attention in their order, gives in place of
    the model's own output."""
    each = [reader(attention) for reader in vars(module).get(READERS, ())]
    return next((z for z in each if z is not None), None)


@contextmanager
def reading_attention(
    model: Model, layer: int, reader: Callable[[Attention], Tensor | None]
) -> Iterator[None]:
    """Let `reader(attention)` see one layer's attention in the runs inside. What it returns, if
    anything, is taken for what the heads feed to W_O. Several readers may see the same layer, one
    inside the other."""
    module, method = model.part(layer, "attention"), model.architecture.attention_method
    with ExitStack() as stack:
        stack.enter_context(attribute(module, READERS, (*vars(module).get(READERS, ()), reader)))
        if method and method not in vars(module):
            stack.enter_context(
                attribute(module, method, partial(_method, model, layer, getattr(module, method)))
            )
        yield


@contextmanager
def reading_all(model: Model, read: Callable[[int, Attention], None]) -> Iterator[None]:
    """Runs in which `read(layer, attention)` sees the attention of every layer."""
    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.enter_context(reading_attention(model, layer, partial(read, layer)))
        yield


Change = Callable[[Float[Tensor, "batch position head d_head"]], None]


@contextmanager
def changing_z(model: Model, changes: Mapping[int, Change]) -> Iterator[None]:
    """The model with what the heads of some layers feed to W_O changed, in place, by the function
    of the layer."""

    def hook(change: Change, _, args: tuple) -> tuple:
        z = args[0].clone()
        change(z.view(*z.shape[:-1], model.n_heads, model.d_head))
        return (z, *args[1:])

    with ExitStack() as stack:
        for layer, change in changes.items():
            stack.enter_context(
                model.part(layer, "attention_out").register_forward_pre_hook(partial(hook, change))
            )
        yield


@contextmanager
def block_outputs(model: Model, layers: Iterable[int]) -> Iterator[dict[int, Any]]:
    """Layer -> what its block returned in the run inside, filled as the run goes up: see
    `restarted`."""
    outputs: dict[int, Any] = {}

    def keep(layer: int, _, args: tuple, output: Any) -> None:
        outputs[layer] = output

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(model.blocks[layer].register_forward_hook(partial(keep, layer)))
        yield outputs


@contextmanager
def restarted(model: Model, layer: int, output: Any) -> Iterator[None]:
    """Runs inside begin at block `layer`: what is below does nothing and hands on `output`, of
    block `layer` - 1.

    The same prompts in the same order as the run that `output` is from, and no cache of keys and
    values.
    """
    with ExitStack() as stack:
        for block in model.blocks[:layer]:
            stack.enter_context(attribute(block, "forward", lambda *_args, **_kwargs: output))
        yield


def split_call(args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, tuple, dict[str, Any]]:
    """What a block or module was called with, as (hidden states, other positional arguments,
    keywords)."""
    kwargs = dict(kwargs)
    return (args[0], args[1:], kwargs) if args else (kwargs.pop("hidden_states"), (), kwargs)


def hidden_states(output: Any) -> Tensor:
    """Hidden states from what a block returns."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def attribute(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """The module with an attribute of its own, which hides the class's; what it had of its own
    before comes back."""
    had_own, before = name in vars(module), vars(module).get(name)
    setattr(module, name, value)
    try:
        yield
    finally:
        if had_own:
            setattr(module, name, before)
        else:
            delattr(module, name)
