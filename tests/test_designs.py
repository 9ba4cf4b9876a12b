"""Random small designs that settings accept, spread over the chapters: none ends in an error,
whatever is left to show."""

import random

import pytest
import torch
import transformers
from chapter_runs import CHAPTERS, evidence_of
from conftest import ROOT
from twotowers import claims, evidence, files

SIZES = {"one head": (1, 1, 1), "one layer": (1, 2, 2), "shared keys": (2, 4, 1)}
"""Name -> layers, heads, key-value heads"""


def model_of(size, folder):
    """A random model with an included model's tokenizer."""
    layers, heads, shared = SIZES[size]
    config = transformers.LlamaConfig(
        vocab_size=2004, hidden_size=4 * heads, intermediate_size=8, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=shared, max_position_embeddings=256,
        bos_token_id=0, eos_token_id=0, rms_norm_eps=1e-5, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(ROOT / "data/models/mini-gpt2").save_pretrained(
        folder
    )
    return str(folder)


def design(rng):
    """Settings at random, of the smallest sizes above all."""
    return {
        "evaluation_blocks": rng.choice((1, 1, 2, 3)),
        "selection_blocks": rng.choice((1, 2, 5)),
        "k": rng.choice((1, 1, 2)), "prompts": rng.choice((1, 2)),
        "separator": rng.choice(("space", "line break")), "top_k": rng.choice((1, 2, 5, 32)),
        "seed": rng.randrange(5),
        "label_pairs": rng.choice(("foo/bar", "bar/foo,baz/qux")), "texts": "sentences",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("size", "seed"), [("shared keys", 2), ("one head", 0), ("one layer", 1)])
def test_a_chapter_runs_on_any_design_that_settings_accept(size, seed, monkeypatch, tmp_path):
    """A random design a model, all chapters each, which share measurements; no precomputed model
    hides what is missing."""
    model, chosen = model_of(size, tmp_path / "null"), design(random.Random(seed))
    monkeypatch.setattr(files, "precomputed_models", dict)
    for chapter in (name for name in CHAPTERS if name[0].isdigit()):
        rows = evidence_of(
            chapter,
            monkeypatch,
            tmp_path / chapter,
            model=model,
            out=str(tmp_path / "out"),
            **chosen,
        )
        assert rows["verdict"].notna().all(), (chapter, chosen)
        assert rows["model"].str.startswith("null--").all(), chapter
    rows = evidence.read(tmp_path / "09-llama", claims.paper_results())
    assert [*rows["claim"]] == ["figure 22", "figure 25"]
    assert rows["model"].str.startswith("null--").all()
