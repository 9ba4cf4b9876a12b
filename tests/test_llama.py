"""Chapter 9 on Llamas that a user may bring: grouped and full key-value heads."""

import shutil

import pandas as pd
import pytest
import torch
from chapter_runs import evidence_of
from conftest import ROOT
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 4])
def test_a_llama_stands_in_the_papers_figures(groups, monkeypatch, tmp_path):
    folder = tmp_path / "my-llama"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2004, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=groups, max_position_embeddings=512,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copy(ROOT / "data/models/mini-gpt2/tokenizer.json", folder)
    few = {"texts": "sentences", "prompts": 3, "out": str(tmp_path / "measurements")}
    evidence_of("09-llama", monkeypatch, tmp_path, model=str(folder), **few)
    rows = pd.read_csv(tmp_path / "exhibits/9.csv").query("model == 'my-llama'")
    assert list(rows["item"]) == ["figure 22", "figure 25"] and rows["value"].between(0, 1).all()
