"""Sets of heads that recipes share: those that a rule names, random ones matched to them, and those
that other prompts choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twotowers import choose
from twotowers.errors import NotTestable
from twotowers.files import of_labels
from twotowers.heads import Head
from twotowers.pages import QUICK

from towerlab.measure.chain import Run
from towerlab.measure.observations import observations
from towerlab.prompts.prompt import Encoded

DRAWS, AT_LAST = 20, 100
"""Random sets beside one that runs at all positions, and beside one that runs at the last position
only, which costs less. A file says how many it holds. Sets are drawn one after the other,
so one with fewer is shorter and not stale: each row of evidence prints how many it rests on."""
BY_ATTENTION, OTHER_HALVES = "by attention", "other halves"


def random_sets(
    run: Run, sets: Mapping[str, Sequence[Head]], draws: int = DRAWS
) -> dict[str, list[list[Head]]]:
    """Set -> random sets matched to it, none of whose heads stands in the set in question.

    Args:
        draws: how many; in a quick look at most DRAWS.
    """
    model, draws = run.model, min(draws, DRAWS) if run.settings.blocks < QUICK else draws
    group = model.n_heads // model.n_key_value_heads
    return {
        name: choose.matched_sets(heads, model.n_layers, model.n_heads, group, draws)
        for name, heads in sets.items()
    }


def other_halves(
    run: Run, name: str, encoded: Sequence[Encoded]
) -> list[list[tuple[list[int], dict[str, list[Head]]]]]:
    """The `turns` of a recipe for the entry "NAME, other halves".

    Each prompt has the set that locating prompts of other class pairs and other label pairs choose.
    None where a turn's locating prompts name no heads.
    """
    locating = of_labels(run.measured("locating"), "arbitrary")
    prompts = observations("heads", encoded, {}).assign(at=("prompt", range(len(encoded))))
    turns = []
    for chooses, judges in choose.turns(locating, prompts):
        heads = choose.head_sets(chooses, run.settings.top_k)[name]
        turns.append((judges["at"].values.tolist(), {f"{name}, {OTHER_HALVES}": heads}))
    return [turns] if all(heads for _, sets in turns for heads in sets.values()) else []


def by_increase(run: Run, k: int) -> list[Head]:
    """The paper's set, of so many heads: for recipes that need the measurement "norms", too."""
    located = choose.with_increase(run.measured("locating"), run.measured("norms"))
    return choose.head_sets(located, k)["by increase"]


def present(sets: Mapping[str, list[Head]], *names: str) -> dict[str, list[Head]]:
    """Those of some sets, or of all, in which the rule names heads. Raises NotTestable where it
    names none at all."""
    not_empty = {name: sets[name] for name in names or sets if sets[name]}
    if not not_empty:
        raise NotTestable(
            "no rule names any head of this model, as happens where it does not learn the task"
        )
    return not_empty
