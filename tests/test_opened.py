"""What chapters see of a measurement: labels of one kind, a logit difference, random sets as a dimension."""

import numpy as np
import pytest
import xarray as xr
from twotowers.errors import TwoTowersError
from twotowers.opened import opened

NAMES = ["none", "comparers", "comparers, 5 heads", *(f"{name}, random {i}" for name in ("comparers", "writers") for i in range(11))]


def measured(heads, dim="heads"):
    """Four prompts, the last one with names of classes as labels; every entry has a value of its own."""
    values = np.arange(4.0 * len(heads)).reshape(len(heads), 4)
    coords = {dim: heads, "pair": ("prompt", ["a/b", "a/b", "c/d", "c/d"]), "labels": ("prompt", ["x/y", "z/w", "x/y", "c/d"])}
    variables = {"log_prob_true": ((dim, "prompt"), values), "log_prob_other": ((dim, "prompt"), values / 4),
                 "base_log_prob_true": ("prompt", values[0]), "base_log_prob_other": ("prompt", -values[0])}  # fmt: skip
    return xr.Dataset(variables, coords, attrs={"model": "m"})


def test_the_logit_difference_stands_in_what_has_answers():
    data = opened(measured(["none"])).data
    np.testing.assert_array_equal(data["logit_difference"], data["log_prob_true"] - data["log_prob_other"])
    np.testing.assert_array_equal(data["base_logit_difference"], 2 * data["base_log_prob_true"])
    assert data["logit_difference"].attrs["units"] == "nats" and data.attrs["model"] == "m"


def test_prompts_have_labels_of_one_kind():
    every = measured(["none"])
    assert opened(every).data.sizes["prompt"] == 3
    assert opened(every, "names").data["pair"].values.tolist() == ["c/d"]
    assert opened(every, "all").data.sizes["prompt"] == 4
    with pytest.raises(TwoTowersError, match="no labels 'nonsense'"):
        opened(every, "nonsense")


def test_random_sets_are_a_dimension():
    every = measured(NAMES)
    data, control = opened(every, "all")
    assert data["heads"].values.tolist() == ["none", "comparers", "comparers, 5 heads"]
    assert control["heads"].values.tolist() == ["comparers", "writers"] and control["draw"].values.tolist() == list(range(11))
    assert control["log_prob_true"].dims == ("heads", "draw", "prompt") and control["control"] == "random sets"
    for name in ("comparers", "writers"):
        for draw in range(11):  # 10 comes after 2: numbers, not texts
            one = every["log_prob_true"].sel(heads=f"{name}, random {draw}")
            np.testing.assert_array_equal(control["log_prob_true"].sel(heads=name, draw=draw), one)
    assert control["base_log_prob_true"].dims == ("prompt",)


def test_random_directions_are_told_from_random_sets():
    data, control = opened(measured(["comparers", "comparers, random direction 0"]))
    assert control["control"] == "random directions" and data.sizes["heads"] == 1
    assert opened(measured(["comparers"])).control is None


def test_ways_of_a_path_are_a_dimension():
    ways = [f"{name}, {way}" for name in ("writers", "writers, random 0") for way in ("total", "direct")]
    names = ["none", "senders ablated", *ways]
    every = measured(names, "variant")
    data, control = opened(every, "all")
    assert data["heads"].values.tolist() == ["none", "senders ablated", "writers"] and control["heads"].values.tolist() == ["writers"]
    for way in ("total", "direct"):
        of = {name: every["log_prob_true"].sel(variant=name) for name in names}
        np.testing.assert_array_equal(data["log_prob_true"].sel(heads="writers", way=way), of[f"writers, {way}"])
        np.testing.assert_array_equal(data["log_prob_true"].sel(heads="none", way=way), of["none"])
        np.testing.assert_array_equal(control["log_prob_true"].sel(heads="writers", draw=0, way=way), of[f"writers, random 0, {way}"])
