"""Attention read where the model makes it: query, key, value, mask and scaling of one layer, for as long as asked.

An attention function registered with transformers under the name `twotowers` calls SDPA for the model's own output and
shows a reader what went in. Two exceptions: attention with a soft cap (Gemma 2), which SDPA refuses, is computed
plainly; and an attention that transformers does not route through its interface (GPT-J, GPT-Neo) is read by hiding the
one method that gets query, key and value, on the one module, behind a function that calls it. Nothing in transformers
is edited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from towerlab.model.architectures import Architecture
from towerlab.model.hooks import attribute
from towerlab.model.model import Model

ATTENTION = "twotowers"  # the name under which transformers finds `attention_function`


def implementation(architecture: Architecture) -> str:
    """The attention implementation to load a model of this architecture with."""
    return "eager" if architecture.attention_method else ATTENTION


def attention_function(module, query, key, value, attention_mask, scaling=None, softcap=None, **kwargs):
    """SDPA for the model's own output; a reader set on the module by `reading_attention` sees what went in."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    reader = getattr(module, "twotowers_reader", None)
    if reader is not None:
        reader(query, key, value, attention_mask, scaling, softcap)
    others = getattr(module, "twotowers_others", None)
    if others is not None:
        key, value, attention_mask = others(key, value)
    if softcap is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if attention_mask is None:
        length, rows = key.shape[2], query.shape[2]  # with a cache there are fewer queries than keys: the last ones
        attention_mask = torch.ones(length, length, dtype=torch.bool, device=key.device).tril()[None, None, -rows:]
    out, _ = _attend(query, key, value, attention_mask, scaling, softcap)
    return out.transpose(1, 2).contiguous(), None


def _attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head position d_head"],
    value: Float[Tensor, "batch kv_head position d_head"],
    mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "batch head query d_head"], Float[Tensor, "batch head query position"]]:
    """Attention by its definition: the weighted sums of values, and the weights."""
    weights = masked(scores(query, key, scaling, softcap), mask).softmax(-1).to(value.dtype)
    return weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1), weights


AttentionInterface.register(ATTENTION, attention_function)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


@contextmanager
def reading_attention(model: Model, layer: int, reader: Callable) -> Iterator[None]:
    """Let `reader(query, key, value, mask, scaling, softcap)` see one layer's attention; always let go.

    Several readers may see the same layer, one inside the other.
    """
    module, method = model.part(layer, "attention"), model.architecture.attention_method
    before = module.__dict__.get("twotowers_reader")
    if method:
        stock = getattr(module, method)

        def attend(query, key, value, attention_mask=None):
            mask = _through_window(attention_mask, model.window(layer), query.shape[2], key)
            reader(query, key, value, mask, model.score_scaling(layer), None)
            return stock(query, key, value, attention_mask)

        with attribute(module, method, attend):
            yield
        return

    def each(*arguments):
        for read in (before, reader):
            if read is not None:
                read(*arguments)

    with attribute(module, "twotowers_reader", each):
        yield


@contextmanager
def reading_all(model: Model, read: Callable[..., None]) -> Iterator[None]:
    """Runs in which `read(layer, query, key, value, mask, scaling, softcap)` sees the attention of every layer."""
    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.enter_context(reading_attention(model, layer, partial(read, layer)))
        yield


def _through_window(
    mask: Tensor | None, window: int | None, rows: int, key: Float[Tensor, "batch kv_head position d_head"]
) -> Tensor | None:
    """The mask (to be added) with what GPT-Neo's method itself hides: in local layers, all beyond the window."""
    if window is None:
        return mask
    at = torch.arange(key.shape[2], device=key.device)
    outside = at <= at[-rows:, None] - window
    window_mask = torch.zeros_like(outside, dtype=key.dtype).masked_fill(outside, -torch.inf)
    return window_mask[None, None] if mask is None else window_mask + mask


@contextmanager
def attending_to(
    model: Model,
    layer: int,
    key: Float[Tensor, "batch kv_head position d_head"],
    value: Float[Tensor, "batch kv_head position d_head"],
    base: Bool[Tensor, "batch_or_1 1 1 position"] | None,
) -> Iterator[None]:
    """Let every row that one layer is given attend to these keys and values and to itself, but to no other row.

    The rows are then so many versions of one position, the last, above the same other positions. `base`: which of
    these the model's own mask lets the last position see (None: all). Always let go.
    """
    module, method = model.part(layer, "attention"), model.architecture.attention_method

    def others(own_key, own_value):
        rows, own = own_key.shape[2], torch.eye(own_key.shape[2], dtype=torch.bool, device=own_key.device)
        visible = torch.ones_like(key[:1, :1, None, :, 0], dtype=torch.bool) if base is None else base
        visible = visible.expand(len(visible), 1, rows, -1)
        mask = torch.cat([visible, own.expand(len(visible), 1, -1, -1)], -1)
        return torch.cat([key, own_key], 2), torch.cat([value, own_value], 2), mask

    if method:

        def attend(query, own_key, own_value, attention_mask=None):
            return _attend(query, *others(own_key, own_value), model.score_scaling(layer))

    # Under another name where the model has no method for it: a reader of this layer may be on the same module.
    with attribute(module, method or "twotowers_others", attend if method else others):
        yield


def scores(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head position d_head"],
    scaling: float,
    softcap: float | None = None,
) -> Float[Tensor, "batch head query position"]:
    """Scaled query-key products, soft-capped where the model does so, in at least float32; no mask."""
    wide = torch.promote_types(query.dtype, torch.float32)
    batch, heads, rows, d_head = query.shape
    groups = query.to(wide).reshape(batch, key.shape[1], -1, rows, d_head)
    products = torch.einsum("bkgqd,bkpd->bkgqp", groups, key.to(wide)).reshape(batch, heads, rows, -1) * scaling
    return products if softcap is None else softcap * (products / softcap).tanh()


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """Scores (batch, head, query, position) with a mask of the last queries: of what is allowed, or to be added."""
    if mask is None:
        return values
    mask = mask[:, :, -values.shape[-2] :]  # with a cache there are fewer queries than keys: the last ones
    return values.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else values + mask


def last_scores(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head position d_head"],
    mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
) -> Float[Tensor, "batch head position"]:
    """Scores of the last position, masked (sliding windows), before the softmax."""
    mask = None if mask is None else mask[:, :, -1:, : key.shape[2]]
    return masked(scores(query[:, :, -1:], key, scaling, softcap), mask)[:, :, 0]
