"""Attention where the model computes it, and runs that begin at a layer.

    with reading_attention(model, layers, read):  # it reads query, key, value and mask
    with restarted(model, layer, output):         # runs that begin at a layer

    >>> query, key = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 3, 2)
    >>> value, mask = torch.arange(6.0).view(1, 1, 3, 2), torch.ones(1, 1, 1, 3, dtype=torch.bool)
    >>> Attention(query, key, value, mask, 1.0, None).z()  # equal scores: the mean of the values
    tensor([[[[2., 3.]]]])

An attention function is registered with transformers under the name `twotowers`. It calls SDPA for
the model's own output, and passes the inputs to a reader. There are two exceptions. A soft cap
(Gemma 2), which SDPA refuses, is computed without SDPA. An attention that transformers does not
route through its interface (GPT-J, GPT-Neo) has one method that gets query, key and value. This
method is replaced for the time of the run by a function that calls it. Nothing in transformers is
edited, and all changes are undone at the end, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from towerlab.prompts.prompt import Prompts

Weights = Float[Tensor, "batch head row position"]
"""Attention of the last positions, one for each row, on every position"""
ATTENTION = "twotowers"  # the name under which transformers finds `_attention_function`
# attribute of an attention module: functions that read its inputs
READERS = "twotowers_readers"


class Attention(NamedTuple):
    """Inputs of the attention of one layer.

    The rows are the last positions, one for each query. Queries and keys are after any rotation.
    Under grouped-query attention several query heads share a key and a value.
    """

    query: Float[Tensor, "batch head row d_head"]
    key: Float[Tensor, "batch kv_head position d_head"]
    value: Float[Tensor, "batch kv_head position d_head"]
    mask: Bool[Tensor, "batch_or_1 1 row position"]
    """Positions that a row may attend to"""
    scaling: float
    softcap: float | None

    def last(self) -> Attention:
        """Return the attention of the last position.

        Returns:
            Attention with one row.
        """
        query = self.query[:, :, -1:]
        mask = self.mask[:, :, -1:]
        return self._replace(query=query, mask=mask)

    def of_prompts(self, prompts: slice | Sequence[int]) -> Attention:
        """Return the attention of some prompts, as a view if they are a slice.

        Args:
            prompts: Prompts of the batch.

        Returns:
            Attention of these prompts.
        """
        mask = self.mask if len(self.mask) == 1 else self.mask[prompts]
        return self._replace(
            query=self.query[prompts], key=self.key[prompts], value=self.value[prompts], mask=mask
        )

    def select_heads(self, heads: Sequence[int]) -> Attention:
        """Return the attention of some heads, each with its own copy of keys and values.

        Args:
            heads: Numbers of the heads within the layer.

        Returns:
            Attention of these heads.
        """
        n_heads = self.query.shape[1]
        group = n_heads // self._n_kv_heads
        kv_heads = [head // group for head in heads]
        return self._replace(
            query=self.query[:, heads], key=self.key[:, kv_heads], value=self.value[:, kv_heads]
        )

    @property
    def _n_kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.key.shape[1]

    def scores(self) -> Float[Tensor, "batch head row position"]:
        """Return the scores before the softmax, soft-capped and masked as in the model.

        Returns:
            Scores (nats; batch, head, row, position), in at least float32.
        """
        groups = widen(self.query).unflatten(1, (self._n_kv_heads, -1))
        key = widen(self.key)
        products = torch.einsum("bkgqd,bkpd->bkgqp", groups, key)
        products = products.flatten(1, 2) * self.scaling
        capped = softcapped(products, self.softcap)
        return capped.masked_fill(~self.mask, -torch.inf)

    def weights(self) -> Weights:
        """Return the attention weights.

        Returns:
            Weights (batch, head, row, position), which sum to 1 over positions.
        """
        scores = self.scores()
        return scores.softmax(-1)

    def z(self, weights: Weights | None = None) -> Float[Tensor, "batch head row d_head"]:
        """Return the input of W_O: the sum of values, weighted by attention.

        Args:
            weights: Weights (batch, head, row, position), or None for the heads' own.

        Returns:
            Inputs of W_O (batch, head, row, d_head).
        """
        if weights is None:
            weights = self.weights()
        weights = weights.to(self.value.dtype)
        groups = weights.unflatten(1, (self._n_kv_heads, -1))
        z = torch.einsum("bkgqp,bkpd->bkgqd", groups, self.value)
        return z.flatten(1, 2)


def _allowed(
    mask: Tensor | None, key: Tensor, window: int | None = None
) -> Bool[Tensor, "batch_or_1 1 row position"]:
    """Return which positions each row may attend to.

    Masks of transformers are boolean, or numbers that are added to scores, or None where attention
    is causal.
    """
    if mask is None:
        length = key.shape[2]
        every = torch.ones(1, 1, length, length, dtype=torch.bool, device=key.device)
        mask = every.tril()
    elif mask.dtype != torch.bool:
        mask = mask >= 0
    if window is None:
        return mask
    inside = torch.ones_like(mask).triu(1 - window)
    return mask & inside


def implementation(architecture: Architecture) -> str:
    """Return the attention implementation to load a model of an architecture with.

    Args:
        architecture: Row of the table.

    Returns:
        Value of the argument `attn_implementation` of transformers.
    """
    return "eager" if architecture.attention_method else ATTENTION


def _attention_function(module, query, key, value, attention_mask, scaling, softcap=None, **kwargs):
    """Return the input of W_O (batch, row, head, d_head), from SDPA or from a reader.

    transformers calls this function with the arguments of `AttentionInterface`, and expects None in
    place of attention weights.
    """
    mask = _allowed(attention_mask, key)
    attention = Attention(query, key, value, mask, scaling, softcap)

    def sdpa() -> Tensor:
        z, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return z.transpose(1, 2)

    compute_z = sdpa if softcap is None else attention.z
    z = _read(module, attention, compute_z)
    return z.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _attention_function)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _method(model: Model, layer: int, stock: Callable, query, key, value, attention_mask=None):
    """Return the result of `_attention_function` for a model with its own method, `stock`.

    GPT-Neo's method itself masks the positions outside its window.
    """
    mask = _allowed(attention_mask, key, model.window(layer))
    scaling = model.score_scaling(layer)
    attention = Attention(query, key, value, mask, scaling, None)

    def compute_z() -> Tensor:
        z, *_ = stock(query, key, value, attention_mask)
        return z

    module = model.part(layer, "attention")
    return _read(module, attention, compute_z), None


def _read(module: nn.Module, attention: Attention, compute_z: Callable[[], Tensor]) -> Tensor:
    """Return `compute_z()`, or the result of the module's readers, called one after the other."""
    for reader in vars(module).get(READERS, ()):
        z = reader(attention, compute_z)
        if z is not None:
            compute_z = partial(lambda z: z, z)
    return compute_z()


Reader = Callable[[int, Attention, Callable[[], Tensor]], Tensor | None]
"""(layer, attention, compute_z) -> input of W_O (batch, head, position, d_head), or None to keep
the model's own, which `compute_z()` returns"""


@contextmanager
def reading_attention(model: Model, layers: Iterable[int], reader: Reader) -> Iterator[None]:
    """Let a reader read, and change, the attention of some layers in the runs inside.

    Several readers may read the same layer, one inside the other.

    Args:
        model: Any model.
        layers: Layers to read.
        reader: Function that is called for each layer: see `Reader`.

    Yields:
        None.
    """
    method = model.architecture.attention_method
    with ExitStack() as stack:
        for layer in layers:
            module = model.part(layer, "attention")
            before = vars(module).get(READERS, ())
            readers = (*before, partial(reader, layer))
            stack.enter_context(patch.object(module, READERS, readers, create=True))
            if method and method not in vars(module):
                stock = getattr(module, method)
                changed = partial(_method, model, layer, stock)
                stack.enter_context(patch.object(module, method, changed))
        yield


@contextmanager
def block_calls(model: Model, layers: Iterable[int]) -> Iterator[dict[int, tuple]]:
    """Yield a mapping that the run inside fills with calls of blocks.

    Args:
        model: Any model.
        layers: Layers whose calls are kept.

    Yields:
        Layer -> call of its block, as from `split_call`, filled in the order of the layers.
    """
    calls: dict[int, tuple] = {}
    with ExitStack() as stack:
        for layer in layers:

            def keep(_, args: tuple, kwargs: dict, layer=layer) -> None:
                calls[layer] = split_call(args, kwargs)

            block = model.layers[layer]
            hook = block.register_forward_pre_hook(keep, with_kwargs=True)
            stack.enter_context(hook)
        yield calls


class Reached(Exception):
    """A run has come to the last part that it is for."""


@torch.inference_mode()
def block_inputs(model: Model, batch: Prompts, layers: Collection[int]) -> dict[int, Tensor]:
    """Run prompts up to the highest of some layers, and return the inputs of these layers.

    Args:
        model: Any model.
        batch: Prompts of one token length.
        layers: Layers, at least one.

    Returns:
        Layer -> input of its block at all positions (batch, position, d_model), on the device of
        the unembedding.
    """

    def stop(*_) -> None:
        raise Reached

    highest = model.layers[max(layers)]
    calling = block_calls(model, layers)
    with calling as calls, highest.register_forward_pre_hook(stop), suppress(Reached):
        model.logits(batch)
    inputs = {}
    for layer in layers:
        input_of_block = calls[layer][0]
        inputs[layer] = input_of_block.to(model.device)
    return inputs


@contextmanager
def block_outputs(model: Model, layers: Iterable[int]) -> Iterator[dict[int, Any]]:
    """Yield a mapping that the run inside fills with outputs of blocks: see `restarted`.

    Args:
        model: Any model.
        layers: Layers whose outputs are kept.

    Yields:
        Layer -> output of its block, filled in the order of the layers.
    """
    outputs: dict[int, Any] = {}
    with ExitStack() as stack:
        for layer in layers:

            def keep(_, args: tuple, output: Any, layer=layer) -> None:
                outputs[layer] = output

            block = model.layers[layer]
            hook = block.register_forward_hook(keep)
            stack.enter_context(hook)
        yield outputs


@contextmanager
def restarted(model: Model, layer: int, output: Any) -> Iterator[None]:
    """Begin the runs inside at block `layer`.

    The blocks below do nothing and return `output`, the output of block `layer` - 1. The prompts
    and their order must be those of the run that `output` is from, without a cache of keys and
    values.

    Args:
        model: Any model.
        layer: First layer that runs.
        output: Output of the block below it, from `block_outputs`.

    Yields:
        None.
    """

    def skip(*_, **__) -> Any:
        return output

    with ExitStack() as stack:
        for block in model.layers[:layer]:
            skipped = patch.object(block, "forward", skip)
            stack.enter_context(skipped)
        yield


def split_call(args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, tuple, dict[str, Any]]:
    """Return the arguments of a block or module, with the hidden states apart.

    Args:
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Returns:
        Hidden states, other positional arguments, keyword arguments.
    """
    kwargs = dict(kwargs)
    if not args:
        args = (kwargs.pop("hidden_states"),)
    hidden_states, *others = args
    return hidden_states, tuple(others), kwargs
