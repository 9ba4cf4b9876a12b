"""The EMNLP version's twelve heads and its two mitigations, on the paper's own sets.

Source: EMNLP, as summarised. Chapters 6 and 7. Half of the prompts have foo as the true label; the
other half are the same prompts with the labels exchanged. The first prompts of each set select
heads, and the others evaluate them.

    >>> lost = xr.DataArray(np.arange(32.0).reshape(4, 8), dims=("layer", "head"))
    >>> heads, foo_heads, bar_heads = twelve(-lost, lost, lost)
    >>> [str(head) for head in heads], len(foo_heads), len(bar_heads)
    (['0-0', '3-7', '0-1', '3-6'], 2, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import xarray as xr
from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.heads import Head, named

from towerlab.measure.ablations import ablations, single_head_ablations
from towerlab.measure.conditions import Changes
from towerlab.measure.heads import increases
from towerlab.measure.label_reads import label_reads
from towerlab.measure.mitigations import remedied
from towerlab.measure.observations import observations
from towerlab.measure.paper import encoded_sets
from towerlab.measure.pipeline import Design, Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import random_sets
from towerlab.model.model import Model
from towerlab.prompts.paper_sets import CHANGES, ORDERS
from towerlab.prompts.prompt import Encoded, Prompts
from towerlab.prompts.variants import exchanged_labels, one_fewer

CHOOSE, ALONE, JUDGE, MITIGATE = 8, 2, 24, 16
"""Maximum number of prompts of each set and true label: for selection, for single ablations, for
evaluation, and under mitigations. If a set has few prompts, as for large models, a half of them are
for evaluation, and a third under mitigations"""
DRAWS = 5
TWELVE = "the twelve"
INTERLEAVED = "both in turn"
"""Ranking that interleaves the ranking by increase and the ranking by ablation"""
ASKED = ("as it is", "query of the other class")
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
    by_increase, by_ablation = (
        head_selection.top_heads(means, n, minimum=-np.inf) for means in (increase, lost)
    )
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
    n = min(12, max(2, lost.size // 16 * 2))
    heads = rankings((foo + bar) / 2, lost, n)[INTERLEAVED]
    leaning = (foo - bar).transpose("layer", "head").values
    by_leaning = sorted(heads, key=lambda head: -leaning[head])
    return heads, by_leaning[: n // 2], by_leaning[n // 2 :][::-1]


def looked_at(model: Model, encoded: Prompts, heads: Sequence[Head]) -> xr.Dataset:
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
    changed = (model.encode([CHANGES[name](e.prompt) for e in encoded]) for name in ASKED)
    plain, flipped = (label_reads(model, prompts, heads, ranks=False) for prompts in changed)
    arrays = {
        "attention": np.stack([plain["attention"], flipped["attention"]], 1),
        "ov_logit_difference": plain["ov_logit_difference"].values,
        "flipped_log_prob_true": flipped["log_prob_true"].values,
        "flipped_log_prob_other": flipped["log_prob_other"].values,
    }
    names = {"change": list(ASKED), "selected_head": named(heads)}
    return observations("paper_ablations", encoded, arrays, **names)


def selection_and_evaluation(pipeline: Pipeline) -> tuple[list[Encoded], list[Encoded]]:
    """Return the prompts that select heads, and the prompts that evaluate them, with foo true.

    Args:
        pipeline: Pipeline of the model. Its measurement "paper" names the sets.

    Returns:
        Selection prompts and evaluation prompts.
    """
    sets = pipeline.measured("paper")["word_set"].values.tolist()
    encoded = encoded_sets(pipeline.design, sets)
    n = min(CHOOSE, max(1, pipeline.design.n_prompts // 2))
    evaluation = [e for e in encoded if e.prompt.block >= n]
    return [e for e in encoded if e.prompt.block < n], evaluation or encoded


def with_exchanged(design: Design, encoded: Prompts, most: int) -> list[Encoded]:
    """Return the first prompts of each set, and the same prompts with the labels exchanged.

    Args:
        design: Prompts of one setting.
        encoded: Prompts with foo true.
        most: Maximum number of prompts of each set.

    Returns:
        Prompts with foo true, then the same prompts with bar true.
    """
    first = min(e.prompt.block for e in encoded)
    some = [e for e in encoded if e.prompt.block < first + most]
    return [*some, *design.encode([exchanged_labels(e.prompt) for e in some])]


def mean_increases(
    pipeline: Pipeline, name: str, selection: Prompts
) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the mean increases with foo and with bar true, over selection prompts.

    Args:
        pipeline: Pipeline of the model.
        name: Measurement in which this is a stage.
        selection: Selection prompts with foo true, which the measurement "paper" has.

    Returns:
        Mean increases (layer, head) with foo true and with bar true, in nats.
    """
    foo = pipeline.measured("paper")["increase"]
    is_selection = foo["block"].isin([e.prompt.block for e in selection]).values
    exchanged = pipeline.design.encode([exchanged_labels(e.prompt) for e in selection])
    bar = pipeline.make(name, Recipe(increases, exchanged))["increase"]
    return foo.isel(prompt=is_selection).mean("prompt"), bar.mean("prompt")


def _paper_ablations(pipeline: Pipeline) -> xr.Dataset:
    """Select and ablate the EMNLP version's twelve heads, foo-heads and bar-heads.

    Their attention and OV logit difference at labels are also measured.
    """
    if pipeline.settings.suite != "words":
        raise NotTestable("it needs words of the other class, which only the word sets have")
    name, model, design = "paper_ablations", pipeline.model, pipeline.design
    selection, evaluation = selection_and_evaluation(pipeline)
    ablated = with_exchanged(design, selection, ALONE)
    middle = min((model.n_layers + 1) // 2, model.n_layers - 1)
    single = pipeline.make(name, Recipe(single_head_ablations, ablated, ("all", middle)))
    lost = single["log_prob_lost"].mean("prompt")
    heads, foo_heads, bar_heads = twelve(*mean_increases(pipeline, name, selection), lost)

    evaluated = with_exchanged(design, evaluation, min(JUDGE, design.n_prompts // 2 or 1))
    sets = {TWELVE: heads, "foo-heads": foo_heads, "bar-heads": bar_heads}
    random = random_sets(pipeline, sets, DRAWS)
    data = pipeline.make(name, Recipe(ablations, evaluated, (), sets, random))
    followed = pipeline.make(name, Recipe(looked_at, evaluated, (heads,)))
    halves = xr.Dataset(
        {"foo_head": ("rank", named(foo_heads)), "bar_head": ("rank", named(bar_heads))},
        {"rank": range(1, 1 + len(foo_heads))},
    )
    return xr.merge([data, followed, halves, lost], compat="override", join="override")


def _paper_remedies(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers and attention without and with the two mitigations in the twelve heads.

    The prompts have one demonstration fewer, or one of six orders.
    """
    name, design = "paper_remedies", pipeline.design
    most = min(MITIGATE, design.n_prompts // 3 or 1)
    evaluated = with_exchanged(design, selection_and_evaluation(pipeline)[1], most)
    heads = pipeline.measured("paper_ablations")["selected_head"].values
    sets = {TWELVE: [Head.parse(head) for head in heads]}
    random = random_sets(pipeline, sets, DRAWS)
    data = pipeline.make(name, Recipe(remedied, evaluated, (REMEDIED,), sets, random))
    return data.assign(mean_attention_true=data["attention_true"].mean("prompt"))
