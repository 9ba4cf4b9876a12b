"""Every chapter: golden tables with 20 prompts, cells in any order, and models whose answers are of every kind."""

import os
import random
import re
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, SHARED
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from safetensors.torch import load_file, save_file
from twotowers.chapters.notebooks import declared
from twotowers.errors import TwoTowersError
from twotowers.parameters import Parameters
from twotowers.stats import tables
from twotowers.studies import forms, located
from twotowers.studies.context import SINCE
from twotowers.studies.run import Run

CHAPTERS = sorted(p.stem for p in (ROOT / "book").glob("[0-9]*.ipynb"))
ON_SENTENCES = ("08-llama", "09-sentence-case")
TRAINING = "13-training"  # about one model, from recorded tables
GOLDEN = ROOT / "tests" / "golden"
FEW = {"n_prompts": 20, "n_locate": 40, "recorded": "never"}


def cells(chapter):
    found = nbformat.read(ROOT / f"book/{chapter}.ipynb", 4).cells
    return [c for c in found if c.cell_type == "code"]


class Page:
    """A chapter run in this process, cell by cell, as Jupyter would: what it said stands in `said`.

    Of FEW it takes what it declares.
    """

    def __init__(self, chapter, **parameters):
        parameters = {k: v for k, v in parameters.items() if k not in FEW or k in declared(chapter)}
        self.cells = [c.source for c in cells(chapter)]
        self.cells.insert(1, "# Parameters\n" + "\n".join(f"{k} = {v!r}" for k, v in parameters.items()))
        InteractiveShell.clear_instance()
        self.shell, self.said, self.tables = InteractiveShell.instance(), [], []

    def run(self, *numbers):
        for source in [self.cells[i] for i in numbers] if numbers else self.cells:
            with capture_output() as out:
                done = self.shell.run_cell(source, store_history=True)
            done.raise_error()
            self.said += [o.data["text/markdown"] for o in out.outputs if "text/markdown" in o.data]
            self.tables += [o.data["text/html"] for o in out.outputs if "<td" in o.data.get("text/html", "")]
        return self

    @property
    def text(self):
        return "\n".join(self.said)

    @property
    def chapter(self):
        return self.shell.user_ns["chapter"]


@pytest.fixture(autouse=True)
def place(monkeypatch):
    monkeypatch.chdir(ROOT)
    if (SHARED / "datasets").is_dir():
        monkeypatch.setenv("TWOTOWERS_DATA", str(SHARED / "datasets"))


def says_nan(text):
    return re.search(r"\bnan(?![a-z])|\binf\b", text, re.IGNORECASE)


def empty_cells(html):
    """Cells that hold what pandas writes for no number; a word of a vocabulary may be "nan" or "inf"."""
    return re.findall(r"<t[dh][^>]*>\s*(?:NaN|NaT|&lt;NA&gt;|-?inf)\s*</t", html)


def test_the_guard_sees_every_nan():
    for text in ("it is nan%", "nan, 3", "[nan, nan]", "NaN", "inf nats"):
        assert says_nan(text)
    assert not says_nan("a banana, in fact, inference by nanometre")
    assert empty_cells(pd.DataFrame({"a": [1.0, None]}).to_html()) and not empty_cells("<td>nan</td><td>0.5</td>")


@pytest.fixture(scope="session")
def common(tmp_path_factory):
    """The folder of the two tables that most chapters read: as in a run of the book, they are made once."""
    folder = tmp_path_factory.mktemp("common")
    run = Run(Parameters.of(declared("03-mrr") | FEW | {"out": str(folder)}))
    for study in (forms.forms, located.heads):
        run.table(study)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_makes_its_golden_tables(chapter, common, tmp_path, monkeypatch):
    """To write them again after a change of numbers: TWOTOWERS_GOLDEN=write, and raise the study's version."""
    if chapter in ON_SENTENCES and not (SHARED / "datasets").is_dir():
        pytest.skip("the sentence sets are not here")
    few = FEW | {"n_locate": 20} if chapter in ON_SENTENCES else FEW  # long prompts, of six sets
    if chapter != CHAPTERS[0]:
        shutil.copytree(common, tmp_path, dirs_exist_ok=True)
        monkeypatch.setenv(SINCE, "0")  # what lies there was made by this command
    page = Page(chapter, **few, out=str(tmp_path)).run()
    assert not says_nan(page.text) and not any(map(empty_cells, page.tables))
    made = {path.stem: path for path in tmp_path.glob(f"{chapter}-*.csv")}
    assert made
    for name, path in made.items():
        told = tables.provenance_of(path)
        assert told["identity"]["study"].startswith(chapter) and told["about"]["fingerprint"], name
    folder = GOLDEN / chapter
    if os.environ.get("TWOTOWERS_GOLDEN") == "write":
        shutil.rmtree(folder, ignore_errors=True)
        small = sorted((p for p in made.values() if p.stat().st_size < 40_000), key=lambda p: p.stat().st_size)[:6]
        for path in small:
            if not tables.provenance_of(path)["unavailable"]:
                version = tables.provenance_of(path)["identity"]["version"]
                folder.mkdir(parents=True, exist_ok=True)
                tables.load(tmp_path, path.stem).to_csv(folder / f"{path.stem}@{version}.csv", index=False)
    golden = sorted(folder.glob("*.csv"))
    assert golden, "no golden tables: write them with TWOTOWERS_GOLDEN=write"
    for path in golden:
        name, version = path.stem.split("@")
        found = tables.load(tmp_path, name)
        told = found.attrs["provenance"]["identity"]
        assert told["version"] == int(version), f"{name}: version {told['version']} needs golden tables of its own"
        wanted = pd.read_csv(path, keep_default_na=False, na_values=[""])
        assert list(found.columns) == list(wanted.columns) and len(found) == len(wanted), name
        for column in wanted:
            if wanted[column].dtype.kind == "f":
                np.testing.assert_allclose(
                    found[column], wanted[column], rtol=1e-3, atol=1e-3, err_msg=f"{name} {column}"
                )
            else:
                assert found[column].astype(str).tolist() == wanted[column].astype(str).tolist(), f"{name} {column}"


@pytest.mark.slow
def test_cells_run_again_in_any_order_and_a_changed_parameter_gives_what_a_fresh_run_gives(tmp_path):
    few = FEW | {"n_prompts": 8, "n_locate": 12, "datasets": ["animal/country"]}
    page = Page("03-mrr", **few, out=str(tmp_path / "a")).run()
    order = [i for i in range(len(page.cells)) if i > 2]
    random.Random(0).shuffle(order)
    page.run(2, *order)  # the set-up cell again, after all others
    page.shell.run_cell("n_prompts = 10; out = " + repr(str(tmp_path / "b")))
    page.run(2, *order)
    fresh = Page("03-mrr", **few | {"n_prompts": 10}, out=str(tmp_path / "c")).run()
    assert fresh.chapter.parameters.n_prompts == 10
    names = sorted(path.stem for path in (tmp_path / "c").glob("03-mrr-*.csv"))
    assert names == sorted(path.stem for path in (tmp_path / "b").glob("03-mrr-*.csv"))
    for name in names:
        pd.testing.assert_frame_equal(tables.load(tmp_path / "b", name), tables.load(tmp_path / "c", name))


def test_an_unknown_parameter_is_refused_in_one_line(tmp_path):
    page = Page("03-mrr", n_promts=20, out=str(tmp_path))
    with pytest.raises(TwoTowersError, match="unknown parameter 'n_promts': did you mean 'n_prompts'"):
        page.run(0, 1, 2)
    assert not list(tmp_path.glob("*.csv"))


def test_every_declared_parameter_is_one_of_the_list():
    for path in (ROOT / "book").glob("*.ipynb"):
        Parameters.of(declared(path.stem))


def biased(folder: Path, word: str) -> str:
    """mini-gpt2 whose final norm's bias makes one word win, whatever the prompt."""
    from transformers import AutoTokenizer

    shutil.copytree(ROOT / "data/models/mini-gpt2", folder)
    weights = load_file(folder / "model.safetensors")
    at = AutoTokenizer.from_pretrained(folder)(f"a {word}", add_special_tokens=False)["input_ids"][-1]
    row = weights["transformer.wte.weight"][at] - weights["transformer.wte.weight"].mean(0)  # what sets it apart
    weights["transformer.ln_f.bias"] += 80 * row / row.square().sum()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def shaken(folder: Path) -> str:
    """mini-gpt2 with random attention: it answers at random."""
    shutil.copytree(ROOT / "data/models/mini-gpt2", folder)
    weights, rng = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if "attn" in name and tensor.dim() == 2:
            tensor.copy_(torch.randn(tensor.shape, generator=rng) * tensor.std())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def reading_the_last_label(folder: Path, sign: int) -> str:
    """mini-gpt2's shape, small random weights, and one planted head that attends to the last label word in the prompt.

    It writes that label (sign 1), or the other one (sign -1), which continues an alternation; no text is ever read.
    """
    from transformers import AutoTokenizer

    shutil.copytree(ROOT / "data/models/mini-gpt2", folder)
    tokenizer, rng = AutoTokenizer.from_pretrained(folder), torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        norm = ".ln_" in name and name.endswith("weight")
        tensor.copy_(torch.ones(tensor.shape) if norm else 0.01 * torch.randn(tensor.shape, generator=rng))
    words, places = weights["transformer.wte.weight"], weights["transformer.wpe.weight"]
    words.copy_(0.1 * torch.randn(words.shape, generator=rng))
    foo, bar = (tokenizer(f"a {label}")["input_ids"][-1] for label in ("foo", "bar"))
    label, which, place, width = 90, 91, 92, words.shape[1]  # directions of their own
    words[:, [label, which, place]], places[:] = 0, 0
    words[[foo, bar], label] = 1
    words[foo, which], words[bar, which] = 1, -1
    places[:, place] = 0.005 * torch.arange(len(places))
    block = {
        name: weights[f"transformer.h.0.attn.{name}"] for name in ("c_attn.weight", "c_attn.bias", "c_proj.weight")
    }
    block["c_attn.weight"][:, [0, width, 2 * width]] = 0
    block["c_attn.bias"][0] = 230  # the query's first direction, the same everywhere
    block["c_attn.weight"][[label, place], width] = torch.tensor([2.0, 1.0])  # the key: a label, and as late as can be
    block["c_attn.weight"][which, 2 * width] = 1  # the value: which label
    block["c_proj.weight"][0] = 0
    block["c_proj.weight"][0, which] = 4 * sign
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


ANSWERING = {
    "always foo": lambda folder: biased(folder, "foo"),
    "never a label": lambda folder: biased(folder, "teapot"),
    "repeats": lambda folder: reading_the_last_label(folder, 1),
    "alternates": lambda folder: reading_the_last_label(folder, -1),
    "at random": shaken,
    "stories260K": lambda folder: str(SHARED / "models/stories260K"),  # trained on children's stories, not on labels
}
# Accuracy in the paper's order, where the last label is the true one, and counterbalanced; share of answers that are labels.
ANSWERS = {
    "always foo": (None, 0.5, 1.0), "never a label": (0.0, 0.0, 0.0), "repeats": (1.0, 0.5, 1.0), "alternates": (0.0, 0.5, 1.0)
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERS)
def test_the_models_answer_as_their_names_say(kind, tmp_path):
    given = {"model": ANSWERING[kind](tmp_path / "model"), "n_locate": 12, "out": str(tmp_path), "recorded": "never"}
    found = (
        Run(Parameters.of(given)).table(forms.forms).groupby("order")[["accuracy", "names_label"]].agg(["min", "max"])
    )
    paper, balanced, names = ANSWERS[kind]
    for order, wanted in (("paper's order", paper), ("counterbalanced", balanced)):
        assert wanted is None or found.loc[order, "accuracy"].tolist() == [wanted, wanted]
        assert found.loc[order, "names_label"].tolist() == [names, names]


def test_the_chapter_about_training_says_once_that_another_model_s_was_not_recorded(tmp_path):
    shutil.copytree(ROOT / "data/models/mini-gpt2", tmp_path / "model")
    said = Page(TRAINING, model=str(tmp_path / "model"), out=str(tmp_path / "out")).run().text
    assert said.count("/model was not recorded: this chapter is about mini-gpt2") == 1
    exhibits = said.count("This exhibit (")
    assert exhibits > 5 and said.count("for the same reason as `13-training-onsets`") == exhibits - 1
    boxes = said.count("admonition-title")
    assert boxes == said.count(">Not testable here<") > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERING)
def test_chapters_hold_for_any_outcome(kind, tmp_path):
    """No failure, no "nan", and no claim about learning that holds on a model that does not learn."""
    model = ANSWERING[kind](tmp_path / "model")
    if not Path(model).is_dir():
        pytest.skip(f"{kind} is not here")
    few = {"n_prompts": 8, "n_locate": 12, "recorded": "use", "model": model, "out": str(tmp_path / "out")}
    few["datasets"] = ["animal/country", "sentiment/number"]
    for chapter in CHAPTERS:
        if chapter not in (*ON_SENTENCES, TRAINING):
            page = Page(chapter, **few).run()
            assert not says_nan(page.text) and not any(map(empty_cells, page.tables)), chapter
            assert "**This model is not shown to learn the task**" in page.text, chapter
            held = re.findall(r"<strong>Holds</strong></p>\n\n(.*)", page.text)
            assert all("after the other heads of their layer" in one for one in held), held  # arithmetic, not learning
