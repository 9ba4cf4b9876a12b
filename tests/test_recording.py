"""What chapters see of a measurement: labels of one kind, and random sets that come back from a
file with what they share."""

import numpy as np
import pytest
import xarray as xr
from conftest import refused, shared_tiny
from tiny_blocks import blocks
from towerlab.measure.ablations import ablations
from towerlab.measure.recipe import apart, with_random
from twotowers import schema
from twotowers.recording import Recording, of_labels, with_shared
from twotowers.store import catalogue, kept, load, save

PLACE = {"own": [(0, 1)], "two": [(0, 0), (1, 1)]}
DRAWS = {
    "own": [[(1, 1)], [(1, 2)], [(0, 3)]],
    "two": [[(0, 1), (1, 0)], [(0, 2), (1, 3)], [(1, 0), (1, 2)]],
}


@pytest.fixture(scope="module")
def recorded():
    """Ablations of two sets, and of three random sets matched to each."""
    model, encoded = shared_tiny("gpt2"), blocks(2)

    def measure(sets):
        return ablations(model, encoded, sets)

    data, control = apart(measure(with_random(PLACE, DRAWS)), DRAWS)
    return Recording(data, with_shared(control, data)), measure


def test_random_sets_are_a_dimension(recorded):
    recording, measure = recorded
    assert recording.data["heads"].values.tolist() == ["none", "own", "two"]
    assert recording.control["heads"].values.tolist() == ["own", "two"] and recording.control[
        "draw"
    ].values.tolist() == [0, 1, 2]
    assert recording.control["control"] == "random sets"
    for name, of in DRAWS.items():
        for draw, heads in enumerate(of):
            alone = measure({"x": heads})["logit_difference"].sel(heads="x")
            np.testing.assert_allclose(
                recording.control["logit_difference"].sel(heads=name, draw=draw), alone, atol=1e-6
            )
    assert apart(measure(PLACE), {}).control is None


def test_every_part_comes_back_from_its_file(recorded, tmp_path):
    recording = kept("ablations", recorded[0])
    save(recording, tmp_path / "a.nc", {"measurement": "ablations", "model": "m"})
    for part, again in zip(recording, load(tmp_path / "a.nc"), strict=True):
        xr.testing.assert_allclose(
            part.drop_attrs(deep=False), again.drop_attrs(deep=False), rtol=2**-10
        )
        assert again["pair"].dims == ("prompt",) and again.attrs["model"] == "m"
        for name, array in part.data_vars.items():  # only three dimensions and more are rounded
            assert array.ndim > 2 or (array.astype(again[name].dtype) == again[name]).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]
    (tmp_path / "a.nc").write_bytes((tmp_path / "a.nc").read_bytes()[:200])
    refused("damaged", load, tmp_path / "a.nc")
    refused("measure it first", load, tmp_path / "none.nc")


def test_prompts_have_labels_of_one_kind():
    values = xr.Dataset(
        {"x": ("prompt", np.arange(4.0))},
        {
            "pair": ("prompt", ["a/b", "a/b", "c/d", "c/d"]),
            "labels": ("prompt", ["x/y", "z/w", "x/y", "c/d"]),
        },
    )
    every = Recording(values, values)
    assert [part.sizes["prompt"] for part in of_labels(every, "arbitrary")[:2]] == [3, 3]
    assert of_labels(every, "names").data["pair"].values.tolist() == ["c/d"]
    assert of_labels(every, "all").data.sizes["prompt"] == 4
    refused("no labels 'nonsense'", of_labels, every, "nonsense")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d.drop_vars("logit_difference"), "it lacks logit_difference"),
        (lambda d: d.drop_vars("pair"), "it lacks pair"),
        (lambda d: d.assign(more=d["says"]), "more is not in the schema"),
        (
            lambda d: d.isel(heads=0).expand_dims("place"),
            r"'logit_difference' is over \(.*\), not \(.*heads.*\)",
        ),
        (
            lambda d: d.assign(says=d["says"].astype(float).assign_attrs(d["says"].attrs)),
            "'says' is no int",
        ),
        (
            lambda d: d.assign(says=d["says"].assign_attrs(units="words")),
            "'says' is not in 0 true label",
        ),
    ],
)
def test_another_form_is_refused_by_name(change, message, recorded, tmp_path):
    data = kept("ablations", recorded[0]).data
    schema.check("ablations", Recording(data))
    with pytest.raises(schema.OtherForm, match=message):
        schema.check("ablations", Recording(change(data)))
    refused(
        f"is not written: {message}",
        save,
        Recording(change(data)),
        tmp_path / "a.nc",
        {"measurement": "ablations"},
    )
    with pytest.raises(schema.OtherForm, match="in its group 'control'"):
        schema.check("ablations", Recording(data, data))


def test_no_variable_has_the_name_of_a_dimension():
    every = [about for of in schema.variables().values() for about in of.values()]
    assert not {about.variable for about in every} & {dim for about in every for dim in about.dims}
    assert set(schema.variables()) == set(catalogue())
