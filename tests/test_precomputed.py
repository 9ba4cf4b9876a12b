"""Precomputed measurements: a file of other versions or of another form is named and left out, and
no text of a file becomes a tag of a page."""

import json
import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
from chapter_runs import CHAPTERS, evidence_of
from conftest import ROOT
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from tags import Page
from towerlab import cli
from twotowers import book, files, pages

SMOLLM2 = ROOT / "data/measurements/smollm2-135m"
TAG = "<x-evil><img src=x onerror=alert(1)>"


def without_recorded(folder: Path) -> Path:
    """A home with the book's data, and no recorded folder."""
    (folder / "data/measurements").mkdir(parents=True)
    for path in (ROOT / "data").iterdir():
        if path.name != "measurements":
            (folder / "data" / path.name).symlink_to(path)
    (folder / "book").symlink_to(ROOT / "book")
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_HOME", str(tmp_path))
    return without_recorded(tmp_path)


@pytest.fixture
def notes(monkeypatch):
    """What a chapter shows."""
    texts = []
    monkeypatch.setattr(pages, "display", lambda html: texts.append(html.data))
    return texts


def copied(folder: Path, names) -> Path:
    """Recorded files of SmolLM2, as of the model that the folder is named after."""
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
    folder = copied(home / "data/measurements/someone", ("forms", "locating", "singles"))
    with netCDF4.Dataset(folder / "words/locating.nc") as data:
        made_with = json.loads(data.identity)
    change(folder, "locating", identity=json.dumps(made_with | {"versions": {"locating": 99}}))
    change(folder, "singles", measurement="norms")
    copied(folder.parent / "sound", ("forms", "locating", "singles"))
    chapter = book.open({"model": "sound"})
    found = {name: [*chapter.measured(name)] for name in ("forms", "locating", "singles")}
    sound = ["sound"]
    assert found == {"forms": ["someone", "sound"], "locating": sound, "singles": sound}
    assert len(notes) == 2 and all("someone/words" in note for note in notes)
    assert "made by other versions of the code" in notes[0] and "another form" in notes[1]


def test_the_name_of_a_folder_is_no_tag(home, notes):
    folder = copied(home / f"data/measurements/{TAG}", ("forms",))
    (folder / "words/forms.nc").write_bytes(b"CDF")
    copied(home / "data/measurements/sound", ("forms",))
    book.open({"model": "sound"}).measured("forms")
    assert len(notes) == 1 and Page(notes[0]).tags == ["p"]


@pytest.fixture(scope="module")
def papers_only(tmp_path_factory):
    """A home with two models: SmolLM2, and one that has the paper's own measurements only."""
    home = without_recorded(tmp_path_factory.mktemp("papers"))
    (home / "data/measurements" / SMOLLM2.name).symlink_to(SMOLLM2)
    names = ("paper", "paper_changes", "paper_ablations", "paper_remedies", "case", "parts")
    copied(home / "data/measurements/papers", names)
    return home


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_is_built_with_a_model_that_has_the_papers_own_measurements_only(
    chapter, papers_only, monkeypatch, tmp_path
):
    monkeypatch.setenv("TWOTOWERS_HOME", str(papers_only))
    rows = evidence_of(chapter, monkeypatch, tmp_path, model=SMOLLM2.name)
    assert {*rows[rows["model"] == "papers"]["verdict"]} <= {"not testable"}


def test_what_cannot_be_had_is_not_recorded(home, tmp_path, monkeypatch, capfd):
    """Without the published sets nothing is left that would be taken for a measurement."""
    monkeypatch.setenv("TWOTOWERS_DATA", str(tmp_path / "none"))
    (tmp_path / "none").mkdir()
    assert cli.main(["record", "mini-gpt2", "paper", "--suite", "published", "--prompts", "2"]) == 2
    assert (
        "paper is not recorded: no published set of sentences can be had" in capfd.readouterr().err
    )
    assert not list((home / "data/measurements").rglob("*.nc"))


def test_precomputed_files_have_the_current_form_and_versions():
    for model, folder in files.precomputed_models().items():
        for path in folder.rglob("*.nc"):
            data = files.open_precomputed(model, path.parent.name, path.stem)
            assert (data.attrs["model"], data.attrs["suite"]) == (model, path.parent.name)


def hostile(path: Path, model: str) -> None:
    """Put a tag into every text of a measurement that may hold any."""
    data = files.load(path)
    for name in {"query", "text", "token", "query_token"} & {*map(str, data.variables)}:
        texts = np.char.add(np.char.add(TAG, data[name].values.astype(str)), TAG)
        data = data.assign({name: data[name].copy(data=texts)})
    names = ("quantisation", "command", "date", "machine", "libraries", "licence")
    files.write(data.assign_attrs(dict.fromkeys(names, TAG), model=model), path)


@pytest.fixture(scope="module")
def hostile_home(tmp_path_factory):
    """A home with two recorded folders: SmolLM2's, and the same with tags in its texts."""
    home = without_recorded(tmp_path_factory.mktemp("home"))
    folder = home / "data/measurements/hostile"
    folder.with_name(SMOLLM2.name).symlink_to(SMOLLM2)
    shutil.copytree(SMOLLM2, folder)
    for path in folder.rglob("*.nc"):
        hostile(path, folder.name)
    for name in ("words/mitigations", "sentences/ablations"):  # which have no meaning, and say why
        path = folder / f"{name}.nc"
        why = {"not_testable": f"{TAG} [x](javascript:alert(1))"}
        files.write(xr.Dataset(attrs=files.load(path).attrs | why), path)
    return home


@pytest.mark.slow
@pytest.mark.parametrize("chapter", ["02-project", "07-mitigation", "08-sentences"])
def test_no_text_of_a_file_becomes_a_tag(chapter, hostile_home, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_HOME", str(hostile_home))
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(hostile_home / "evidence"))
    monkeypatch.setenv("IPYTHONDIR", str(hostile_home / "ipython"))
    shell = InteractiveShell.instance()
    with capture_output() as shown:
        for cell in json.loads((ROOT / f"book/{chapter}.ipynb").read_text("utf8"))["cells"]:
            if cell["cell_type"] == "code":
                shell.run_cell("".join(cell["source"])).raise_error()
                if "parameters" in cell["metadata"].get("tags", []):
                    shell.user_ns["model"] = "hostile"
    InteractiveShell.clear_instance()
    parts = [out.data.get("text/html", "") for out in shown.outputs]
    assert "&lt;x-evil&gt;" in "".join(parts)
    assert not {"x-evil", "img", "script"} & set(Page("".join(parts)).tags)
    assert not [out for out in shown.outputs if "javascript:" in out.data.get("text/markdown", "")]
