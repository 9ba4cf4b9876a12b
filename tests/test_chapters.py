"""Chapters on two hand-made models that learn nothing: no claim about learning may hold, no cell
may fail."""

import json
import re
import shutil

import pytest
import torch
from chapter_runs import CHAPTERS, evidence_of
from conftest import ROOT
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from twotowers import claims, evidence, files


def random_weights(folder):
    """Two layers of mini-gpt2's shape with small random weights and plain norms: it answers at
    random."""
    shutil.copytree(ROOT / "data/models/mini-gpt2", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 2}))
    rng, weights = torch.Generator().manual_seed(0), load_file(folder / "model.safetensors")
    weights = {
        name: tensor for name, tensor in weights.items() if not re.search(r"\.h\.[2-9]", name)
    }
    for name, tensor in weights.items():
        norm = ".ln_" in name and name.endswith("weight")
        tensor.copy_(
            torch.ones(tensor.shape) if norm else 0.01 * torch.randn(tensor.shape, generator=rng)
        )
    words = weights["transformer.wte.weight"]
    words.copy_(0.1 * torch.randn(words.shape, generator=rng))
    return folder, weights


def repeats(folder):
    """A planted head attends to the last label word of the prompt, and writes it; no text is ever
    read."""
    folder, weights = random_weights(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words, places = (weights[f"transformer.{n}.weight"] for n in ("wte", "wpe"))
    foo, bar = (tokenizer(f"a {label}")["input_ids"][-1] for label in ("foo", "bar"))
    # directions of the residual stream for this alone
    (label, which, place), width = (90, 91, 92), words.shape[1]
    words[:, [label, which, place]], places[:] = 0, 0
    words[[foo, bar], label] = 1
    words[foo, which], words[bar, which] = 1, -1
    places[:, place] = 0.005 * torch.arange(len(places))
    attention, bias, out = (
        weights[f"transformer.h.0.attn.{n}"]
        for n in ("c_attn.weight", "c_attn.bias", "c_proj.weight")
    )
    attention[:, [0, width, 2 * width]] = 0
    bias[0] = 230  # the query, the same everywhere
    attention[[label, place], width] = torch.tensor([2.0, 1.0])  # the key: a label, and late
    attention[which, 2 * width] = 1  # the value: which label
    out[0] = 0
    out[0, which] = 4
    return folder, weights


@pytest.fixture(scope="module")
def handmade(request, tmp_path_factory):
    """(model, folder of its measurements): measured once for all chapters."""
    home = tmp_path_factory.mktemp("handmade")
    folder, weights = request.param(home / "model")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder), str(home / "measurements")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handmade", "chapter"),
    [
        (random_weights, "01-locate"),
        (repeats, "04-attention-weights"),
        *(pytest.param(repeats, name, marks=pytest.mark.nightly) for name in CHAPTERS),
    ],
    indirect=["handmade"],
)
def test_a_model_that_learns_nothing_bears_no_claim(chapter, handmade, monkeypatch, tmp_path):
    """The chapter that says who learns is run on both models, the others, which all ask it, on the
    one that repeats."""
    model, out = handmade
    monkeypatch.setattr(files, "precomputed_models", dict)
    few = dict(label_pairs="foo/bar", evaluation_blocks=20, selection_blocks=20, prompts=4)
    few |= dict(k=2, separator="space", texts="sentences")
    rows = evidence_of(chapter, monkeypatch, tmp_path, model=model, out=out, **few)
    expected = {evidence.NOT_TESTABLE}
    if chapter.startswith("01"):
        expected |= {evidence.ABSENT, evidence.UNDECIDED, evidence.FAILS}
    assert {*rows[rows["model"].str.startswith("model--")]["verdict"]} <= expected


def without_foo(folder):
    """mini-gpt2, whose tokenizer does not know the paper's label foo."""
    shutil.copytree(ROOT / "data/models/mini-gpt2", folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text("utf8").replace('"Ġfoo"', '"Ġfoox"'), "utf8")
    return folder, load_file(folder / "model.safetensors")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("handmade", [without_foo], indirect=True)
@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_a_model_that_cannot_read_the_papers_prompts_has_second_verdicts(
    number, handmade, monkeypatch, tmp_path
):
    """Of the paper's results it has only those on counterbalanced prompts."""
    model, out = handmade
    monkeypatch.setattr(files, "precomputed_models", dict)
    few = dict(evaluation_blocks=20, selection_blocks=20, prompts=4, k=2, separator="space")
    (chapter,) = (name for name in CHAPTERS if name.startswith(f"0{number}"))
    evidence_of(chapter, monkeypatch, tmp_path, model=model, out=out, **few)
    rows = {}
    for on_blocks in (False, True):
        read = evidence.read(tmp_path, claims.paper_results(), on_blocks)
        rows[on_blocks] = read[read["model"].str.startswith("model--")]
    assert {*rows[False]["verdict"]} == {claims.NOT_TESTABLE}
    assert {*rows[True]["verdict"]} - {claims.NOT_TESTABLE}
