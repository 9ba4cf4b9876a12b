"""Runs in which some heads feed something else to W_O: parts from another run, vectors added, nothing, other attention.

    edits = [zero(heads), exchange(heads, "keys", source.plain, at), steer(heads, query, None, at), ...]
    top, log_prob = answers(model, batch, edits)      # (edit, prompt), (edit, prompt, label): a whole run each
    with edited(model, *edits): ...                   # some of them together in one run

One primitive: an `Edit` makes what its heads feed to W_O, at some positions, from the query, key and value of the run that it
is in, so under the edits of the layers below. Edits of the last position alone have a faster way, `last_position`, which
gives the same.

*Reversed* attention asks: what if the head had looked the other way round? At every position that looks back at labels of
both classes, the sums of attention on the two classes' labels change places. Within a class each label keeps its share of
the sum, all else keeps its weight, and values stay. Where a class has no attention at all there are no shares: what it is
given is spread evenly over its labels. So the weights still add up to one, no number grows, and a head whose two sums are
equal stays as it is.

Batches hold prompts of one token length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from twotowers.errors import TwoTowersError
from twotowers.heads import Heads

from towerlab.model.attention import Attention, block_outputs, changing_z, reading_attention, restarted, split_call
from towerlab.model.capture import label_log_probs
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded

EXCHANGES = ("query", "keys", "values", "all")
"""What is taken from the source"""
TopAndLogProbs = tuple[Int[Tensor, "version batch"], Float[Tensor, "version batch label"]]
"""Of versions of one batch: top tokens, and log-probabilities (nats) of the true label and the other"""
Weights = Float[Tensor, "batch head row position"]
"""Attention of the last positions, as many as there are rows, on every position"""


class LayerState(NamedTuple):
    """What a layer is given at its rows, which are all positions or the last, and what its heads feed to W_O there."""

    x: Float[Tensor, "batch row d_model"]
    """Input of the block"""
    attention: Attention
    z: Float[Tensor, "batch head row d_head"]

    def last(self) -> LayerState:
        return LayerState(self.x[:, -1:], self.attention.last(), self.z[:, :, -1:])


Output = Callable[[int, list[int], LayerState], Float[Tensor, "batch head row d_head"]]
"""(layer, heads, state) -> what these heads feed to W_O"""


class Edit(NamedTuple):
    """Heads, and what they feed to W_O in place of their own at some positions (None: the last, whose state alone is given)."""

    heads: Heads
    output: Output
    at: Bool[Tensor, "batch position"] | None = None

    @property
    def first_layer(self) -> int:
        return min((layer for layer, _ in self.heads), default=0)

    def heads_of(self, layer: int) -> list[int]:
        return sorted({head for at, head in self.heads if at == layer})

    def apply(self, layer: int, state: LayerState) -> None:
        """Write what the heads of a layer feed to W_O into `state.z`. Raises TwoTowersError for another number of prompts."""
        heads = self.heads_of(layer)
        if not heads:
            return
        if self.at is None:
            state = state.last()
            state.z[:, heads] = self.output(layer, heads, state).to(state.z)
            return
        if len(self.at) != len(state.z):  # a single row would be taken for all of them
            raise TwoTowersError(f"a batch of {len(state.z)} under an edit of {len(self.at)} prompts: run them together")
        at = self.at[:, None, :, None].to(state.z.device)
        state.z[:, heads] = torch.where(at, self.output(layer, heads, state).to(state.z), state.z[:, heads])


UNCHANGED = Edit((), lambda layer, heads, state: state.z[:, heads])


@contextmanager
def visiting(model: Model, layers: Iterable[int], visit: Callable[[int, LayerState], None]) -> Iterator[None]:
    """Whole runs in which `visit(layer, state)` is called just before W_O, which is fed what is written into `state.z`.

    Raises TwoTowersError, in the run, for a model whose attention is not read.
    """
    inputs: dict[int, Tensor] = {}
    attentions: dict[int, Attention] = {}

    def keep_input(layer: int, _, args: tuple, kwargs: dict) -> None:
        inputs[layer] = split_call(args, kwargs)[0]

    def change(layer: int, z: Float[Tensor, "batch position head d_head"]) -> None:
        if layer not in attentions:
            raise TwoTowersError(f"the attention of {model.name} was not read in layer {layer}: load it with loading.load")
        x = inputs.pop(layer).to(z.device)  # where the layer is, under a device_map
        visit(layer, LayerState(x, attentions.pop(layer), z.transpose(1, 2)))

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(model.blocks[layer].register_forward_pre_hook(partial(keep_input, layer), with_kwargs=True))
            stack.enter_context(reading_attention(model, layer, partial(attentions.__setitem__, layer)))
            stack.enter_context(changing_z(model, {layer: partial(change, layer)}))
        yield


@contextmanager
def edited(model: Model, *edits: Edit) -> Iterator[None]:
    """The model under some edits, in their order, for whole runs of one batch. Attention recorded inside is the run's,
    before the edits of its layer. Raises as `visiting`."""

    def visit(layer: int, state: LayerState) -> None:
        for edit in edits:
            edit.apply(layer, state)

    with visiting(model, {layer for edit in edits for layer, _ in edit.heads}, visit):
        yield


@torch.inference_mode()
def answers(model: Model, batch: Sequence[Encoded], edits: Sequence[Edit]) -> TopAndLogProbs:
    """Top tokens and log-probabilities (nats) of the true label and the other, in a whole run under each edit.

    Layers below the lowest edited head are those of the plain run, so a run begins at that head's layer: a head of layer l of
    L costs L - l blocks.
    """
    each = []
    with block_outputs(model, {edit.first_layer - 1 for edit in edits if edit.first_layer}) as outputs:
        plain = label_log_probs(model.logits(batch), batch)
    for edit in edits:
        first = edit.first_layer
        with restarted(model, first, outputs.get(first - 1)), edited(model, edit):
            each.append(label_log_probs(model.logits(batch), batch) if edit.heads else plain)
    top, log_prob = map(torch.stack, zip(*each, strict=True))
    return top, log_prob


def everywhere(batch: Sequence[Encoded]) -> Bool[Tensor, "batch position"]:
    """All positions of a batch, as those of an edit."""
    return torch.ones(len(batch), len(batch[0].ids), dtype=torch.bool)


def zero(heads: Heads, at: Bool[Tensor, "batch position"] | None = None) -> Edit:
    """Heads ablated."""
    return Edit(heads, lambda layer, in_layer, state: torch.zeros_like(state.z[:, in_layer]), at)


def feed(heads: Heads, z: Mapping[int, Float[Tensor, "batch head d_head"]]) -> Edit:
    """Heads given z of another run at the last position: layer -> that of all its heads."""
    return Edit(heads, lambda layer, in_layer, state: z[layer][:, in_layer, None])


def attend(heads: Heads, weights: Mapping[int, Weights], at: Bool[Tensor, "batch position"] | None = None) -> Edit:
    """Heads with this attention, whatever their queries and keys have become: layer -> that of all its heads and all positions."""

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        own = weights[layer][:, in_layer, -state.z.shape[2] :]
        return state.attention.of(in_layer).z(own.to(state.z.device))

    return Edit(heads, output, at)


def exchange(heads: Heads, what: str, source: Mapping[int, LayerState], at: Int[Tensor, "batch label"]) -> Edit:
    """Parts of some heads at the last position taken from the run `source` (layer -> state): an interchange intervention.

    z' = softmax(q' k'^T) v' takes the place of each head's z: q' is the source's query ("query"), k' and v' have the
    source's keys and values at the label positions `at` ("keys", "values"), "all" takes the three. Heads that share keys
    (grouped-query attention) keep theirs. The source's prompts are in the order of the batch that is edited, with their
    labels at the same positions. Raises TwoTowersError on an unknown `what`.
    """
    if what not in EXCHANGES:
        raise TwoTowersError(f"what='{what}': choose one of {', '.join(EXCHANGES)}")

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        own, its = state.attention.of(in_layer), source[layer].attention.of(in_layer)
        index = _index(own.key, at)
        if what in ("query", "all"):
            own = own._replace(query=its.query)
        if what in ("keys", "all"):
            own = own._replace(key=own.key.scatter(2, index, its.key.gather(2, index)))
        if what in ("values", "all"):
            own = own._replace(value=own.value.scatter(2, index, its.value.gather(2, index)))
        return own.z()

    return Edit(heads, output)


def steer(
    heads: Heads,
    query: Mapping[int, Float[Tensor, "batch head d_head"]] | None,
    keys: Mapping[int, Float[Tensor, "batch kv_head label d_head"]] | None,
    at: Int[Tensor, "batch label"],
) -> Edit:
    """Vectors added to the query of the last position, and to the keys at the label positions `at`.

    Layer -> what is added in the chosen heads of that layer, after rotation; the query's in units of scaled queries
    (its product with a key is in nats). Keys change only as the last position of these heads sees them, as in
    `exchange`. None adds nothing. The vectors are in the order of the batch that is edited.
    """

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        own = state.attention.of(in_layer)
        if query is not None:
            own = own._replace(query=own.query + (query[layer][:, in_layer, None] / own.scaling).to(own.query))
        if keys is not None:
            group = state.z.shape[1] // keys[layer].shape[1]
            added = keys[layer][:, [head // group for head in in_layer]]
            own = own._replace(key=own.key.scatter_add(2, _index(own.key, at), added.to(own.key)))
        return own.z()

    return Edit(heads, output)


def _index(x: Tensor, at: Tensor) -> Tensor:
    """`at` for gather and scatter along the positions of x (batch, head, position, d_head)."""
    return at.to(x.device)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1])


def knockout(model: Model, layers: Iterable[int], closed: Bool[Tensor, "batch query position"]) -> Edit:
    """No attention from q to p where `closed[b, q, p]`, in all heads of some layers.

    The scores are masked before the softmax, so the weight is exactly zero and the others share it in proportion. Raises
    TwoTowersError for a position that may not attend to itself, and a layer outside the model.
    """
    if closed.diagonal(dim1=1, dim2=2).any():
        raise TwoTowersError("a position cannot be kept from attending to itself: take it out of the edge")
    if outside := [layer for layer in layers if not 0 <= layer < model.n_layers]:
        raise TwoTowersError(f"layer {outside[0]} is not in {model.name}: layers go to {model.n_layers - 1}")

    def output(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        attention = state.attention.of(in_layer)
        return attention._replace(mask=attention.mask & ~closed[:, None].to(attention.mask.device)).z()

    return Edit([(layer, head) for layer in layers for head in range(model.n_heads)], output, closed.any(-1))


class Places(NamedTuple):
    """Where the labels of a batch stand."""

    true: Bool[Tensor, "batch position"]
    """of demonstrations of the query's class"""
    other: Bool[Tensor, "batch position"]


def places_of(batch: Sequence[Encoded]) -> Places:
    """Of prompts of one length."""
    true, other = torch.zeros(2, len(batch), len(batch[0].ids), dtype=torch.bool)
    for row, e in enumerate(batch):
        for label, is_true in zip(e.label_positions, e.prompt.is_true, strict=True):
            (true if is_true else other)[row, label] = True
    return Places(true, other)


def preference(weights: Weights, places: Places) -> Float[Tensor, "batch head row"]:
    """Attention of every row on labels of the query's class minus that on the others, in [-1, 1]."""
    sign = (places.true.int() - places.other.int()).to(weights)
    return torch.einsum("bhqp,bp->bhq", weights, sign)


def reversed_weights(weights: Weights, places: Places) -> Weights:
    """The weights with the preference of every row reversed among the labels before it: see the module."""
    rows, length = weights.shape[-2:]
    before = torch.ones(length, length, dtype=torch.bool, device=weights.device).tril(-1)[-rows:]
    true, other = ((side.to(weights.device)[:, None, None] & before).to(weights) for side in places)
    on_true, on_other = ((weights * side).sum(-1, keepdim=True) for side in (true, other))
    swapped = weights * (1 - true - other) + _shares(weights, true) * on_other + _shares(weights, other) * on_true
    both = true.any(-1, keepdim=True) & other.any(-1, keepdim=True)
    return torch.where(both, swapped, weights)


def _shares(weights: Weights, side: Float[Tensor, "batch 1 row position"]) -> Weights:
    """The share of each label of a class in the attention on them; where there is none, all alike."""
    own = weights * side
    total = own.sum(-1, keepdim=True)
    none = total < torch.finfo(weights.dtype).tiny
    return torch.where(none, side / side.sum(-1, keepdim=True).clamp_min(1), own / total.masked_fill(none, 1))
