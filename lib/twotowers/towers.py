"""How a query meets a key: the query carried back into the input space of the keys.

    u, c = carried_back(model, layer, head, query, positions, normed)      # score = u . normed + c
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twotowers.architectures import Model


def normed(model: Model, layer: int, x: Float[Tensor, "*rows d_model"]) -> Float[Tensor, "*rows d_model"]:
    """What W_Q, W_K and W_V multiply: the attention norm of the layer's input x (`capture.stream_inputs[layer]`)."""
    return model.part(layer, "attention_norm")(x)


def rotated(
    model: Model, layer: int, v: Float[Tensor, "*rows d_head"], positions: Int[Tensor, "*rows"], back: bool = False
) -> Float[Tensor, "*rows d_head"]:
    """Queries or keys turned to their positions, which broadcast to the rows; `back` turns them back.

    Leaves v alone in a model without rotary positions.
    """
    if model.architecture.positions != "rotary":
        return v
    cos, sin = model.hf.get_submodule("model.rotary_emb")(v, positions.reshape(1, -1))
    cos, sin = (x.reshape(*positions.shape, -1).to(v) for x in (cos, sin))
    n, sin = v.shape[-1], -sin if back else sin
    return v * cos + torch.cat((-v[..., n // 2 :], v[..., : n // 2]), -1) * sin


def carried_back(
    model: Model,
    layer: int,
    head: int,
    query: Float[Tensor, "batch d_head"],
    positions: Int[Tensor, "*batch position"] | None,
    normed: Float[Tensor, "batch position d_model"],
) -> tuple[Float[Tensor, "batch position d_model"], Float[Tensor, "batch position"]]:
    """The last query of a head carried through W_K into the input space of the keys: (u, c), so that

        score at a position = u . normed + c

    `query` is `capture.queries[layer][:, head]`; `normed` the attention norm's output at `positions`. With
    positions=None the keys are not turned: give a query turned back as well (`rotated(..., back=True)`), and the score
    is the one without the positions' influence.
    """
    query = query[:, None].expand(-1, normed.shape[1], -1)
    if positions is not None:
        query = rotated(model, layer, query, positions, back=True)
    (weight, bias), shared = model.key_weight(layer), model.value_head(head)
    constant = torch.zeros_like(query[..., 0]) if bias is None else query @ bias[shared].to(query)
    return query @ weight[shared].to(query), constant
