"""Models and settings do not take one another's place: fingerprints and settings, not names, say
what is what."""

import shutil
from pathlib import Path

import pytest
from conftest import ROOT, make_home, refused
from towerlab import cli
from towerlab.measure.pipeline import Pipeline
from towerlab.model import checkpoint, loading
from towerlab_experiments.word_towers import n_words_of
from twotowers import files, identity
from twotowers.measurements import Measurements
from twotowers.names import is_local, slug
from twotowers.settings import Settings

OPTIONS = ["--selection-blocks", "2", "--k", "1", "--separator", "space"]


def other_model(folder: Path) -> Path:
    """A copy of the included model with one byte of its card's own, so another fingerprint."""
    shutil.copytree(ROOT / "data/models/mini-gpt2", folder)
    path = folder / "config.json"
    path.write_text(path.read_text().replace("{", '{"mine": 1,', 1))
    return folder


def run(model, out) -> Pipeline:
    few = dict(evaluation_blocks=2, selection_blocks=2, k=1, separator="space")
    return Pipeline(Settings(model=str(model), out=str(out), **few))


@pytest.mark.parametrize("name", ["smollm2-135m", "mini-gpt2"])
def test_a_folder_called_like_a_recorded_or_shipped_model_has_a_name_of_its_own(name, tmp_path):
    own = run(other_model(tmp_path / name), tmp_path / "out")
    assert own.name == f"{name}--{own.fingerprint.split('@')[1][:6]}"
    assert own.name not in files.precomputed_models()
    assert Measurements(own.settings).model == own.name
    assert run(name, tmp_path / "out").name == Measurements(Settings(model=name)).model == name


def test_two_checkpoints_of_one_name_stand_side_by_side(tmp_path):
    """Neither takes the other's place (F3)."""
    a, b = other_model(tmp_path / "a/final"), tmp_path / "b/final"
    shutil.copytree(ROOT / "data/models/mini-gpt2", b)
    for folder in (a, b):
        out = ["--out", str(tmp_path), "--model", str(folder)]
        assert cli.main(["measure", "templates", *out, *OPTIONS]) == 0
    names = {path.parents[1].name: path for path in tmp_path.rglob("templates.nc")}
    found = {name: files.load(path).attrs["fingerprint"] for name, path in names.items()}
    assert found == {of.name: of.fingerprint for of in (run(a, tmp_path), run(b, tmp_path))}
    assert len(found) == 2 and all(name.startswith("final--") for name in found)


def test_a_name_that_a_folder_here_has_too_is_refused_and_its_path_means_the_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("mini-gpt2", "smollm2-135m"):
        (tmp_path / name / "words").mkdir(parents=True)  # as `--out .` makes it
        assert Settings.from_values({"model": name}).model == name and not is_local(name)
        (tmp_path / name / "words").rmdir()
        (tmp_path / name).rmdir()
        own = other_model(tmp_path / name)
        refused(
            f"model '{name}': expected the name of one model, .*; write ./{name} for the folder",
            Settings.from_values,
            {"model": name},
        )
        refused(f"cannot use model '{name}': .*write ./{name}", loading.load, name)
        pipeline = run(f"./{name}", tmp_path / "out")
        assert pipeline.fingerprint == checkpoint.fingerprint(str(own))
        assert pipeline.name.startswith(f"{name}--")


def test_only_a_folder_with_a_config_hides_a_hugging_face_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("towerlab.model.hub.fetch", lambda model_id, _: tmp_path / model_id)
    Path("gpt2").write_text("a file")
    Path("owner/model/words").mkdir(parents=True)
    for name in ("gpt2", "owner/model"):
        assert not is_local(name) and slug(name) == name.replace("/", "--")
        assert checkpoint.find_folder(name) == tmp_path / name
    other_model(tmp_path / "own/model")
    assert is_local("own/model") and checkpoint.find_folder("own/model") == Path("own/model")
    refused("expected a folder of safetensors, got a file", checkpoint.find_folder, "./gpt2")
    refused("cannot read config.json of 'owner/model'", loading.check, "./owner/model")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without precomputed measurements, and a Hub that has the included model."""
    monkeypatch.setenv("TWOTOWERS_HOME", str(make_home(tmp_path / "home")))
    included = ROOT / "data/models/mini-gpt2"
    monkeypatch.setattr("towerlab.model.hub.fetch", lambda *_: included)
    return tmp_path / "home"


@pytest.mark.parametrize(
    "name", [pytest.param("gpt2-large", marks=pytest.mark.nightly), "owner/model"]
)
def test_a_precomputed_hugging_face_id_can_be_measured_on(name, home, tmp_path, capsys):
    """After an interruption, with another seed, by its folder in data/measurements."""
    (home / "data/measurements" / slug(name)).mkdir()  # empty
    for measurement in ("templates", "selection", "selection"):
        assert cli.main(["precompute", name, measurement, *OPTIONS]) == 0, capsys.readouterr().err
    assert [*files.precomputed_models()] == [slug(name)]
    for known in (name, slug(name)):
        out = ["--model", known, "--seed", "1", "--out", str(tmp_path / "out")]
        assert cli.main(["measure", "templates", *out, *OPTIONS]) == 0, capsys.readouterr().err
        assert Measurements(Settings(model=known)).model == slug(name)
    written = tmp_path.glob(f"out/{slug(name)}/*/templates.nc")
    assert {files.load(path).attrs["fingerprint"].partition("@")[0] for path in written} == {name}


def test_a_precomputed_folder_asks_for_its_folder(home, tmp_path, capsys):
    folder = other_model(tmp_path / "final")
    assert cli.main(["precompute", str(folder), "templates", *OPTIONS]) == 0
    (name,) = files.precomputed_models()
    assert name.startswith("final--")
    refused("missing weights of .*; give its folder, .* 'final'", checkpoint.find_folder, name)


def test_the_note_about_a_stale_file_names_a_command_that_works(home, tmp_path, monkeypatch):
    folder = other_model(tmp_path / "final")
    options = ["--selection-blocks", "2", "--suite", "sentences"]
    assert cli.main(["precompute", str(folder), "templates", *options]) == 0
    (name,) = files.precomputed_models()
    monkeypatch.setattr(identity, "versions", lambda name: {name: 99})
    words = (
        "the code; run `twotowers precompute MODEL templates --suite sentences`, where MODEL is "
    )
    words += "the folder or Hugging Face id of 'final'"
    refused(words, files.open_precomputed, name, "sentences", "templates")


def test_a_copy_of_the_included_model_is_that_model_and_has_its_prompts(tmp_path):
    """The file of a measurement would say so: its name and its identity are equal."""
    shutil.copytree(ROOT / "data/models/mini-gpt2", tmp_path / "mini-gpt2")
    copy, included = (run(model, tmp_path) for model in (tmp_path / "mini-gpt2", "mini-gpt2"))
    assert copy.name == "mini-gpt2" and copy.identity("heads") == included.identity("heads")
    assert copy.design.label_pairs == included.design.label_pairs
    assert copy.design.n_prompts == included.design.n_prompts
    assert n_words_of(copy.design) == n_words_of(included.design)
