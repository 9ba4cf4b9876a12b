"""Models and settings do not take one another's place: fingerprints and settings, not names, say
what is what."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from towerlab.measure.pipeline import Pipeline
from twotowers import files
from twotowers.measurements import Measurements
from twotowers.settings import Settings


def other_model(folder: Path) -> Path:
    """A copy of the included model with one byte of its card's own, so another fingerprint."""
    shutil.copytree(ROOT / "data/models/mini-gpt2", folder)
    path = folder / "config.json"
    path.write_text(path.read_text().replace("{", '{"mine": 1,', 1))
    return folder


def run(model, out, **settings) -> Pipeline:
    return Pipeline(
        Settings.from_values(
            {
                "model": str(model),
                "out": str(out),
                "evaluation_blocks": 2,
                "selection_blocks": 2,
                "k": 1,
                "separator": "space",
            }
            | settings
        )
    )


@pytest.mark.parametrize("name", ["smollm2-135m", "mini-gpt2"])
def test_a_folder_called_like_a_recorded_or_shipped_model_has_a_name_of_its_own(name, tmp_path):
    own = run(other_model(tmp_path / name), tmp_path / "out")
    assert (
        own.name == f"{name}--{own.fingerprint.split('@')[1][:6]}"
        and own.name not in files.precomputed_models()
    )
    assert Measurements(own.settings).model == own.name
    assert run(name, tmp_path / "out").name == Measurements(Settings(model=name)).model == name


def test_a_copy_of_a_shipped_model_is_that_model(tmp_path):
    shutil.copytree(ROOT / "data/models/mini-gpt2", tmp_path / "mini-gpt2")
    assert run(tmp_path / "mini-gpt2", tmp_path / "out").name == "mini-gpt2"


def test_two_checkpoints_of_one_name_stand_side_by_side(tmp_path):
    """Measured at the same time, neither takes the other's place (F3)."""
    a, b = other_model(tmp_path / "a/final"), tmp_path / "b/final"
    shutil.copytree(ROOT / "data/models/mini-gpt2", b)
    options = ["--selection-blocks", "2", "--k", "1", "--separator", "space"]
    command = [sys.executable, "-m", "towerlab.cli", "measure", "templates", "--out", str(tmp_path)]
    processes = [subprocess.Popen([*command, *options, "--model", str(of)]) for of in (a, b)]
    assert [process.wait() for process in processes] == [0, 0]
    names = {path.parents[1].name: path for path in tmp_path.rglob("templates.nc")}
    found = {name: files.load(path).attrs["fingerprint"] for name, path in names.items()}
    assert found == {of.name: of.fingerprint for of in (run(a, tmp_path), run(b, tmp_path))}
    assert len(found) == 2 and all(name.startswith("final--") for name in found)
