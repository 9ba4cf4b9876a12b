"""The last position of a batch under many edits at once: what some heads feed to W_O there, replaced.

    last = LastPosition(model, batch)                              # one plain run
    top, log_prob = last.answers([Edit(heads, output), ...])       # (edit, prompt), (edit, prompt, label)
    with edited(model, Edit(heads, output)): ...                   # one edit in a whole run

Attention is causal, so an edit of the last position leaves all others as they are: under every edit a prompt is one row,
which begins at the layer of the edit's lowest head and attends to the keys and values of the plain run. The rows of
many edits run as one batch of stock blocks. The results equal those of whole runs up to rounding
(tests/test_attention_edits.py).

Who calls whom, in one block, for one edit:

    answers -> _final, layer by layer -> _block: the stock block runs, with three hooks in it
        attention_hooks.attending_to      gives its attention the keys and values of the plain run, beside the row's own
        attention_hooks.reading_attention calls `read`: query, key and value of the row, as this block made them
        hooks.changing_z                  calls `change` just before W_O: it makes a `LayerState` of what was read and calls
            edit.output(layer, heads, state)    the closure that attention_edits.steer, exchange, ... built
                state.scores(query, key) -> attention_hooks.last_scores,  head_output(scores, value)
            and what that returns takes the place of these heads' z
    The plain run before, and `edited`, do the same in whole runs: `_changing_last` reads, makes a `LayerState` and calls
    `change`. For the plain run `change` only keeps it, in `plain`; for `edited` it calls edit.output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from twotowers.errors import TwoTowersError
from twotowers.heads import Heads

from towerlab.model.attention_hooks import attending_to, last_scores, reading_attention
from towerlab.model.capture import capture, label_log_probs
from towerlab.model.hooks import changing_z, hidden_states, split_call
from towerlab.model.memory import halved
from towerlab.model.model import Model
from towerlab.model.unembed import final_logits
from towerlab.prompts.prompt import Encoded

LOGIT_ROWS = 128  # rows of logits at a time
TopAndLogProbs = tuple[Int[Tensor, "version batch"], Float[Tensor, "version batch label"]]
"""Of versions of one batch: top tokens, and log-probabilities (nats) of the true label and the other"""


@dataclass(eq=False)
class LayerState:
    """What a layer is given at the last position, and what its heads make of it."""

    x: Float[Tensor, "batch d_model"]
    """input of the block"""
    query: Float[Tensor, "batch head 1 d_head"]
    """after any rotation, as are the keys"""
    key: Float[Tensor, "batch kv_head position d_head"]
    value: Float[Tensor, "batch kv_head position d_head"]
    mask: Tensor | None
    """(batch or 1, 1, 1, position): True where a position may be attended to, or a number that is added to its score"""
    scaling: float
    softcap: float | None
    z: Float[Tensor, "batch head d_head"]

    def of(self, heads: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Query, keys and values of some heads: (batch, head, 1 or position, d_head), shared ones repeated."""
        group = self.query.shape[1] // self.key.shape[1]
        kv_heads = [head // group for head in heads]
        return self.query[:, heads], self.key[:, kv_heads], self.value[:, kv_heads]

    def scores(self, query: Tensor, key: Tensor) -> Float[Tensor, "batch head position"]:
        """Scores of these queries and keys (nats), soft-capped and masked as the model's own; heads may share keys."""
        return last_scores(query, key, self.mask, self.scaling, self.softcap)


Output = Callable[[int, list[int], LayerState], Float[Tensor, "batch head d_head"]]
"""(layer, heads, state) -> what these heads feed to W_O at the last position"""


class Edit(NamedTuple):
    """Heads, and what they feed to W_O at the last position in place of their own."""

    heads: Heads
    output: Output

    @property
    def first_layer(self) -> int:
        return min((layer for layer, _ in self.heads), default=0)

    def heads_of(self, layer: int) -> list[int]:
        return sorted({head for at, head in self.heads if at == layer})


UNCHANGED = Edit((), lambda layer, heads, state: state.z[:, heads])


def head_output(
    scores: Float[Tensor, "batch head position"], value: Float[Tensor, "batch head position d_head"]
) -> Float[Tensor, "batch head d_head"]:
    """z of the last position: the values weighted by the softmax of the scores."""
    return torch.einsum("bhp,bhpd->bhd", scores.softmax(-1).to(value.dtype), value)


@contextmanager
def _changing_last(model: Model, layers: Sequence[int], change: Callable[[int, LayerState], Tensor | None]) -> Iterator[None]:
    """Call `change(layer, state)` in the whole run inside; what it returns takes the place of z at the last position.

    Raises TwoTowersError, in the run, for a model whose attention the hooks do not see.
    """
    inputs: dict[int, dict[str, Any]] = {layer: {} for layer in layers}

    def keep_input(layer: int, _, args, kwargs) -> None:
        inputs[layer].update(x=split_call(args, kwargs)[0][:, -1].clone())  # a part alone would hold the whole stream

    def read(layer: int, query, key, value, mask, scaling, softcap) -> None:
        mask = None if mask is None else mask[:, :1, -1:, : key.shape[2]]
        last = query[:, :, -1:].clone()
        inputs[layer].update(query=last, key=key, value=value, mask=mask, scaling=scaling, softcap=softcap)

    def put(layer: int, z: Float[Tensor, "batch position head d_head"]) -> None:
        if "query" not in inputs[layer]:
            raise TwoTowersError(f"the attention of {model.name} was not read in layer {layer}: load it with loading.load")
        inputs[layer]["x"] = inputs[layer]["x"].to(z.device)  # where the layer is, under a device_map
        new = change(layer, LayerState(**inputs[layer], z=z[:, -1].clone()))
        inputs[layer].clear()
        if new is not None:
            z[:, -1] = new.to(z)

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(model.blocks[layer].register_forward_pre_hook(partial(keep_input, layer), with_kwargs=True))
            stack.enter_context(reading_attention(model, layer, partial(read, layer)))
        stack.enter_context(changing_z(model, {layer: partial(put, layer) for layer in layers}))
        yield


@contextmanager
def edited(model: Model, edit: Edit) -> Iterator[None]:
    """The model under one edit, for a whole run of one batch. Attention recorded inside is the run's, before the edit.

    Raises TwoTowersError, in the run, for a model whose attention the hooks do not see.
    """

    def change(layer: int, state: LayerState) -> Tensor:
        state.z[:, heads[layer]] = edit.output(layer, heads[layer], state).to(state.z)
        return state.z

    heads = {layer: edit.heads_of(layer) for layer in sorted({layer for layer, _ in edit.heads})}
    with _changing_last(model, list(heads), change):
        yield


class LastPosition:
    """Prompts of one length, run once. Memory: keys and values of all their positions in all layers.

    `plain[layer]` is what the layer was given at the last position, `capture` that of the run, which records what
    is asked for. Raises TwoTowersError for a model whose attention the hooks do not see.
    """

    @torch.inference_mode()
    def __init__(self, model: Model, batch: Sequence[Encoded], record: Collection[str] = ()):
        self.model, self.batch = model, list(batch)
        self.plain: dict[int, LayerState] = {}
        self._calls: list[tuple] = []
        with ExitStack() as stack:
            for block in model.blocks:
                note = lambda _, args, kwargs: self._calls.append(split_call(args, kwargs)[1:])  # noqa: E731
                stack.enter_context(block.register_forward_pre_hook(note, with_kwargs=True))
            stack.enter_context(_changing_last(model, range(model.n_layers), self.plain.__setitem__))
            self.capture = capture(model, self.batch, record)

    def plain_answer(self) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch label"]]:
        """Top token and the labels' log-probabilities (nats) without any edit; a row too, so that rounding is the same."""
        top, log_prob = self.answers([UNCHANGED])
        return top[0], log_prob[0]

    @torch.inference_mode()
    def answers(self, edits: Sequence[Edit], max_rows: int = 1024) -> TopAndLogProbs:
        """The same under each edit. Memory: `max_rows` rows at a time."""
        top = torch.empty(len(edits), len(self.batch), dtype=torch.long)
        log_prob = torch.empty(len(edits), len(self.batch), 2, dtype=torch.float64)
        for chunk, final in self.finals(edits, max_rows):
            top[chunk], log_prob[chunk] = answers_of(self.model, final, self.batch)
        return top, log_prob

    def finals(
        self, edits: Sequence[Edit], max_rows: int = 1024
    ) -> Iterator[tuple[list[int], Float[Tensor, "edit batch d_model"]]]:
        """(indices of some edits, the final residual streams under them), until all are done: see `answers`."""
        order = sorted(range(len(edits)), key=lambda i: edits[i].first_layer)
        size = max(1, max_rows // len(self.batch))
        chunks = [order[start : start + size] for start in range(0, len(order), size)]
        yield from halved(lambda chunk: self._final([edits[i] for i in chunk]), chunks)

    def _final(self, edits: Sequence[Edit]) -> Float[Tensor, "edit batch d_model"]:
        """The final residual stream under edits sorted by first layer: those that have begun are always the first rows."""
        rows = self.plain[edits[0].first_layer].x[:, None][:, :0]  # none yet
        for layer in range(edits[0].first_layer, self.model.n_layers):
            x = self.plain[layer].x
            begin = sum(edit.first_layer == layer for edit in edits)
            rows = torch.cat([rows.to(x.device), x[:, None].expand(-1, begin, -1)], 1)
            rows = self.block(layer, rows, edits[: rows.shape[1]])
        return rows.transpose(0, 1)

    def block(
        self, layer: int, rows: Float[Tensor, "batch edit d_model"], edits: Sequence[Edit]
    ) -> Float[Tensor, "batch edit d_model"]:
        """One block on the rows of all edits, each of which attends to the other positions and to itself."""
        model, plain = self.model, self.plain[layer]
        key, value = plain.key[:, :, :-1], plain.value[:, :, :-1]
        args, kwargs = _for_rows(self._calls[layer], plain.key.shape[2], rows.shape[1])
        changes = {row: heads for row, edit in enumerate(edits) if (heads := edit.heads_of(layer))}
        own_parts: dict[str, Tensor] = {}

        def read(query, own_key, own_value, *_) -> None:
            own_parts.update(query=query, key=own_key, value=own_value)

        def change(z: Float[Tensor, "batch edit head d_head"]) -> None:
            for row, heads in changes.items():
                query, own_key, own_value = (x[:, :, row : row + 1] for x in own_parts.values())
                keys, values = torch.cat([key, own_key], 2), torch.cat([value, own_value], 2)
                state = LayerState(rows[:, row], query, keys, values, plain.mask, plain.scaling, plain.softcap, z[:, row])
                z[:, row, heads] = edits[row].output(layer, heads, state).to(z)

        with ExitStack() as stack:
            stack.enter_context(attending_to(model, layer, key, value, _visible_others(plain.mask)))
            if changes:
                stack.enter_context(reading_attention(model, layer, read))
                stack.enter_context(changing_z(model, {layer: change}))
            return hidden_states(model.blocks[layer](rows, *args, **kwargs))


def answers_of(model: Model, final: Float[Tensor, "version batch d_model"], batch: Sequence[Encoded]) -> TopAndLogProbs:
    """Top token and the labels' log-probabilities (nats), from final residual streams of versions of one batch."""
    rows = final.flatten(0, 1).split(LOGIT_ROWS)
    prompts = torch.arange(len(batch)).repeat(len(final)).split(LOGIT_ROWS)
    parts = [label_log_probs(final_logits(model, x), [batch[i] for i in of]) for x, of in zip(rows, prompts, strict=True)]
    top, log_prob = (torch.cat(part).unflatten(0, (len(final), -1)) for part in zip(*parts, strict=True))
    return top, log_prob


def _visible_others(mask: Tensor | None) -> Tensor | None:
    """Which other positions the last may attend to, from the mask of its scores."""
    if mask is None:
        return None
    return mask[..., :-1] if mask.dtype == torch.bool else mask[..., :-1] >= 0


def _for_rows(value: Any, length: int, rows: int) -> Any:
    """A block's arguments for `rows` versions of the last of `length` positions; masks are left to `attending_to`."""
    if isinstance(value, dict):
        return {k: None if k == "attention_mask" else _for_rows(v, length, rows) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_for_rows(v, length, rows) for v in value)
    if isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == length:  # positions, rotary cos and sin
        return value[:, -1:].expand(-1, rows, *[-1] * (value.dim() - 2))
    return value[-1:].expand(rows) if isinstance(value, Tensor) and value.shape == (length,) else value
