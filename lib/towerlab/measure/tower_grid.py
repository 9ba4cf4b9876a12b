"""Both towers moved at once: answers over a grid of coefficients for the query and for the keys. Chapter 11.

    measured = tower_grid(model, judging, {"by attention": (heads, class_directions(...))}, (-1.0, 0.0, 1.0))
    measured["logit_difference"].sel(query_coefficient=1.0, key_coefficient=-1.0)     # (heads, prompt)

The directions, and how they are added, are those of `measure.directions`: the last position's query is moved by a coefficient
times the class direction of queries, and the keys at label positions by another times that of keys, as the last position of
these heads sees them. With c = 1/2 for a query of the pair's first class and -1/2 for one of the second, the difference
between the scores of the two classes goes as (c + query coefficient) (1 + 2 key coefficient) where they are two vectors'
product. That is algebra of a head's score; whether the answer follows it can fail.

Recipe `tower_grid`: seven coefficients by seven, in the heads by attention, in those that other class pairs and label pairs
choose, in those without negative heads, in the heads by increase, and in those by attention along directions from prompts with
other labels. Recipe `tower_grid_random`: coefficients of -1, 0
and 1 on the first prompts, in the heads by attention. Its control has twenty random sets of heads along the class directions, then
the heads by attention along twenty random directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import torch
import xarray as xr
from torch import Tensor
from twotowers import choose
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Head, Heads

from towerlab.measure.chain import Run
from towerlab.measure.directions import at_positions, directions_of_run, of_other_labels, random_directions
from towerlab.measure.observations import answers_of, observations, read_batches
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import BY_ATTENTION, DRAWS, by_increase, other_halves, present, random_sets
from towerlab.model.edits import steer
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded

COEFFICIENTS, FEW = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0), (-1.0, 0.0, 1.0)
PROMPTS = 100
"""On which random sets and random directions are tried: each costs nine runs of the last position"""
OTHER_LABELS = "by attention, directions of other labels"
Moved = Mapping[str, tuple[Heads, xr.Dataset]]


@torch.inference_mode()
def tower_grid(model: Model, encoded: Sequence[Encoded], moved: Moved, coefficients: Sequence[float]) -> xr.Dataset:
    """Answers with query and keys of some heads moved: (heads, query_coefficient, key_coefficient, prompt).

    Args:
        moved: name -> heads, and the directions that they are moved along (`directions.class_directions` of other prompts).
        coefficients: of the query's direction and of the keys', every pair of them.

    Cost: a run of each prompt, and one of the last position alone for each name and pair of coefficients. Raises TwoTowersError for
    a class pair without a direction.
    """
    for _, of in moved.values():
        if missing := {e.prompt.dataset for e in encoded} - set(of["pair"].values.tolist()):
            raise TwoTowersError(f"no direction for {min(missing)}: locate on prompts of the same class pairs")
    layers = sorted({layer for heads, _ in moved.values() for layer, _ in heads})
    shape = len(moved), len(coefficients), len(coefficients)

    def run(_, batch: list[Encoded]) -> dict[str, Tensor]:
        at = torch.tensor([e.label_positions for e in batch])
        vectors = {id(of): at_positions(model, batch, of, layers) for _, of in moved.values()}
        edits = []
        for heads, of in moved.values():
            for by in product(coefficients, repeat=2):  # the query's, and that of keys
                scaled = ({layer: c * x[layer] for layer in x} for c, x in zip(by, vectors[id(of)], strict=True))
                edits.append(steer(heads, *scaled, at))
        answered = LastPosition(model, batch).answers(edits)
        return answers_of(batch, *(x.unflatten(0, shape) for x in answered))

    every = {"query_coefficient": list(coefficients), "key_coefficient": list(coefficients)}
    arrays = read_batches("towers moved", encoded, 2048, run)
    return observations("tower_grid", encoded, arrays, heads=list(moved), **every)


def without_negative(locating: xr.Dataset, k: int) -> list[Head]:
    """The heads with the largest mean attention difference of those that raise, on average, the label that they read."""
    means = choose.rankings(locating)
    return choose.top(means["attention difference"].where(means["writing"] > 0, -1.0), k)


def _tower_grid(run: Run) -> Recipe:
    """The whole grid, in the heads by attention and other sets."""
    k, few, directions = run.settings.top_k, run.few(), directions_of_run(run)
    sets = {BY_ATTENTION: run.sets[BY_ATTENTION], "by increase": by_increase(run, k)}
    sets["without negative heads"] = without_negative(run.measured("locating"), k)
    halves = other_halves(run, BY_ATTENTION, few)
    turns = [[(at, along(directions, of)) for at, of in turn] for turn in halves] + other_labels(run, few)
    return Recipe(tower_grid, few, (COEFFICIENTS,), along(directions, present(sets)), turns=turns)


def along(directions: xr.Dataset, sets: Mapping[str, Heads]) -> Moved:
    """Every set is moved along the same directions."""
    return {name: (heads, directions) for name, heads in sets.items()}


def other_labels(run: Run, few: Sequence[Encoded]) -> list[list[tuple[list[int], Moved]]]:
    """The `turns` of a recipe for the heads by attention along directions from prompts with other labels; none where it has no such
    heads or prompts."""
    try:
        heads, halves = present({BY_ATTENTION: run.sets[BY_ATTENTION]})[BY_ATTENTION], of_other_labels(run, few)
    except NotTestable:
        return []
    return [[(at, {OTHER_LABELS: (heads, directions)}) for at, directions in halves]]


def _tower_grid_random(run: Run) -> Recipe:
    """Few coefficients on few prompts: the heads by attention; random sets of heads, and random directions."""
    sets, directions = present({BY_ATTENTION: run.sets[BY_ATTENTION]}), directions_of_run(run)
    random: list[tuple[Heads, xr.Dataset]] = [(heads, directions) for heads in random_sets(run, sets)[BY_ATTENTION]]
    for i in range(DRAWS):
        random.append((sets[BY_ATTENTION], random_directions(directions, [run.settings.seed, i])))
    few, moved = run.few()[:PROMPTS], along(directions, sets)
    return Recipe(tower_grid, few, (FEW,), moved, {BY_ATTENTION: random}, drawn="random sets and directions")
