"""Answers with more and more heads ablated, on the paper's own sets.

Chapter 6. The EMNLP version intervenes on 1% of the heads. Here the first 1, 3, 6 and 12 heads of a
ranking are ablated at all positions (its table 3). The rankings are those of `paper_heads.twelve`,
from the prompts that select heads there; the answers are to other prompts.
"""

from __future__ import annotations

import xarray as xr
from twotowers.errors import NotTestable
from twotowers.heads import Head, named

from towerlab.measure.ablations import ablations
from towerlab.measure.paper_heads import (
    INTERLEAVED,
    mean_increases,
    rankings,
    selection_and_evaluation,
    with_exchanged,
)
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import DRAWS, random_sets

DOSES = (1, 3, 6, 12)
"""Numbers of heads that are ablated together"""
PROMPTS = 8
"""Number of evaluation prompts of each set and true label: 64 in all"""


def _dose(pipeline: Pipeline) -> xr.Dataset:
    """Ablate the first 1, 3, 6 and 12 heads of three rankings, and random sets.

    The random sets have equal numbers of heads in the same layers as the sets of the interleaved
    ranking.
    """
    design, lost = pipeline.design, pipeline.measured("paper_ablations")["log_prob_lost"]
    selection, evaluation = selection_and_evaluation(pipeline)
    foo, bar = mean_increases(pipeline, "dose", selection)
    ranked = rankings((foo + bar) / 2, lost, max(DOSES))
    sets = {f"{n} {name}": heads[:n] for name, heads in ranked.items() for n in DOSES}
    random: dict[str, list[list[Head]]] = {}
    for n in DOSES:
        name = f"{n} {INTERLEAVED}"
        try:
            random |= random_sets(pipeline, {name: sets[name]}, DRAWS)
        except NotTestable:  # too few other heads are left
            break
    evaluated = with_exchanged(design, evaluation, min(PROMPTS, design.n_prompts // 2 or 1))
    data = pipeline.make("dose", Recipe(ablations, evaluated, (), sets, random))
    names = [named(heads) for heads in ranked.values()]
    ranks = range(1, max(DOSES) + 1)
    data = data.assign_coords(ranking=list(ranked), rank=ranks)
    return data.assign(ranked_head=(("ranking", "rank"), names))
