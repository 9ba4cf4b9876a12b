"""Sets of heads that recipes share: sets by a rule, random sets, and cross-fitted sets."""

from __future__ import annotations

from collections.abc import Mapping

from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.evidence import MIN_RANDOM_SETS
from twotowers.files import select_labels
from twotowers.heads import Head, HeadSets, Sizes
from twotowers.random_heads import Sets, control_sets

from towerlab.measure.observations import observations
from towerlab.measure.pipeline import Pipeline
from towerlab.prompts.prompt import Encoded, Prompts

AT_LAST = 100
"""Number of random sets for a set that is changed at the last position only, which costs less than
a change at all positions"""
QUICK = 25
"""Minimum number of evaluation blocks of a full measurement; fewer are a preview"""
BY_ATTENTION = "by attention"


def draw_random_sets(
    pipeline: Pipeline, sets: HeadSets, n_sets: int = MIN_RANDOM_SETS
) -> dict[str, Sets]:
    """Return different random sets in place of each set, equally many, of other key-value groups.

    Args:
        pipeline: Pipeline of the model.
        sets: Name -> heads.
        n_sets: Number of random sets of each set, if it has enough; in a preview at most
            MIN_RANDOM_SETS.

    Returns:
        Name -> random sets.

    Raises:
        NotTestable: If the model has too few other heads.
    """
    if pipeline.settings.evaluation_blocks < QUICK:
        n_sets = min(n_sets, MIN_RANDOM_SETS)
    model = pipeline.model
    sizes: Sizes = {
        "layers": model.n_layers,
        "heads": model.n_heads,
        "key_value_heads": model.n_key_value_heads,
    }
    drawn = {name: control_sets(heads, sizes, n_sets) for name, heads in sets.items()}
    return equally_many(drawn)


def equally_many(drawn: Mapping[str, Sets]) -> dict[str, Sets]:
    """Return equally many random sets for each set, because a file has so.

    If fewer exist for one set than for another, these are repeated. Equal sets count once
    (`files.select_random_sets`).

    Args:
        drawn: Name -> different random sets, at least one.
    """
    most = max(map(len, drawn.values()), default=0)
    return {name: [of[i % len(of)] for i in range(most)] for name, of in drawn.items()}


def other_halves(
    pipeline: Pipeline, name: str, encoded: Prompts
) -> list[tuple[list[Encoded], list[Head]]]:
    """Return the prompts of each split, with heads selected on the other half of the prompts.

    The heads of a split are selected with other class pairs and other label pairs.

    Args:
        pipeline: Pipeline of the model.
        name: Rule of the set of heads, such as "by attention".
        encoded: Prompts to split.

    Returns:
        Prompts and heads of each split, or nothing if the selection prompts of a split give no
        heads.
    """
    selection = select_labels(pipeline.measured("selection"), "arbitrary")
    prompts = observations("heads", encoded, {})
    prompts = prompts.assign(number=("prompt", range(len(encoded))))
    k = pipeline.settings.top_k
    splits = []
    for sets, evaluating in head_selection.cross_fit_sets(selection, prompts, k):
        heads = sets.get(name)
        if not heads:
            return []
        evaluated = [encoded[i] for i in evaluating["number"].values]
        splits.append((evaluated, heads))
    return splits


def present(sets: Mapping[str, list[Head]], *names: str) -> dict[str, list[Head]]:
    """Return the sets that have heads.

    Args:
        sets: Name -> heads.
        *names: Names of the sets to return; all sets if there are none.

    Returns:
        Name -> heads, without empty sets.

    Raises:
        NotTestable: If all the sets are empty.
    """
    wanted = names or sets
    not_empty = {name: sets[name] for name in wanted if sets[name]}
    if not not_empty:
        raise NotTestable(
            "no rule selects any head of this model, which happens if it does not learn the task"
        )
    return not_empty
