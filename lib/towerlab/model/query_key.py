"""Every attention score rebuilt from the layer's input, as a product of query and key.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> from towerlab.model.capture import capture
    >>> run = capture(model, batch, {"streams", "weights"})
    >>> normed = model.normed(2, "attention", run.stream_inputs[2])
    >>> torch.allclose(last_scores(model, 2, normed), run.scores[2], atol=1e-3)
    True

A score is `scaling * R_last(norm(W_Q x + b)) . R_p(norm(W_K x_p + b))`. Architectures differ in its
parts:

- The rotation R is part of rotary models only (in SmolLM3, of most layers). It rotates all or some
  of a head's numbers, in halves or as neighbours, by angles that may depend on the kind of layer
  (Gemma 3).
- The norm is applied to each head (Qwen 3, Gemma 3) or to all heads of a layer together (OLMo 2).
- OPT scales its query first.
- Gemma 2 applies a soft cap at the end.

Tests compare all scores with the captured scores.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from towerlab.model.model import Model, add_bias, apply_norm, softcapped, widen

QUERY = 0
"""Number of W_Q in `Model.projection`"""
KEY = 1
"""Number of W_K in `Model.projection`"""


def queries(
    model: Model, layer: int, normed: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows head d_head"]:
    """Return the scaled queries before rotation.

    At the last position they are the queries of the attention times its scaling. Their product with
    `keys`, both rotated to their positions, is the score before a soft cap.

    Args:
        model: Any model.
        layer: Layer of the attention.
        normed: Inputs of W_Q (*rows, d_model).

    Returns:
        Queries (*rows, head, d_head).
    """
    unscaled = _projected(model, layer, QUERY, normed)
    return unscaled * model.score_scaling(layer)


def keys(
    model: Model, layer: int, normed: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows kv_head d_head"]:
    """Return the keys before rotation.

    Rotated to their positions they are the keys of the attention.

    Args:
        model: Any model.
        layer: Layer of the attention.
        normed: Inputs of W_K (*rows, d_model).

    Returns:
        Keys (*rows, kv_head, d_head).
    """
    return _projected(model, layer, KEY, normed)


def _through(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Return vectors (*rows, head, d_head) after the linear map of every head."""
    weight = weight.to(x.device)
    products = torch.einsum("...d,hkd->...hk", x, weight)
    return add_bias(products, bias)


def _projected(model: Model, layer: int, which: int, normed: Tensor) -> Tensor:
    """Return queries or keys, after their norm if there is one."""
    weight, bias = model.projection(layer, which)
    v = _through(weight, bias, normed)
    norm = _head_norm(model, layer, which)
    if norm is None:
        return v
    width = len(norm.weight)  # of one head, or of all heads together
    together = v.flatten(-2)
    rows = together.unflatten(-1, (-1, width))
    return apply_norm(norm, rows).reshape(v.shape)


def _head_norm(model: Model, layer: int, which: int) -> nn.Module | None:
    """Return the norm of queries or keys, if the model has one."""
    name = model.architecture.head_norms[which]
    if not name:
        return None
    attention = model.part(layer, "attention")
    return attention.get_submodule(name)


def rotated(
    model: Model, layer: int, v: Float[Tensor, "*rows d_head"], positions: Int[Tensor, "*#rows"]
) -> Float[Tensor, "*rows d_head"]:
    """Return queries or keys rotated to their positions.

    A layer that does not rotate returns v itself. Some models (dynamic angles, LongRoPE) use other
    angles in prompts longer than `Model.context`, which `prompt.encode_all` refuses.

    Args:
        model: Any model.
        layer: Layer of the attention.
        v: Queries or keys (*rows, d_head).
        positions: Positions (*#rows), which broadcast to the rows.

    Returns:
        Rotated vectors (*rows, d_head).
    """
    if not model.rotates(layer):
        return v
    cos, sin = _cos_sin(model, layer, positions)
    cos = cos.to(v)
    sin = sin.to(v)
    n_rotated = 2 * cos.shape[-1]
    kept = v[..., n_rotated:]
    first, second = _split_pairs(model, v[..., :n_rotated])
    first_turned = first * cos - second * sin
    second_turned = second * cos + first * sin
    turned = _join_pairs(model, first_turned, second_turned)
    return torch.cat((turned, kept), -1)


def _split_pairs(model: Model, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the second number of each rotated pair.

    Neighbours form a pair, or the numbers at one place of both halves.
    """
    if model.architecture.rotates_neighbours:
        even = v[..., ::2]
        odd = v[..., 1::2]
        return even, odd
    first, second = v.chunk(2, -1)
    return first, second


def _join_pairs(model: Model, first: Tensor, second: Tensor) -> Tensor:
    """Return the numbers of all pairs at their places: the inverse of `_split_pairs`."""
    axis = -1 if model.architecture.rotates_neighbours else -2
    pairs = torch.stack((first, second), axis)
    return pairs.flatten(-2)


def _cos_sin(model: Model, layer: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the model's own cosines and sines, in its dtype, for the rotated pairs of a head."""
    architecture = model.architecture
    if not architecture.rotary:  # GPT-J: sines, then cosines
        table = model.part(layer, "attention").embed_positions
        angles = table[positions.to(table.device)]
        sin, cos = angles.chunk(2, -1)
        return cos, sin
    rotary = model.hf.get_submodule(architecture.rotary)
    device = next(rotary.buffers()).device
    like = torch.empty(0, dtype=model.dtype, device=device)
    row = positions.reshape(1, -1)
    arguments = [like, row.to(device)]
    if architecture.rotary_by_kind:
        kind = model.config.layer_types[layer]
        arguments.append(kind)
    cos, sin = rotary(*arguments)
    n_pairs = cos.shape[-1] // 2  # every angle is there twice, once for each half
    shape = *positions.shape, n_pairs
    cos = cos[..., :n_pairs]
    sin = sin[..., :n_pairs]
    return cos.reshape(shape), sin.reshape(shape)


def last_scores(
    model: Model, layer: int, normed: Float[Tensor, "batch position d_model"]
) -> Float[Tensor, "batch head position"]:
    """Return the scores of the last position with every position.

    The scores are soft-capped where the model does so, without a mask and without softmax.

    Args:
        model: Any model.
        layer: Layer of the attention.
        normed: Inputs of W_Q and W_K (batch, position, d_model).

    Returns:
        Scores (nats; batch, head, position).
    """
    n_positions = normed.shape[1]
    positions = torch.arange(n_positions, device=normed.device)
    last = normed[:, -1]
    query = queries(model, layer, last)
    query = rotated(model, layer, query, positions[-1])
    key = keys(model, layer, normed).transpose(1, 2)
    key = rotated(model, layer, key, positions)
    key = model.for_query_heads(key)
    products = torch.einsum("bhk,bhpk->bhp", widen(query), widen(key))
    softcap = getattr(model.config, "attn_logit_softcapping", None)
    return softcapped(products, softcap)


def query_in_input_space(
    model: Model,
    layer: int,
    head: int,
    query: Float[Tensor, "batch d_head"],
    normed: Float[Tensor, "batch d_model"],
) -> Float[Tensor, "batch d_model"]:
    """Return a head's query, before rotation, carried through W_K into the keys' input space.

    The product of the result with `normed`, the attention norm's output, is the product of `query`
    with the key that `keys` computes from it, except for the constant that a bias adds to every
    key. A norm of keys (Qwen 3) is frozen at `normed`; in other models the result does not depend
    on it.

    Args:
        model: Any model.
        layer: Layer of the head.
        head: Number of the query head.
        query: Queries of the head (batch, d_head).
        normed: Inputs of W_K (batch, d_model).

    Returns:
        Vectors in the input space of W_K (batch, d_model).
    """
    weight, bias = model.projection(layer, KEY)
    kv_head = model.value_head(head)
    key_norm = _head_norm(model, layer, KEY)
    if key_norm is not None:
        norm = model.norm(key_norm)
        gains = norm.gain.unflatten(0, (-1, model.d_head))
        key = _through(weight, bias, normed)
        if len(gains) > 1:  # one norm of all heads
            gain = gains[kv_head]
            scale = norm.scale(key.flatten(-2))
        else:  # a norm of each head by itself
            gain = gains[0]
            scale = norm.scale(key[:, kv_head])
        query = query * gain.to(query) / scale[:, None]
    return query @ weight[kv_head].to(query)
