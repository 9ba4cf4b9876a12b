"""The two small models of words before any training."""

import math

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from miniatures.tokenizer import CONTEXT

WIDTH, LAYERS, HEADS = 96, 4, 8


def new_model(name: str, vocabulary: int) -> PreTrainedModel:
    """A small model of the paper's two kinds, with random weights."""
    shared = {
        "vocab_size": vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    if name == "mini-llama":
        return LlamaForCausalLM(
            LlamaConfig(
                hidden_size=WIDTH,
                intermediate_size=8 * WIDTH // 3,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                num_key_value_heads=HEADS // 2,
                max_position_embeddings=CONTEXT,
                **shared,
            )
        )
    model = GPT2LMHeadModel(
        GPT2Config(
            n_positions=CONTEXT,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=0.06,
            **shared,
        )
    )
    # Learned positions start as waves: neighbours are alike from the first step, and positions beyond the
    # longest training text (51 tokens) are not mere noise.
    half = WIDTH // 2
    angles = torch.arange(CONTEXT)[:, None] * 2.5 * torch.exp(-math.log(60) * torch.arange(half) / half)
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(0.05 * torch.cat([angles.sin(), angles.cos()], dim=-1))
    return model
