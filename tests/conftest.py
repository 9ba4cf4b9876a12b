"""Tiny random models of every architecture in float64, and the places of the shared test material."""

from pathlib import Path

import pytest
import torch
import transformers
from twotowers import models
from twotowers.architectures import ARCHITECTURES, Model
from twotowers.capture import ATTENTION
from twotowers.prompts import Demonstration, Encoded, Prompt

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
VOCABULARY = 61

# "wide heads": more heads x d_head than d_model suggests, so W_O is not square.
TINY = {
    "gpt2": dict(n_layer=3, n_head=4, n_embd=16, n_positions=64),
    "llama": dict(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
                  intermediate_size=24, max_position_embeddings=64),
    "llama wide heads": dict(num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, hidden_size=18,
                             head_dim=8, intermediate_size=24, max_position_embeddings=64),
}  # fmt: skip


def tiny(kind: str, dtype: torch.dtype = torch.float64) -> Model:
    """A random model whose every parameter, biases and norms too, is far from its tidy initial value."""
    model_type = kind.split()[0]
    config = transformers.AutoConfig.for_model(
        model_type, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **TINY[kind]
    )
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=dtype)
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
            if "norm" in name or "ln_" in name:
                parameter.add_(torch.rand_like(parameter))
    hf = hf.eval().requires_grad_(False)
    return Model(kind, hf, None, ARCHITECTURES[model_type], f"{kind}@{models.weights_hash(hf)}")


@pytest.fixture(scope="session", params=sorted(TINY))
def any_model(request) -> Model:
    return tiny(request.param)


def random_prompts(n: int, lengths=(14, 11), seed: int = 0) -> list[Encoded]:
    """Prompts of random tokens laid out as the paper's example: labels at 2, 5, ..., the last position a colon."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for i in range(n):
        length = lengths[i % len(lengths)]
        ids = torch.randint(2, VOCABULARY, (length,), generator=generator).tolist()
        k = (length - 2) // 3
        labels = tuple("foo" if j % 2 else "bar" for j in range(k))
        prompt = Prompt(
            tuple(Demonstration(f"word{j}", label) for j, label in enumerate(labels)), f"query{i}",
            ("foo", "bar")[i % 3 == 0], ("foo", "bar"),
        )  # fmt: skip
        positions = tuple(3 * j + 2 for j in range(k))
        spans = tuple((3 * j, 3 * j + 1) for j in range(k))
        out.append(
            Encoded(prompt, tuple(ids), positions, spans, (length - 2, length - 1), length - 1, {"foo": 7, "bar": 9})
        )
    return out


def shared(path: str) -> Path:
    """A folder of the shared material, or skip."""
    folder = SHARED / path
    if not folder.exists():
        pytest.skip(f"needs ../shared/{path}, which is not here")
    return folder
