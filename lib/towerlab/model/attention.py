"""Attention where the model makes it, and runs of a stock model changed for as long as asked.

    with reading_attention(model, layers, read):  # it sees query, key, value and mask
    with restarted(model, layer, output):         # runs that begin at a layer

    >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 3, 2)
    >>> value, mask = torch.arange(6.0).view(1, 1, 3, 2), torch.ones(1, 1, 1, 3, dtype=torch.bool)
    >>> Attention(query, key, value, mask, 1.0, None).z()  # equal scores: the mean of the values
    tensor([[[[2., 3.]]]])

An attention function registered with transformers under the name `twotowers` calls SDPA for the
model's own output, and shows a reader what goes in. There are two exceptions. A soft cap (Gemma 2),
which SDPA refuses, is computed plainly. An attention that transformers does not route through its
interface (GPT-J, GPT-Neo) is read by hiding the one method that gets query, key and value behind a
function that calls it. Nothing in transformers is edited, and all is undone at the end, also after
an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from towerlab.model.architectures import Architecture
from towerlab.model.model import Model, softcapped, widen

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
    return softcapped(scores, softcap)


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
    """Return what heads feed to W_O: that of SDPA, or of a reader set by `reading_attention`."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    mask = _allowed(attention_mask, query, key)
    attention = Attention(query, key, value, mask, scaling, softcap)

    def own() -> Tensor:
        if softcap is not None:
            return attention.z()
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )[0].transpose(1, 2)

    return _z(module, attention, own).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attention_function)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _method(model: Model, layer: int, stock: Callable, query, key, value, attention_mask=None):
    """Do the same for a model that has a method for it, `stock`.

    GPT-Neo's method hides by itself what is beyond its window.
    """
    mask = _allowed(attention_mask, query, key, model.window(layer))
    attention = Attention(query, key, value, mask, model.score_scaling(layer), None)

    def own() -> Tensor:
        return stock(query, key, value, attention_mask)[0]

    return _z(model.part(layer, "attention"), attention, own), None


def _z(module: nn.Module, attention: Attention, own: Callable[[], Tensor]) -> Tensor:
    """Return `own()`, or what the module's readers make of it, one after the other."""
    for reader in vars(module).get(READERS, ()):
        given = reader(attention, own)
        own = own if given is None else partial(lambda z: z, given)
    return own()


Reader = Callable[[int, Attention, Callable[[], Tensor]], Tensor | None]
"""(layer, attention, own) -> what heads feed to W_O, or None for what the model computes, which
`own()` returns: (batch, head, position, d_head)"""


@contextmanager
def reading_attention(model: Model, layers: Iterable[int], reader: Reader) -> Iterator[None]:
    """Let a reader see, and change, the attention of some layers in the runs inside.

    Several readers may see the same layer, one inside the other.
    """
    method = model.architecture.attention_method
    with ExitStack() as stack:
        for layer in layers:
            module = model.part(layer, "attention")
            readers = (*vars(module).get(READERS, ()), partial(reader, layer))
            stack.enter_context(patch.object(module, READERS, readers, create=True))
            if method and method not in vars(module):
                changed = partial(_method, model, layer, getattr(module, method))
                stack.enter_context(patch.object(module, method, changed))
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
            stack.enter_context(patch.object(block, "forward", lambda *_, **__: output))
        yield


def split_call(args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, tuple, dict[str, Any]]:
    """What a block or module was called with, as (hidden states, other positional arguments,
    keywords)."""
    kwargs = dict(kwargs)
    return (args[0], args[1:], kwargs) if args else (kwargs.pop("hidden_states"), (), kwargs)


def hidden_states(output: Any) -> Tensor:
    """Hidden states from what a block returns."""
    return output[0] if isinstance(output, tuple) else output
