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
from torch import Tensor

from towerlab.model.attention import Attention
from towerlab.model.model import Model, add_bias, apply_norm


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
    return _projected(model, layer, 0, normed) * model.score_scaling(layer)


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
    return _projected(model, layer, 1, normed)


def _through(weight: Tensor, bias: Tensor | None, x: Tensor) -> Float[Tensor, "*rows head d_head"]:
    """Return vectors after the linear map of every head."""
    return add_bias(torch.einsum("...d,hkd->...hk", x, weight.to(x.device)), bias)


def _projected(model: Model, layer: int, which: int, normed: Tensor) -> Tensor:
    """Return queries (0) or keys (1), after their norm if there is one."""
    v = _through(*model.projection(layer, which), normed)
    if not (name := model.architecture.head_norms[which]):
        return v
    norm = model.part(layer, "attention").get_submodule(name)
    together = v.flatten(-2).unflatten(-1, (-1, len(norm.weight)))  # one head a row, or all heads
    return apply_norm(norm, together).reshape(v.shape)


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
    cos, sin = (x.to(v) for x in _cos_sin(model, layer, positions))
    n = 2 * cos.shape[-1]
    # Neighbours form a pair, or the numbers at one place of both halves.
    sizes, pair = ((-1, 2), -1) if model.architecture.rotates_neighbours else ((2, -1), -2)
    first, second = v[..., :n].unflatten(-1, sizes).unbind(pair)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat((torch.stack(turned, pair).flatten(-2), v[..., n:]), -1)


def _cos_sin(model: Model, layer: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the model's own cosines and sines, in its dtype, for the rotated pairs of a head."""
    if not model.architecture.rotary:  # GPT-J: sines, then cosines
        table = model.part(layer, "attention").embed_positions
        sin, cos = table[positions.to(table.device)].chunk(2, -1)
        return cos, sin
    rotary = model.hf.get_submodule(model.architecture.rotary)
    kind = (model.config.layer_types[layer],) if model.architecture.rotary_by_kind else ()
    like = torch.empty(0, dtype=model.dtype, device=next(rotary.buffers()).device)
    both = rotary(like, positions.reshape(1, -1).to(like.device), *kind)
    # Every angle is there twice, once for each half.
    cos, sin = (x.reshape(*positions.shape, -1).chunk(2, -1)[0] for x in both)
    return cos, sin


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
    positions = torch.arange(normed.shape[1], device=normed.device)
    query = rotated(model, layer, queries(model, layer, normed[:, -1]), positions[-1])
    key = rotated(model, layer, keys(model, layer, normed).transpose(1, 2), positions)
    softcap = getattr(model.config, "attn_logit_softcapping", None)
    visible = torch.ones_like(positions, dtype=torch.bool)
    return Attention(query[:, :, None], key, key, visible, 1.0, softcap).scores()[:, :, 0]


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
    (weight, bias), kv_head = model.projection(layer, 1), model.value_head(head)
    if name := model.architecture.head_norms[1]:
        norm = model.norm(model.part(layer, "attention").get_submodule(name))
        gain = norm.gain.unflatten(0, (-1, model.d_head))
        together = len(gain) > 1  # one norm of all heads, or of each by itself
        key = _through(weight, bias, normed)
        scale = norm.scale(key.flatten(-2) if together else key[:, kv_head])
        query = query * gain[kv_head if together else 0].to(query) / scale[:, None]
    return query @ weight[kv_head].to(query)
