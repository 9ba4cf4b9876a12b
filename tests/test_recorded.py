"""A stranger's recorded file is data: what is odd is named and left out, and no text of it becomes
a tag of a page."""

import html
import json
import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
from conftest import ROOT
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from tags import Page
from towerlab import cli
from towerlab.prompts import sentences
from twotowers import book, pages, recorded, store
from twotowers.recording import Recording, each_part

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


@pytest.fixture
def someone(home):
    """A recorded folder of a few measurements."""
    return copied(home / "data/measurements/someone", ("forms", "locating", "singles", "towers"))


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


def identity(folder: Path, **settings) -> str:
    """The identity of its singles, with some settings changed."""
    with netCDF4.Dataset(folder / "words/singles.nc") as data:
        return json.dumps(json.loads(data.identity) | settings)


def edited(edit):
    """A change of its singles, as an open file."""

    def spoil(folder: Path) -> None:
        with netCDF4.Dataset(folder / "words/singles.nc", "a") as data:
            edit(data)

    return spoil


def huge(folder: Path) -> None:
    """A small file that unpacks to 24 GB."""
    with netCDF4.Dataset(folder / "words/singles.nc", "w") as data:
        data.createDimension("prompt", 3_000_000_000)
        data.createVariable("increase", "f8", ("prompt",), zlib=True, chunksizes=(30_000_000,))
    assert (folder / "words/singles.nc").stat().st_size < 1e6


def tag_in_a_name(folder: Path) -> None:
    data = store.load(folder / "words/singles.nc").data
    data = data.assign_coords(
        pair=data["pair"].copy(data=np.full(data.sizes["prompt"], f"a/b{TAG}"))
    )
    store.save(Recording(data), folder / "words/singles.nc", {})


def head_beyond(folder: Path) -> None:
    with netCDF4.Dataset(folder / "words/towers.nc", "a") as data:
        data["layer"][0] = 99


def head_misnamed(folder: Path) -> None:
    with netCDF4.Dataset(folder / "words/towers.nc", "a") as data:
        data["head"][0] = (data["head"][0] + 1) % 9


ODD = [
    (lambda f: change(f, "singles", parameters=None), "its attribute parameters "),
    (lambda f: change(f, "singles", layers="many"), "its attribute layers 'many'"),
    (lambda f: change(f, "singles", identity="[1]"), "its attribute identity "),
    (lambda f: change(f, "singles", identity="{"), "its attribute identity "),
    (
        lambda f: change(f, "singles", identity=identity(f, locate="a lot")),
        "locate 'a lot': Input should be a valid integer",
    ),
    (
        lambda f: change(f, "singles", identity=identity(f, seed=1)),
        "its seed is 1, that of others 0",
    ),
    (
        lambda f: change(f, "singles", identity=identity(f, model="other@1")),
        "its model is other@1, and would be",
    ),
    (
        lambda f: change(f, "singles", identity=identity(f, texts="0")),
        "its texts is 0, and would be",
    ),
    (
        lambda f: change(f, "singles", identity=identity(f, versions={"forms": 0})),
        "its versions is {'forms': 0}, and would",
    ),
    (
        lambda f: change(f, "singles", fingerprint="x", identity=identity(f, model="x")),
        "its model is x, that of others",
    ),
    (lambda f: change(f, "singles", model="smollm2-135m"), "and lies where 'someone' belongs"),
    (lambda f: change(f, "singles", measurement="norms"), "has another form"),
    (lambda f: change(f, "singles", layers=31), "'layer' does not count from 0 to 30"),
    (lambda f: (f / "words/singles.nc").write_bytes(b"CDF"), "is damaged (OSError)"),
    (edited(lambda data: data.renameVariable("pair", "pears")), "it lacks pair"),
    (tag_in_a_name, "its 'pair' holds a sign of HTML"),
    (huge, "it would take 22 GiB"),
    (head_beyond, "its 'layer' does not count from 0 to 29"),
    (head_misnamed, "its 'listed_head' are not the names of its heads"),
]


@pytest.mark.parametrize("spoil, fault", ODD, ids=[fault for _, fault in ODD])
def test_an_odd_file_is_named_and_left_out(spoil, fault, someone, notes):
    spoil(someone)
    copied(someone.parent / "sound", ("forms", "locating", "singles", "towers"))
    chapter = book.open({"model": "sound"})
    found = {name: chapter.measured(name) for name in ("locating", "singles", "towers", "forms")}
    assert any(fault in html.unescape(note) for note in notes) and all(
        note.count("Left out: ") == 1 for note in notes
    )
    assert all("sound" in of for of in found.values()) and "someone" in found["forms"]
    assert not all("someone" in of for of in found.values())


def test_the_name_of_a_folder_is_no_tag(home, notes):
    copied(home / f"data/measurements/{TAG}", ("forms",))
    copied(home / "data/measurements/sound", ("forms", "locating"))
    chapter = book.open({"model": "sound"})
    assert "sound" in chapter.measured("forms")
    chapter.measured("locating")
    pages.note(recorded.command(TAG, "words", chapter.not_recorded[TAG]["words"]))
    assert Page("".join(notes)).tags == ["p"] * len(notes)


def test_what_cannot_be_had_is_not_recorded(home, tmp_path, monkeypatch, capfd):
    """Without the published sets nothing is left that would be taken for a measurement."""
    monkeypatch.setenv("TWOTOWERS_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(sentences, "SERVER", "http://127.0.0.1:9")
    sentences.set_texts.cache_clear()
    assert cli.main(["record", "mini-gpt2", "paper", "--suite", "published", "--prompts", "2"]) == 2
    assert (
        "paper is not recorded: no published set of sentences can be had" in capfd.readouterr().err
    )
    assert not list((home / "data/measurements").rglob("*.nc"))


def test_recorded_files_are_sound():
    for model, folder in recorded.recorded_models().items():
        shared = {}
        for path in folder.rglob("*.nc"):
            own = recorded.settings_of(recorded.open_recorded(model, path.parent.name, path.stem))
            first = shared.setdefault(path.parent.name, own)
            assert all(first.setdefault(name, value) == value for name, value in own.items())


def hostile(path: Path, model: str) -> None:
    """Puts a tag into every text of a measurement that may hold any."""
    recording = store.load(path)

    def spoil(part: xr.Dataset) -> xr.Dataset:
        for name in {"query", "text", "token", "query_token"} & {*map(str, part.variables)}:
            texts = np.char.add(np.char.add(TAG, part[name].values.astype(str)), TAG)
            part = part.assign({name: part[name].copy(data=texts)})
        return part

    texts = {
        name: TAG for name in ("quantisation", "command", "date", "machine", "libraries", "licence")
    }
    store.save(each_part(recording, spoil), path, texts | {"model": model})


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
        attributes = store.load(path).data.attrs | {
            "not_testable": f"{TAG} [x](javascript:alert(1))"
        }
        store.save(Recording(xr.Dataset(attrs=attributes)), path, {})
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
