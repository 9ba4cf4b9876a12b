"""Widgets of chapters: every control changes the numbers, which are those of the file."""

import ast
import json

import ipywidgets as widgets
import numpy as np
import pytest
import xarray as xr
from conftest import ROOT, sources
from twotowers import book, explore

MODEL = "smollm2-135m"


def explorer_cell(path):
    """The cell of a chapter's explorer, as it stands there."""
    every = json.loads(path.read_text("utf8"))["cells"]
    return next((cell for cell in every if cell["id"] == "explore"), None)


CHAPTERS = {
    path.stem: cell
    for path in sorted((ROOT / "book").glob("*-*.ipynb"))
    if (cell := explorer_cell(path))
}


@pytest.fixture(scope="module")
def chapter():
    return book.open({"model": MODEL})


class Shown:
    """What cells and widgets display: `frames` of numbers, their `html` or a line."""

    def __init__(self, monkeypatch):
        self.boxes, self.frames, html_of = [], [], explore.html_table
        monkeypatch.setattr(book, "display", self.boxes.append)

        def shown(data):
            self.frames.append(explore.means_table(data))
            return html_of(data)

        monkeypatch.setattr(explore, "html_table", shown)
        monkeypatch.setattr(widgets.Output, "__init__", None)  # no chapter may make one

    @property
    def controls(self):
        model, others, _ = self.boxes[-1].children
        return {control.description: control for control in (model, *others.children)}

    @property
    def frame(self):
        return self.frames[-1]

    @property
    def html(self):
        return self.boxes[-1].children[2].value


@pytest.fixture
def shown(monkeypatch):
    return Shown(monkeypatch)


@pytest.fixture
def explorer(chapter, shown, request):
    """The explorer of a chapter, on a precomputed model."""
    exec("".join(CHAPTERS[request.param]["source"]), {"chapter": chapter})
    return shown


def test_six_chapters_have_an_explorer():
    assert [name[:2] for name in CHAPTERS] == ["01", "03", "04", "06", "11", "12"]
    # a page has one line, that of a widget
    assert all(cell["metadata"]["tags"] == ["remove-input"] for cell in CHAPTERS.values())


HANGING = ("Output", "interact", "interact_manual", "interactive", "interactive_output")
NOTEBOOKS = sorted((ROOT / "book").glob("*.ipynb"))
WITH_WIDGETS = [p for p in (ROOT / "lib").rglob("*.py") if "ipywidgets" in p.read_text("utf8")]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *WITH_WIDGETS], ids=lambda path: path.stem)
def test_nothing_displays_an_output_widget(path):
    """Plain papermill can wait for ever for a cell that does: nbclient then sends a message on the
    channel on which it waits for the cell's reply."""
    is_notebook = path.suffix == ".ipynb"
    source = "\n".join(sources(path.stem)) if is_notebook else path.read_text("utf8")
    nodes = [*ast.walk(ast.parse(source))]
    names = {getattr(node, field, None) for node in nodes for field in ("id", "attr", "name")}
    assert not names & {*HANGING}


@pytest.mark.parametrize("explorer", CHAPTERS, indirect=True)
def test_every_control_changes_what_is_shown(explorer):
    first = explorer.frame
    start = {name: control.label for name, control in explorer.controls.items()}
    assert explorer.controls["model"].value == MODEL
    for name in start:
        labels = [label for label, _ in explorer.controls[name].options if "1.5B" not in label]
        others = [label for label in labels if label != start[name]]
        if not others:  # some models have one set of heads
            continue
        explorer.controls[name].label = others[-1]
        assert not explorer.frame.equals(first), name
        explorer.controls[name].label = start[name]


@pytest.mark.parametrize("explorer", ["04-attention-weights"], indirect=True)
def test_numbers_are_those_of_the_file(explorer, chapter):
    data = chapter.measured("heads")[MODEL]
    attention = data.attention.sel(layer=18, head=6)
    explorer.controls["head"].label = "18-6"
    explorer.controls["prompts"].label = data["text"].values[0].replace("\n", " · ")
    assert explorer.frame.to_numpy()[:, 0] == pytest.approx(attention.isel(prompt=0).values)
    at = (data["class_pair"] == "animal/country").values
    for label, some in (("animal/country", at), ("all", at | True)):
        explorer.controls["prompts"].label = label
        assert f"mean over prompts: {some.sum()}" in explorer.html
        expected = attention.isel(prompt=some).mean("prompt").values
        assert explorer.frame.to_numpy()[:, 0] == pytest.approx(expected)


def test_without_a_file_nothing_is_shown_and_another_model_stands_in(chapter, shown, monkeypatch):
    monkeypatch.setattr(book.Chapter, "measured", lambda *_: {})
    chapter.explore("heads", "attention")
    assert not shown.boxes
    explore.explorer({"a": one_file()}, model="b")  # shows the first model that there is
    assert shown.frame.shape == (1, 1)


def one_file():
    """A measurement of two heads on two prompts, whose texts hold signs of HTML."""
    prompts = {
        name: ("prompt", ["<b>", "y"]) for name in ("text", "query", "class_pair", "label_pair")
    }
    values = xr.DataArray(
        np.arange(4.0).reshape(2, 1, 2), dims=("prompt", "layer", "head"), attrs={"units": "nats"}
    )
    return xr.Dataset({"effect": values}, prompts | {"layer": [0], "head": [0, 1]})
