"""Answers with both towers moved along class directions, over a grid of coefficients.

Chapter 11. The interventions are activation additions (Turner et al. 2023; Rimsky et al. 2024)
within heads: they change a head's attention, and nothing that it reads or writes at a position.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=2, k=2, separator="space"))
    >>> design = pipeline.design
    >>> prompts = design.encode(design.blocks(4, 1, pairs=design.class_pairs[:2]))
    >>> moved = {"one": ([(2, 0)], class_directions(pipeline.model, prompts))}
    >>> data = tower_grid(pipeline.model, design.intervention(), moved, (-1.0, 0.0, 1.0))
    >>> dict(data["logit_difference"].sizes)
    {'head_set': 1, 'query_coefficient': 3, 'key_coefficient': 3, 'prompt': 8}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import torch
import xarray as xr
from towerlab.measure.design import SELECTION, Design
from towerlab.measure.observations import Tensors, check_finite, observations, read_batches
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe, joined
from towerlab.measure.sets import BY_ATTENTION, draw_random_sets, other_halves, present
from towerlab.model import query_key
from towerlab.model.edits import Edit, steer
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompt, Prompts
from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.evidence import MIN_RANDOM_SETS
from twotowers.heads import Head, Heads

from towerlab_experiments.label_reads import query_and_keys

BLOCKS = 8
"""Number of blocks of each class pair, from which its direction comes; with fewer blocks it would
be a direction of single words"""
COEFFICIENTS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
FEW = (-1.0, 0.0, 1.0)
PROMPTS = 100
"""Number of prompts for random sets and random directions: each costs nine runs of the last
position"""
OTHER_HALVES = "by attention, other halves"
OTHER_LABELS = "by attention, directions of other labels"
VECTORS = "class vectors"
Moved = Mapping[str, tuple[Heads, xr.Dataset]]
"""Name -> heads, and the directions that they are moved along (`class_directions`)"""
Splits = list[tuple[list[Encoded], Moved]]
"""Prompts, and the heads that are moved in them"""


def class_directions(model: Model, encoded: Prompts, heads: Heads = ()) -> xr.Dataset:
    """Compute one direction for each class pair, in the queries and keys of every head.

    Memory: queries and keys of all these prompts.

    Args:
        model: Any model.
        encoded: Prompts.
        heads: Heads whose layers are enough; by default all heads.

    Returns:
        Result of `directions_from`.
    """
    return directions_from(encoded, class_vectors(model, encoded, heads))


def class_vectors(model: Model, encoded: Prompts, heads: Heads = ()) -> xr.Dataset:
    """Compute the queries of the last position, and the keys at label positions.

    Args:
        model: Any model.
        encoded: Prompts.
        heads: Heads whose layers are enough; by default all heads.

    Returns:
        Dataset of `query` (prompt, layer, head, d_head), before rotation and scaled, and of `keys`
        (prompt, demonstration, layer, kv_head, d_head), before rotation.
    """
    layers = sorted({layer for layer, _ in heads or model.all_heads})

    def run(_, batch: Prompts) -> Tensors:
        queries, keys = query_and_keys(model, batch, layers)
        return {"query": queries, "keys": keys}

    vectors = read_batches("class directions", encoded, 1024, run)
    query = ("prompt", "layer", "head", "d_head"), vectors["query"]
    keys = ("prompt", "demonstration", "layer", "kv_head", "d_head"), vectors["keys"]
    return xr.Dataset({"query": query, "keys": keys}, {"layer": layers})


def directions_from(encoded: Prompts, vectors: xr.Dataset) -> xr.Dataset:
    """Return one direction for each class pair, in the queries and keys of every head.

    A direction is the mean of the pair's first class minus the mean of its second class.

    Args:
        encoded: Prompts.
        vectors: Result of `class_vectors`.

    Returns:
        Dataset of `query` (class_pair, layer, head, d_head), the direction of the last position's
        query, before rotation and scaled (its product with a key is in nats), and of `keys`
        (class_pair, layer, kv_head, d_head), the direction of keys at label positions by the class
        of their text, before rotation. Both are after a norm of queries and keys if the model has
        one.
    """
    pairs = sorted({e.prompt.dataset for e in encoded})
    directions = xr.Dataset(coords={"class_pair": pairs, "layer": vectors["layer"]})
    asked = [e.prompt.query_class for e in encoded]
    shown = [[d.cls for d in e.prompt.demonstrations] for e in encoded]
    towers = {"query": ("head", asked), "keys": ("kv_head", shown)}
    for name, (head, classes) in towers.items():
        of_class = np.array(classes)
        values = vectors[name].values
        differences = []
        for pair in pairs:
            first, second = (
                values[of_class == cls].mean(0, dtype=float) for cls in pair.split("/")
            )
            differences.append(first - second)
        directions[name] = ("class_pair", "layer", head, "d_head"), differences
    return directions


def random_directions(directions: xr.Dataset, seed: int | Sequence[int]) -> xr.Dataset:
    """Return directions drawn evenly from the sphere, with the lengths of the given directions.

    Args:
        directions: Directions of `class_directions`.
        seed: Seed of the draw.

    Returns:
        Random directions of the same dimensions.
    """
    rng = np.random.default_rng(seed)

    def random(vectors: xr.DataArray) -> xr.DataArray:
        normal = vectors.copy(data=rng.normal(size=vectors.shape))
        squared_length = (vectors**2).sum("d_head")
        own_squared_length = (normal**2).sum("d_head")
        return normal * np.sqrt(squared_length / own_squared_length)

    return directions.map(random)


def steering(
    model: Model,
    batch: Prompts,
    heads: Heads,
    directions: xr.Dataset,
    coefficients: Sequence[float],
) -> list[Edit]:
    """Return edits that move the last query and the label keys of some heads.

    There is one edit for each pair of coefficients, the query's coefficient first.

    Let u be the mean query of the pair's first class minus that of the second, and v the same
    difference of keys. u is added to the query, so a positive coefficient is towards the first
    class. v is added at label positions of the first class, and subtracted at label positions of
    the second: added at all label positions it could not move attention between labels. The
    distance between the classes' keys becomes 1 + 2 coefficient times the original distance: -1
    exchanges the classes' keys, -1/2 leaves no distance. So a positive coefficient of keys is
    towards the query's class, for either class.

    Args:
        model: Any model.
        batch: Prompts of one token length.
        heads: Heads to move.
        directions: Directions of `class_directions`.
        coefficients: Coefficients of the query and of the keys.

    Returns:
        Edits of the last position, one for each pair of coefficients.
    """
    of_prompts = directions.sel(class_pair=[e.prompt.dataset for e in batch])
    dtype = torch.promote_types(model.dtype, torch.float32)
    last = torch.tensor(batch[0].last)
    positions = torch.tensor([e.label_positions for e in batch])
    signs = [_signs(e.prompt) for e in batch]
    signs_of_keys = torch.tensor(signs, device=model.device)[:, None, :, None]
    queries = {}
    keys = {}
    for layer in {layer for layer, _ in heads}:
        of_layer = of_prompts.sel(layer=layer)
        query, key = (
            torch.from_numpy(of_layer[name].values).to(model.device, dtype)
            for name in ("query", "keys")
        )
        at_labels = key[:, :, None] * signs_of_keys
        queries[layer] = query_key.rotated(model, layer, query, last)
        keys[layer] = query_key.rotated(model, layer, at_labels, positions[:, None])
    return [
        steer(
            heads,
            {layer: by_query * query for layer, query in queries.items()},
            {layer: by_keys * key for layer, key in keys.items()},
            positions,
        )
        for by_query, by_keys in product(coefficients, repeat=2)
    ]


def _signs(prompt: Prompt) -> list[int]:
    """Return 1 for each demonstration of the pair's first class, and -1 for the others."""
    first_class, _ = prompt.dataset.split("/")
    return [1 if d.cls == first_class else -1 for d in prompt.demonstrations]


@torch.inference_mode()
def tower_grid(
    model: Model, encoded: Prompts, moved: Moved, coefficients: Sequence[float]
) -> xr.Dataset:
    """Compute answers with the query and the keys of some heads moved.

    The last position's query is moved by a coefficient times the class direction of queries. The
    keys at label positions are moved by another coefficient times the class direction of keys, as
    the last position of these heads reads them. Let c be 1/2 for a query of the pair's first class,
    and -1/2 for a query of the second. Then the difference between the scores of the two classes is
    proportional to (c + query coefficient) (1 + 2 key coefficient) if the scores are a product of
    two vectors. That is the algebra of a head's score; the answer may or may not follow it.

    Cost: a run of each prompt, and one run of the last position for each name and pair of
    coefficients.

    Args:
        model: Any model.
        encoded: Prompts.
        moved: Name -> heads, and the directions that they are moved along (`class_directions` of
            other prompts).
        coefficients: Coefficients of the query's direction and of the keys' direction; every pair
            of them is used.

    Returns:
        Dataset of `logit_difference` (nats; head_set, query_coefficient, key_coefficient, prompt).
    """
    shape = len(moved), len(coefficients), len(coefficients)

    def run(_, batch: Prompts) -> Tensors:
        edits = [
            edit
            for heads, directions in moved.values()
            for edit in steering(model, batch, heads, directions, coefficients)
        ]
        differences = LastPosition(model, batch).logit_differences(edits)
        check_finite(differences)
        return {"logit_difference": differences.unflatten(0, shape).movedim(-1, 0)}

    arrays = read_batches("towers moved", encoded, 2048, run)
    return observations(
        "tower_grid",
        encoded,
        arrays,
        head_set=list(moved),
        query_coefficient=list(coefficients),
        key_coefficient=list(coefficients),
    )


def without_negative(selection: xr.Dataset, k: int) -> list[Head]:
    """Return the heads with the largest mean attention difference, without negative heads.

    A negative head lowers, on average, the label that it reads.

    Args:
        selection: Measurement "selection" of the model.
        k: Number of heads.

    Returns:
        Heads, best first.
    """
    means = head_selection.rankings(selection)
    is_positive = means["written logit difference"] > 0
    ranking = means["attention difference"].where(is_positive, -1.0)
    return head_selection.top_heads(ranking, k)


def other_labels(pipeline: Pipeline, encoded: Prompts) -> Splits:
    """Return heads by attention, to be moved along directions from prompts with other labels.

    Prompts with labels of one half of the label pairs move along directions from the other half.
    Each of these comes, on average, from BLOCKS blocks, as every other direction.

    Args:
        pipeline: Pipeline of the model.
        encoded: Prompts to move.

    Returns:
        The prompts of each half, and their heads and directions. The list is empty if there are no
        such heads, or if a half lacks one of the classes.
    """
    first_half = pipeline.design.label_pairs[::2]

    def in_half(prompts: Sequence[Encoded], is_first: bool) -> list[Encoded]:
        of_half = []
        for e in prompts:
            label_pair = "/".join(e.prompt.labels)
            if (label_pair in first_half) == is_first:
                of_half.append(e)
        return of_half

    directing = _directing(pipeline.design, 2 * BLOCKS)
    heads = pipeline.head_sets[BY_ATTENTION]
    halves: Splits = []
    for is_first in (True, False):
        prompts = in_half(encoded, is_first)
        classes = {cls for e in prompts for cls in e.prompt.dataset.split("/")}
        of_other_half = in_half(directing, not is_first)
        others = [e for e in of_other_half if e.prompt.query_class in classes]
        asked = {e.prompt.query_class for e in others}
        if not heads or not prompts or classes != asked:
            return []
        directions = _directions_along(pipeline, others, heads)
        halves.append((prompts, {OTHER_LABELS: (heads, directions)}))
    return halves


def _directing(design: Design, n_blocks: int = BLOCKS) -> list[Encoded]:
    """Return the prompts that directions come from: some selection blocks of each class pair."""
    pairs = design.intervention_pairs
    n = n_blocks * len(pairs)
    blocks = design.blocks(n, SELECTION, pairs=pairs)
    return design.encode(blocks)


def _directions(pipeline: Pipeline) -> xr.Dataset:
    """Return the directions of all class pairs, computed once: see `class_directions`.

    The vectors of the heads by attention are kept for `_directions_along`.
    """
    name = "class directions"
    if name not in pipeline.shared:
        encoded = _directing(pipeline.design)
        vectors = class_vectors(pipeline.model, encoded)
        layers = sorted({head.layer for head in pipeline.head_sets[BY_ATTENTION]})
        rows = {e.ids: row for row, e in enumerate(encoded)}
        pipeline.shared[VECTORS] = rows, vectors.sel(layer=layers)
        pipeline.shared[name] = directions_from(encoded, vectors)
    return pipeline.shared[name]


def _directions_along(pipeline: Pipeline, encoded: Prompts, heads: Heads) -> xr.Dataset:
    """Return `class_directions` of the heads by attention; known prompts are not run again."""
    rows, known = pipeline.shared.get(VECTORS, ({}, None))
    old = [e for e in encoded if e.ids in rows]
    if not old:
        return class_directions(pipeline.model, encoded, heads)
    new = [e for e in encoded if e.ids not in rows]
    vectors = known.isel(prompt=[rows[e.ids] for e in old])
    if new:
        new_vectors = class_vectors(pipeline.model, new, heads)
        vectors = xr.concat([vectors, new_vectors], "prompt")
    return directions_from([*old, *new], vectors)


def _grid_of_splits(pipeline: Pipeline, measurement: str, splits: Splits) -> xr.Dataset:
    """Return answers over the whole grid for prompts that have heads or directions of their own."""
    parts = []
    for i, (prompts, moved) in enumerate(splits):
        stage = f"{'; '.join(moved)} {i}"
        recipe = Recipe(tower_grid, prompts, (COEFFICIENTS,), moved, stage=stage)
        parts.append(pipeline.run(measurement, recipe))
    return joined(parts).sortby("block")


def recipe_tower_grid(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers with queries and keys moved over a whole grid.

    The heads are those by attention, selected with other class pairs and label pairs.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    encoded = pipeline.design.intervention()
    directions = _directions(pipeline)
    splits: Splits = [
        (prompts, {OTHER_HALVES: (heads, directions)})
        for prompts, heads in other_halves(pipeline, BY_ATTENTION, encoded)
    ]
    if not splits:
        raise NotTestable("no heads by attention on other halves")
    return _grid_of_splits(pipeline, "tower_grid", splits)


def recipe_tower_grid_lists(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers with queries and keys moved over a whole grid, in other lists of heads.

    The lists are the heads by attention, heads by increase, heads by attention without negative
    heads, and heads by attention along directions from prompts with other labels.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    k = pipeline.settings.top_k
    encoded = pipeline.design.intervention()
    increases = pipeline.measured("selection_increases")
    directions = _directions(pipeline)
    sets = {
        BY_ATTENTION: pipeline.head_sets[BY_ATTENTION],
        "by increase": head_selection.by_increase(increases, k),
        "without negative heads": without_negative(pipeline.measured("selection"), k),
    }
    moved = {name: (heads, directions) for name, heads in present(sets).items()}
    # In the last list, each half of the prompts has directions of its own.
    lists: list[Splits] = [[(encoded, moved)], other_labels(pipeline, encoded)]
    grids = [_grid_of_splits(pipeline, "tower_grid_lists", splits) for splits in lists if splits]
    return joined(grids, "head_set")


def recipe_tower_grid_random(pipeline: Pipeline) -> Recipe:
    """Measure a small grid on few prompts, in the heads by attention and in random controls.

    The control has twenty random sets of heads along the class directions, then the heads by
    attention along twenty random directions.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    sets = present(pipeline.head_sets, BY_ATTENTION)
    directions = _directions(pipeline)
    random = [
        *((heads, directions) for heads in draw_random_sets(pipeline, sets)[BY_ATTENTION]),
        *(
            (sets[BY_ATTENTION], random_directions(directions, [pipeline.settings.seed, i]))
            for i in range(MIN_RANDOM_SETS)
        ),
    ]
    return Recipe(
        tower_grid,
        pipeline.design.intervention()[:PROMPTS],
        (FEW,),
        {BY_ATTENTION: (sets[BY_ATTENTION], directions)},
        {BY_ATTENTION: random},
        drawn="random sets and directions",
    )


RECIPES = {
    "tower_grid": recipe_tower_grid,
    "tower_grid_lists": recipe_tower_grid_lists,
    "tower_grid_random": recipe_tower_grid_random,
}
"""Measurement -> function of a pipeline that makes it"""
