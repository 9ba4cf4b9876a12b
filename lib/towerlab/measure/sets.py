"""Sets of heads that recipes share: those that a rule names, random ones matched to them, and those
that other prompts choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.files import of_labels
from twotowers.heads import Head
from twotowers.pages import QUICK

from towerlab.measure.observations import observations
from towerlab.measure.pipeline import Pipeline
from towerlab.prompts.prompt import Encoded, Prompts

DRAWS, AT_LAST = 20, 100
"""Random sets beside one that runs at all positions, and beside one that runs at the last position
only, which costs less. A file says how many it holds. Sets are drawn one after the other,
so one with fewer is shorter and not stale: each row of evidence prints how many it rests on."""
BY_ATTENTION = "by attention"


def random_sets(
    pipeline: Pipeline, sets: Mapping[str, Sequence[Head]], draws: int = DRAWS
) -> dict[str, list[list[Head]]]:
    """Set -> random sets matched to it, none of whose heads stands in the set in question.

    Args:
        draws: how many; in a quick look at most DRAWS.
    """
    model, draws = pipeline.model, min(draws, DRAWS) if pipeline.settings.blocks < QUICK else draws
    group = model.n_heads // model.n_key_value_heads
    return {
        name: head_selection.matched_sets(heads, model.n_layers, model.n_heads, group, draws)
        for name, heads in sets.items()
    }


def other_halves(
    pipeline: Pipeline, name: str, encoded: Prompts
) -> list[tuple[list[Encoded], list[Head]]]:
    """Return the prompts of each split, and the heads that other class pairs and label pairs choose
    for them; nothing if the selection prompts of a split name no heads."""
    locating = of_labels(pipeline.measured("locating"), "arbitrary")
    prompts = observations("heads", encoded, {}).assign(at=("prompt", range(len(encoded))))
    splits = []
    for chooses, judges in head_selection.turns(locating, prompts):
        heads = head_selection.head_sets(chooses, pipeline.settings.top_k)[name]
        splits.append(([encoded[i] for i in judges["at"].values], heads))
    return splits if all(heads for _, heads in splits) else []


def by_increase(pipeline: Pipeline, k: int) -> list[Head]:
    """The paper's set, of so many heads: for recipes that need the measurement "norms", too."""
    located = head_selection.with_increase(
        pipeline.measured("locating"), pipeline.measured("norms")
    )
    return head_selection.head_sets(located, k)["by increase"]


def present(sets: Mapping[str, list[Head]], *names: str) -> dict[str, list[Head]]:
    """Those of some sets, or of all, in which the rule names heads. Raises NotTestable where it
    names none at all."""
    not_empty = {name: sets[name] for name in names or sets if sets[name]}
    if not not_empty:
        raise NotTestable(
            "no rule names any head of this model, as happens where it does not learn the task"
        )
    return not_empty
