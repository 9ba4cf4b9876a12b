"""The shipped miniatures: they load with stock classes, read words as one token, and do what their cards say."""

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import shared
from miniatures.measure import mean, measure
from miniatures.sentence_card import all_held_out, right
from miniatures.sentence_text import corpus
from miniatures.tokenizer import LABELS, read_words
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from twotowers.prompts import datasets, sentences
from twotowers.prompts.datasets import WORD_SETS

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "data/models"
WORDS, SENTENCES = ("mini-gpt2", "mini-llama"), "mini-sentences"
PROMPT = "love : bar like : bar eight : foo two : foo one :"
ODD = [
    "Zürich — 東京 🙂 costs 12.50!",
    'he said "don\'t"  twice\n\tand left',
    "loves dogs:cats (a b)",
    "[UNK] <s> \x00\x07",
    "",
]


@pytest.fixture(scope="module", params=WORDS)
def miniature(request):
    """Name, model and tokenizer of a shipped folder."""
    return loaded(request.param)


@pytest.fixture(scope="module", params=[*WORDS, SENTENCES])
def any_miniature(request):
    return loaded(request.param)


def loaded(name):
    folder = str(MODELS / name)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    return name, model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_files(any_miniature):
    name, model, _ = any_miniature
    folder = MODELS / name
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json", ".md"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8_000_000
    weights = load_file(folder / "model.safetensors")
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in weights.values())
    config = json.loads((folder / "config.json").read_text())
    assert "auto_map" not in config
    assert model.config.num_hidden_layers >= 4
    if name != "mini-gpt2":
        assert model.config.num_key_value_heads < model.config.num_attention_heads
    else:
        assert weights["transformer.h.0.attn.c_attn.bias"].abs().max() > 1e-3


def test_known_words_are_one_token(miniature):
    tokenizer = miniature[2]
    assert len(LABELS) >= 16
    for word in {*LABELS, ":", *(row["word"] for row in read_words())}:
        (first,) = tokenizer(word).input_ids
        assert tokenizer("one " + word).input_ids == [*tokenizer("one").input_ids, first]
        assert tokenizer.decode([first]).strip() == word


def test_label_positions(any_miniature):
    tokenizer = any_miniature[2]
    encoded = tokenizer(PROMPT, return_offsets_mapping=True)
    spans = [PROMPT[start:end] for start, end in encoded.offset_mapping]
    assert spans == PROMPT.split()
    assert [at for at, word in enumerate(spans) if word in ("foo", "bar")] == [2, 5, 8, 11]
    assert len(spans) == 14


@pytest.mark.parametrize("text", ODD)
def test_any_text_comes_back(any_miniature, text):
    tokenizer = any_miniature[2]
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.decode(encoded.input_ids) == text
    assert tokenizer.eos_token_id not in encoded.input_ids, "a piece of the text is unknown"
    at = 0
    for start, end in encoded.offset_mapping:
        assert 0 <= start <= end <= len(text) and end >= at
        at = end


@pytest.mark.slow
def test_behaviour_on_a_sample(miniature):
    _, model, tokenizer = miniature
    rows = measure(model, tokenizer, WORD_SETS, count=200, seed=0)
    for row in rows:
        assert row["original"] >= 85, row
    assert mean(rows, "imbalanced") < mean(rows, "original")
    assert mean(rows, "reordered") < mean(rows, "original")


def test_card_has_its_numbers(miniature):
    name, model, _ = miniature
    card = (MODELS / name / "README.md").read_text(encoding="utf-8")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    for title in WORD_SETS:
        found = re.findall(rf"\| {title} \| (?:foo|bar) \| (\d+\.\d) \|", card)
        assert len(found) == 2 and all(float(number) >= 90 for number in found), title
    falls = re.search(r"\| \*\*mean\*\* \|.*", card).group().split("|")
    assert float(falls[5]) >= 5 and float(falls[7]) >= 5, "both biases are at least five points"


# --- the one that reads sentences -------------------------------------------------------------------------------------


@pytest.fixture
def sets(monkeypatch):
    """The real sentence sets, or skip."""
    monkeypatch.setenv("TWOTOWERS_DATA", str(shared("datasets")))


def test_labels_are_one_token_after_a_sentence():
    tokenizer = loaded(SENTENCES)[2]
    for word in (*LABELS, ":"):
        (first,) = tokenizer(word).input_ids
        assert tokenizer("Is it ? " + word).input_ids == [*tokenizer("Is it ?").input_ids, first]


def test_its_card_has_its_numbers():
    _, model, _ = loaded(SENTENCES)
    card = (MODELS / SENTENCES / "README.md").read_text(encoding="utf-8")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    for name, set_targets in (("sst2", 70), ("trec", 70), ("agnews", 80)):
        percent = re.search(rf"\| {name} \| \d+ \| (\d+) \[", card)
        assert int(percent[1]) >= set_targets, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sst2", "trec", "agnews"])
def test_it_learns_from_held_out_sentences_in_context(sets, name):
    _, model, tokenizer = loaded(SENTENCES)
    prompts = datasets.draw(name, 60, seed=7, table=all_held_out(name))
    found = right(model, tokenizer, prompts)
    # Guessing between the two labels gives 30 of 60; 40 or more come by chance once in 150 times.
    assert sum(found) >= 40
    swapped = [datasets.swapped_labels(prompt) for prompt in prompts]
    assert sum(right(model, tokenizer, swapped)) >= 40, "the labels come from the demonstrations, not from the weights"


@pytest.mark.slow
def test_no_sentence_of_a_query_was_in_training(sets):
    train, validation = corpus()
    trained = {sentences.words(text) for some in (*train.values(), *validation.values()) for text in some}
    for name in ("sst2", "trec", "agnews"):
        asked = sentences.rows(name).query("part == 'input'")["text"]
        assert not trained & {sentences.words(text) for text in asked}
    assert set(cls.split()[0] for cls in train) == {"sst2", "trec", "agnews"}
