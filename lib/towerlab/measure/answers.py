"""What the model answers: the measurement that needs no hook. Chapters 1, 5 and 11."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import product

import numpy as np
import xarray as xr
from twotowers import head_selection
from twotowers.errors import TwoTowersError
from twotowers.settings import SEPARATORS, Form

from towerlab.measure.observations import answers_of, observations, read_batches
from towerlab.measure.pipeline import EVALUATION, Pipeline
from towerlab.measure.recipe import Recipe, joined
from towerlab.model.capture import answer
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompt, Prompts
from towerlab.prompts.variants import factorial, patterns


def answers(model: Model, encoded: Prompts) -> xr.Dataset:
    """log_prob_true, log_prob_other (nats) and says of every prompt (prompt,): one forward pass
    each."""
    arrays = read_batches(
        "answers", encoded, 4096, lambda _, batch: answers_of(batch, *answer(model, batch))
    )
    return observations("answers", encoded, arrays)


KS = (1, 2, 4, 8)
"""Demonstrations of each class that are tried, with every separator; the paper's form is two,
separated by a space"""
ORDERS = 6
"""Orders of the demonstrations in the factorial design: all of two and two, a spread of more"""


def _forms(pipeline: Pipeline) -> Recipe:
    """Answers on the locating blocks in every form that is chosen from and the model can read; what
    is given is not varied."""
    s = pipeline.settings
    ks = [s.k] if s.k else [k for k in KS if k <= head_selection.MOST_K]
    # This raises where not even the shortest prompt can be read.
    pipeline.design.selection(Form(ks[0], s.separator or "space"))
    return Recipe(with_form, _in_forms(pipeline, ks))


def _demonstrations(pipeline: Pipeline) -> xr.Dataset:
    """Answers on the locating blocks with up to eight demonstrations of each class, more than are
    chosen from, for Figure 1.1."""
    forms = pipeline.measured("forms").drop_attrs(deep=False)[["logit_difference"]]
    many = [] if pipeline.settings.k else [k for k in KS if k > head_selection.MOST_K]
    more = _in_forms(pipeline, many)
    if not more:
        return forms
    others = pipeline.make("demonstrations", Recipe(with_form, more))
    return joined([forms, others[["logit_difference"]]])


def _in_forms(pipeline: Pipeline, ks: Sequence[int]) -> list[Encoded]:
    """The prompts of the locating blocks in each form that the model can read."""
    separator, out = pipeline.settings.separator, []
    for form in product(ks, [separator] if separator else SEPARATORS):
        with suppress(TwoTowersError):
            out += pipeline.design.selection(Form(*form))
    return out


def with_form(model: Model, encoded: Prompts) -> xr.Dataset:
    """Answers, with the form of each prompt."""
    names = {text: name for name, text in SEPARATORS.items()}
    k = [len(e.prompt.demonstrations) // 2 for e in encoded]
    separator = [names[e.prompt.separator] for e in encoded]
    data = answers(model, encoded)
    return data.assign_coords(k=("prompt", k), separator=("prompt", separator))


def _answers(pipeline: Pipeline) -> Recipe:
    """Answers on two and a half times as many blocks as heads are measured on."""
    return Recipe(answers, pipeline.design.evaluation(2.5))


def _factorial(pipeline: Pipeline) -> Recipe:
    """Answers to two blocks of every class pair in up to ORDERS orders, with queries of either
    class, under both label assignments."""
    # The query of the other class comes from another block of the pair.
    pairs = pipeline.design.repeatable(pipeline.design.class_pairs)
    blocks = pipeline.design.blocks(2 * len(pairs), EVALUATION, pairs=pairs)
    return Recipe(answers, pipeline.design.encode(factorial(blocks, spread_orders(blocks[0]))))


def spread_orders(prompt: Prompt) -> list[str]:
    """Up to ORDERS of a prompt's orders, evenly spread from "TTFF" to "FFTT", with each its
    mirror."""
    every = patterns(prompt)
    return [every[round(i)] for i in np.linspace(0, len(every) - 1, min(ORDERS, len(every)))]
