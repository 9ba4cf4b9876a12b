"""Edits of attention at the last position: parts of heads from another run, or vectors added; and attention knocked out.

    source, last = LastPosition(model, sources), LastPosition(model, bases)
    last.answers([exchange(heads, "keys", source.plain, at)])       # with the source's keys at the labels
    last.answers([steer(heads, query, None, at)])                   # with vectors added to the last position's queries

    with blocked(model, layers, closed):                            # closed[b, q, p]: position q may not attend to p
        answer(model, batch)

Batches hold prompts of one token length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from twotowers.errors import TwoTowersError
from twotowers.heads import Heads

from towerlab.model.last_position import Edit, LayerState, head_output
from towerlab.model.model import Model

PARTS = ("query", "keys", "values")
EXCHANGES: dict[str, tuple[str, ...]] = {**{part: (part,) for part in PARTS}, "all": PARTS}
"""What is taken from the source -> the parts"""


def _index(x: Tensor, at: Tensor) -> Tensor:
    """`at` for gather and scatter along the positions of x (batch, head, position, d_head)."""
    return at.to(x.device)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1])


def exchange(heads: Heads, what: str, source: Mapping[int, LayerState], at: Int[Tensor, "batch label"]) -> Edit:
    """Parts of some heads taken from the run `source` (layer -> state): an interchange intervention.

    z' = softmax(q' k'^T) v' takes the place of each head's z at the last position: q' is the source's query ("query"),
    k' and v' have the source's keys and values at the label positions `at` ("keys", "values"), "all" takes the three;
    what is not exchanged is the run's, made under the edits of the layers below. Heads that share keys (grouped-query
    attention) keep theirs. The source's prompts are in the order of the batch that is edited, with their labels at the
    same positions. Raises TwoTowersError on an unknown `what`.
    """
    if what not in EXCHANGES:
        raise TwoTowersError(f"what='{what}': choose one of {', '.join(EXCHANGES)}")
    parts = EXCHANGES[what]

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        (query, key, value), (its_query, its_key, its_value) = state.of(in_layer), source[layer].of(in_layer)
        index = _index(key, at)
        if "query" in parts:
            query = its_query
        if "keys" in parts:
            key = key.scatter(2, index, its_key.gather(2, index))
        if "values" in parts:
            value = value.scatter(2, index, its_value.gather(2, index))
        return head_output(state.scores(query, key), value)

    return Edit(heads, output)


def steer(
    heads: Heads,
    query: Mapping[int, Float[Tensor, "batch head d_head"]] | None,
    keys: Mapping[int, Float[Tensor, "batch kv_head label d_head"]] | None,
    at: Int[Tensor, "batch label"],
    dose: float = 1.0,
) -> Edit:
    """`dose` times vectors added to the query of the last position, and to the keys at the label positions `at`.

    Layer -> what is added in the chosen heads of that layer, after rotation; the query's in units of scaled queries
    (its product with a key is in nats). Keys change only as the last position of these heads sees them, as in
    `exchange`. None adds nothing. The vectors are in the order of the batch that is edited.
    """

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        q, k, v = state.of(in_layer)
        if query is not None:
            q = q + (dose * query[layer][:, in_layer, None] / state.scaling).to(q)
        if keys is not None:
            group = state.query.shape[1] // keys[layer].shape[1]
            kv_heads = [head // group for head in in_layer]
            k = k.scatter_add(2, _index(k, at), (dose * keys[layer][:, kv_heads]).to(k))
        return head_output(state.scores(q, k), v)

    return Edit(heads, output)


@contextmanager
def blocked(model: Model, layers: Sequence[int], closed: Bool[Tensor, "batch query position"]) -> Iterator[None]:
    """The model with no attention from q to p where `closed[b, q, p]`, in all heads of some layers.

    The scores are masked before the softmax, so the weight is exactly zero and the others share it in proportion.
    Positions after q are closed anyway. The run inside is of one batch of prompts as long as `closed`. Raises
    TwoTowersError for a position that may not attend to itself, a layer outside the model, and attention that is not
    given its mask by name.
    """
    if closed.diagonal(dim1=1, dim2=2).any():
        raise TwoTowersError("a position cannot be kept from attending to itself: take it out of the edge")
    if outside := [layer for layer in layers if not 0 <= layer < model.n_layers]:
        raise TwoTowersError(f"layer {outside[0]} is not in {model.name}: layers go to {model.n_layers - 1}")
    length = closed.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)

    def hook(module, args, kwargs):
        if "attention_mask" not in kwargs:
            raise TwoTowersError(f"{model.name} gives its attention no mask by name: its attention cannot be blocked")
        mask = kwargs["attention_mask"]
        if mask is None:  # transformers leaves a plain causal mask away
            device = next(module.parameters()).device
            mask = ~later.to(device)[None, None]
            if model.architecture.attention_method:  # takes a mask that is added to the scores
                mask = torch.zeros(mask.shape, dtype=model.dtype, device=device).masked_fill(~mask, torch.finfo(model.dtype).min)
        rows = len(args[0] if args else kwargs["hidden_states"])
        if rows != len(closed):  # a single row would be taken for all of them
            raise TwoTowersError(f"a batch of {rows} where attention is blocked in {len(closed)} prompts: run them together")
        closed_here = closed[:, None].to(mask.device)
        if mask.dtype == torch.bool:
            mask = mask & ~closed_here
        else:
            mask = mask.expand(len(closed_here), -1, -1, -1).masked_fill(closed_here, torch.finfo(mask.dtype).min)
        return args, {**kwargs, "attention_mask": mask}

    with ExitStack() as stack:
        for layer in dict.fromkeys(layers):
            stack.enter_context(model.part(layer, "attention").register_forward_pre_hook(hook, with_kwargs=True))
        yield
