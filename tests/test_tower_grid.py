"""Both towers moved over a grid: the plain answer where both coefficients are zero, and each tower alone where one is."""

import numpy as np
import tiny_blocks
import xarray as xr
from conftest import tiny
from towerlab.measure.directions import class_directions
from towerlab.measure.tower_grid import FEW, tower_grid, without_negative
from towerlab.model.capture import answer
from twotowers.heads import Head


def test_the_grid_has_the_plain_answer_in_its_middle_and_each_tower_alone_in_its_cross(model, small_batches):
    encoded, heads = tiny_blocks.blocks(2, seed=1), [(0, 1), (1, 0)]
    directions = class_directions(model, tiny_blocks.blocks(4))
    alone = {"query": directions.assign(keys=0 * directions["keys"]), "key": directions.assign(query=0 * directions["query"])}
    moved = {name: (heads, of) for name, of in (alone | {"both": directions}).items()}
    grid = tower_grid(model, encoded, moved, FEW)["log_prob_true"]
    both = grid.sel(heads="both")
    np.testing.assert_allclose(both.sel(query_coefficient=0, key_coefficient=0), answer(model, encoded)[1][:, 0], rtol=0, atol=1e-9)
    for x in FEW:
        for tower, other in (("query", "key"), ("key", "query")):
            of_tower = grid.sel(heads=tower).sel({f"{other}_coefficient": 1.0, f"{tower}_coefficient": x})
            here = both.sel({f"{other}_coefficient": 0.0, f"{tower}_coefficient": x})
            np.testing.assert_allclose(here, of_tower, rtol=0, atol=1e-9)
    opposite = both.sel(query_coefficient=1.0, key_coefficient=-1.0)
    assert (abs(opposite - both.sel(query_coefficient=-1.0, key_coefficient=1.0)) > 1e-9).any()


def test_each_set_has_its_own_heads_and_directions(float64):
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(2, seed=1)
    first, second = (class_directions(model, tiny_blocks.blocks(4, seed=seed)) for seed in (0, 3))
    both = tower_grid(model, encoded, {"a": ([(0, 1)], first), "b": ([(1, 0)], second)}, (0.0, 1.0))
    for name, of in (("a", ([(0, 1)], first)), ("b", ([(1, 0)], second))):
        alone = tower_grid(model, encoded, {name: of}, (0.0, 1.0))["logit_difference"]
        np.testing.assert_allclose(both["logit_difference"].sel(heads=[name]), alone, rtol=0, atol=1e-12)


def test_heads_that_lower_what_they_read_are_left_out():
    shape, attention = ("prompt", "layer", "head"), np.array([0.9, 0.5, 0.3, 0.1]).reshape(1, 2, 2, 1)
    values = {"attention": ((*shape, "place"), np.concatenate([attention, 0.05 + 0 * attention], -1))}
    values |= {"writing": (shape, np.array([[[-0.2, 0.1], [0.4, 0.0]]]))}
    heads = xr.Dataset(values, {"true": (("prompt", "place"), np.array([[True, False]]))})
    assert without_negative(heads, 5) == [Head(0, 1), Head(1, 0)]
