"""The EMNLP version's twelve heads and its two mitigations, on the paper's own sets.

Source: EMNLP, as summarised. Chapters 6 and 7. Half of the prompts have foo as the true label; the
other half are the same prompts with the labels exchanged. The first prompts of each set select
heads, and the others evaluate them. The EMNLP version intervenes on 1% of the heads. Here the first
1, 3, 6 and 12 heads of a ranking, and 1% of all heads, are also ablated at all positions (its table
3).

    >>> lost = xr.DataArray(np.arange(32.0).reshape(4, 8), dims=("layer", "head"))
    >>> heads, foo_heads, bar_heads = twelve(-lost, lost, lost)
    >>> [str(head) for head in heads], len(foo_heads), len(bar_heads)
    (['0-0', '3-7', '0-1', '3-6'], 2, 2)
"""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr
from towerlab.measure.design import Design
from towerlab.measure.observations import observations
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import draw_random_sets, equally_many
from towerlab.model.model import Model
from towerlab.prompts.paper_sets import ASKED, ORDERS, changes_named
from towerlab.prompts.prompt import Encoded, Prompts
from towerlab.prompts.variants import exchanged_labels, one_fewer
from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.heads import Head, Heads, head_names
from twotowers.random_heads import Sets

from towerlab_experiments.ablations import ablations, single_head_ablations
from towerlab_experiments.conditions import Changes, in_changes
from towerlab_experiments.head_values import increases
from towerlab_experiments.label_reads import label_reads
from towerlab_experiments.mitigations import remedied
from towerlab_experiments.paper import encoded_sets

# Maximum numbers of prompts of each set and true label. If a set has few prompts, as for large
# models, a half of them are for evaluation, and a third under mitigations.
N_SELECTION = 8
N_ALONE = 2  # for single ablations
N_EVALUATION = 24
N_MITIGATION = 16
N_DOSE = 8  # for numbers of heads
DOSES = (1, 3, 6, 12)
"""Numbers of heads that are ablated together, besides 1% of the model's heads"""
TWELVE = "the twelve"
INTERLEAVED = "both in turn"
"""Ranking that interleaves the ranking by increase and the ranking by ablation"""
REMEDIED: Changes = {
    "one true fewer": one_fewer,
    "one false fewer": partial(one_fewer, kind=False),
    **ORDERS,
}
"""Name -> function that changes a prompt of a set"""


def rankings(increase: xr.DataArray, lost: xr.DataArray, n: int) -> dict[str, list[Head]]:
    """Return the first heads of three rankings, of which the first one interleaves the others.

    Args:
        increase: Mean increase (layer, head), in nats.
        lost: Decrease of the log-probability without each head (layer, head), in nats; NaN if the
            head was not ablated.
        n: Number of heads.

    Returns:
        Name of the ranking -> heads, best first.
    """
    by_increase = head_selection.top_heads(increase, n, minimum=-np.inf)
    by_ablation = head_selection.top_heads(lost, n, minimum=-np.inf)
    return {
        INTERLEAVED: head_selection.interleave(by_increase, by_ablation, n),
        "by increase": by_increase,
        "by ablation": by_ablation,
    }


def twelve(
    foo: xr.DataArray, bar: xr.DataArray, lost: xr.DataArray
) -> tuple[list[Head], list[Head], list[Head]]:
    """Return the twelve heads, foo-heads and bar-heads, each best first.

    The twelve are taken in turn from two rankings: by mean increase, and by the decrease when they
    are ablated. A model with fewer than 96 heads has an eighth of its heads. Foo-heads are the half
    that raises foo more than bar, bar-heads the other half (our reading).

    Args:
        foo: Mean increase (layer, head) if the true label is foo, in nats.
        bar: Mean increase (layer, head) if the true label is bar, in nats.
        lost: Decrease of the log-probability without each head (layer, head), in nats; NaN if the
            head was not ablated.

    Returns:
        The twelve heads, the foo-heads, and the bar-heads.
    """
    n = head_selection.n_leading(lost.size)
    increase = (foo + bar) / 2
    heads = rankings(increase, lost, n)[INTERLEAVED]
    towards_foo = foo - bar
    leaning = towards_foo.transpose("layer", "head").values
    by_leaning = sorted(heads, key=lambda head: -leaning[head])
    half = n // 2
    foo_heads = by_leaning[:half]
    bar_heads = by_leaning[half:][::-1]
    return heads, foo_heads, bar_heads


def looked_at(model: Model, encoded: Prompts, heads: Heads) -> xr.Dataset:
    """Compute the attention and OV logit difference of heads at labels, with two queries.

    The queries are the prompt's own, and one of the other class.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.
        heads: Heads to follow.

    Returns:
        Dataset with these variables.

        - `attention` (change, prompt, selected_head, demonstration). Attention with the prompt's
          own query and with the other query.
        - `ov_logit_difference` (prompt, selected_head, demonstration). The demonstration's own
          label's logit minus the other label's (nats). Attention x this is the "logit minus" of the
          label there.
        - `flipped_log_prob_true`, `flipped_log_prob_other` (prompt). Answers to the other query
          (nats).
    """
    read = partial(label_reads, model, heads=heads, ranks=False)
    reads = in_changes(model, encoded, changes_named(ASKED), read)
    arrays = {
        "attention": reads["attention"],
        "ov_logit_difference": reads["ov_logit_difference"][:, 0],
        "flipped_log_prob_true": reads["log_prob_true"][:, 1],
        "flipped_log_prob_other": reads["log_prob_other"][:, 1],
    }
    return observations(
        "paper_ablations", encoded, arrays, change=list(ASKED), selected_head=head_names(heads)
    )


def n_selection(design: Design) -> int:
    """Return the number of prompts of each set that select heads.

    Args:
        design: Prompts of one setting.

    Returns:
        N_SELECTION, or half of the prompts if a set has few prompts.
    """
    half = max(1, design.n_prompts // 2)
    return min(N_SELECTION, half)


def with_exchanged(pipeline: Pipeline, blocks: range) -> list[Encoded]:
    """Return some prompts of each set, and the same prompts with the labels exchanged.

    Args:
        pipeline: Pipeline of the model. Its measurement "paper" names the sets.
        blocks: Numbers of the prompts within their set.

    Returns:
        Prompts with foo true, then the same prompts with bar true.
    """
    sets = pipeline.measured("paper")["word_set"].values.tolist()
    every_prompt = encoded_sets(pipeline.design, sets)
    encoded = [e for e in every_prompt if e.prompt.block in blocks]
    exchanged = [exchanged_labels(e.prompt) for e in encoded]
    return [*encoded, *pipeline.design.encode(exchanged)]


def evaluation(pipeline: Pipeline, most: int, parts: int = 2) -> list[Encoded]:
    """Return prompts that evaluate heads, and the same prompts with the labels exchanged.

    Args:
        pipeline: Pipeline of the model. Its measurement "paper" names the sets.
        most: Maximum number of prompts of each set and true label.
        parts: The result has at most 1/parts of the prompts of a set.

    Returns:
        Prompts with foo true, then the same prompts with bar true.
    """
    n_prompts = pipeline.design.n_prompts
    n_selecting = n_selection(pipeline.design)
    first = min(n_selecting, n_prompts - 1)
    part = max(1, n_prompts // parts)
    n = min(most, part)
    return with_exchanged(pipeline, range(first, first + n))


def _mean_increases(pipeline: Pipeline, name: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the mean increases with foo and with bar true, over selection prompts, computed once.

    Args:
        pipeline: Pipeline of the model. Its measurement "paper" has the increases with foo true.
        name: Name of the measurement that is being made.

    Returns:
        Mean increases (layer, head) with foo true and with bar true, in nats.
    """
    key = "mean increases"
    if key in pipeline.shared:
        return pipeline.shared[key]
    n = n_selection(pipeline.design)
    foo = pipeline.measured("paper")["increase"]
    is_selection = foo["block"] < n
    foo = foo.isel(prompt=is_selection.values)
    selection = with_exchanged(pipeline, range(n))
    half = len(selection) // 2
    recipe = Recipe(increases, selection[half:])
    bar = pipeline.run(name, recipe)["increase"]
    pipeline.shared[key] = foo.mean("prompt"), bar.mean("prompt")
    return pipeline.shared[key]


def recipe_paper_ablations(pipeline: Pipeline) -> xr.Dataset:
    """Select and ablate the EMNLP version's twelve heads, foo-heads and bar-heads.

    Their attention and OV logit difference at labels are also measured.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    if pipeline.settings.suite != "words":
        raise NotTestable("it needs words of the other class, which only the word sets have")
    name = "paper_ablations"
    model = pipeline.model
    n_ablated = min(N_ALONE, n_selection(pipeline.design))
    ablated = with_exchanged(pipeline, range(n_ablated))
    last = model.n_layers - 1
    middle = min((model.n_layers + 1) // 2, last)
    recipe = Recipe(single_head_ablations, ablated, ("all", middle))
    single = pipeline.run(name, recipe)
    lost = single["log_prob_lost"].mean("prompt")
    foo, bar = _mean_increases(pipeline, name)
    heads, foo_heads, bar_heads = twelve(foo, bar, lost)

    evaluated = evaluation(pipeline, N_EVALUATION)
    halves = {"foo-heads": foo_heads, "bar-heads": bar_heads}
    sets = {TWELVE: heads, **halves}
    random = draw_random_sets(pipeline, halves)  # `dose` has those of the twelve
    recipe = Recipe(ablations, evaluated, (), sets, random)
    data = pipeline.run(name, recipe)
    recipe = Recipe(looked_at, evaluated, (heads,))
    followed = pipeline.run(name, recipe)
    data = data.assign(followed)
    return data.assign(
        log_prob_lost=lost,
        foo_head=("rank", head_names(foo_heads)),
        bar_head=("rank", head_names(bar_heads)),
        rank=("rank", range(1, 1 + len(foo_heads))),
    )


def recipe_paper_remedies(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers and attention without and with the two mitigations in the twelve heads.

    The prompts have one demonstration fewer, or one of six orders.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    heads = pipeline.measured("paper_ablations")["selected_head"].values
    sets = {TWELVE: [Head.parse(head) for head in heads]}
    random = draw_random_sets(pipeline, sets)
    evaluated = evaluation(pipeline, N_MITIGATION, 3)
    recipe = Recipe(remedied, evaluated, (REMEDIED,), sets, random)
    data = pipeline.run("paper_remedies", recipe)
    mean = data["attention_true"].mean("prompt")
    return data.assign(mean_attention_true=mean)


def recipe_dose(pipeline: Pipeline) -> xr.Dataset:
    """Ablate the first 1, 3, 6 and 12 heads of three rankings, 1% of all heads, and random sets.

    The random sets have equal numbers of heads in the same layers as the sets of the interleaved
    ranking.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    lost = pipeline.measured("paper_ablations")["log_prob_lost"]
    foo, bar = _mean_increases(pipeline, "dose")
    increase = (foo + bar) / 2
    doses = sorted({*DOSES, head_selection.one_percent(lost.size)})
    ranked = rankings(increase, lost, max(doses))
    sets = {}
    for name, heads in ranked.items():
        for n in doses:
            sets[f"{n} {name}"] = heads[:n]
    drawn: dict[str, Sets] = {}
    for n in doses:
        name = f"{n} {INTERLEAVED}"
        try:
            drawn |= draw_random_sets(pipeline, {name: sets[name]})
        except NotTestable:  # too few other heads are left
            break
    evaluated = evaluation(pipeline, N_DOSE)
    recipe = Recipe(ablations, evaluated, (), sets, equally_many(drawn))
    data = pipeline.run("dose", recipe)
    longest = max(map(len, ranked.values()))
    names = []
    for heads in ranked.values():
        n_missing = longest - len(heads)  # a small model has shorter lists
        names.append(head_names(heads) + [""] * n_missing)
    return data.assign(
        ranked_head=(("ranking", "rank"), names),
        ranking=("ranking", list(ranked)),
        rank=("rank", range(1, max(doses) + 1)),
    )


RECIPES = {
    "paper_ablations": recipe_paper_ablations,
    "paper_remedies": recipe_paper_remedies,
    "dose": recipe_dose,
}
"""Measurement -> function of a pipeline that makes it"""
