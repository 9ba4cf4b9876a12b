"""Attention knocked out along edges, in the layers below a cut or from it on: by where a step is done. Chapter 6.

    measured = knockouts(model, encoded, heads=[(18, 6)])
    measured.sel(edges="labels and colons to own text", side="below", cut=18)    # blocked in layers 0 to 17

Claim 2 of v1 (section 4): shallow layers merge each demonstration's features into its label position, and the query's
into the last position. A label that may not see its text there loses the class, and the answer with it. The colon
between text and label sees the text too and can hand it on, so it is blocked as well. Attention knockout: Geva et al.
2023; in halves of the layers, for label words: Wang et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor
from twotowers.errors import TwoTowersError
from twotowers.heads import Heads, check_inside, listed
from twotowers.recording import Recording

from towerlab.measure.chain import Run
from towerlab.measure.observations import Answers, observations
from towerlab.measure.registry import measurement
from towerlab.measure.sets import present, with_comparers
from towerlab.model import query_key
from towerlab.model.attention_edits import blocked
from towerlab.model.capture import label_log_probs
from towerlab.model.hooks import block_outputs, restarted, split_call
from towerlab.model.last_position import Edit, LastPosition, LayerState, head_output
from towerlab.model.memory import in_memory
from towerlab.model.model import Model
from towerlab.progress import progress
from towerlab.prompts.blocks import donors_of
from towerlab.prompts.prompt import Encoded, batches

Edges = list[tuple[Iterable[int], Iterable[int]]]
"""(from positions, to positions): every position of the first may attend to none of the second"""
SIDES = ("below", "from")


def labels_to_own_text(encoded: Encoded) -> Edges:
    """From each label, and all that stands between it and its text, to its text."""
    pairs = zip(encoded.label_positions, encoded.text_spans, strict=True)
    return [(range(span[1], label + 1), range(*span)) for label, span in pairs]


def labels_to_previous_text(encoded: Encoded) -> Edges:
    """From each label, and all that stands between it and its text, to the text before: the control of own texts."""
    spans = encoded.text_spans
    pairs = zip(encoded.label_positions[1:], spans[1:], spans, strict=False)
    return [(range(span[1], label + 1), range(*before)) for label, span, before in pairs]


def last_to_query(encoded: Encoded) -> Edges:
    """From the last position to the query's text."""
    return [([encoded.last], range(*encoded.query_span))]


def last_to_previous_text(encoded: Encoded) -> Edges:
    """From the last position to the text of the last demonstration: the control of the query's text."""
    return [([encoded.last], range(*encoded.text_spans[-1]))]


EDGES: dict[str, Callable[[Encoded], Edges]] = {
    "labels and colons to own text": labels_to_own_text,
    "labels and colons to previous text": labels_to_previous_text,
    "last position to query": last_to_query,
    "last position to previous text": last_to_previous_text,
}


def closed_edges(batch: Sequence[Encoded], edges: Callable[[Encoded], Edges]) -> Bool[Tensor, "batch query position"]:
    """Which attention the edges close, for prompts of one length: see `attention_edits.blocked`."""
    closed = torch.zeros(len(batch), len(batch[0].ids), len(batch[0].ids), dtype=torch.bool)
    for row, encoded in enumerate(batch):
        for begin, end in edges(encoded):
            closed[row][torch.tensor(list(begin))[:, None], torch.tensor(list(end))] = True
    return closed


def default_cuts(n_layers: int, n: int = 7) -> list[int]:
    """n cuts evenly spaced between the layers, with 0 and `n_layers` besides."""
    return np.unique(np.linspace(0, n_layers, n + 2).round().astype(int)).tolist()


class _Pass(NamedTuple):
    """What one run left: logits, what blocks returned (by layer), and label keys (by layer) before rotation."""

    logits: Float[Tensor, "batch vocabulary"]
    outputs: dict[int, Any]
    keys: dict[int, Float[Tensor, "batch label kv_head d_head"]]


@torch.inference_mode()
def knockouts(
    model: Model,
    encoded: Sequence[Encoded],
    edges: Mapping[str, Callable[[Encoded], Edges]] = EDGES,
    cuts: Sequence[int] | None = None,
    heads: Heads = (),
    max_tokens: int = 1024,
) -> xr.Dataset:
    """Answers with no attention along the edges in some layers: (edges, side, cut, prompt).

    At cut l, "below" blocks layers 0 to l - 1 and "from" layers l to the last; cut 0 is always measured, so "from" there
    is the full block, the positive control, and "below" there blocks nothing. `cuts`: `default_cuts`. With `heads`, also
    `d_prime` (edges, side, cut, listed_head, prompt): how far their keys at label positions tell the class of the text (see
    `class_in_keys`), which needs whole blocks and several of each class pair. Cost for each of the edges: two whole
    runs, and for each cut two of the layers from it on, or of the last position alone where no other is cut off. Raises
    TwoTowersError for cuts and heads outside the model, and for a position that may not attend to itself.
    """
    cuts = sorted({0, *(default_cuts(model.n_layers) if cuts is None else cuts)})
    check_inside(heads, model.n_layers, model.n_heads, model.name)
    if not 0 <= cuts[0] <= cuts[-1] <= model.n_layers:
        raise TwoTowersError(f"cuts from {cuts[0]} to {cuts[-1]}: {model.name} has layers 0 to {model.n_layers - 1}")
    if heads and len({len(e.label_positions) for e in encoded}) > 1:
        raise TwoTowersError("prompts with different numbers of demonstrations: measure them apart")
    shape = (len(edges), len(SIDES), len(cuts))
    answers, d_prime = Answers(encoded, *shape), np.empty((*shape, len(heads), len(encoded)))
    with progress("knockouts", len(edges) * len(encoded)) as bar:
        for row, maker in enumerate(edges.values()):
            keys = _of_edges(model, encoded, maker, cuts, heads, max_tokens, answers, row, bar)
            for at in np.ndindex(keys.shape[:3]):
                d_prime[(row, *at)] = class_in_keys(keys[at], encoded)
    coordinates: dict[str, Any] = {"edges": list(edges), "side": list(SIDES), "cut": cuts}
    variables = answers.variables(*coordinates)
    if heads:
        variables["d_prime"] = ((*coordinates, "listed_head", "prompt"), d_prime, "standard deviations")
        coordinates |= listed(heads)
    return observations(encoded, variables, **coordinates)


def _of_edges(
    model: Model,
    encoded: Sequence[Encoded],
    maker: Callable[[Encoded], Edges],
    cuts: list[int],
    heads: Heads,
    max_tokens: int,
    answers: Answers,
    row: int,
    bar,
) -> Float[np.ndarray, "side cut head prompt place d_head"]:
    """Label keys of the heads under every knockout of one kind of edges; the answers go into `answers` at `row`."""
    places = len(encoded[0].label_positions) if heads else 0
    keys = np.empty((len(SIDES), len(cuts), len(heads), len(encoded), places, model.d_head), dtype=np.float32)
    layers = {layer for layer, _ in heads}

    def keep(at: tuple, index: list[int], outcome: _Pass) -> None:
        for h, (layer, head) in enumerate(heads):
            keys[(*at, h, index)] = outcome.keys[layer][:, :, model.value_head(head)].float().cpu().numpy()

    def run(index: list[int], batch: list[Encoded]) -> None:
        def put(side: int, c: int, outcome: _Pass) -> None:
            answers.put((row, side, c), index, *label_log_probs(outcome.logits, batch))
            keep((side, c), index, outcome)

        closed = closed_edges(batch, maker)
        if not closed[:, :-1].any():  # only the last position is cut off: the others, and their keys, are the plain run's
            if heads:
                plain = _forward(model, batch, (), layers)
                for at in np.ndindex(keys.shape[:2]):
                    keep(at, index, plain)
            spans = [(range(cut), range(cut, model.n_layers)) for cut in cuts]
            edits = {
                (row, s, c): _block_last(model, span, closed[:, -1]) for c, of in enumerate(spans) for s, span in enumerate(of)
            }
            answers.put_each(edits, index, *LastPosition(model, batch).answers(list(edits.values())))
            return
        plain = _forward(model, batch, cuts, layers)
        full = _forward(model, batch, cuts, layers, closed, range(model.n_layers))
        for c, cut in enumerate(cuts):
            upper = range(cut, model.n_layers)
            put(0, c, _forward(model, batch, (), layers, start=cut, after=full) if cut else plain)
            put(1, c, _forward(model, batch, (), layers, closed, upper, cut, plain) if cut else full)

    for index, _ in in_memory(run, batches(encoded, max_tokens)):
        bar.update(len(index))
    return keys


def _block_last(model: Model, layers: Iterable[int], closed: Bool[Tensor, "batch position"]) -> Edit:
    """No attention from the last position to what is closed, in all heads of some layers: as `blocked`.

    Raises TwoTowersError for a position that may not attend to itself.
    """
    if closed[:, -1].any():
        raise TwoTowersError("a position cannot be kept from attending to itself: take it out of the edge")

    def output(layer: int, heads: list[int], state: LayerState) -> Float[Tensor, "batch head d_head"]:
        query, key, value = state.of(heads)
        scores = state.scores(query, key)
        return head_output(scores.masked_fill(closed[:, None].to(scores.device), float("-inf")), value)

    return Edit([(layer, head) for layer in layers for head in range(model.n_heads)], output)


def _forward(
    model: Model,
    batch: Sequence[Encoded],
    cuts: Sequence[int],
    layers: Iterable[int],
    closed: Tensor | None = None,
    closed_layers: Iterable[int] = (),
    start: int = 0,
    after: _Pass | None = None,
) -> _Pass:
    """A run with edges closed in some layers, begun at block `start` with what the run `after` brought there.

    Kept for later: what enters the layers `cuts`, and label keys in `layers`. Below `start` the keys are those of `after`.
    """
    keys = dict(after.keys) if after else {}
    at = torch.tensor([e.label_positions for e in batch]) if layers else None

    def reader(layer: int) -> Callable:
        def read(_module, args, kwargs):
            x = split_call(args, kwargs)[0]
            x = x.gather(1, at.to(x.device)[..., None].expand(-1, -1, x.shape[-1]))
            keys[layer] = query_key.keys(model, layer, query_key.normed(model, layer, x))

        return read

    with ExitStack() as stack:
        if closed is not None and closed.any():
            stack.enter_context(blocked(model, list(closed_layers), closed))
        if after is not None and start:
            stack.enter_context(restarted(model, start, after.outputs[start - 1]))
        for layer in layers:
            if layer >= start:
                stack.enter_context(model.blocks[layer].register_forward_pre_hook(reader(layer), with_kwargs=True))
        outputs = stack.enter_context(block_outputs(model, [cut - 1 for cut in cuts if cut]))
        return _Pass(model.logits(batch), outputs, keys)


def class_in_keys(keys: Float[np.ndarray, "prompt place d_head"], encoded: Sequence[Encoded]) -> np.ndarray:
    """d' of the two classes in the keys of one head at label positions, an observation a prompt (prompt,).

    A block holds, at every place and under every label, a key beside a text of each class: their difference (first
    class minus second) is the class's alone. It is projected on a direction, the mean difference in other blocks of
    the class pair, without those that share a text with this block: a word cannot be recognised. A prompt's observation
    is the mean projection over its places, divided by the standard deviation of a single key, pooled over the class
    pair (that of the differences / sqrt 2). Its mean over the prompts of a class pair is d'; 0 where keys tell nothing,
    1 where the classes' means lie one standard deviation apart; NaN where no other block of the class pair has other texts.
    Raises TwoTowersError when a block is not whole.
    """
    first = [e.prompt.dataset.split("/")[0] for e in encoded]
    partners = donors_of(encoded)["both exchanged"]  # which differ in their texts, beside the same labels
    begins_first = [e.prompt.demonstrations[0].cls == cls for e, cls in zip(encoded, first, strict=True)]
    out = np.empty(len(encoded))
    for pair in dict.fromkeys(e.prompt.dataset for e in encoded):
        of_pair = [i for i, e in enumerate(encoded) if begins_first[i] and e.prompt.dataset == pair]
        rows = [(encoded[i].prompt.block, i, partners[i]) for i in of_pair]
        differences = np.stack([_signs(encoded[a], first[a]) * (keys[a] - keys[b]) for _, a, b in rows])
        texts = np.array([[{p.text, q.text} for p, q in _beside(encoded[a], encoded[b])] for _, a, b in rows])
        projections = np.empty(differences.shape[:2])
        for block in dict.fromkeys(row[0] for row in rows):
            of_block = [i for i, row in enumerate(rows) if row[0] == block]
            words = set().union(*texts[of_block].ravel())
            other = np.array([[not beside & words for beside in row] for row in texts])
            direction = differences[other].mean(0) if other.any() else np.full(differences.shape[-1], np.nan)
            projections[of_block] = differences[of_block] @ (direction / max(np.linalg.norm(direction), 1e-30))
        spread = np.nanstd(projections) / np.sqrt(2) if np.isfinite(projections).any() else np.nan
        for (_, a, b), row in zip(rows, projections, strict=True):
            out[[a, b]] = row.mean() / spread if spread else 0.0
    return out


def _signs(encoded: Encoded, first: str) -> np.ndarray:
    """+1 at the places of the first class, -1 at the others, for keys (place, d_head)."""
    return np.array([[1.0 if d.cls == first else -1.0] for d in encoded.prompt.demonstrations])


def _beside(a: Encoded, b: Encoded):
    return zip(a.prompt.demonstrations, b.prompt.demonstrations, strict=True)


@measurement("knockouts", needs=("locating",), version=1, on="few", passes=30)
def _knockouts(run: Run) -> Recording:
    """Attention knocked out below and from cuts spread over the layers, one of them at the first writer's layer."""
    first = min(layer for layer, _ in present(run.sets).get("writers") or run.sets["located"])
    cuts = sorted({*default_cuts(run.model.n_layers), first})
    few, heads = run.encode(run.few()), with_comparers(run)["comparers"][:3]

    def measure(names: Sequence[str]) -> xr.Dataset:
        return knockouts(run.model, few, {name: EDGES[name] for name in names}, cuts, heads)

    return run.in_parts("knockouts", list(EDGES), measure, along="edges")
