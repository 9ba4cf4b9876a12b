"""Attention and answers with one demonstration fewer, or in another order.

Source: v1 section 5; EMNLP section 6. Chapter 5.

    data = conditions(model, encoded)     # (condition, prompt, layer, head)

    >>> from towerlab.prompts.paper_sets import CASE
    >>> prompt = in_order(CASE, "TFFT")
    >>> [change(prompt).order for change in CONDITIONS.values()]
    ['TFFT', 'TFF', 'TFT', 'FFTT', 'TTFF']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from towerlab.measure.design import Design
from towerlab.measure.observations import (
    Tensors,
    captured_answers,
    observations,
    read_prompts,
    with_dims,
)
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model.capture import Capture
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompt, Prompts
from towerlab.prompts.variants import in_order, one_fewer, true_first
from twotowers.errors import NotTestable

from towerlab_experiments.head_values import attention_sums

Changes = Mapping[str, Callable[[Prompt], Prompt]]


CONDITIONS: Changes = {
    "plain": lambda prompt: prompt,
    "one true fewer": one_fewer,
    "one other fewer": lambda prompt: one_fewer(prompt, kind=False),
    "true nearest": lambda prompt: in_order(prompt, "".join(sorted(prompt.order))),
    "true first": true_first,
}
"""Name -> function that changes a prompt; "fewer" removes the last demonstration of that kind"""


def in_changes(
    model: Model, encoded: Prompts, changes: Changes, read: Callable[[Prompts], Mapping[Any, Any]]
) -> dict[str, np.ndarray]:
    """Return the values that `read` gives for prompts in each of some changes.

    Args:
        model: Any model.
        encoded: Prompts.
        changes: Name -> function that changes a prompt.
        read: Function of the prompts of a change. It returns name -> (prompt, ...).

    Returns:
        Name -> (prompt, change, ...).
    """
    results: dict[str, list] = {}
    for change in changes.values():
        prompts = [change(e.prompt) for e in encoded]
        changed = model.encode(prompts)
        for name, values in read(changed).items():
            results.setdefault(name, []).append(values)
    return {name: np.stack(values, 1) for name, values in results.items()}


def attention_in(model: Model, encoded: Prompts, changes: Changes) -> xr.Dataset:
    """Compute attention on labels, and answers, for prompts in each of some changes.

    Args:
        model: Any model.
        encoded: Prompts.
        changes: Name -> function that changes a prompt.

    Returns:
        Dataset of `attention_true` and `attention_other` (condition, prompt, layer, head), the
        attention on all labels of a kind, and of the answers (condition, prompt).
    """

    def read(capture: Capture) -> Tensors:
        return attention_sums(capture) | captured_answers(capture)

    read_all = partial(read_prompts, "conditions", model, include={"weights"}, read=read)
    arrays = in_changes(model, encoded, changes, read_all)
    return observations("conditions", encoded, arrays, condition=list(changes))


def conditions(model: Model, encoded: Prompts) -> xr.Dataset:
    """Compute `attention_in` CONDITIONS, and the softmax's effect of a removed demonstration.

    Args:
        model: Any model.
        encoded: Prompts.

    Returns:
        Dataset of `attention_in`, and for the plain prompts (prompt, layer, head) of
        `attention_left` (attention on true labels except the last true demonstration) and
        `attention_removed` (attention on all tokens of the last true demonstration). left / (1 -
        removed) is the attention on true labels that results from the softmax alone when that
        demonstration is removed.
    """

    def read(capture: Capture) -> Tensors:
        left = []
        removed = []
        of_prompts = capture.weights.float().unbind(1)
        for e, weights in zip(capture.prompts, of_prompts, strict=True):
            *kept, last = np.flatnonzero(e.prompt.is_true)
            labels = np.array(e.label_positions)[kept]
            left.append(weights[..., labels].sum(-1))
            # A demonstration is its text, colon, label and separator.
            starts = [start for start, _ in (*e.text_spans, e.query_span)]
            start = starts[last]
            stop = starts[last + 1]
            removed.append(weights[..., start:stop].sum(-1))
        return {"attention_left": torch.stack(left), "attention_removed": torch.stack(removed)}

    arrays = read_prompts("conditions, what is removed", model, encoded, {"weights"}, read)
    data = attention_in(model, encoded, CONDITIONS)
    return data.assign(with_dims("conditions", arrays))


def check_one_can_go(design: Design) -> None:
    """Raise NotTestable if there is one demonstration of each class, so none can be removed.

    Args:
        design: Prompts of one setting.

    Raises:
        NotTestable: If the template has k=1.
    """
    if design.template.k < 2:
        raise NotTestable(
            "its best-learned template has one demonstration of each class, and none can be "
            "removed; choose k=2"
        )


def recipe_conditions(pipeline: Pipeline) -> Recipe:
    """Measure attention and answers with one demonstration fewer, and in two orders.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    design = pipeline.design
    check_one_can_go(design)
    return Recipe(conditions, design.intervention())


RECIPES = {"conditions": recipe_conditions}
"""Measurement -> function of a pipeline that makes it"""
