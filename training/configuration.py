"""Architecture and training parameters, one configuration for each model."""

import math
from dataclasses import dataclass

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from training.tokenizer import CONTEXT


@dataclass(frozen=True)
class Configuration:
    """The shape of a GPT-2 model, its batches and its updates.

    `python -m training.train NAME` trains it.
    """

    name: str
    layers: int
    heads: int
    width: int
    batch: int = 64
    """Number of rows of a batch, approximately: drills with longer rows have fewer"""
    updates: int = 1500
    """Number of batches of episodes in the last stage"""
    validate_every: int = 50
    """Number of batches of episodes between two validations"""
    validation_prompts: int = 100
    """Number of prompts of each validation set and label"""
    save_every: int = 100
    """Number of batches between two saved states"""
    rate: float = 2e-3
    weight_decay: float = 0.01


CONFIGURATIONS = {
    one.name: one for one in [Configuration("mini-gpt2", layers=4, heads=8, width=96)]
}


def new_model(configuration: Configuration, vocabulary: int) -> GPT2LMHeadModel:
    """Return a small model of GPT-2's architecture with random weights.

    Args:
        configuration: Shape of the model.
        vocabulary: Number of tokens.
    """
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary, n_positions=CONTEXT, n_embd=configuration.width,
            n_layer=configuration.layers, n_head=configuration.heads, initializer_range=0.06,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0, pad_token_id=0,
            activation_function="gelu_pytorch_tanh",  # GPT-2's own, in one step
        )
    )  # fmt: skip
    model.set_attn_implementation("eager")  # faster on short rows
    # Learned positions begin as waves: neighbours are alike from the first step, and positions
    # beyond the longest training text (51 tokens) are not only noise.
    half = configuration.width // 2
    angles = (
        torch.arange(CONTEXT)[:, None] * 2.5 * torch.exp(-math.log(60) * torch.arange(half) / half)
    )
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(0.05 * torch.cat([angles.sin(), angles.cos()], dim=-1))
    return model
