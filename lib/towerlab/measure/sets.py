"""Sets of heads that recipes share: those that a rule names, and random ones matched to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twotowers import choose
from twotowers.errors import NotTestable
from twotowers.heads import Head

from towerlab.measure.chain import Run

DRAWS = 20


def random_name(heads: str, draw: int) -> str:
    """The name of a random set of heads matched to a named one."""
    return f"{heads}, random {draw}"


def controls(run: Run, name: str, heads: Sequence[Head]) -> dict[str, list[Head]]:
    """DRAWS random sets matched to one, none of whose heads stands in the set in question."""
    model = run.model
    group = model.n_heads // model.n_key_value_heads
    sets = choose.matched_sets(heads, model.n_layers, model.n_heads, group, DRAWS)
    return {random_name(name, i): drawn for i, drawn in enumerate(sets)}


def present(sets: Mapping[str, list[Head]]) -> dict[str, list[Head]]:
    """Sets in which the rule names heads. Raises NotTestable where it names none at all."""
    some = {name: heads for name, heads in sets.items() if heads}
    if not some:
        raise NotTestable("no rule names any head of this model, as happens where it does not learn the task")
    return some


def with_comparers(run: Run) -> dict[str, list[Head]]:
    """The run's sets; where the rule names no comparers, the heads with the largest attention difference stand for them."""
    return {**run.sets, "comparers": run.sets["comparers"] or run.sets["by attention"]}
