"""The shipped miniatures: they load with stock classes, read words as one token, and do what their cards say."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "data/models"
sys.path.insert(0, str(MODELS))  # the training command is a script, not a part of the package

from build_tokenizer import LABELS, read_words  # noqa: E402
from measure import SETS, mean, measure  # noqa: E402

NAMES = ("mini-gpt2", "mini-llama")
PROMPT = "love : bar like : bar eight : foo two : foo one :"
ODD = [
    "Zürich — 東京 🙂 costs 12.50!",
    'he said "don\'t"  twice\n\tand left',
    "loves dogs:cats (a b)",
    "[UNK] <s> \x00\x07",
    "",
]


@pytest.fixture(scope="module", params=NAMES)
def miniature(request):
    """Name, model and tokenizer of a shipped folder."""
    folder = str(MODELS / request.param)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    return request.param, model, AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_files(miniature):
    name, model, _ = miniature
    folder = MODELS / name
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json", ".md"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6_000_000
    weights = load_file(folder / "model.safetensors")
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in weights.values())
    config = json.loads((folder / "config.json").read_text())
    assert "auto_map" not in config
    assert model.config.num_hidden_layers >= 4
    if name == "mini-llama":
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


def test_label_positions(miniature):
    tokenizer = miniature[2]
    encoded = tokenizer(PROMPT, return_offsets_mapping=True)
    spans = [PROMPT[start:end] for start, end in encoded.offset_mapping]
    assert spans == PROMPT.split()
    assert [at for at, word in enumerate(spans) if word in ("foo", "bar")] == [2, 5, 8, 11]
    assert len(spans) == 14


@pytest.mark.parametrize("text", ODD)
def test_any_text_comes_back(miniature, text):
    tokenizer = miniature[2]
    encoded = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.decode(encoded.input_ids) == text
    assert tokenizer.eos_token_id not in encoded.input_ids, "a piece of the text is unknown"
    at = 0
    for start, end in encoded.offset_mapping:
        assert 0 <= start <= end <= len(text) and end >= at
        at = end


def test_behaviour_on_a_sample(miniature):
    _, model, tokenizer = miniature
    rows = measure(model, tokenizer, SETS, count=200, seed=0)
    for row in rows:
        assert row["original"] >= 85, row
    assert mean(rows, "imbalanced") < mean(rows, "original")
    assert mean(rows, "reordered") < mean(rows, "original")


def test_card_has_its_numbers(miniature):
    name, model, _ = miniature
    card = (MODELS / name / "README.md").read_text(encoding="utf-8")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    for title in SETS:
        found = re.findall(rf"\| {title} \| (?:foo|bar) \| (\d+\.\d) \|", card)
        assert len(found) == 2 and all(float(number) >= 90 for number in found), title
    falls = re.search(r"\| \*\*mean\*\* \|.*", card).group().split("|")
    assert float(falls[5]) >= 5 and float(falls[7]) >= 5, "both biases are at least five points"
