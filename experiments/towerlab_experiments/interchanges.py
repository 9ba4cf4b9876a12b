"""Answers with only the query, keys or values of heads taken from another prompt.

Chapter 11. These are interchange interventions (Geiger et al. 2021) on the paper's two towers (v1
section 4). Each prompt of a block is the base of three pairs. In each pair, the source's true label
is the other label:

- *query*: the source has a query of the other class after the same demonstrations;
- *keys*: texts of the two classes are exchanged, labels and query are not: label positions contain
  the other class;
- *values*: the labels are exchanged, texts and query are not: label positions contain the other
  label.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=40, k=2, separator="space"))
    >>> pairs = pairs_of(pipeline.design.intervention(), pipeline.model.tokenizer)
    >>> sorted({pair.kind for pair in pairs})
    ['keys', 'query', 'values']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import xarray as xr
from towerlab.measure.design import EVALUATION
from towerlab.measure.observations import Tensors, check_finite, observations, read_batches
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import AT_LAST, BY_ATTENTION, draw_random_sets, present
from towerlab.model.edits import UNCHANGED, interchange
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.blocks import donors_of, texts_of_one_length
from towerlab.prompts.prompt import Encoded, Prompts, encode_all
from towerlab.prompts.variants import with_query
from twotowers.errors import NotTestable
from twotowers.head_selection import label_heads_without_preference
from twotowers.heads import HeadSets

FIRST, WITHOUT_PREFERENCE = "first by attention", "without preference"
"""Heads that attend to labels and prefer no class, and as many of the heads by attention"""


class Pair(NamedTuple):
    """The prompt that runs, and the prompt that parts are taken from.

    `kind` names the difference between the two prompts: "query", "keys" or "values".
    """

    kind: str
    base: Encoded
    source: Encoded


def pairs_of(encoded: Prompts, tokenizer) -> list[Pair]:
    """Return the pairs of whole blocks of prompts: pairs of queries, of keys, and of values.

    A key depends on its position, so both prompts of a pair have their labels at the same
    positions; other pairs are dropped (draw the texts with `blocks.texts_of_one_length`). A query
    pair takes a query from the prompts of the other class of the same class pair: from the first of
    these blocks at or after the prompt's own block, or else from the first block. Prompts without
    such a query have no query pair.

    Args:
        encoded: Prompts of whole blocks.
        tokenizer: Tokenizer of the model.

    Returns:
        The pairs, prompt by prompt.
    """
    pairs = []
    donors = donors_of(encoded)
    for i, e in enumerate(encoded):
        prompt = e.prompt
        texts = {d.text for d in prompt.demonstrations}
        others = [
            other.prompt
            for other in encoded
            if other.prompt.dataset == prompt.dataset
            and other.prompt.query_class != prompt.query_class
            and other.prompt.query not in texts
        ]
        if others:  # the first later one, or else the first
            other = min(others, key=lambda other: other.block < prompt.block)
            asked = with_query(prompt, other.query, other.query_class)
            (source,) = encode_all([asked], tokenizer)
            pairs.append(Pair("query", e, source))
        for kind, donor in (("keys", "both exchanged"), ("values", "labels exchanged")):
            pairs.append(Pair(kind, e, encoded[donors[donor][i]]))
    return [pair for pair in pairs if pair.base.places == pair.source.places]


@torch.inference_mode()
def interchanges(model: Model, pairs: Sequence[Pair], sets: HeadSets) -> xr.Dataset:
    """Compute the answers to every pair's base, with a part of some heads from its source.

    The part is the last position's query, or the keys or values at label positions, as the pair's
    kind says. The true label is always that of the base, so an answer towards the source has a
    lower `logit_difference`. Cost: a run of each prompt, which may be in several pairs, and for
    each pair one run of the last position for each set. Memory: keys and values of both prompts of
    each pair, for 2,048 tokens.

    Args:
        model: Any model.
        pairs: Pairs. Those that share prompts follow one another.
        sets: Name -> heads.

    Returns:
        Dataset of `logit_difference` (nats; head_set, prompt), and of `base_logit_difference` and
        `source_logit_difference` (prompt), the logit differences of both prompts without
        intervention (nats). Coordinates of a prompt are those of the base, with `pair_kind`.
    """

    def run(index: list[int], bases: Prompts) -> Tensors:
        sources = [pairs[i].source for i in index]
        prompts = {e.prompt: e for e in (*bases, *sources)}
        every_prompt = LastPosition(model, list(prompts.values()))
        rows = {prompt: row for row, prompt in enumerate(prompts)}
        base_rows, source_rows = ([rows[e.prompt] for e in some] for some in (bases, sources))
        base = every_prompt.of_prompts(base_rows)
        source = every_prompt.of_prompts(source_rows)
        kinds = [pairs[i].kind for i in index]
        positions = torch.tensor([e.label_positions for e in bases])
        edits = [interchange(heads, kinds, source.plain, positions) for heads in sets.values()]
        (plain,) = every_prompt.logit_differences([UNCHANGED])
        exchanged = base.logit_differences(edits)
        check_finite(exchanged)
        return {
            "logit_difference": exchanged.T,
            "base_logit_difference": plain[base_rows],
            # The source's true label is the other label of the base.
            "source_logit_difference": -plain[source_rows],
        }

    bases = [pair.base for pair in pairs]
    arrays = read_batches("interchanges", bases, 2048, run)
    kinds = "prompt", [pair.kind for pair in pairs]
    return observations("interchanges", bases, arrays, head_set=list(sets), pair_kind=kinds)


def pairs_of_one_length(pipeline: Pipeline) -> list[Pair]:
    """Return the pairs of the evaluation blocks of a model.

    The texts of both prompts have equal numbers of tokens, so the labels are at the same positions.

    Args:
        pipeline: Pipeline of the model.

    Raises:
        NotTestable: If there are no such texts.
    """
    design = pipeline.design
    tokenizer = pipeline.model.tokenizer
    first, *_ = design.label_pairs
    texts = texts_of_one_length(tokenizer, design.template, design.class_pairs, design.texts, first)
    classes = [pair for pair in design.class_pairs if set(pair.split("/")) <= set(texts)]
    if not classes:
        raise NotTestable("no two classes have texts of the same number of tokens")
    twice = design.repeatable(classes)  # a query comes from another block of the pair
    n_blocks = max(2, design.n_intervention)
    blocks = design.blocks(n_blocks, EVALUATION, pairs=twice, texts=texts)
    return pairs_of(design.encode(blocks), tokenizer)


def _without_preference(pipeline: Pipeline) -> HeadSets:
    """Return heads that attend to labels and prefer no class, after as many by attention."""
    (judged,) = present(pipeline.head_sets, BY_ATTENTION).values()
    selection = pipeline.measured("selection")
    found = label_heads_without_preference(selection, judged)
    others = found[: pipeline.settings.top_k]
    if not others:
        return {}
    first = judged[: len(others)]
    return {FIRST: first, WITHOUT_PREFERENCE: others}


def recipe_interchanges(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers with queries, keys or values of heads taken from another prompt.

    The same passes give the measurement of heads without preference.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    pairs = pairs_of_one_length(pipeline)
    sets = present(pipeline.head_sets, BY_ATTENTION)
    random = draw_random_sets(pipeline, sets, AT_LAST)
    further = _without_preference(pipeline)
    part = 3 * pipeline.part_size("interchanges")  # pairs of its prompts
    every_set = {**sets, **further}
    recipe = Recipe(interchanges, pairs, (), every_set, random, part=part)
    data = pipeline.run("interchanges", recipe)
    is_further = data["head_set"].isin(list(further)).values
    pipeline.shared[WITHOUT_PREFERENCE] = data.isel(head_set=is_further)
    return data.isel(head_set=~is_further)


def recipe_interchanges_without_preference(pipeline: Pipeline) -> xr.Dataset:
    """Measure the exchanges in heads that attend to labels but prefer no class.

    Next to them, the measurement has as many of the heads by attention, on the same pairs.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    sets = _without_preference(pipeline)
    if not sets:
        raise NotTestable("no head without preference attends half as much to labels")
    if WITHOUT_PREFERENCE not in pipeline.shared:
        recipe = Recipe(interchanges, pairs_of_one_length(pipeline), (), sets)
        data = pipeline.run("interchanges_without_preference", recipe)
        pipeline.shared[WITHOUT_PREFERENCE] = data
    data = pipeline.shared.pop(WITHOUT_PREFERENCE)
    return data.assign_coords(head_set=[BY_ATTENTION, WITHOUT_PREFERENCE])


RECIPES = {
    "interchanges": recipe_interchanges,
    "interchanges_without_preference": recipe_interchanges_without_preference,
}
"""Measurement -> function of a pipeline that makes it"""
