"""The EMNLP version's twelve heads and its two remedies, as summarised, on the paper's own sets.
Chapters 6 and 7.

Half of the prompts have foo as the true label, the others are the same with the labels exchanged.
The first prompts of each set choose heads, others judge them.

    >>> lost = xr.DataArray(np.arange(32.0).reshape(4, 8), dims=("layer", "head"))
    >>> heads, foo_heads, bar_heads = twelve({"foo": -lost, "bar": lost}, lost)
    >>> [str(head) for head in heads], len(foo_heads), len(bar_heads)
    (['0-0', '3-7', '0-1', '3-6'], 2, 2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr
from twotowers import choose
from twotowers.errors import NotTestable
from twotowers.heads import Head

from towerlab.measure.ablations import ablations, single_ablations
from towerlab.measure.chain import Run
from towerlab.measure.conditions import Changes, Encode
from towerlab.measure.heads import increases
from towerlab.measure.label_reads import label_reads
from towerlab.measure.mitigations import remedied
from towerlab.measure.observations import observations, with_dims
from towerlab.measure.paper import encoded_sets
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import random_sets
from towerlab.model.model import Model
from towerlab.prompts.paper_sets import CHANGES, LABELS, ORDERS
from towerlab.prompts.prompt import Encoded
from towerlab.prompts.variants import exchanged_labels, one_fewer

CHOOSE, ALONE, JUDGE, MITIGATE = 8, 2, 24, 16
"""Prompts of each set and true label at most: that choose heads, that each head is zeroed alone on,
that judge, under remedies. Where a set has few, which is so of large models, a half of them judge,
and a third under remedies"""
DRAWS = 5
FOO, BAR, TWELVE = "foo-heads", "bar-heads", "the twelve"
ASKED = ("as it is", "query of the other class")
REMEDIED: Changes = {
    "one true fewer": one_fewer,
    "one false fewer": partial(one_fewer, kind=False),
    **ORDERS,
}
"""Name -> how a prompt of a set is changed"""


def twelve(
    increase: Mapping[str, xr.DataArray], lost: xr.DataArray
) -> tuple[list[Head], list[Head], list[Head]]:
    """The twelve heads, foo-heads and bar-heads, each best first.

    The twelve are first by mean increase and first by what their ablation loses, taken in turn; an
    eighth of the heads, where a model has fewer than 96. Foo-heads are the half that raises foo
    more than bar, bar-heads the other (our reading).

    Args:
        increase: true label, foo or bar -> mean increase (layer, head), nats.
        lost: (layer, head), nats; NaN: not tried.
    """
    n = min(12, max(2, lost.size // 16 * 2))
    by_increase = choose.top((increase[LABELS[0]] + increase[LABELS[1]]) / 2, n, least=-np.inf)
    heads = choose.union(by_increase, choose.top(lost, n, least=-np.inf), n)
    leaning = (increase[LABELS[0]] - increase[LABELS[1]]).transpose("layer", "head").values
    leans = sorted(heads, key=lambda head: -leaning[head])
    return heads, leans[: n // 2], leans[n // 2 :][::-1]


def looked_at(
    model: Model, encoded: Sequence[Encoded], heads: Sequence[Head], encode: Encode
) -> xr.Dataset:
    """What heads attend to and read at labels, with the prompt's own query and with one of the
    other class.

    Args:
        encode: prompts -> encoded ones.

    Returns:
        `attention` (change, prompt, named_head, place), as it is and with the other query;
            `reading` (prompt, named_head, place), its own label's logit minus the other's (nats):
            attention x reading is the logit minus of the label that stands there.
            `flipped_log_prob_true`, `flipped_log_prob_other` (prompt,): answers to the other query,
            nats.
    """
    plain, flipped = (
        label_reads(model, encode([CHANGES[name](e.prompt) for e in encoded]), heads, ranks=False)
        for name in ASKED
    )
    arrays = {
        "attention": np.stack([plain["attention"], flipped["attention"]], 1),
        "reading": plain["reading"].values,
        "flipped_log_prob_true": flipped["log_prob_true"].values,
        "flipped_log_prob_other": flipped["log_prob_other"].values,
    }
    return observations(
        "paper_ablations", encoded, arrays, change=list(ASKED), named_head=[*map(str, heads)]
    )


def _prompts(run: Run) -> tuple[list[Encoded], list[Encoded]]:
    """Prompts of the sets that the measurement "paper" has, foo true: those that choose heads, and
    those that judge them."""
    encoded = encoded_sets(run, run.measured("paper")["word_set"].values.tolist())
    n = min(CHOOSE, max(1, run.n_prompts // 2))
    return [e for e in encoded if e.prompt.block < n], [
        e for e in encoded if e.prompt.block >= n
    ] or encoded


def _with_exchanged(run: Run, encoded: Sequence[Encoded], most: int) -> list[Encoded]:
    """The first prompts of each set, `most` at most, and the same with the labels exchanged, so
    that bar is true."""
    first = min(e.prompt.block for e in encoded)
    some = [e for e in encoded if e.prompt.block < first + most]
    return [*some, *run.encode([exchanged_labels(e.prompt) for e in some])]


def _random(run: Run, sets: Mapping[str, Sequence[Head]]) -> dict[str, list[list[Head]]]:
    """Random sets matched to each, where the model has enough other heads."""
    try:
        return random_sets(run, sets, DRAWS)
    except NotTestable:
        return {}


def _paper_ablations(run: Run) -> xr.Dataset:
    """The EMNLP version's twelve heads, foo-heads and bar-heads: chosen, zeroed, and what they
    attend to and read at labels."""
    if run.settings.suite != "words":
        raise NotTestable("it asks for words of the other class, so the word sets alone have it")
    name, model, (choosing, judging) = "paper_ablations", run.model, _prompts(run)
    if model.n_layers * model.n_heads < 2:
        raise NotTestable("it has one head, which cannot be both a foo-head and a bar-head")
    exchanged = run.encode([exchanged_labels(e.prompt) for e in choosing])
    tried = _with_exchanged(run, choosing, ALONE)
    middle = min((model.n_layers + 1) // 2, model.n_layers - 1)
    foo = run.measured("paper")["increase"]
    foo = foo.isel(prompt=foo["block"].isin([e.prompt.block for e in choosing]).values).mean(
        "prompt"
    )
    bar = run.make(name, Recipe(increases, exchanged))["increase"].mean("prompt")
    singles = run.make(name, Recipe(single_ablations, tried, ("all", middle)))
    lost = singles["log_prob_lost"].mean("prompt")
    heads, foo_heads, bar_heads = twelve({"foo": foo, "bar": bar}, lost)

    judges = _with_exchanged(run, judging, min(JUDGE, run.n_prompts // 2 or 1))
    sets = {TWELVE: heads, FOO: foo_heads, BAR: bar_heads}
    zeroed = run.make(name, Recipe(ablations, judges, (), sets, _random(run, sets)))
    looks = run.make(name, Recipe(looked_at, judges, (heads, run.encode)))
    lists = {"foo_head": [*map(str, foo_heads)], "bar_head": [*map(str, bar_heads)]}
    of_heads = xr.Dataset(with_dims(name, {**lists, "log_prob_lost": lost.fillna(0).values}))
    sizes = {
        "rank": range(1, 1 + len(foo_heads)),
        "layer": range(model.n_layers),
        "head": range(model.n_heads),
    }
    parts = [zeroed, looks, of_heads.assign_coords(sizes)]
    return xr.merge(parts, compat="override", join="override")


def _paper_remedies(run: Run) -> xr.Dataset:
    """The two remedies in the twelve heads: answers and attention with one demonstration fewer and
    in six orders, without and with."""
    judges = _with_exchanged(run, _prompts(run)[1], min(MITIGATE, run.n_prompts // 3 or 1))
    sets = {
        TWELVE: [Head.parse(name) for name in run.measured("paper_ablations")["named_head"].values]
    }
    data = run.make(
        "paper_remedies", Recipe(remedied, judges, (REMEDIED, run.encode), sets, _random(run, sets))
    )
    return data.assign(mean_attention_true=data["attention_true"].mean("prompt"))
