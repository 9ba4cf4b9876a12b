"""The paper's protocol on its own sets: heads by mean increase, their ranks and attention.

Source: v1 sections 3 to 5. On sentences the sets are SST-2, TREC, AGNews and ETHOS (v1 appendix A),
or the book's own.

    >>> heads = Head(0, 0), Head(0, 1)
    >>> random_partners(heads, [*heads, Head(1, 0), Head(1, 1)])[0].layer
    1
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import xarray as xr
from towerlab.measure.design import QUICK_PROMPTS, Design
from towerlab.measure.observations import (
    ANSWERS,
    Tensors,
    captured_answers,
    observations,
    read_prompts,
)
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model.capture import Capture
from towerlab.model.model import Model
from towerlab.progress import say
from towerlab.prompts.paper_sets import (
    ASKED,
    CASE,
    CASE_OF,
    COUNTERBALANCED,
    LISTED_SETS,
    REORDERED,
    WORD_SETS,
    changes_named,
    paper_prompts,
    sentence_sets,
)
from towerlab.prompts.prompt import Encoded, Prompt, Prompts
from twotowers import head_selection
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Head, Heads
from twotowers.names import slug
from twotowers.settings import SEEDS, SEPARATORS

from towerlab_experiments.conditions import attention_in
from towerlab_experiments.head_values import (
    SUMS,
    attention_sums,
    increases_from,
    label_attention,
    ov_logit_differences,
    read_states,
    tokens_at_once,
)
from towerlab_experiments.label_reads import label_reads

AT_LABELS = ("attention", "ov_logit_difference")
"""Values of every head at every label, of which the listed heads keep theirs"""
FEW_SENTENCES = 20
"""Minimum number of prompts of each set of sentences that are changed"""


def in_context_heads(paper: xr.Dataset, name: str) -> list[Head]:
    """Return the paper's in-context heads on one set, by mean increase over its prompts.

    The increase may have either sign. There are as many heads as `n_listed` says.

        >>> dims = ("prompt", "layer", "head")
        >>> increase = dims, np.arange(-150.0, 150.0).reshape(1, 15, 20)
        >>> many = xr.Dataset({"increase": increase}, {"class_pair": ("prompt", ["a/b"])})
        >>> few, fewest = many.isel(layer=[0]), many.isel(layer=[0], head=slice(4))
        >>> [len(in_context_heads(paper, "a/b")) for paper in (many, few, fewest)]
        [20, 5, 4]

    Args:
        paper: Measurement with `increase` (prompt, layer, head).
        name: Set of prompts.

    Returns:
        Heads, best first.
    """
    is_of_set = paper["class_pair"] == name
    of_set = paper["increase"].isel(prompt=is_of_set.values)
    mean = of_set.mean("prompt")
    n_heads = head_selection.n_listed(mean.size)
    return head_selection.top_heads(mean, n_heads, minimum=-np.inf)


def random_partners(heads: Heads, all_heads: Sequence[Head]) -> list[Head | None]:
    """Return for each head a random head of its layer that is not in `heads` (v1 section 4.3).

    If no head is left there, the random head is of the nearest layer that has one.

        >>> heads = [Head(*place) for place in np.ndindex(4, 2)]
        >>> partners = random_partners(9 * heads[2:4], heads)  # of both heads of layer 1
        >>> [str(head) for head in sorted({*partners})]
        ['0-0', '0-1']
        >>> random_partners(heads[:2], heads[:2])
        [None, None]

    Args:
        heads: Heads.
        all_heads: All heads of the model.

    Returns:
        One head for each of `heads`, or None if the model has no other head.
    """
    rng = np.random.default_rng([0, SEEDS["random partners"]])
    free: dict[int, list[Head]] = {}
    for head in all_heads:
        if head not in heads:
            free.setdefault(head.layer, []).append(head)
    if not free:
        return [None] * len(heads)
    partners: list[Head | None] = []
    for layer, _ in heads:
        nearest = min(free, key=lambda near: (abs(near - layer), near))
        pool = free[nearest]
        number = rng.integers(len(pool))
        partners.append(pool[number])
    return partners


def listed_first(paper: xr.Dataset, name: str, all_heads: Sequence[Head]) -> list[Head]:
    """Return all heads, the in-context heads on one set first.

        >>> increase = ("prompt", "layer", "head"), [[range(6)]]
        >>> paper = xr.Dataset({"increase": increase}, {"class_pair": ("prompt", ["a/b"])})
        >>> [head.head for head in listed_first(paper, "a/b", [Head(0, i) for i in range(6)])]
        [5, 4, 3, 2, 1, 0]

    Args:
        paper: Measurement with `increase` (prompt, layer, head).
        name: Set of prompts.
        all_heads: All heads of the model.
    """
    first = in_context_heads(paper, name)
    return list(dict.fromkeys([*first, *all_heads]))


def paper_values(model: Model, encoded: Prompts) -> xr.Dataset:
    """Compute increases, answers, and what all heads attend to and write at labels.

    All values are from one forward pass.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.

    Returns:
        Dataset of `increases`, of the model's answers (prompt), of SUMS (prompt, layer, head), and
        of AT_LABELS (prompt, layer, head, demonstration), which `label_reads` explains.
    """

    def read(capture: Capture) -> Tensors:
        attention = label_attention(capture).float()
        differences = ov_logit_differences(capture, model)
        return {
            **captured_answers(capture),
            **attention_sums(capture),
            **dict(zip(AT_LABELS, (attention, differences), strict=True)),
            **read_states(model, capture),
        }

    include = {"weights", "values"}
    arrays = read_prompts("paper", model, encoded, include, read, tokens_at_once(model))
    of_heads = "prompt", "layer", "head"
    values: dict[str, Any] = {name: arrays[name] for name in ANSWERS}
    values |= {name: (of_heads, arrays[name]) for name in SUMS}
    values |= {name: ((*of_heads, "demonstration"), arrays[name]) for name in AT_LABELS}
    increases = increases_from(model, encoded, arrays)
    return observations("paper", encoded, values).assign(increases)


def with_lists(data: xr.Dataset, all_heads: Sequence[Head]) -> xr.Dataset:
    """Return a dataset with the lists of heads of each set, and AT_LABELS of these heads only.

    Args:
        data: Result of `paper_values`.
        all_heads: All heads of the model.

    Returns:
        The data with AT_LABELS (prompt, selected_head, demonstration), and with these variables.

        - `in_context_head`, `random_head` (word_set, rank). Names, such as "22-0", of the heads
          with the largest mean increase on a set, and of a random head for each of them
          (`random_partners`).
    """
    sets = list(dict.fromkeys(data["class_pair"].values))
    lists: dict[str, list] = {"in_context_head": [], "random_head": []}
    for name in sets:
        first = in_context_heads(data, name)
        lists["in_context_head"].append(first)
        lists["random_head"].append(random_partners(first, all_heads))
    in_lists = chain(*lists["in_context_head"], *lists["random_head"])
    selected = list(dict.fromkeys(filter(None, in_lists)))
    data = data.assign(_of_heads(data, AT_LABELS, selected))
    for name, of_sets in lists.items():
        names = [[str(head or "") for head in heads] for heads in of_sets]
        data[name] = ("word_set", "rank"), names
    n_ranks = data.sizes["rank"]
    return data.assign_coords(word_set=sets, rank=range(1, n_ranks + 1))


def means_of_sets(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return the means of SUMS over the prompts of each set.

    Args:
        data: SUMS (..., prompt).

    Returns:
        "mean_" and the name of the variable -> means (..., word_set). Sets are in the order of
        their first prompts.
    """
    sets = list(dict.fromkeys(data["class_pair"].values))
    found = {}
    for name in SUMS:
        means = data[name].groupby("class_pair").mean("prompt")
        means = means.rename(class_pair="word_set")
        found[f"mean_{name}"] = means.sel(word_set=sets)
    return found


def of_some_heads(data: xr.Dataset, heads: Heads) -> xr.Dataset:
    """Return a dataset in which only some heads have attention on labels.

    Args:
        data: SUMS (..., layer, head), and variables without these dimensions.
        heads: Heads.

    Returns:
        The dataset with SUMS (..., selected_head).
    """
    return data.drop_dims(("layer", "head")).assign(_of_heads(data, SUMS, heads))


def _of_heads(data: xr.Dataset, names: Sequence[str], heads: Heads) -> dict[str, xr.DataArray]:
    """Return some variables of some heads (..., selected_head), by name."""
    of_heads = {}
    for name in names:
        selected = head_selection.select_heads(data[name], heads)
        # Their layers and numbers are left out, since other variables have these dimensions.
        of_heads[name] = selected.drop_vars(("layer", "head"))
    return of_heads


def encoded_sets(design: Design, sets: Sequence[str] = WORD_SETS) -> list[Encoded]:
    """Return the prompts of some of the paper's word sets, or of all sentence sets.

    Args:
        design: Prompts of one setting, whose suite is "words" or one of sentences.
        sets: Names of word sets, if the suite is "words".

    Returns:
        Prompts, set by set. A sentence set that the model cannot read is left out, with a message.

    Raises:
        NotTestable: If the model cannot read a word set, or can read no sentence set. The error has
            the reason.
    """
    settings = design.settings
    is_words = settings.suite == "words"
    texts_of_sets = dict.fromkeys(sets) if is_words else sentence_sets(settings.suite)
    encoded: list[Encoded] = []
    reasons = []
    for name, texts in texts_of_sets.items():
        prompts = paper_prompts(name, design.n_prompts, seed=settings.seed, texts=texts)
        try:
            encoded += _encoded(design, prompts)
        except NotTestable as error:
            # For example, a model's context is too short for five of these sentences.
            if is_words:
                raise
            reasons.append(error)
            say(f"{slug(settings.model)}: {name} is left out: {error}")
    if not encoded:
        raise reasons[-1]
    return encoded


def case_of(pipeline: Pipeline) -> tuple[Model, Encoded, list[Head]]:
    """Return the model, the paper's example, and all heads, the set's in-context heads first.

    Of sentences, the example is the first prompt of the set in CASE_OF.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Model, prompt, and heads.

    Raises:
        NotTestable: If the model cannot read the prompt.
    """
    suite = pipeline.settings.suite
    design = pipeline.design
    encoded = _encoded(design, [CASE]) if suite == "words" else encoded_sets(design)
    preferred = [e for e in encoded if e.prompt.dataset == CASE_OF[suite]]
    example, *_ = preferred or encoded
    name = example.prompt.dataset
    model = pipeline.model
    heads = listed_first(pipeline.measured("paper"), name, model.all_heads)
    return model, example, heads


def _encoded(design: Design, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Return prompts in the paper's template, or with the other separator.

    The other separator is for tokenizers that cannot encode the labels after a space.
    """
    errors = []
    for separator in SEPARATORS.values():
        separated = [replace(prompt, separator=separator) for prompt in prompts]
        try:
            return design.encode(separated)
        except TwoTowersError as error:
            errors.append(str(error))
    # We may not show these sentences.
    reason = re.sub("cannot use the prompt (.).*\\1: ", "", errors[0])
    raise NotTestable(f"it cannot read the paper's prompts: {reason}")


def n_changed(design: Design) -> int:
    """Return the number of prompts of each set that are changed.

    These are all prompts of words, and a quarter of sentences, which are long.

    Args:
        design: Prompts of one setting.

    Returns:
        Number of prompts.
    """
    n = design.n_prompts
    if design.settings.suite == "words":
        return n
    return max(FEW_SENTENCES, n // 4)


def recipe_paper(pipeline: Pipeline) -> xr.Dataset:
    """Measure increases on the paper's sets, and what the heads by increase attend to and write.

    The mean attention of all heads on labels is also measured, over the prompts that are changed in
    other measurements. A preview has only the two sets whose lists of heads the paper shows.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    design = pipeline.design
    is_preview = design.n_prompts <= QUICK_PROMPTS
    encoded = encoded_sets(design, LISTED_SETS if is_preview else WORD_SETS)
    data = pipeline.run("paper", Recipe(paper_values, encoded))
    data = with_lists(data, pipeline.model.all_heads)
    is_changed = data["block"] < n_changed(design)
    changed = data.isel(prompt=is_changed.values)
    return data.assign(means_of_sets(changed))


def recipe_paper_ranks(pipeline: Pipeline) -> Recipe:
    """Measure ranks of labels on the paper's sets, in the heads that `paper` lists.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    sets = pipeline.measured("paper")["word_set"].values.tolist()
    encoded = encoded_sets(pipeline.design, sets)
    return Recipe(label_reads, encoded, (_listed_heads(pipeline),))


def recipe_paper_balance(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers on the paper's sets in both orders, with both label assignments.

    They show whether a model solves the task of these prompts. The same passes give the attention
    of `recipe_paper_exchanges`.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    data = _attention(pipeline, "paper_balance", WORD_SETS, COUNTERBALANCED)
    pipeline.shared["paper_exchanges"] = data
    return data.drop_dims(("layer", "head"))


def recipe_paper_exchanges(pipeline: Pipeline) -> xr.Dataset:
    """Measure attention on the paper's sets in both orders, with both label assignments.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    sets = pipeline.measured("paper")["word_set"].values.tolist()
    if "paper_exchanges" in pipeline.shared:
        every_set = pipeline.shared.pop("paper_exchanges")
        data = every_set.isel(prompt=every_set["class_pair"].isin(sets).values)
    else:
        data = _attention(pipeline, "paper_exchanges", sets, COUNTERBALANCED)
    means = means_of_sets(data)
    return _of_listed_heads(pipeline, data).assign(means)


def recipe_paper_queries(pipeline: Pipeline) -> xr.Dataset:
    """Measure attention and answers on the paper's sets with queries of either class.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    if pipeline.settings.suite != "words":
        raise NotTestable("it needs words of the other class, which only the word sets have")
    data = _attention(pipeline, "paper_queries", WORD_SETS, ASKED)
    return _of_listed_heads(pipeline, data)


def recipe_paper_changes(pipeline: Pipeline) -> xr.Dataset:
    """Measure attention on the paper's first set with one demonstration fewer, and in all orders.

    The paper shows these changes on this set.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    if pipeline.settings.suite != "words":
        raise NotTestable("figures 8 to 11 are about a set of words")
    data = _attention(pipeline, "paper_changes", [CASE.dataset], REORDERED)
    means = {}
    for name in SUMS:
        means[f"mean_{name}"] = data[name].mean("prompt")
    return _of_listed_heads(pipeline, data).assign(means)


def _attention(
    pipeline: Pipeline, measurement: str, sets: Sequence[str], changes: Sequence[str]
) -> xr.Dataset:
    """Return attention and answers in some changes of the prompts of some sets, for all heads."""
    n = n_changed(pipeline.design)
    encoded = [e for e in encoded_sets(pipeline.design, sets) if e.prompt.block < n]
    recipe = Recipe(attention_in, encoded, (changes_named(changes),))
    data = pipeline.run(measurement, recipe)
    return data.rename(condition="change")


def _of_listed_heads(pipeline: Pipeline, data: xr.Dataset) -> xr.Dataset:
    """Return attention and answers with the prompts' sums of the heads that `paper` lists."""
    return of_some_heads(data, _listed_heads(pipeline))


def _listed_heads(pipeline: Pipeline) -> list[Head]:
    """Return the heads that `paper` lists, with their random partners."""
    names = pipeline.measured("paper")["selected_head"].values.tolist()
    return [Head.parse(name) for name in names]


RECIPES = {
    "paper": recipe_paper,
    "paper_ranks": recipe_paper_ranks,
    "paper_balance": recipe_paper_balance,
    "paper_exchanges": recipe_paper_exchanges,
    "paper_queries": recipe_paper_queries,
    "paper_changes": recipe_paper_changes,
}
"""Measurement -> function of a pipeline that makes it"""
