"""The paper's protocol on its own sets: heads by mean increase, their ranks and attention.

Source: v1 sections 3 to 5. On sentences the sets are SST-2, TREC, AGNews and ETHOS (v1 appendix A),
or the book's own.

    >>> random_partners([Head(0, 0), Head(0, 1)], n_layers=2, n_heads=2)[0].layer
    1
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr
from twotowers import head_selection
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Head
from twotowers.names import slug
from twotowers.settings import SEPARATORS

from towerlab.measure.conditions import attention_in
from towerlab.measure.heads import increases
from towerlab.measure.label_reads import label_reads
from towerlab.measure.observations import with_dims
from towerlab.measure.pipeline import QUICK_PROMPTS, Design, Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model.model import Model
from towerlab.progress import say
from towerlab.prompts.paper_sets import (
    CASE,
    CASE_OF,
    CHANGES,
    COUNTERBALANCED,
    LISTED_SETS,
    WORD_SETS,
    paper_prompts,
    sentence_sets,
)
from towerlab.prompts.prompt import Encoded, Prompt, Prompts

FEW_SENTENCES = 20
"""Minimum number of prompts of a set of sentences that are changed"""


def in_context_heads(paper: xr.Dataset, name: str) -> list[Head]:
    """Return the paper's in-context heads on one set, by mean increase over its prompts.

    The increase may have either sign. There are 20 heads, as in the paper, or 5 in a model with
    fewer than 200 heads.

    Args:
        paper: Measurement with `increase` (prompt, layer, head).
        name: Set of prompts.

    Returns:
        Heads, best first.
    """
    mean = paper["increase"].isel(prompt=(paper["class_pair"] == name).values).mean("prompt")
    return head_selection.top_heads(mean, 20 if mean.size >= 200 else 5, minimum=-np.inf)


def random_partners(heads: Sequence[Head], n_layers: int, n_heads: int) -> list[Head | None]:
    """Return for each head a random head of its layer that is not in `heads` (v1 section 4.3).

    If no head is left there, the random head is of the nearest layer that has one.

    Args:
        heads: Heads.
        n_layers: Number of layers of the model.
        n_heads: Number of heads of a layer.

    Returns:
        One head for each of `heads`, or None if the model has no other head.
    """
    rng = np.random.default_rng([0, 45])
    partners: list[Head | None] = []
    free = {
        layer: [head for i in range(n_heads) if (head := Head(layer, i)) not in heads]
        for layer in range(n_layers)
    }
    if not any(free.values()):
        return [None] * len(heads)
    for layer, _ in heads:
        nearest = min(filter(free.get, free), key=lambda near: (abs(near - layer), near))
        partners.append(free[nearest][rng.integers(len(free[nearest]))])
    return partners


def listed_first(paper: xr.Dataset, name: str) -> list[Head]:
    """Return all heads, the in-context heads on one set first.

    Args:
        paper: Measurement with `increase` (prompt, layer, head).
        name: Set of prompts.

    Returns:
        All heads of the model.
    """
    all_heads = map(Head._make, np.ndindex(paper.sizes["layer"], paper.sizes["head"]))
    return list(dict.fromkeys([*in_context_heads(paper, name), *all_heads]))


def with_label_reads(model: Model, encoded: Prompts, data: xr.Dataset) -> xr.Dataset:
    """Return the increases of prompts with their lists of heads, and these heads' label reads.

    Args:
        model: Any model.
        encoded: Prompts, all sets together.
        data: Increases of these prompts.

    Returns:
        The data with the model's answers (prompt), and with these variables.

        - `in_context_head`, `random_head` (word_set, rank). Names, such as "22-0", of the heads
          with the largest mean increase on a set, and of a random head for each of them
          (`random_partners`).
        - `own_rank`, `attention`, `ov_logit_difference` (prompt, selected_head, demonstration).
          Values of `label_reads` of every head in these lists.
    """
    sets = list(dict.fromkeys(e.prompt.dataset for e in encoded))
    first = [in_context_heads(data, name) for name in sets]
    random = [random_partners(heads, model.n_layers, model.n_heads) for heads in first]
    lists: list[Sequence[Head | None]] = [*first, *random]
    selected = list(dict.fromkeys(head for heads in lists for head in heads if head))
    # They lose their coordinates `layer` and `head`, which are dimensions of the increases.
    reads = label_reads(model, encoded, selected)
    names = np.array([[str(head or "") for head in heads] for heads in lists])
    of_sets = {"in_context_head": names[: len(sets)], "random_head": names[len(sets) :]}
    data = data.assign(reads).assign(with_dims("paper", of_sets))
    return data.assign_coords(word_set=sets, rank=range(1, names.shape[1] + 1))


def summed_up(data: xr.Dataset, heads: Sequence[str]) -> xr.Dataset:
    """Return attention in changed prompts, for some heads in full and for all heads as means.

    The sums of every prompt are kept for some heads; the means over prompts for all heads.

    Args:
        data: Dataset of `conditions.attention_in`.
        heads: Names of heads, such as "22-0".

    Returns:
        Dataset of `attention_true` and `attention_other` (change, prompt, selected_head), of
        `mean_attention_true` and `mean_attention_other` (change, word_set, layer, head), and of the
        answers (change, prompt).
    """
    selected = [*map(Head.parse, heads)]
    sets = dict.fromkeys(data["class_pair"].values)
    out = data.drop_dims("layer")
    for name in ("attention_true", "attention_other"):
        means = data[name].groupby("class_pair").mean("prompt").rename(class_pair="word_set")
        out[f"mean_{name}"] = means.sel(word_set=[*sets])
        # They lose their coordinates `layer` and `head`, which are dimensions of the means.
        out[name] = head_selection.select_heads(data[name], selected)
    return out.rename(condition="change")


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
    suite, design = pipeline.settings.suite, pipeline.design
    encoded = _encoded(design, [CASE]) if suite == "words" else encoded_sets(design)
    preferred = [e for e in encoded if e.prompt.dataset == CASE_OF[suite]]
    example = (preferred or encoded)[0]
    return pipeline.model, example, listed_first(pipeline.measured("paper"), example.prompt.dataset)


def _encoded(design: Design, prompts: Sequence[Prompt]) -> list[Encoded]:
    """Return prompts in the paper's template, or with the other separator.

    The other separator is for tokenizers that cannot encode the labels after a space.
    """
    errors = []
    for separator in SEPARATORS.values():
        try:
            return design.encode([replace(prompt, separator=separator) for prompt in prompts])
        except TwoTowersError as error:
            errors.append(str(error))
    # We may not show these sentences.
    reason = re.sub("cannot use the prompt (.).*\\1: ", "", errors[0])
    raise NotTestable(f"it cannot read the paper's prompts: {reason}")


def _paper(pipeline: Pipeline) -> xr.Dataset:
    """Measure increases on the paper's sets, and ranks and attention in the heads by increase.

    A preview has only the two sets whose lists of heads the paper shows.
    """
    design = pipeline.design
    encoded = encoded_sets(design, WORD_SETS if design.n_prompts > QUICK_PROMPTS else LISTED_SETS)
    data = pipeline.make("paper", Recipe(increases, encoded))
    return with_label_reads(pipeline.model, encoded, data)


def _paper_changes(pipeline: Pipeline) -> xr.Dataset:
    """Measure attention and answers on the paper's sets with changed demonstrations or queries.

    The changes are one demonstration fewer, other orders, exchanged labels, and another query.
    Sentences are long. Of sentences there are a quarter of the prompts, only in the orders and
    labels that counterbalance each other.
    """
    design, changes = pipeline.design, CHANGES
    encoded = encoded_sets(design)
    if pipeline.settings.suite != "words":
        n_changed = max(FEW_SENTENCES, design.n_prompts // 4)
        encoded = [e for e in encoded if e.prompt.block < n_changed]
        changes = {name: CHANGES[name] for name in COUNTERBALANCED}
    data = pipeline.make("paper_changes", Recipe(attention_in, encoded, (changes,)))
    return summed_up(data, pipeline.measured("paper")["selected_head"].values.tolist())
