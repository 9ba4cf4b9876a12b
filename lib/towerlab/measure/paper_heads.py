"""The EMNLP version's twelve heads and its two remedies, as summarised, on the paper's own sets.
Chapters 6 and 7.

Half of the prompts have foo as the true label, the others are the same with the labels exchanged.
The first prompts of each set choose heads, others judge them.

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

from towerlab.measure.ablations import ablations, single_ablations
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
"""Prompts of each set and true label at most: that choose heads, that each head is zeroed alone on,
that judge, under remedies. Where a set has few, which is so of large models, a half of them judge,
and a third under remedies"""
DRAWS = 5
TWELVE = "the twelve"
ASKED = ("as it is", "query of the other class")
REMEDIED: Changes = {
    "one true fewer": one_fewer,
    "one false fewer": partial(one_fewer, kind=False),
    **ORDERS,
}
"""Name -> how a prompt of a set is changed"""


def twelve(
    foo: xr.DataArray, bar: xr.DataArray, lost: xr.DataArray
) -> tuple[list[Head], list[Head], list[Head]]:
    """The twelve heads, foo-heads and bar-heads, each best first.

    The twelve are first by mean increase and first by what their ablation loses, taken in turn; an
    eighth of the heads, where a model has fewer than 96. Foo-heads are the half that raises foo
    more than bar, bar-heads the other (our reading).

    Args:
        foo: Mean increase (layer, head) where the true label is foo, in nats.
        bar: The same where it is bar.
        lost: Nats lost without each head (layer, head), NaN where it was not tried.
    """
    n = min(12, max(2, lost.size // 16 * 2))
    by_increase = head_selection.top((foo + bar) / 2, n, least=-np.inf)
    heads = head_selection.union(by_increase, head_selection.top(lost, n, least=-np.inf), n)
    leaning = (foo - bar).transpose("layer", "head").values
    leans = sorted(heads, key=lambda head: -leaning[head])
    return heads, leans[: n // 2], leans[n // 2 :][::-1]


def looked_at(model: Model, encoded: Prompts, heads: Sequence[Head]) -> xr.Dataset:
    """What heads attend to and read at labels, with the prompt's own query and with one of the
    other class.

    Returns:
        `attention` (change, prompt, named_head, place), as it is and with the other query;
            `reading` (prompt, named_head, place), its own label's logit minus the other's (nats):
            attention x reading is the logit minus of the label that stands there.
            `flipped_log_prob_true`, `flipped_log_prob_other` (prompt,): answers to the other query,
            nats.
    """
    changed = (model.encode([CHANGES[name](e.prompt) for e in encoded]) for name in ASKED)
    plain, flipped = (label_reads(model, prompts, heads, ranks=False) for prompts in changed)
    arrays = {
        "attention": np.stack([plain["attention"], flipped["attention"]], 1),
        "reading": plain["reading"].values,
        "flipped_log_prob_true": flipped["log_prob_true"].values,
        "flipped_log_prob_other": flipped["log_prob_other"].values,
    }
    names = {"change": list(ASKED), "named_head": named(heads)}
    return observations("paper_ablations", encoded, arrays, **names)


def choosing_and_judging(pipeline: Pipeline) -> tuple[list[Encoded], list[Encoded]]:
    """Prompts of the sets that the measurement "paper" has, foo true: those that choose heads, and
    those that judge them."""
    sets = pipeline.measured("paper")["word_set"].values.tolist()
    encoded = encoded_sets(pipeline.design, sets)
    n = min(CHOOSE, max(1, pipeline.design.n_prompts // 2))
    judging = [e for e in encoded if e.prompt.block >= n]
    return [e for e in encoded if e.prompt.block < n], judging or encoded


def with_exchanged(design: Design, encoded: Prompts, most: int) -> list[Encoded]:
    """The first prompts of each set, `most` at most, and the same with the labels exchanged, so
    that bar is true."""
    first = min(e.prompt.block for e in encoded)
    some = [e for e in encoded if e.prompt.block < first + most]
    return [*some, *design.encode([exchanged_labels(e.prompt) for e in some])]


def mean_increases(
    pipeline: Pipeline, name: str, choosing: Prompts
) -> tuple[xr.DataArray, xr.DataArray]:
    """Return mean increases (layer, head) with foo and with bar true, over prompts that choose.

    Args:
        pipeline: Any pipeline.
        name: The measurement in which this is a stage.
        choosing: Prompts with foo true, which the measurement "paper" has.
    """
    foo = pipeline.measured("paper")["increase"]
    chosen_on = foo["block"].isin([e.prompt.block for e in choosing]).values
    exchanged = pipeline.design.encode([exchanged_labels(e.prompt) for e in choosing])
    bar = pipeline.make(name, Recipe(increases, exchanged))["increase"]
    return foo.isel(prompt=chosen_on).mean("prompt"), bar.mean("prompt")


def _paper_ablations(pipeline: Pipeline) -> xr.Dataset:
    """The EMNLP version's twelve heads, foo-heads and bar-heads: chosen, zeroed, and what they
    attend to and read at labels."""
    if pipeline.settings.suite != "words":
        raise NotTestable("it asks for words of the other class, so the word sets alone have it")
    name, model, design = "paper_ablations", pipeline.model, pipeline.design
    choosing, judging = choosing_and_judging(pipeline)
    tried = with_exchanged(design, choosing, ALONE)
    middle = min((model.n_layers + 1) // 2, model.n_layers - 1)
    singles = pipeline.make(name, Recipe(single_ablations, tried, ("all", middle)))
    lost = singles["log_prob_lost"].mean("prompt")
    heads, foo_heads, bar_heads = twelve(*mean_increases(pipeline, name, choosing), lost)

    judges = with_exchanged(design, judging, min(JUDGE, design.n_prompts // 2 or 1))
    sets = {TWELVE: heads, "foo-heads": foo_heads, "bar-heads": bar_heads}
    random = random_sets(pipeline, sets, DRAWS)
    zeroed = pipeline.make(name, Recipe(ablations, judges, (), sets, random))
    looks = pipeline.make(name, Recipe(looked_at, judges, (heads,)))
    of_heads = xr.Dataset(
        {
            "foo_head": ("rank", named(foo_heads)),
            "bar_head": ("rank", named(bar_heads)),
            "log_prob_lost": lost.drop_vars("positions").drop_attrs(),
        },
        {"rank": range(1, 1 + len(foo_heads))},
    )
    return xr.merge([zeroed, looks, of_heads], compat="override", join="override")


def _paper_remedies(pipeline: Pipeline) -> xr.Dataset:
    """The two remedies in the twelve heads: answers and attention with one demonstration fewer and
    in six orders, without and with."""
    name, design = "paper_remedies", pipeline.design
    most = min(MITIGATE, design.n_prompts // 3 or 1)
    judges = with_exchanged(design, choosing_and_judging(pipeline)[1], most)
    heads = pipeline.measured("paper_ablations")["named_head"].values
    sets = {TWELVE: [Head.parse(head) for head in heads]}
    random = random_sets(pipeline, sets, DRAWS)
    data = pipeline.make(name, Recipe(remedied, judges, (REMEDIED,), sets, random))
    return data.assign(mean_attention_true=data["attention_true"].mean("prompt"))
