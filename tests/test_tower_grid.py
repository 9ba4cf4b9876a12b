"""Both towers moved over a grid: what is moved, and what is refused. The numbers are in
test_independent."""

import tiny_blocks
from conftest import tiny
from test_head_selection import heads
from tolerances import near
from towerlab_experiments.tower_grid import (
    class_directions,
    random_directions,
    tower_grid,
    without_negative,
)
from twotowers.heads import Head


def test_each_set_has_its_own_heads_and_directions(float64):
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(2, seed=1)
    first, second = (class_directions(model, tiny_blocks.blocks(4, seed=seed)) for seed in (0, 3))
    both = tower_grid(model, encoded, {"a": ([(0, 1)], first), "b": ([(1, 0)], second)}, (0.0, 1.0))
    for name, of in (("a", ([(0, 1)], first)), ("b", ([(1, 0)], second))):
        alone = tower_grid(model, encoded, {name: of}, (0.0, 1.0))["logit_difference"]
        near(both["logit_difference"].sel(head_set=[name]), alone, atol=1e-12)


def test_heads_that_lower_what_they_read_are_left_out():
    attention = [(0.9, 0.05), (0.5, 0.05), (0.3, 0.05), (0.1, 0.05)]
    four = heads(attention, [-0.2, 0.1, 0.4, 0.0])
    assert without_negative(four, 5) == [Head(0, 1), Head(0, 2)]


def test_random_directions_have_the_norm_of_their_own(float64):
    directions = class_directions(tiny("llama"), tiny_blocks.blocks(4))
    random = random_directions(directions, 0)
    for name in ("query", "keys"):
        norm, of_drawn = ((x[name] ** 2).sum("d_head") for x in (directions, random))
        near(of_drawn, norm)
        assert (abs(random[name] - directions[name]) > 0).isel(layer=1).all()
