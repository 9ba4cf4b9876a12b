"""Where the parts of a causal language model are: one row of data per architecture, and a `Model` that reads it.

A new architecture is a new row, never a subclass. A row is believed only after `models.prove` has shown, on the
loaded weights, that blocks add up to the residual stream, heads to their block, and our logits to the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class Architecture:
    """Paths of modules. Those of a block's parts are relative to the block.

    `attention_block` / `ffn_block` name the module whose output is added to the residual stream;
    `attention_out` / `ffn_out` the linear map W_O / fc2 (they differ only where a norm follows the map).
    """

    blocks: str
    attention: str
    attention_norm: str
    attention_out: str
    attention_block: str
    ffn_out: str
    ffn_block: str
    final_norm: str
    centred: bool  # LayerNorm subtracts the mean, RMSNorm does not
    qkv: str  # "separate": q_proj, k_proj, v_proj inside the attention module; "fused": one c_attn
    positions: str  # "learned" (added to the embeddings) or "rotary" (turns query and key)


_LLAMA = Architecture(
    blocks="model.layers", attention="self_attn", attention_norm="input_layernorm",
    attention_out="self_attn.o_proj", attention_block="self_attn.o_proj",
    ffn_out="mlp.down_proj", ffn_block="mlp.down_proj",
    final_norm="model.norm", centred=False, qkv="separate", positions="rotary",
)  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        blocks="transformer.h", attention="attn", attention_norm="ln_1",
        attention_out="attn.c_proj", attention_block="attn.c_proj",
        ffn_out="mlp.c_proj", ffn_block="mlp.c_proj",
        final_norm="transformer.ln_f", centred=True, qkv="fused", positions="learned",
    ),
    "llama": _LLAMA,
}  # fmt: skip


@dataclass(frozen=True)
class Unembedding:
    """The final norm and the unembedding E, apart, so that a vector can be projected with any reading of the norm."""

    weight: Float[Tensor, "vocabulary d_model"]
    bias: Float[Tensor, "vocabulary"] | None
    gamma: Float[Tensor, "d_model"]
    norm_bias: Float[Tensor, "d_model"] | None
    centred: bool
    eps: float

    @property
    def vocabulary(self) -> int:
        return self.weight.shape[0]


def _matrix(linear: nn.Module) -> Float[Tensor, "output input"]:
    """Weight of a linear map as (output, input); transformers' Conv1D (GPT-2) stores it the other way round."""
    return linear.weight.T if type(linear).__name__ == "Conv1D" else linear.weight


@dataclass(repr=False)
class Model:
    """A loaded causal language model, its tokenizer, and its row of the table.

    Make one with `models.load`, which also proves the row. `fingerprint` is the model id with a hash of the weights;
    it stands in every table made from this model.
    """

    name: str
    hf: Any
    tokenizer: Any
    architecture: Architecture
    fingerprint: str = ""

    def __repr__(self) -> str:
        return f"Model({self.fingerprint or self.name}: {self.n_layers} layers of {self.n_heads} heads)"

    @property
    def config(self) -> Any:
        return self.hf.config

    @property
    def n_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def n_heads(self) -> int:
        return self.config.num_attention_heads

    @property
    def n_key_value_heads(self) -> int:
        """Under grouped-query attention several query heads share one key and value head."""
        return getattr(self.config, "num_key_value_heads", None) or self.n_heads

    @property
    def d_model(self) -> int:
        return self.config.hidden_size

    @property
    def d_head(self) -> int:
        return getattr(self.config, "head_dim", None) or self.d_model // self.n_heads

    @property
    def context(self) -> int:
        """Longest prompt in tokens."""
        return self.config.max_position_embeddings

    @property
    def device(self) -> torch.device:
        return self.unembedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.unembedding.weight.dtype

    @cached_property
    def blocks(self) -> list[nn.Module]:
        return list(self.hf.get_submodule(self.architecture.blocks))

    @cached_property
    def final_norm(self) -> nn.Module:
        return self.hf.get_submodule(self.architecture.final_norm)

    @cached_property
    def unembedding(self) -> Unembedding:
        head, norm = self.hf.get_output_embeddings(), self.final_norm
        eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
        return Unembedding(
            head.weight.detach(), head.bias.detach() if head.bias is not None else None, norm.weight.detach(),
            norm.bias.detach() if getattr(norm, "bias", None) is not None else None,
            self.architecture.centred, eps,
        )  # fmt: skip

    def part(self, layer: int, path: str) -> nn.Module:
        """The module at `path` inside block `layer`; `path` may be a field of the row, such as "attention_out"."""
        return self.blocks[layer].get_submodule(getattr(self.architecture, path, path))

    def output_weight(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """W_O^h of every head of a layer (a view): a head's vector is `mixed[h] @ output_weight(layer)[h]`."""
        matrix = _matrix(self.part(layer, "attention_out")).detach()
        return matrix.T.reshape(self.n_heads, self.d_head, self.d_model)

    def output_bias(self, layer: int) -> Float[Tensor, "d_model"] | None:
        """Bias of the attention output; it belongs to the block, to no head."""
        bias = getattr(self.part(layer, "attention_out"), "bias", None)
        return None if bias is None else bias.detach()

    def ffn_weight(self, layer: int) -> Float[Tensor, "neuron d_model"]:
        """fc2: row k is the value vector of neuron k (Geva et al. 2020; v1 appendix E)."""
        return _matrix(self.part(layer, "ffn_out")).detach().T

    def ffn_bias(self, layer: int) -> Float[Tensor, "d_model"] | None:
        """Bias of the FFN output; it belongs to the block, to no neuron."""
        bias = getattr(self.part(layer, "ffn_out"), "bias", None)
        return None if bias is None else bias.detach()

    def _projection(self, layer: int, which: int, heads: int) -> tuple[Tensor, Tensor | None]:
        attention = self.part(layer, "attention")
        if self.architecture.qkv == "fused":
            weight = _matrix(attention.c_attn).detach().chunk(3)[which]
            bias = attention.c_attn.bias.detach().chunk(3)[which]
        else:
            linear = getattr(attention, ("q_proj", "k_proj", "v_proj")[which])
            weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        bias = None if bias is None else bias.reshape(heads, self.d_head)
        return weight.reshape(heads, self.d_head, self.d_model), bias

    def query_weight(self, layer: int) -> tuple[Float[Tensor, "head d_head d_model"], Tensor | None]:
        """W_Q^h and its bias (head, d_head), before any rotation."""
        return self._projection(layer, 0, self.n_heads)

    def key_weight(self, layer: int) -> tuple[Float[Tensor, "kv_head d_head d_model"], Tensor | None]:
        """W_K of every key head and its bias (kv_head, d_head), before any rotation."""
        return self._projection(layer, 1, self.n_key_value_heads)

    def value_head(self, head: int) -> int:
        """The key-value head that query head `head` reads (grouped-query attention)."""
        return head // (self.n_heads // self.n_key_value_heads)
