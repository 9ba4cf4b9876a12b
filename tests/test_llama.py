"""Chapter 9 on Llamas that a user may bring: grouped and full key-value heads, tokenizers of both kinds of file."""

import io

import pandas as pd
import pytest
import sentencepiece
import torch
from chapter_runs import evidence_of
from tokenizers.implementations import ByteLevelBPETokenizer
from towerlab.prompts import sentences
from transformers import LlamaConfig, LlamaForCausalLM

TEXTS = [f"{text} : foo {text} : bar" for of in sentences.class_texts("sentences").values() for text in of]


def byte_level(folder):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXTS, vocab_size=600, special_tokens=["<s>"], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))


def sentence_piece(folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=500, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=9,
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(model.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "tokenizer"), [(1, byte_level), (2, sentence_piece), (4, byte_level)])
def test_a_llama_stands_in_the_papers_figures(groups, tokenizer, monkeypatch, tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=600, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=groups, max_position_embeddings=512, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(folder)
    few = {"texts": "sentences", "prompts": 3, "out": str(tmp_path / "measurements")}
    evidence_of("09-llama", monkeypatch, tmp_path, model=str(folder), **few)
    rows = pd.read_csv(tmp_path / "exhibits/9.csv").query("model == 'my-llama'")
    assert list(rows["item"]) == ["figure 22", "figure 25"] and rows["value"].between(0, 1).all()
