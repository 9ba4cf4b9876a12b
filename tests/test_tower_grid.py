"""Both towers moved over a grid: steering where one coefficient is zero or both are equal, the plain answer where both are zero."""

import numpy as np
import tiny_blocks
import xarray as xr
from conftest import tiny
from towerlab.measure.steering import class_directions, steering
from towerlab.measure.tower_grid import FEW, tower_grid, without_negative
from towerlab.model.capture import answer
from twotowers.heads import Head


def test_the_grid_has_steering_in_its_cross_and_on_its_diagonal(model):
    encoded, heads = tiny_blocks.blocks(2, seed=1), [(0, 1), (1, 0)]
    directions = class_directions(model, tiny_blocks.blocks(4))
    grid = tower_grid(model, encoded, {"two": (heads, directions)}, FEW, max_tokens=60)["log_prob_true"].isel(heads=0)
    np.testing.assert_allclose(grid.sel(query_coefficient=0, key_coefficient=0), answer(model, encoded)[1][:, 0], rtol=0, atol=1e-9)
    steered = steering(model, encoded, directions, {"two": heads}, FEW, random=0).data["log_prob_true"].isel(heads=0)
    for x in FEW:
        cells = {"query": (x, 0.0), "keys": (0.0, x), "both": (x, x)}
        for tower, (query, keys) in cells.items():
            here = grid.sel(query_coefficient=query, key_coefficient=keys)
            np.testing.assert_allclose(here, steered.sel(tower=tower, dose=x), rtol=0, atol=1e-9)
    opposite = grid.sel(query_coefficient=1.0, key_coefficient=-1.0)
    assert (abs(opposite - grid.sel(query_coefficient=-1.0, key_coefficient=1.0)) > 1e-9).any()


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
