"""The paper's own protocol on its own sets (v1 sections 3 to 5): heads by mean increase, ranks and
attention in their values.

On sentences the sets are SST-2, TREC, AGNews and ETHOS (v1 appendix A), or the book's own.

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
from twotowers.paths import slug
from twotowers.settings import SEPARATORS

from towerlab.measure.conditions import attention_in
from towerlab.measure.heads import increases
from towerlab.measure.label_reads import label_reads
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
"""Prompts of a set of sentences that are changed, at least"""


def in_context_heads(paper: xr.Dataset, name: str) -> list[Head]:
    """The paper's in-context heads on one set: the largest mean increase over its prompts, whatever
    its sign.

    They are 20, as in the paper, or 5 of a model with fewer than 200 heads.
    """
    mean = paper["increase"].isel(prompt=(paper["pair"] == name).values).mean("prompt")
    return head_selection.top(mean, 20 if mean.size >= 200 else 5, least=-np.inf)


def random_partners(heads: Sequence[Head], n_layers: int, n_heads: int) -> list[Head | None]:
    """For each head a random one of its layer that is not among `heads` (v1 section 4.3).

    Where none is left it is one of the nearest layer that has one, and None where the model has no
    other head.
    """
    rng, out = np.random.default_rng([0, 45]), []
    free = [
        [head for h in range(n_heads) if (head := Head(layer, h)) not in heads]
        for layer in range(n_layers)
    ]
    for layer, _ in heads:
        nearest = sorted(range(n_layers), key=lambda at: (abs(at - layer), at))
        others = next((free[at] for at in nearest if free[at]), None)
        out.append(others[rng.integers(len(others))] if others else None)
    return out


def listed_first(paper: xr.Dataset, name: str) -> list[Head]:
    """Return all heads, the in-context heads on one set first."""
    every = np.ndindex(paper.sizes["layer"], paper.sizes["head"])
    return list(dict.fromkeys([*in_context_heads(paper, name), *(Head(*at) for at in every)]))


def with_readings(model: Model, encoded: Prompts, data: xr.Dataset) -> xr.Dataset:
    """The increases of prompts, with the lists of heads that they give and what these heads read
    off the labels.

    Args:
        data: increases of these prompts, all sets together.

    Returns:
        The data with `in_context_head`, `random_head` (word_set, rank): names such as "22-0" of the
            heads with the largest mean increase on a set, and for each a random head
            (`random_partners`). Of every head that either of them names `own_rank`, `attention`,
            `reading` (prompt, named_head, place), as in `label_reads`. And the model's answers
            (prompt,).
    """
    sets: list[str] = list(dict.fromkeys(map(str, data["pair"].values)))
    first = [in_context_heads(data, name) for name in sets]
    random = [random_partners(heads, model.n_layers, model.n_heads) for heads in first]
    lists: list[Sequence[Head | None]] = [*first, *random]
    every = dict.fromkeys(head for heads in lists for head in heads if head)
    reads = label_reads(model, encoded, list(every)).drop_vars(
        ["layer", "head", "vocabulary", "other_rank"]
    )
    names = {
        name: (("word_set", "rank"), [[str(head or "") for head in heads] for heads in of_sets])
        for name, of_sets in (("in_context_head", first), ("random_head", random))
    }
    of_sets = xr.Dataset(names, {"word_set": sets, "rank": range(1, len(first[0]) + 1)})
    return xr.merge(
        [data, reads.rename(listed_head="named_head"), of_sets], compat="override", join="override"
    )


def summed_up(data: xr.Dataset, heads: Sequence[str]) -> xr.Dataset:
    """Attention in changed prompts, less of it: every prompt's sums for some heads, means over
    prompts for all.

    Args:
        data: of `conditions.attention_in`.
        heads: names, such as "22-0".

    Returns:
        `attention_true`, `attention_other` (change, prompt, named_head), `mean_attention_true`,
            `mean_attention_other` (change, word_set, layer, head), and answers (change, prompt).
    """
    picked = list(map(Head.parse, heads))
    out = data.drop_dims("layer").assign_coords(named_head=list(heads))
    for name in ("attention_true", "attention_other"):
        means = data[name].groupby("pair", squeeze=False).mean("prompt").rename(pair="word_set")
        out[f"mean_{name}"] = means.sel(word_set=list(dict.fromkeys(data["pair"].values)))
        of_heads = head_selection.pick(data[name], picked).drop_vars(["layer", "head"])
        out[name] = of_heads.rename(listed_head="named_head")
    return out.assign_coords(layer=data["layer"], head=data["head"]).rename(condition="change")


def encoded_sets(design: Design, sets: Sequence[str] = WORD_SETS) -> list[Encoded]:
    """The prompts of some of the paper's word sets, or of all sentence sets of the design's suite.
    Raises NotTestable, with the reason, where the model cannot read them."""
    n, settings = design.n_prompts, design.settings
    if settings.suite == "words":
        prompts = [p for name in sets for p in paper_prompts(name, n, seed=settings.seed)]
        return _encoded(design, prompts)
    out, why = [], None
    for name, texts in sentence_sets(settings.suite).items():
        try:
            out += _encoded(design, paper_prompts(name, n, seed=settings.seed, texts=texts))
        except NotTestable as error:
            # For example, a model's context is too short for five of these sentences.
            why = error
            say(f"{slug(settings.model)}: {name} is left out: {error}")
    if not out and why:
        raise why
    return out


def case_of(pipeline: Pipeline) -> tuple[Model, Encoded, list[Head]]:
    """The model, the paper's example (of sentences the first prompt of the set in CASE_OF), and all
    heads, the in-context heads of its set first. Raises as `encoded_sets`."""
    prompt, settings, paper = CASE, pipeline.settings, pipeline.measured("paper")
    if settings.suite != "words":
        sets = paper["word_set"].values.tolist()
        name = CASE_OF[settings.suite] if CASE_OF[settings.suite] in sets else sets[0]
        texts = sentence_sets(settings.suite)[name]
        (prompt,) = paper_prompts(name, 1, seed=settings.seed, texts=texts)
    (encoded,) = _encoded(pipeline.design, [prompt])
    return pipeline.model, encoded, listed_first(paper, prompt.dataset)


def _encoded(design: Design, prompts: Sequence[Prompt]) -> list[Encoded]:
    """In the paper's template, or in the one for tokenizers that cannot say the labels in it."""
    why = None
    for separator in SEPARATORS.values():
        try:
            return design.encode([replace(prompt, separator=separator) for prompt in prompts])
        except TwoTowersError as error:
            why = why or error
    # Sentences are not ours to show.
    reason = re.sub(r"the prompt '.*' is", "a prompt is", str(why))
    raise NotTestable(f"it cannot read the paper's prompts: {reason}")


def _paper(pipeline: Pipeline) -> xr.Dataset:
    """The paper's sets as they are: increases, the heads that are largest by them, ranks and
    attention in these heads; in a quick look only the two sets whose lists of heads the paper
    shows."""
    design = pipeline.design
    encoded = encoded_sets(design, WORD_SETS if design.n_prompts > QUICK_PROMPTS else LISTED_SETS)
    data = pipeline.make("paper", Recipe(increases, encoded))
    return with_readings(pipeline.model, encoded, data)


def _paper_changes(pipeline: Pipeline) -> xr.Dataset:
    """The paper's sets with one demonstration fewer, in other orders, labels exchanged, another
    query: attention and answers. Of sentences, which are long, a quarter of the prompts, in the
    orders and labels that counterbalance each other."""
    heads = pipeline.measured("paper")["named_head"].values.tolist()
    design, names = pipeline.design, tuple(CHANGES)
    encoded = encoded_sets(design)
    if pipeline.settings.suite != "words":
        few, names = max(FEW_SENTENCES, design.n_prompts // 4), COUNTERBALANCED
        encoded = [one for one in encoded if one.prompt.block < few]
    changes = {name: CHANGES[name] for name in names}
    recipe = Recipe(attention_in, encoded, (changes,))
    return summed_up(pipeline.make("paper_changes", recipe), heads)
