"""Answers with attention on labels exchanged between two prompts of opposite bias.

Source: v1 section 5 observes that labels with more demonstrations, and nearer labels, get more
attention. Chapter 5 tests whether the answer moves because of it.

Two changes of a prompt are partners: without a true or without another demonstration (majority
bias), and true demonstrations last or first (recency bias). Each head gets the sums of attention
that the labels of either class have in the partner (`label_attention.with_class_sums`). Values are
those of the prompt itself. If a bias went through this attention alone, it would be reversed.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=1, k=2, separator="space"))
    >>> prompts, sets = pipeline.design.intervention(), {"one head": [(3, 0)]}
    >>> data = attention_exchanges(pipeline.model, prompts, sets)
    >>> dict(data["logit_difference"].sizes)
    {'change': 4, 'head_set': 1, 'prompt': 4}
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import xarray as xr
from towerlab.measure.observations import (
    ANSWERS,
    Tensors,
    answer_variables,
    observations,
    read_batches,
    read_prompts,
)
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import draw_random_sets, present
from towerlab.model.attention import Weights
from towerlab.model.edits import set_attention
from towerlab.model.label_attention import places_of, with_class_sums
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompts
from twotowers.heads import HeadSets

from towerlab_experiments.conditions import CONDITIONS, check_one_can_go
from towerlab_experiments.head_values import SUMS, attention_sums

PARTNERS = {
    "one other fewer": "one true fewer",
    "one true fewer": "one other fewer",
    "true nearest": "true first",
    "true first": "true nearest",
}
"""Change of a prompt -> change with the opposite bias"""
NO_HEADS, ALL_HEADS = "none", "all heads"


@torch.inference_mode()
def attention_exchanges(model: Model, encoded: Prompts, sets: HeadSets) -> xr.Dataset:
    """Compute answers in each of PARTNERS, with the attention of some heads exchanged.

    A head has the weights of the plain run with other sums, whatever the edits of lower layers do
    to its query. Cost: for each change two forward passes, and one pass of the last position for
    each set. Memory: keys and values of all layers and positions of a batch.

    Args:
        model: Any model.
        encoded: Prompts with two or more demonstrations of each class.
        sets: Name -> heads that exchange their attention on labels.

    Returns:
        Dataset of answers (change, head_set, prompt).
    """
    changed = {}
    sums = {}
    for name in PARTNERS:
        prompts = model.encode([CONDITIONS[name](e.prompt) for e in encoded])
        changed[name] = prompts
        sums[name] = read_prompts("attention sums", model, prompts, {"weights"}, attention_sums)
    answered = []
    for name, partner in PARTNERS.items():
        answered.append(_with_sums(model, changed[name], sums[partner], sets))
    arrays = {}
    for variable in ANSWERS:
        arrays[variable] = np.stack([of_change[variable] for of_change in answered], 1)
    return observations(
        "attention_exchanges", encoded, arrays, change=list(PARTNERS), head_set=list(sets)
    )


def _with_sums(
    model: Model, encoded: Prompts, sums: Mapping[str, np.ndarray], sets: HeadSets
) -> dict[str, np.ndarray]:
    """Return answers (prompt, head_set) if heads have given sums of attention on the labels."""

    def run(index: list[int], batch: Prompts) -> Tensors:
        last = LastPosition(model, batch, {"weights"})
        places = places_of(batch)
        of_batch = [torch.from_numpy(sums[name][index]) for name in SUMS]
        true, other = (x[..., None, None] for x in of_batch)
        weights: dict[int, Weights] = {}
        for layer, plain in enumerate(last.capture.weights):
            of_rows = plain[:, :, None]
            weights[layer] = with_class_sums(of_rows, places, true[:, layer], other[:, layer])
        edits = [set_attention(heads, weights) for heads in sets.values()]
        return answer_variables(batch, *last.answers(edits))

    return read_batches("attention exchanged", encoded, 2048, run)


def recipe_attention_exchanges(pipeline: Pipeline) -> Recipe:
    """Measure answers with attention on labels exchanged between prompts of opposite bias.

    The heads are those by attribution, random sets that are matched to them, and all heads.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    check_one_can_go(pipeline.design)
    selected = present(pipeline.head_sets, "by attribution")
    return Recipe(
        attention_exchanges,
        pipeline.design.intervention(),
        (),
        {NO_HEADS: [], ALL_HEADS: pipeline.model.all_heads, **selected},
        draw_random_sets(pipeline, selected),
    )


RECIPES = {"attention_exchanges": recipe_attention_exchanges}
"""Measurement -> function of a pipeline that makes it"""
