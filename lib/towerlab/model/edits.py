"""Interventions on heads: another z, the input of W_O, at some positions of a forward pass.

The other z comes from another forward pass, from added vectors, from zeros, or from other
attention.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> edits = [zero_ablate([(3, 0)]), zero_ablate([(3, 1)])]
    >>> top, log_prob = edited_answers(model, batch, edits)  # each from its own layer on
    >>> top.shape, log_prob.shape  # (edit, prompt), (edit, prompt, label)
    (torch.Size([2, 2]), torch.Size([2, 2, 2]))
    >>> with edited(model, *edits):  # together in one forward pass
    ...     both = model.logits(batch)

There is one primitive: an `Edit` computes z of its heads, at some positions, from the query, key
and value of the current forward pass. So it responds to the edits of lower layers. For edits that
change only the last position, the module `last_position` is faster and gives equal results.

Batches contain prompts of one token length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from accelerate.utils import recursively_apply
from jaxtyping import Bool, Float, Int
from torch import Tensor
from twotowers.heads import Heads

from towerlab.model.attention import (
    Attention,
    Weights,
    block_calls,
    block_outputs,
    reading_attention,
    restarted,
)
from towerlab.model.capture import TopAndLogProbs, answer
from towerlab.model.model import Model
from towerlab.prompts.prompt import MAX_TOKENS, Prompts

MAX_ROWS = 128
"""Maximum number of prompts times edits at a time, whose logits are kept"""
PARTS = {"query": "query", "keys": "key", "values": "value"}
"""Part that is taken from the source -> field of `Attention` that contains it"""


class LayerState(NamedTuple):
    """Inputs of a layer and of W_O at the rows of a forward pass.

    The rows are all positions, or the last position.
    """

    x: Float[Tensor, "batch row d_model"]
    """Input of the block"""
    attention: Attention
    z: Float[Tensor, "batch head row d_head"]

    def last(self) -> LayerState:
        """Return the last position, as a view.

        Returns:
            The state with one row.
        """
        x = self.x[:, -1:]
        z = self.z[:, :, -1:]
        return LayerState(x, self.attention.last(), z)

    def of_prompts(self, prompts: slice | Sequence[int]) -> LayerState:
        """Return some prompts, as a view if they are a slice.

        Args:
            prompts: Prompts of the batch.

        Returns:
            The state of these prompts.
        """
        x = self.x[prompts]
        attention = self.attention.of_prompts(prompts)
        z = self.z[prompts]
        return LayerState(x, attention, z)


ComputeZ = Callable[[int, list[int], LayerState], Float[Tensor, "batch head row d_head"]]
"""(layer, heads, state) -> z of these heads"""


class Edit(NamedTuple):
    """Heads, and a function that computes another z for them at some positions.

    If `positions` is None, only the last position is edited, and `compute_z` is given only its
    state.
    """

    heads: Heads
    compute_z: ComputeZ
    positions: Bool[Tensor, "batch position"] | None = None

    @property
    def first_layer(self) -> int:
        """Lowest layer of the heads, or 0 if there are no heads."""
        return min((layer for layer, _ in self.heads), default=0)

    def heads_of(self, layer: int) -> list[int]:
        """Return the heads of a layer, sorted.

        Args:
            layer: Layer of the heads.

        Returns:
            Numbers of the heads within the layer.
        """
        in_layer = {head for edited_layer, head in self.heads if edited_layer == layer}
        return sorted(in_layer)

    def apply(self, layer: int, state: LayerState) -> None:
        """Write the other z of the heads of a layer into `state.z`.

        Args:
            layer: Layer of the heads.
            state: State of the layer in the current forward pass, which is changed in place.
        """
        heads = self.heads_of(layer)
        if not heads:
            return
        if self.positions is None:
            state = state.last()
        z = self.compute_z(layer, heads, state).to(state.z)
        if self.positions is not None:
            is_edited = self.positions[:, None, :, None].to(z.device)
            z = torch.where(is_edited, z, state.z[:, heads])
        state.z[:, heads] = z


@contextmanager
def edited(model: Model, *edits: Edit, n_prompts: int = 0) -> Iterator[None]:
    """Apply edits, in their order, to every forward pass inside the `with` block.

    Inside it, run the model only on the batch that the edits are for. Attention that is recorded
    inside has the edits of lower layers, but not those of its own layer.

    Args:
        model: Any model.
        *edits: Edits of one batch.
        n_prompts: Number of prompts of each edit, if each has its own: the first edit the first
            prompts of the batch, and so on. 0: all edits change all prompts.

    Yields:
        None.
    """
    every_prompt = slice(None)

    def change(layer: int, attention: Attention, compute_z: Callable[[], Tensor]) -> Tensor:
        z = compute_z()
        x, *_ = calls.pop(layer)
        state = LayerState(x.to(z.device), attention, z)
        for i, edit in enumerate(edits):
            own = every_prompt
            if n_prompts:
                first = i * n_prompts
                own = slice(first, first + n_prompts)
            own_state = state.of_prompts(own)
            edit.apply(layer, own_state)
        return z

    layers = {layer for edit in edits for layer, _ in edit.heads}
    changing = reading_attention(model, layers, change)
    with block_calls(model, layers) as calls, changing:
        yield


@torch.inference_mode()
def edited_answers(model: Model, batch: Prompts, edits: Sequence[Edit]) -> TopAndLogProbs:
    """Compute the answers under each edit.

    Layers below the lowest edited head are not computed again, so a forward pass begins at that
    head's layer: a head of layer l of L costs L - l blocks. Edits that begin at the same layer run
    together, each on its own copy of the prompts.

    Args:
        model: Any model.
        batch: Prompts of one token length.
        edits: Edits, one for each version of the batch.

    Returns:
        Top tokens (edit, prompt), and log-probabilities (nats) of the true label and the other
        label (edit, prompt, label).
    """
    below = {edit.first_layer - 1 for edit in edits if edit.first_layer}
    with block_outputs(model, below) as outputs:
        plain = answer(model, batch)
    n_prompts = len(batch)
    answers = [plain] * len(edits)
    for numbers in _runs(edits, batch):
        n_edits = len(numbers)
        some = [edits[i] for i in numbers]
        first = some[0].first_layer

        def copied(x: Tensor, n_edits: int = n_edits) -> Tensor:
            return torch.cat([x] * n_edits)

        output_below = None
        if first:
            output_below = recursively_apply(copied, outputs[first - 1])
        copies = [*batch] * n_edits
        editing = edited(model, *some, n_prompts=n_prompts)
        with restarted(model, first, output_below), editing:
            top, log_prob = answer(model, copies)
        top_of_edits = top.split(n_prompts)
        log_prob_of_edits = log_prob.split(n_prompts)
        of_edits = zip(top_of_edits, log_prob_of_edits, strict=True)
        for i, of_edit in zip(numbers, of_edits, strict=True):
            answers[i] = of_edit
    tops, log_probs = zip(*answers, strict=True)
    return torch.stack(tops), torch.stack(log_probs)


def _runs(edits: Sequence[Edit], batch: Prompts) -> Iterator[list[int]]:
    """Yield the numbers of edits that run together: they begin at the same layer."""
    by_layer: dict[int, list[int]] = {}
    for i, edit in enumerate(edits):
        if edit.heads:
            by_layer.setdefault(edit.first_layer, []).append(i)
    n_prompts = len(batch)
    n_tokens = n_prompts * len(batch[0].ids)
    size = min(MAX_TOKENS // n_tokens, MAX_ROWS // n_prompts)
    size = max(1, size)
    for numbers in by_layer.values():
        for start in range(0, len(numbers), size):
            stop = start + size
            yield numbers[start:stop]


def everywhere(batch: Prompts) -> Bool[Tensor, "batch position"]:
    """Return a mask of all positions of a batch, for an edit.

    Args:
        batch: Prompts of one token length.

    Returns:
        True everywhere (batch, position).
    """
    n_prompts = len(batch)
    n_tokens = len(batch[0].ids)
    return torch.ones(n_prompts, n_tokens, dtype=torch.bool)


def zero_ablate(heads: Heads, positions: Bool[Tensor, "batch position"] | None = None) -> Edit:
    """Return an edit that ablates heads: their z is zero.

    Args:
        heads: Heads to ablate.
        positions: Positions (batch, position), or None for the last position.

    Returns:
        The edit.
    """

    def compute_z(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        z = state.z[:, in_layer]
        return torch.zeros_like(z)

    return Edit(heads, compute_z, positions)


UNCHANGED = zero_ablate(())


def patch_z(heads: Heads, z: Mapping[int, Float[Tensor, "batch head d_head"]]) -> Edit:
    """Return an edit that gives heads the z of another forward pass, at the last position.

    Args:
        heads: Heads to change.
        z: Layer -> z of all heads of the layer (batch, head, d_head).

    Returns:
        The edit.
    """

    def compute_z(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        return z[layer][:, in_layer, None]

    return Edit(heads, compute_z)


def set_attention(
    heads: Heads,
    weights: Mapping[int, Weights],
    positions: Bool[Tensor, "batch position"] | None = None,
) -> Edit:
    """Return an edit that sets the attention of heads, independent of their queries and keys.

    Args:
        heads: Heads to change.
        weights: Layer -> attention weights of all its heads and of all positions (batch, head, row,
            position).
        positions: Positions (batch, position), or None for the last position.

    Returns:
        The edit, which uses the values of the current forward pass.
    """

    def compute_z(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        n_rows = state.z.shape[2]
        replaced = weights[layer][:, in_layer, -n_rows:]
        attention = state.attention.select_heads(in_layer)
        return attention.z(replaced.to(state.z.device))

    return Edit(heads, compute_z, positions)


def interchange(
    heads: Heads,
    kinds: Sequence[str],
    source: Mapping[int, LayerState],
    label_positions: Int[Tensor, "batch label"],
) -> Edit:
    """Return an interchange intervention: a part of heads taken from another forward pass.

    Each head's z at the last position is softmax(q k^T) v with the source's q, or the source's k or
    v at the label positions. Heads that share keys (grouped-query attention) but are not edited
    keep their own keys.

    Args:
        heads: Heads to change.
        kinds: Part that is taken for each prompt, of PARTS.
        source: Layer -> state of the other forward pass. Its prompts are in the order of the edited
            batch, with their labels at the same positions.
        label_positions: Label positions (batch, label).

    Returns:
        The edit.
    """
    is_of_kind = {}
    for kind in PARTS:
        is_own = [own_kind == kind for own_kind in kinds]
        of_prompts = torch.tensor(is_own)
        is_of_kind[kind] = of_prompts[:, None, None, None]

    def compute_z(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        attention = state.attention.select_heads(in_layer)
        other = source[layer].attention.select_heads(in_layer)
        n_positions = attention.key.shape[2]
        numbers = torch.arange(n_positions)
        is_label = (numbers == label_positions.cpu()[..., None]).any(1)
        parts = {}
        for kind, part in PARTS.items():
            is_taken = is_of_kind[kind]
            if kind != "query":
                is_taken = is_taken & is_label[:, None, :, None]
            current = getattr(attention, part)
            taken = getattr(other, part)
            is_taken = is_taken.to(current.device)
            parts[part] = torch.where(is_taken, taken, current)
        changed = attention._replace(**parts)
        return changed.z()

    return Edit(heads, compute_z)


def steer(
    heads: Heads,
    query: Mapping[int, Float[Tensor, "batch head d_head"]],
    keys: Mapping[int, Float[Tensor, "batch kv_head label d_head"]],
    label_positions: Int[Tensor, "batch label"],
) -> Edit:
    """Return an edit that adds steering vectors to the last query and to the label keys.

    Only the last position of these heads sees the changed keys, as in `interchange`.

    Args:
        heads: Heads to change.
        query: Layer -> vectors that are added to the query (batch, head, d_head), after rotation,
            in units of scaled queries (the product of the vector with a key is in nats).
        keys: Layer -> vectors that are added to the keys (batch, kv_head, label, d_head), after
            rotation.
        label_positions: Label positions (batch, label).

    Returns:
        The edit.
    """

    def compute_z(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        attention = state.attention.select_heads(in_layer)
        one_row = query[layer][:, :, None]
        vectors = state.attention._replace(query=one_row, key=keys[layer])
        added = vectors.select_heads(in_layer)
        added_query = added.query / attention.scaling
        added_key = added.key.to(attention.key)
        index = _index(attention.key, label_positions)
        steered = attention._replace(
            query=attention.query + added_query.to(attention.query),
            key=attention.key.scatter_add(2, index, added_key),
        )
        return steered.z()

    return Edit(heads, compute_z)


def _index(keys: Tensor, positions: Tensor) -> Tensor:
    """Return positions as an index along dimension 2 of keys (batch, head, position, d_head)."""
    _, n_heads, _, d_head = keys.shape
    index = positions.to(keys.device)[:, None, :, None]
    return index.expand(-1, n_heads, -1, d_head)


def knockout(model: Model, blocked: Bool[Tensor, "batch query position"]) -> Edit:
    """Return an edit that blocks attention between positions, in all heads.

    The scores are masked before the softmax, so the blocked weight is exactly zero and the other
    positions share it in proportion to their weights. Attention knockout: Geva et al. 2023.

    Args:
        model: Any model.
        blocked: True where attention from the query to the position is blocked (batch, query,
            position).

    Returns:
        The edit.
    """

    def compute_z(layer: int, in_layer: list[int], state: LayerState) -> Tensor:
        attention = state.attention.select_heads(in_layer)
        is_blocked = blocked[:, None].to(attention.mask.device)
        mask = attention.mask & ~is_blocked
        return attention._replace(mask=mask).z()

    return Edit(model.all_heads, compute_z, blocked.any(-1))
