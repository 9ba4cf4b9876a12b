"""What moves the answer when only a head's query, keys or values come from another prompt. Chapter 11.

    encoded = encode_all(draw_blocks(40, form, seed=2, texts=texts_of_one_length(tokenizer, form)), tokenizer)
    pairs, dropped = pairs_of(encoded, tokenizer)
    measured = interchanges(model, pairs, {"by attention": [(18, 6)]})

Interchange interventions (Geiger et al. 2021) on the paper's two towers (v1 section 4). Each prompt of a block is the
base of three pairs; in each, the source's true label is the other one:

- *query*: the source asks a query of the other class after the same demonstrations. Attention is causal, so in these
  pairs keys and values at label positions are the same, and "query" and "all" are one by construction;
- *keys*: texts of the two classes have changed places, labels and query stay: label positions hold the other class;
- *values*: the labels are exchanged, texts and query stay: label positions hold the other label.

A key holds its position, so both prompts of a pair have their labels at the same positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import xarray as xr
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Heads, check_inside
from twotowers.recording import Recording

from towerlab.measure.chain import JUDGING, Run
from towerlab.measure.observations import Answers, observations
from towerlab.measure.sets import AT_LAST, present, random_sets, with_control, with_other_halves
from towerlab.model.capture import label_log_probs
from towerlab.model.edits import EXCHANGES, exchange
from towerlab.model.last_position import LastPosition
from towerlab.model.memory import run_batches
from towerlab.model.model import Model
from towerlab.prompts.blocks import donors_of, draw_blocks, texts_of_one_length
from towerlab.prompts.prompt import Encoded, encode_all

KINDS = ("query", "keys", "values")


class Pair(NamedTuple):
    """The prompt that runs, and the prompt that parts are taken from; `kind` (KINDS) says in what they differ."""

    kind: str
    base: Encoded
    source: Encoded


def pairs_of(encoded: Sequence[Encoded], tokenizer) -> tuple[list[Pair], int]:
    """The pairs that whole blocks of prompts give, in the order of KINDS, and how many were dropped.

    Query pairs take a query of the same length from the prompts of the other class of the same class pair. Dropped are
    pairs whose labels do not stand at the same positions (draw the texts with `blocks.texts_of_one_length`), and prompts
    that no query fits. Raises TwoTowersError when no pair is left, or a prompt's block is not whole.
    """
    pairs, donors = _query_pairs(encoded, tokenizer), donors_of(encoded)
    for kind, donor in (("keys", "both exchanged"), ("values", "labels exchanged")):
        for e, source in zip(encoded, (encoded[i] for i in donors[donor]), strict=True):
            if (source.label_positions, source.last) == (e.label_positions, e.last):
                pairs.append(Pair(kind, e, source))
    if not pairs:
        raise TwoTowersError("no two prompts have their labels at the same positions: draw texts of one length")
    return pairs, len(KINDS) * len(encoded) - len(pairs)


def _query_pairs(encoded: Sequence[Encoded], tokenizer) -> list[Pair]:
    """Each prompt with the first query that fits, of the blocks after its own and then of those before it."""
    queries: dict[str, list[tuple[int, str, str, int]]] = {}
    for e in encoded:
        row = (e.prompt.block, e.prompt.cls, e.prompt.query, _query_length(e))
        if row not in queries.setdefault(e.prompt.dataset, []):
            queries[e.prompt.dataset].append(row)
    bases, sources = [], []
    for e in encoded:
        texts = {d.text for d in e.prompt.demonstrations}
        rows = sorted(queries[e.prompt.dataset], key=lambda row: (row[0] < e.prompt.block, row[0]))
        for _, cls, query, length in rows:
            if cls != e.prompt.cls and query not in texts and length == _query_length(e):
                label = next(label for label in e.prompt.labels if label != e.prompt.true_label)
                bases.append(e)
                sources.append(replace(e.prompt, query=query, cls=cls, true_label=label))
                break
    return [Pair("query", *pair) for pair in zip(bases, encode_all(sources, tokenizer), strict=True)]


def _query_length(encoded: Encoded) -> int:
    return encoded.query_span[1] - encoded.query_span[0]


@torch.inference_mode()
def interchanges(
    model: Model, pairs: Sequence[Pair], sets: Mapping[str, Heads], what: Sequence[str] = tuple(EXCHANGES), max_tokens: int = 1024
) -> xr.Dataset:
    """Answers of every pair's base with parts of some heads taken from its source: (what, heads, prompt).

    `what`: the last position's "query", the "keys" or "values" at label positions, or "all" three; `heads`: the names of
    `sets`. `base_...` and `source_...` (prompt) are the answers of both prompts as they are. The true label is that of
    the base throughout, so what moves towards the source moves `log_prob_true - log_prob_other` down. Coordinates of a
    prompt are those of the base, with `pair_kind`. Cost: a run of each base and source, and one of the
    last position alone for each set and each of `what`. Memory: keys and values of both, for `max_tokens` tokens. Raises
    TwoTowersError for heads outside the model, and for pairs whose labels differ or stand at other positions.
    """
    bases = [pair.base for pair in pairs]
    for heads in sets.values():
        check_inside(heads, model.n_layers, model.n_heads, model.name)
    for _, base, source in pairs:
        if (base.label_positions, base.last, base.label_ids) != (source.label_positions, source.last, source.label_ids):
            raise TwoTowersError("a pair's prompts need the same labels at the same positions: make them with pairs_of")
    of_base, of_source, answers = Answers(bases), Answers(bases), Answers(bases, len(what), len(sets))

    def run(index: list[int], batch: list[Encoded]) -> None:
        base, source = LastPosition(model, batch), LastPosition(model, [pairs[i].source for i in index])
        of_base.put((), index, *base.plain_answer())
        of_source.put((), index, *label_log_probs(source.capture.logits, batch))  # labels in the base's order
        at = torch.tensor([e.label_positions for e in batch])
        edits = {
            (w, s): exchange(heads, part, source.plain, at) for s, heads in enumerate(sets.values()) for w, part in enumerate(what)
        }
        answers.put_each(edits, index, *base.answers(list(edits.values())))

    run_batches("interchanges", bases, max_tokens, run)
    plain = {
        f"{side}_{name}": values
        for side, of_side in (("base", of_base), ("source", of_source))
        for name, values in of_side.variables().items()
    }
    coordinates = {"what": list(what), "heads": list(sets), "pair_kind": ("prompt", [pair.kind for pair in pairs])}
    return observations(bases, answers.variables("what", "heads") | plain, **coordinates)


def _interchanges(run: Run) -> Recording:
    """Queries, keys or values of heads taken from another prompt, whose texts have as many tokens, so that labels stand alike."""
    texts = texts_of_one_length(run.model.tokenizer, run.form, run.pairs, run.texts)
    classes = [pair for pair in run.pairs if set(pair.split("/")) <= set(texts)]
    if not classes:
        raise NotTestable("no two classes have texts of the same number of tokens")
    seed = [run.settings.seed, JUDGING]
    twice = run.repeatable(classes)  # a query comes from another block of the pair
    blocks = draw_blocks(max(2, run.n_few), run.form, seed=seed, pairs=twice, labels=run.labels, texts=texts)
    pairs, _ = pairs_of(run.encode(blocks), run.model.tokenizer)
    sets = present({"by attention": run.sets["by attention"]})

    def measure(sets: Mapping[str, Heads], of: Sequence[Pair]) -> xr.Dataset:
        return interchanges(run.model, of, sets, KINDS)

    def in_parts(sets: Mapping[str, Heads]) -> xr.Dataset:
        return run.in_parts("interchanges", pairs, lambda some: measure(sets, some)).data

    recording = with_control(in_parts, sets, {name: random_sets(run, heads, AT_LAST) for name, heads in sets.items()})
    bases = [pair.base for pair in pairs]
    return with_other_halves(run, recording, "by attention", bases, lambda sets, at: measure(sets, [pairs[i] for i in at]))
