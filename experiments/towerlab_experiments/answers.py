"""Answers of the model, the measurement without any hook.

Chapters 1, 5 and 11.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import CASE
    >>> model = load("mini-gpt2")
    >>> data = answers(model, model.encode([CASE]))
    >>> data["k"].item(), data["separator"].item()
    (2, 'space')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, product, starmap

import numpy as np
import xarray as xr
from towerlab.measure.design import EVALUATION
from towerlab.measure.observations import (
    ANSWERS,
    Tensors,
    answer_variables,
    observations,
    read_batches,
)
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe, joined
from towerlab.model.capture import answer
from towerlab.model.model import Model
from towerlab.prompts.prompt import MAX_TOKENS, Encoded, Prompts
from towerlab.prompts.variants import factorial, patterns
from towerlab.prompts.word_blocks import spread
from twotowers import head_selection
from twotowers.errors import TwoTowersError
from twotowers.settings import SEPARATORS, Template

from towerlab_experiments.head_values import read_heads


def answers(model: Model, encoded: Prompts) -> xr.Dataset:
    """Compute the answers to prompts, in one forward pass each.

    Args:
        model: Any model.
        encoded: Prompts in any template.

    Returns:
        Dataset of `log_prob_true`, `log_prob_other`, `logit_difference` (nats) and `top_answer`,
        over (prompt,). The coordinates `k` and `separator` give the template of each prompt.
    """
    return _with_templates(encoded, read_answers(model, encoded))


def _with_templates(encoded: Prompts, arrays: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Return the dataset of `answers`."""
    names = {text: name for name, text in SEPARATORS.items()}
    k = [len(e.prompt.demonstrations) // 2 for e in encoded]
    separator = [names[e.prompt.separator] for e in encoded]
    return observations(
        "answers", encoded, arrays, k=("prompt", k), separator=("prompt", separator)
    )


def read_answers(model: Model, encoded: Prompts) -> dict[str, np.ndarray]:
    """Return the answers to prompts as arrays.

    Args:
        model: Any model.
        encoded: Prompts.

    Returns:
        Variables (prompt,): see `observations.answer_variables`.
    """

    def run(_, batch: Prompts) -> Tensors:
        return answer_variables(batch, *answer(model, batch))

    return read_batches("answers", encoded, MAX_TOKENS, run)


KS = (1, 2, 4, 8)
"""Numbers of demonstrations of each class that are tried, with every separator; the paper's
template has two, separated by a space"""
ORDERS = 6
"""Number of orders of the demonstrations in the factorial design: all orders of two and two
demonstrations, evenly spread orders of more"""


def recipe_templates(pipeline: Pipeline) -> Recipe | xr.Dataset:
    """Measure answers on the selection blocks in every template that the model can read.

    Only the templates that may be chosen are measured. If the settings give k or the separator, it
    is not varied. Unless the model is large, the same passes give what other measurements need of
    the chosen template.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement, or the measurement.
    """
    settings = pipeline.settings
    ks = [settings.k] if settings.k else [k for k in KS if k <= head_selection.MAX_K]
    # This raises an error if not even the shortest prompt can be read.
    pipeline.design.selection(Template(ks[0], settings.separator or "space"))
    in_templates = _in_templates(pipeline, ks)
    longest = max(map(len, in_templates.values()))
    if longest > pipeline.part_size("selection_increases"):
        return Recipe(answers, list(chain(*in_templates.values())))
    parts: list[xr.Dataset] = []
    for template, encoded in in_templates.items():
        arrays = read_heads(pipeline.model, encoded)
        of_answers = {name: arrays[name] for name in ANSWERS}
        parts.append(_with_templates(encoded, of_answers))
        if head_selection.select_template(joined(parts)) == template:
            pipeline.shared["selection runs"] = template, arrays
    return joined(parts)


def recipe_demonstrations(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers on the selection blocks with up to eight demonstrations of each class.

    These are more demonstrations than a template may have. The answers are for Figure 1.1.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    templates = pipeline.measured("templates")[["logit_difference"]]
    templates = templates.drop_attrs()
    many = [] if pipeline.settings.k else [k for k in KS if k > head_selection.MAX_K]
    more = list(chain(*_in_templates(pipeline, many).values()))
    if not more:
        return templates
    others = pipeline.run("demonstrations", Recipe(answers, more))
    others = others[["logit_difference"]]
    return joined([templates, others])


def _in_templates(pipeline: Pipeline, ks: Sequence[int]) -> dict[Template, list[Encoded]]:
    """Return the prompts of the selection blocks in each template that the model can read."""
    separator = pipeline.settings.separator
    separators = [separator] if separator else list(SEPARATORS)
    in_templates = {}
    for template in starmap(Template, product(ks, separators)):
        with suppress(TwoTowersError):
            in_templates[template] = pipeline.design.selection(template)
    return in_templates


def recipe_answers(pipeline: Pipeline) -> Recipe:
    """Measure answers on 2.5 times as many evaluation blocks as the heads are measured on.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    return Recipe(answers, pipeline.design.evaluation(2.5))


def recipe_factorial(pipeline: Pipeline) -> Recipe:
    """Measure answers in a factorial design of orders, query classes and label assignments.

    Two blocks of every class pair are in up to ORDERS orders, with queries of either class, under
    both label assignments.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    # The query of the other class comes from another block of the pair.
    design = pipeline.design
    pairs = design.repeatable(design.class_pairs)
    blocks = design.blocks(2 * len(pairs), EVALUATION, pairs=pairs)
    orders = spread(patterns(blocks[0]), ORDERS)  # each with its mirror
    prompts = factorial(blocks, orders)
    return Recipe(answers, design.encode(prompts))


RECIPES = {
    "templates": recipe_templates,
    "demonstrations": recipe_demonstrations,
    "answers": recipe_answers,
    "factorial": recipe_factorial,
}
"""Measurement -> function of a pipeline that makes it"""
