"""What moves the answer when only a head's query, keys or values come from another prompt. Chapter 11.

    encoded = encode_all(draw_blocks(40, form, seed=2, texts=texts_of_one_length(tokenizer, form)), tokenizer)
    pairs = pairs_of(encoded, tokenizer)
    measured = interchanges(model, pairs, {"by attention": [(18, 6)]})

Interchange interventions (Geiger et al. 2021) on the paper's two towers (v1 section 4). Each prompt of a block is the
base of three pairs; in each, the source's true label is the other one:

- *query*: the source asks a query of the other class after the same demonstrations;
- *keys*: texts of the two classes have changed places, labels and query stay: label positions hold the other class;
- *values*: the labels are exchanged, texts and query stay: label positions hold the other label.

A key holds its position, so both prompts of a pair have their labels at the same positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Heads, check_inside

from towerlab.measure.chain import JUDGING, Run
from towerlab.measure.observations import Answers, observations
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import AT_LAST, BY_ATTENTION, present, random_sets
from towerlab.model.capture import label_log_probs
from towerlab.model.edits import exchange
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


def pairs_of(encoded: Sequence[Encoded], tokenizer) -> list[Pair]:
    """The pairs that whole blocks of prompts give, in the order of KINDS.

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
    return pairs


def _query_pairs(encoded: Sequence[Encoded], tokenizer) -> list[Pair]:
    """Each prompt with the first query that fits, of the blocks after its own and then of those before it."""
    bases, sources = [], []
    for e in encoded:
        prompt, texts = e.prompt, {d.text for d in e.prompt.demonstrations}
        in_turn = sorted(encoded, key=lambda other: (other.prompt.block < prompt.block, other.prompt.block))
        of_the_other_class = [o for o in in_turn if o.prompt.dataset == prompt.dataset and o.prompt.cls != prompt.cls]
        fitting = [o.prompt for o in of_the_other_class if o.prompt.query not in texts and _query_length(o) == _query_length(e)]
        if fitting:
            label = next(label for label in prompt.labels if label != prompt.true_label)
            bases.append(e)
            sources.append(replace(prompt, query=fitting[0].query, cls=fitting[0].cls, true_label=label))
    return [Pair("query", *pair) for pair in zip(bases, encode_all(sources, tokenizer), strict=True)]


def _query_length(encoded: Encoded) -> int:
    return encoded.query_span[1] - encoded.query_span[0]


@torch.inference_mode()
def interchanges(model: Model, pairs: Sequence[Pair], sets: Mapping[str, Heads]) -> xr.Dataset:
    """Answers of every pair's base with what its kind says taken from its source, in some heads: (heads, prompt).

    A kind is the last position's "query", or the "keys" or "values" at label positions; `heads`: the names of `sets`.
    `base_logit_difference` and `source_logit_difference` (prompt) are of both prompts as they are. The true label is that of
    the base throughout, so what moves towards the source moves `log_prob_true - log_prob_other` down. Coordinates of a
    prompt are those of the base, with `pair_kind`. Cost: a run of each base and source, and one of the
    last position alone for each set. Memory: keys and values of both, for 1,024 tokens. Raises
    TwoTowersError for heads outside the model, and for pairs whose labels differ or stand at other positions.
    """
    bases = [pair.base for pair in pairs]
    for heads in sets.values():
        check_inside(heads, model.n_layers, model.n_heads, model.name)
    for _, base, source in pairs:
        if (base.label_positions, base.last, base.label_ids) != (source.label_positions, source.last, source.label_ids):
            raise TwoTowersError("a pair's prompts need the same labels at the same positions: make them with pairs_of")
    of_base, of_source, answers = Answers(bases), Answers(bases), Answers(bases, len(sets))

    def run(kind: str, of_kind: list[int], index: list[int], batch: list[Encoded]) -> None:
        index = [of_kind[i] for i in index]
        base, source = LastPosition(model, batch), LastPosition(model, [pairs[i].source for i in index])
        of_base.put((), index, *base.plain_answer())
        of_source.put((), index, *label_log_probs(source.capture.logits, batch))  # labels in the base's order
        at = torch.tensor([e.label_positions for e in batch])
        edits = [exchange(heads, kind, source.plain, at) for heads in sets.values()]
        answers.put_each(np.ndindex(len(sets)), index, *base.answers(edits))

    for kind in KINDS:
        of_kind = [i for i, pair in enumerate(pairs) if pair.kind == kind]
        run_batches(f"interchanges, {kind}", [bases[i] for i in of_kind], 1024, partial(run, kind, of_kind))
    variables = answers.variables("heads")
    for side, of_side in (("base", of_base), ("source", of_source)):
        variables[f"{side}_logit_difference"] = of_side.variables()["logit_difference"]
    return observations(bases, variables, heads=list(sets), pair_kind=("prompt", [pair.kind for pair in pairs]))


def _interchanges(run: Run) -> Recipe:
    """Queries, keys or values of heads taken from another prompt, whose texts have as many tokens, so that labels stand alike."""
    texts = texts_of_one_length(run.model.tokenizer, run.form, run.pairs, run.texts)
    classes = [pair for pair in run.pairs if set(pair.split("/")) <= set(texts)]
    if not classes:
        raise NotTestable("no two classes have texts of the same number of tokens")
    seed = [run.settings.seed, JUDGING]
    twice = run.repeatable(classes)  # a query comes from another block of the pair
    blocks = draw_blocks(max(2, run.n_few), run.form, seed=seed, pairs=twice, labels=run.labels, texts=texts)
    pairs = pairs_of(run.encode(blocks), run.model.tokenizer)
    sets = present({BY_ATTENTION: run.sets[BY_ATTENTION]})
    return Recipe(interchanges, pairs, (), sets, random_sets(run, sets, AT_LAST))
