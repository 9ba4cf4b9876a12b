"""Queries and keys of a head on a plane: the pair that it separates best, and the classes there."""

import explorer
import numpy as np
import pytest
import xarray as xr
from tolerances import FLOAT64
from twotowers import towers

PAIRS = {"j/k": (1.0, "jkjk"), "r/t": (3.0, "rrrr"), "x/y": (0.5, "xyxy")}
"""Class pair -> how far apart a planted head holds its classes, and the classes of its queries"""


@pytest.fixture
def vectors():
    """The head separates "r/t" best, whose queries are all of class r, and "j/k" next. The first
    component of a vector is its class, the others are noise."""
    rng, sides = np.random.default_rng(0), np.array([1.0, -1.0, 1.0, -1.0])
    queries, keys, classes, pairs, is_true = [], [], [], [], []
    for pair, (apart, query_classes) in PAIRS.items():
        for query_class in query_classes:
            sign = 1.0 if query_class == pair[0] else -1.0
            queries.append([apart * sign, *rng.normal(0, 0.01, 3)])
            keys.append([[side, *rng.normal(0, 0.01, 3)] for side in sides])
            classes.append(query_class)
            pairs.append(pair)
            is_true.append(sides == sign)
    return xr.Dataset(
        {
            "query_vector": (("prompt", "component"), queries),
            "key_vector": (("prompt", "demonstration", "component"), keys),
        },
        coords={
            "query_class": ("prompt", classes),
            "class_pair": ("prompt", pairs),
            "is_true_label": (("prompt", "demonstration"), np.array(is_true)),
        },
    )


def test_the_pair_that_is_separated_best_has_queries_of_both_classes(vectors):
    assert towers.best_pair(vectors) == "j/k"
    of_one_class = vectors.isel(prompt=(vectors["query_class"].isin(["r", "x"])).values)
    assert towers.best_pair(of_one_class) == "r/t"  # no pair has both


def test_the_first_component_holds_the_class_of_queries_and_keys(vectors):
    table = towers.project(vectors, "j/k")
    assert table["tower"].tolist() == ["query"] * 4 + ["key"] * 16
    assert table["class"].tolist() == [*"jkjk", *"jkjk" * 4]
    of_first = table[table["class"] == "j"]["x"]
    assert np.ptp(np.sign(of_first)) == 0 and abs(table["x"].mean()) < FLOAT64["atol"]
    assert abs(np.ptp(of_first)) < 0.1 < abs(of_first.mean())


def test_the_card_of_a_head_shows_the_pair_of_the_figure(vectors):
    """F2."""
    other = vectors.assign(query_vector=-vectors["query_vector"])
    both = xr.concat([vectors, other], "selected_head", data_vars="all").assign_coords(
        selected_head=["1-0", "1-1"]
    )
    shown = explorer.towers(both)
    assert {name: of["pair"] for name, of in shown.items()} == {
        str(single): towers.best_pair(both.sel(selected_head=single))
        for single in both["selected_head"].values
    }
    x, _, is_second, is_query = np.array(shown["1-0"]["points"]).T
    assert is_query.tolist() == [1] * 4 + [0] * 16
    assert set(is_second[x > 50]) ^ set(is_second[x < 50]) == {0, 1}
