"""Runs in which some heads feed something else to W_O: parts from another run, vectors added,
nothing, other attention.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> top, log_prob = answers(model, batch, [zero([(3, 0)]), zero([(3, 1)])])  # a whole run each
    >>> top.shape, log_prob.shape  # (edit, prompt), (edit, prompt, label)
    (torch.Size([2, 2]), torch.Size([2, 2, 2]))
    >>> with edited(model, zero([(3, 0)]), zero([(3, 1)])):  # together in one run
    ...     both = model.logits(batch)

One primitive: an `Edit` makes what its heads feed to W_O, at some positions, from the query, key
and value of the run that it is in, so under the edits of the layers below. Edits of the last
position alone have a faster way, `last_position`, which gives the same.

Batches hold prompts of one token length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from twotowers.heads import Heads

from towerlab.model.attention import (
    Attention,
    block_outputs,
    reading_attention,
    restarted,
    split_call,
)
from towerlab.model.capture import answer
from towerlab.model.label_attention import Weights
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompts

PARTS = {"query": "query", "keys": "key", "values": "value"}
"""What is taken from the source -> the field of `Attention` that holds it"""
TopAndLogProbs = tuple[Int[Tensor, "version batch"], Float[Tensor, "version batch label"]]
"""Of versions of one batch: top tokens, and log-probabilities (nats) of the true label and the
other"""


class LayerState(NamedTuple):
    """What a layer is given at its rows, which are all positions or the last, and what its heads
    feed to W_O there."""

    x: Float[Tensor, "batch row d_model"]
    """Input of the block"""
    attention: Attention
    z: Float[Tensor, "batch head row d_head"]

    def last(self) -> LayerState:
        return LayerState(self.x[:, -1:], self.attention.last(), self.z[:, :, -1:])


Output = Callable[[int, list[int], LayerState], Float[Tensor, "batch head row d_head"]]
"""(layer, heads, state) -> what these heads feed to W_O"""


class Edit(NamedTuple):
    """Heads, and what they feed to W_O in place of their own at some positions (None: the last,
    whose state alone is given)."""

    heads: Heads
    output: Output
    at: Bool[Tensor, "batch position"] | None = None

    @property
    def first_layer(self) -> int:
        return min((layer for layer, _ in self.heads), default=0)

    def heads_of(self, layer: int) -> list[int]:
        return sorted({head for at, head in self.heads if at == layer})

    def apply(self, layer: int, state: LayerState) -> None:
        """Write what the heads of a layer feed to W_O into `state.z`."""
        heads = self.heads_of(layer)
        if not heads:
            return
        state = state.last() if self.at is None else state
        z = self.output(layer, heads, state).to(state.z)
        if self.at is not None:
            z = torch.where(self.at[:, None, :, None].to(z.device), z, state.z[:, heads])
        state.z[:, heads] = z


UNCHANGED = Edit((), lambda layer, heads, state: state.z[:, heads])


@contextmanager
def edited(model: Model, *edits: Edit) -> Iterator[None]:
    """Run the model under some edits, in their order, in whole runs of one batch.

    Attention that is recorded inside is that of the run, before the edits of its layer.
    """
    inputs: dict[int, Tensor] = {}

    def keep_input(layer: int, _, args: tuple, kwargs: dict) -> None:
        inputs[layer] = split_call(args, kwargs)[0]

    def change(layer: int, attention: Attention, own: Callable[[], Tensor]) -> Tensor:
        z = own()
        state = LayerState(inputs.pop(layer).to(z.device), attention, z)
        for edit in edits:
            edit.apply(layer, state)
        return z

    layers = {layer for edit in edits for layer, _ in edit.heads}
    with ExitStack() as stack:
        for layer in layers:
            hook = partial(keep_input, layer)
            stack.enter_context(
                model.blocks[layer].register_forward_pre_hook(hook, with_kwargs=True)
            )
        stack.enter_context(reading_attention(model, layers, change))
        yield


@torch.inference_mode()
def answers(model: Model, batch: Prompts, edits: Sequence[Edit]) -> TopAndLogProbs:
    """Answers in a whole run under each edit.

    Layers below the lowest edited head are those of the plain run, so a run begins at that head's
    layer: a head of layer l of L costs L - l blocks.

    Returns:
        Top tokens (edit, prompt), and log-probabilities (nats) of the true label and the other
        (edit, prompt, label).
    """
    each = []
    with block_outputs(
        model, {edit.first_layer - 1 for edit in edits if edit.first_layer}
    ) as outputs:
        plain = answer(model, batch)
    for edit in edits:
        first = edit.first_layer
        with restarted(model, first, outputs.get(first - 1)), edited(model, edit):
            each.append(answer(model, batch) if edit.heads else plain)
    top, log_prob = map(torch.stack, zip(*each, strict=True))
    return top, log_prob


def everywhere(batch: Prompts) -> Bool[Tensor, "batch position"]:
    """All positions of a batch, as those of an edit."""
    return torch.ones(len(batch), len(batch[0].ids), dtype=torch.bool)


def zero(heads: Heads, at: Bool[Tensor, "batch position"] | None = None) -> Edit:
    """Heads ablated."""
    return Edit(heads, lambda layer, in_layer, state: torch.zeros_like(state.z[:, in_layer]), at)


def feed(heads: Heads, z: Mapping[int, Float[Tensor, "batch head d_head"]]) -> Edit:
    """Heads given z of another run at the last position: layer -> that of all its heads."""
    return Edit(heads, lambda layer, in_layer, state: z[layer][:, in_layer, None])


def attend(
    heads: Heads, weights: Mapping[int, Weights], at: Bool[Tensor, "batch position"] | None = None
) -> Edit:
    """Heads with this attention, whatever their queries and keys have become: layer -> that of all
    its heads and all positions."""

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        own = weights[layer][:, in_layer, -state.z.shape[2] :]
        return state.attention.of(in_layer).z(own.to(state.z.device))

    return Edit(heads, output, at)


def exchange(
    heads: Heads, what: str, source: Mapping[int, LayerState], at: Int[Tensor, "batch label"]
) -> Edit:
    """A part of some heads at the last position taken from another run: an interchange
    intervention.

    Each head's z is softmax(q k^T) v with the source's q, or the source's k or v at the label
    positions. Heads that share keys (grouped-query attention) keep theirs.

    Args:
        what: one of PARTS.
        source: layer -> state of the other run, whose prompts are in the order of the batch that is
            edited, with their labels at the same positions.
        at: the label positions.
    """
    part = PARTS[what]

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        own = state.attention.of(in_layer)
        x, taken = (getattr(of, part) for of in (own, source[layer].attention.of(in_layer)))
        if what != "query":
            index = _index(x, at)
            taken = x.scatter(2, index, taken.gather(2, index))
        return own._replace(**{part: taken}).z()

    return Edit(heads, output)


def steer(
    heads: Heads,
    query: Mapping[int, Float[Tensor, "batch head d_head"]],
    keys: Mapping[int, Float[Tensor, "batch kv_head label d_head"]],
    at: Int[Tensor, "batch label"],
) -> Edit:
    """Steering vectors added to the query of the last position, and to the keys at label positions.

    Keys change only as the last position of these heads sees them, as in `exchange`.

    Args:
        query: layer -> what is added, after rotation, in units of scaled queries (its product with
            a key is in nats).
        keys: layer -> what is added, after rotation.
        at: the label positions.
    """

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        own = state.attention.of(in_layer)
        moved = state.attention._replace(query=query[layer][:, :, None], key=keys[layer])
        added = moved.of(in_layer)
        by_key = own.key.scatter_add(2, _index(own.key, at), added.key.to(own.key))
        by_query = own.query + (added.query / own.scaling).to(own.query)
        return own._replace(query=by_query, key=by_key).z()

    return Edit(heads, output)


def _index(x: Tensor, at: Tensor) -> Tensor:
    """`at` for gather and scatter along the positions of x (batch, head, position, d_head)."""
    return at.to(x.device)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1])


def knockout(model: Model, closed: Bool[Tensor, "batch query position"]) -> Edit:
    """Block attention from q to p where `closed[b, q, p]`, in all heads.

    The scores are masked before the softmax, so the weight is exactly zero and the others share it
    in proportion.
    """

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        attention = state.attention.of(in_layer)
        return attention._replace(
            mask=attention.mask & ~closed[:, None].to(attention.mask.device)
        ).z()

    return Edit(list(np.ndindex(model.n_layers, model.n_heads)), output, closed.any(-1))
