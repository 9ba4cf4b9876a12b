"""Models in the shapes of published ones, with random weights, and prompts of random tokens.

The same seed makes the same weights in every process, so nothing is written to disk. Weights are made in the dtype
they keep: a 7B model in bfloat16 never holds a float32 copy.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import transformers
from transformers.initialization import no_init_weights
from twotowers.model import attention_hooks, loading
from twotowers.model.architectures import ARCHITECTURES
from twotowers.model.model import Model, matrix_of
from twotowers.paper import costs
from twotowers.prompts.prompt import Demonstration, Encoded, Prompt

SHAPES = costs.shapes() | {
    "tiny": costs.Shape("tiny", "tiny", "gpt2", 2, 4, 4, 64, 16, 256, False, 1000, True),
}
POOL = 1 << 24  # random numbers drawn; a larger weight repeats them from another place on


def _config(shape: costs.Shape):
    return transformers.AutoConfig.for_model(
        shape.model_type, num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads, hidden_size=shape.d_model, head_dim=shape.d_head,
        intermediate_size=shape.d_ff, n_inner=shape.d_ff, vocab_size=shape.words, tie_word_embeddings=shape.tied,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def shape_of(model: Model) -> costs.Shape:
    """What a cost depends on, read off a model."""
    tied = model.hf.get_input_embeddings().weight is model.hf.get_output_embeddings().weight
    maps, _ = model.subkeys(0, [0])
    return costs.Shape(
        model.name, model.name, model.config.model_type, model.n_layers, model.n_heads, model.n_key_value_heads,
        model.d_model, model.d_head, matrix_of(model.part(0, "ffn_out")).shape[1], len(maps) == 2,
        model.unembedding.vocabulary, tied,
    )  # fmt: skip


def build(
    shape: str, dtype: str = "float32", vocabulary: int | None = None, seed: int = 0, device: str = "cpu"
) -> Model:
    """A model without tokenizer or proof. `vocabulary` replaces the shape's own number of words."""
    known = SHAPES[shape]
    config = _config(replace(known, words=vocabulary or known.words))
    row = ARCHITECTURES[config.model_type]
    with torch.device(device):
        hf = _empty(config, loading.DTYPES[dtype], attention_hooks.implementation(row))
        pool = torch.empty(POOL, dtype=loading.DTYPES[dtype])
    pool = pool.normal_(0, 0.02, generator=torch.Generator(device).manual_seed(seed)).repeat(2)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in hf.named_parameters():
        if weight.dim() == 1 and name.endswith("weight"):  # of a norm
            weight.data.fill_(1)
            continue
        for piece in weight.data.view(-1).split(POOL):
            at = int(torch.randint(POOL, (), generator=generator))
            piece.copy_(pool[at : at + len(piece)])
    return Model(shape, hf.eval().requires_grad_(False), None, row)


def stock(model: Model) -> torch.nn.Module:
    """The same weights (shared, not copied) in a model as transformers makes it by default: what a forward pass costs,
    and what other libraries may wrap and change."""
    config = type(model.config).from_dict(model.config.to_dict())
    with torch.device(model.device):
        hf = _empty(config, model.dtype, None)
    hf.load_state_dict(model.hf.state_dict(), assign=True)
    return hf.eval().requires_grad_(False)


def _empty(config, dtype: torch.dtype, attention: str | None) -> torch.nn.Module:
    with no_init_weights():
        hf = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    hf.tie_weights()
    return hf


def prompts(model: Model, n: int, tokens: int) -> list[Encoded]:
    generator = torch.Generator().manual_seed(1)
    words = model.unembedding.vocabulary
    prompt = Prompt((Demonstration("one", "foo"),), "two", "foo", ("foo", "bar"))
    out = []
    for _ in range(n):
        ids = torch.randint(words, (tokens,), generator=generator).tolist()
        out.append(Encoded(prompt, tuple(ids), (2,), ((0, 1),), (3, 4), tokens - 1, {"foo": 5 % words, "bar": 7}))
    return out
