"""Measurement files: named and random sets, the form of a file, and files that cannot be read."""

import numpy as np
import pytest
from conftest import refused, shared_tiny
from tiny_blocks import blocks
from tolerances import near
from towerlab.measure.pipeline import save, write
from towerlab.measure.recipe import Recipe
from towerlab_experiments.ablations import ablations
from towerlab_experiments.head_values import heads
from twotowers import files
from twotowers.catalogue import catalogue, variables

PLACE = {"own": [(0, 1)], "two": [(0, 0), (1, 1)]}
DRAWS = {
    "own": [[(1, 1)], [(1, 2)], [(0, 3)]],
    "two": [[(0, 1), (1, 0)], [(0, 2), (1, 3)], [(1, 0), (1, 2)]],
}


@pytest.fixture(scope="module")
def measure():
    model, encoded = shared_tiny("gpt2"), blocks(2)
    return lambda sets: ablations(model, encoded, sets)


@pytest.fixture(scope="module")
def data(measure):
    """Ablations of two sets, and of three random sets matched to each."""
    recipe = Recipe(ablations, (), (), PLACE, DRAWS)
    return recipe.with_matched_sets(measure(recipe.all_sets))


@pytest.fixture
def saved(data, tmp_path):
    save("ablations", data, tmp_path / "a.nc", {"model": "m"})
    return tmp_path / "a.nc"


def test_random_sets_are_a_dimension(data, measure):
    named, random = files.select_named_sets(data), files.select_random_sets(data)
    assert named["head_set"].values.tolist() == ["none", "own", "two"]
    assert random["head_set"].values.tolist() == ["own", "two"]
    assert random["control"] == "random sets"
    for name, of in DRAWS.items():
        for i, drawn in enumerate(of):
            alone = measure({"x": drawn})["logit_difference"].sel(head_set="x")
            found = random["logit_difference"].sel(head_set=name, random_set=i)
            near(found, alone, atol=1e-6)
    without = Recipe(ablations, (), (), PLACE)
    assert files.select_random_sets(without.with_matched_sets(measure(PLACE))) is None


def test_a_measurement_comes_back_from_its_file(data, saved):
    again = files.load(saved)
    assert again["class_pair"].dims == ("prompt",) and again.attrs["model"] == "m"
    assert again.attrs["measurement"] == "ablations"
    assert {*again.data_vars} == {*variables()["ablations"]}
    for name, array in again.data_vars.items():  # two dimensions, so not rounded
        assert (data[name].astype(array.dtype) == array).all()
    assert [path.name for path in saved.parent.iterdir()] == ["a.nc"]
    refused("missing measurement", files.load, saved.with_name("none.nc"))


def test_large_variables_keep_nine_bits_and_others_all(tmp_path):
    values = np.array([1.0, 1 / 3, -2.7e-5, 0.0, np.nan, 123456.0])
    data = heads(shared_tiny("gpt2"), blocks(2))
    data["written_logit_difference"][:6, 0, 0] = data["logit_difference"][:6] = values
    save("heads", data, tmp_path / "a.nc", {})
    again = files.load(tmp_path / "a.nc")
    large = again["written_logit_difference"].values[:6, 0, 0]
    small = again["logit_difference"].values[:6]
    np.testing.assert_array_equal(small, values.astype(np.float32))
    np.testing.assert_allclose(large, values, rtol=2**-10)
    assert (large[:4].view(np.uint32) & ((1 << 14) - 1) == 0).all()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d.drop_vars("logit_difference"), "missing or unknown variables: logit_diff"),
        (lambda d: d.assign(more=d["top_answer"]), "missing or unknown variables: more"),
        (
            lambda d: d.isel(head_set=0).expand_dims("demonstration"),
            r"'logit_difference' is over .'demonstration'",
        ),
        (
            lambda d: d.assign(top_answer=d["top_answer"].assign_attrs(units="words")),
            r"'top_answer' is over .* in words",
        ),
        (
            lambda d: d.assign_attrs(measurement="none such"),
            "variables: logit_difference, top_answer",
        ),
    ],
)
def test_another_form_is_refused_by_name(change, message, saved, tmp_path):
    data = files.load(saved)
    write(change(data), tmp_path / "b.nc")
    with pytest.raises(files.UnexpectedVariables, match=message):
        files.load(tmp_path / "b.nc")


def test_a_damaged_file_is_refused_with_its_path(saved):
    whole = saved.read_bytes()
    for damaged in (whole[:200], whole[: len(whole) // 2], b"", b"CDF", b"<html>"):
        saved.write_bytes(damaged)
        refused(f"cannot read '{saved}': .* delete it and measure it again", files.load, saved)


def test_no_variable_has_the_name_of_a_dimension():
    every = [row for of in variables().values() for row in of.values()]
    assert not {row.variable for row in every} & {dim for row in every for dim in row.dims}
    assert set(variables()) == set(catalogue())
