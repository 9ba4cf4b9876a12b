"""Precomputed measurements: a file of other versions or of another form is named and left out."""

import json
import shutil
from pathlib import Path

import netCDF4
import pytest
from chapter_runs import CHAPTERS, evidence_of
from conftest import ROOT, make_home
from twotowers import book, files, pages

ON_EACH_PUSH = ("04-attention-weights",)
SMOLLM2 = ROOT / "data/measurements/smollm2-135m"
OF_THE_PAPER = """paper paper_ranks paper_balance paper_exchanges paper_queries paper_changes
  paper_ablations paper_remedies single_prompt decomposition"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_HOME", str(tmp_path))
    return make_home(tmp_path)


@pytest.fixture
def notes(monkeypatch):
    """What a chapter shows."""
    texts = []
    monkeypatch.setattr(pages, "display", lambda html: texts.append(html.data))
    return texts


def copied(folder: Path, names) -> Path:
    """Precomputed files of SmolLM2, as of the model that the folder is named after."""
    (folder / "words").mkdir(parents=True)
    for name in names:
        shutil.copy(SMOLLM2 / f"words/{name}.nc", folder / "words")
        change(folder, name, model=folder.name)
    return folder


def change(folder: Path, file: str, **attributes) -> None:
    with netCDF4.Dataset(folder / f"words/{file}.nc", "a") as data:
        for name, value in attributes.items():
            data.delncattr(name) if value is None else data.setncattr(name, value)


def test_a_file_of_other_versions_or_another_form_is_named_and_left_out(home, notes):
    names = "templates", "selection", "single_head_ablations"
    folder = copied(home / "data/measurements/someone", names)
    with netCDF4.Dataset(folder / "words/selection.nc") as data:
        made_with = json.loads(data.identity)
    change(folder, "selection", identity=json.dumps(made_with | {"versions": {"selection": 99}}))
    change(folder, "single_head_ablations", measurement="selection_increases")
    copied(folder.parent / "sound", names)
    chapter = book.open({"model": "sound"})
    found = [[*chapter.measured(name)] for name in names]
    assert found == [["someone", "sound"], ["sound"], ["sound"]]
    assert len(notes) == 2 and all("someone/words" in note for note in notes)
    assert "expected the current versions of the code" in notes[0]
    assert "missing or unknown variables" in notes[1]


def test_a_copy_beside_measurements_is_no_measurement(home, notes):
    """K4: of a file, of a folder, and what macOS adds on some disks."""
    folder = copied(home / "data/measurements/someone", ("templates", "selection"))
    expected = {("someone", "words", name) for name in ("templates", "selection")}
    shutil.copy(folder / "words/templates.nc", folder / "words/templates (copy).nc")
    shutil.copytree(folder / "words", folder / "words (copy)")
    (folder / "words/._selection.nc").write_bytes(b"\x00\x05\x16\x07")
    (folder / "._words").write_bytes(b"\x00\x05\x16\x07")
    assert {*files.precomputed_files()} == expected
    (folder.parent / "empty").mkdir()
    assert files.precomputed_fingerprint("empty") is None
    assert files.precomputed_fingerprint("someone").startswith(SMOLLM2.name)
    shutil.copytree(folder, folder.parent / "someone (copy)")
    assert [*book.open({"model": "someone"}).measured("templates")] == ["someone"]
    assert len(notes) == 1 and "got templates of someone (words); remove this copy" in notes[0]


@pytest.fixture(scope="module")
def papers_only(tmp_path_factory):
    """A home with two models: SmolLM2, and one that has the paper's own measurements only."""
    home = make_home(tmp_path_factory.mktemp("papers"))
    (home / "data/measurements" / SMOLLM2.name).symlink_to(SMOLLM2)
    copied(home / "data/measurements/papers", OF_THE_PAPER.split())
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    "chapter",
    [
        pytest.param(name, marks=[] if name in ON_EACH_PUSH else pytest.mark.nightly)
        for name in CHAPTERS
        if name[0].isdigit()
    ],
)
def test_a_chapter_is_built_with_a_model_that_has_the_papers_own_measurements_only(
    chapter, papers_only, monkeypatch, tmp_path
):
    monkeypatch.setenv("TWOTOWERS_HOME", str(papers_only))
    rows = evidence_of(chapter, monkeypatch, tmp_path, model=SMOLLM2.name)
    assert {*rows[rows["model"] == "papers"]["verdict"]} <= {"not testable"}


def test_precomputed_files_have_the_current_form_and_versions():
    for model, folder in files.precomputed_models().items():
        for path in folder.rglob("*.nc"):
            data = files.open_precomputed(model, path.parent.name, path.stem)
            assert (data.attrs["model"], data.attrs["suite"]) == (model, path.parent.name)
            assert " /" not in data.attrs.get("command", "")  # no folder of one machine
