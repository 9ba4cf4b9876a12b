"""Where the parts of a causal language model are: one row of data per architecture, and a `Model` that reads it.

A new architecture is a new row here and a tiny model in `tests/conftest.py`, never a subclass. A row is believed only
after `models.prove` has shown, on the loaded weights, that blocks add up to the residual stream, heads to their block,
and our logits to the model's own.

Two things differ between architectures in more than names, and `Model` hides both:

- A norm between W_O (or fc2) and the residual stream (Gemma 2). With its scale frozen at the last position it is
  linear, so its weight is part of `output_weight` / `ffn_weight` and its scale part of what `capture` records.
- How a query meets a key (scaling, rotation, a norm of each key): the room `towers` rebuilds every score from the
  layer's input with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    qkv: str  # how Q, K, V are stored: "separate" (q_proj, ...), "fused" (c_attn: Q then K then V), "by head" (NeoX)
    positions: str  # "learned" (added to the embeddings) or "rotary" (turns query and key)
    rotary: str = ""  # module that gives cos and sin; "" where each attention module holds its own (GPT-J)
    rotates_neighbours: bool = False  # rotary turns (0, 1), (2, 3), ...; otherwise the first half with the second
    head_norms: tuple[str, str] = ("", "")  # norms of each head's query and key, before rotation (Qwen 3)
    gain: float = 0.0  # added to the weight of every norm: Gemma multiplies by 1 + weight
    attention_method: str = ""  # not on transformers' AttentionInterface: the method that gets query, key, value, mask
    requires: tuple[tuple[str, Any], ...] = ()  # fields of the config with their only supported value, or its field

    def refusal(self, config: Any) -> str | None:
        """What in this config the row does not describe, or None. A string names another field of the config."""
        for field, wanted in self.requires:
            found, value = getattr(config, field, None), getattr(config, wanted) if isinstance(wanted, str) else wanted
            if found != value:
                return f"{field} is {found}, only {value} is supported"
        return None


_LLAMA = Architecture(
    blocks="model.layers", attention="self_attn", attention_norm="input_layernorm",
    attention_out="self_attn.o_proj", attention_block="self_attn.o_proj",
    ffn_out="mlp.down_proj", ffn_block="mlp.down_proj",
    final_norm="model.norm", centred=False, qkv="separate", positions="rotary", rotary="model.rotary_emb",
)  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        blocks="transformer.h", attention="attn", attention_norm="ln_1",
        attention_out="attn.c_proj", attention_block="attn.c_proj",
        ffn_out="mlp.c_proj", ffn_block="mlp.c_proj",
        final_norm="transformer.ln_f", centred=True, qkv="fused", positions="learned",
    ),
    "gptj": Architecture(
        blocks="transformer.h", attention="attn", attention_norm="ln_1",
        attention_out="attn.out_proj", attention_block="attn.out_proj",
        ffn_out="mlp.fc_out", ffn_block="mlp.fc_out",
        final_norm="transformer.ln_f", centred=True, qkv="separate", positions="rotary",
        rotates_neighbours=True, attention_method="_attn",
    ),
    "gpt_neox": Architecture(
        blocks="gpt_neox.layers", attention="attention", attention_norm="input_layernorm",
        attention_out="attention.dense", attention_block="attention.dense",
        ffn_out="mlp.dense_4h_to_h", ffn_block="mlp.dense_4h_to_h",
        final_norm="gpt_neox.final_layer_norm", centred=True, qkv="by head", positions="rotary",
        rotary="gpt_neox.rotary_emb",
    ),
    "opt": Architecture(
        blocks="model.decoder.layers", attention="self_attn", attention_norm="self_attn_layer_norm",
        attention_out="self_attn.out_proj", attention_block="self_attn.out_proj", ffn_out="fc2", ffn_block="fc2",
        final_norm="model.decoder.final_layer_norm", centred=True, qkv="separate", positions="learned",
        # opt-350m normalises after each block and has no final norm; it also projects between two widths.
        requires=(("do_layer_norm_before", True), ("_remove_final_layer_norm", False),
                  ("word_embed_proj_dim", "hidden_size"), ("layer_norm_elementwise_affine", True)),
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": replace(_LLAMA, head_norms=("q_norm", "k_norm")),
    "gemma": replace(_LLAMA, gain=1.0),
    "gemma2": replace(
        _LLAMA, gain=1.0, attention_block="post_attention_layernorm", ffn_block="post_feedforward_layernorm",
        # A bias before the norm would be scaled by it, differently in every prompt; no Gemma 2 has one.
        requires=(("attention_bias", False),),
    ),
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
    softcap: float | None = None  # the model's own logits are softcap * tanh(bs / softcap) (Gemma 2); bs-values are not

    @property
    def vocabulary(self) -> int:
        return self.weight.shape[0]


def matrix_of(linear: nn.Module) -> Float[Tensor, "output input"]:
    """Weight of a linear map as (output, input); transformers' Conv1D (GPT-2) stores it the other way round."""
    return linear.weight.T if type(linear).__name__ == "Conv1D" else linear.weight


def _bias(module: nn.Module) -> Tensor | None:
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach()


def norm_eps(norm: nn.Module) -> float:
    return norm.eps if hasattr(norm, "eps") else norm.variance_epsilon


def rms(v: Float[Tensor, "*rows width"], eps: float) -> Float[Tensor, "*rows"]:
    """What RMSNorm divides by, in at least float32."""
    return (v.to(torch.promote_types(v.dtype, torch.float32)).square().mean(-1) + eps).sqrt()


@dataclass(repr=False)
class Model:
    """A loaded causal language model, its tokenizer, and its row of the table.

    Make one with `loading.load`, which also proves the row. `fingerprint` is the model id with a hash of all that
    defines it; it stands in every table made from this model. `quantisation`: "" or such as "Q4_1, dequantised".
    """

    name: str
    hf: Any
    tokenizer: Any
    architecture: Architecture
    fingerprint: str = ""
    quantisation: str = ""

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
    def bytes(self) -> int:
        """What the parameters take in memory."""
        return sum(p.numel() * p.element_size() for p in self.hf.parameters())

    @cached_property
    def blocks(self) -> list[nn.Module]:
        return list(self.hf.get_submodule(self.architecture.blocks))

    @cached_property
    def final_norm(self) -> nn.Module:
        return self.hf.get_submodule(self.architecture.final_norm)

    @cached_property
    def unembedding(self) -> Unembedding:
        head, norm = self.hf.get_output_embeddings(), self.final_norm
        here = head.weight.device  # tied to the embeddings, it may live away from the final norm (device_map)
        return Unembedding(
            head.weight.detach(), _bias(head), self.norm_gain(norm).to(here),
            None if _bias(norm) is None else _bias(norm).to(here), self.architecture.centred, norm_eps(norm),
            getattr(self.config, "final_logit_softcapping", None),
        )  # fmt: skip

    def norm_gain(self, norm: nn.Module) -> Float[Tensor, "width"]:
        """What a norm multiplies by: its weight, 1 + weight for Gemma (then in at least float32, as Gemma does it)."""
        weight, gain = norm.weight.detach(), self.architecture.gain
        return weight.to(torch.promote_types(weight.dtype, torch.float32)) + gain if gain else weight

    def part(self, layer: int, path: str) -> nn.Module:
        """The module at `path` inside block `layer`; `path` may be a field of the row, such as "attention_out"."""
        return self.blocks[layer].get_submodule(getattr(self.architecture, path, path))

    def norm_after(self, layer: int, block: str) -> nn.Module | None:
        """The norm between W_O ("attention") or fc2 ("ffn") and the residual stream; most architectures have none."""
        out, whole = (getattr(self.architecture, f"{block}_{end}") for end in ("out", "block"))
        return None if out == whole else self.part(layer, whole)

    def _written(self, layer: int, block: str) -> Float[Tensor, "input d_model"]:
        matrix, norm = matrix_of(self.part(layer, f"{block}_out")).detach().T, self.norm_after(layer, block)
        return matrix if norm is None else (matrix * self.norm_gain(norm)).to(matrix.dtype)

    def output_weight(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        """W_O^h of every head of a layer: a head's vector is `capture.mixed[..., h, :] @ output_weight(layer)[h]`.

        A view of the weights, unless a norm follows (Gemma 2): then times that norm's weight, so that the vectors are
        those added to the residual stream and still sum to the block's output.
        """
        return self._written(layer, "attention").reshape(self.n_heads, self.d_head, self.d_model)

    def output_bias(self, layer: int) -> Float[Tensor, "d_model"] | None:
        """Bias of the attention output; it belongs to the block, to no head."""
        return _bias(self.part(layer, "attention_out"))

    def ffn_weight(self, layer: int) -> Float[Tensor, "neuron d_model"]:
        """fc2: row k is the value vector of neuron k (Geva et al. 2020; v1 appendix E), times the weight of a norm
        that follows (Gemma 2)."""
        return self._written(layer, "ffn")

    def ffn_bias(self, layer: int) -> Float[Tensor, "d_model"] | None:
        """Bias of the FFN output; it belongs to the block, to no neuron."""
        return _bias(self.part(layer, "ffn_out"))

    def _projection(self, layer: int, which: int, heads: int) -> tuple[Tensor, Tensor | None]:
        attention = self.part(layer, "attention")
        if self.architecture.qkv == "fused":
            weight, bias = (x.detach().chunk(3)[which] for x in (matrix_of(attention.c_attn), attention.c_attn.bias))
        elif self.architecture.qkv == "by head":  # rows: Q, K, V of head 0, then of head 1, ...
            linear, bias = attention.query_key_value, _bias(attention.query_key_value)
            weight = linear.weight.detach().reshape(heads, 3, self.d_head, self.d_model)[:, which]
            bias = None if bias is None else bias.reshape(heads, 3, self.d_head)[:, which]
        else:
            linear = getattr(attention, ("q_proj", "k_proj", "v_proj")[which])
            weight, bias = linear.weight.detach(), _bias(linear)
        bias = None if bias is None else bias.reshape(heads, self.d_head)
        return weight.reshape(heads, self.d_head, self.d_model), bias

    def query_weight(self, layer: int) -> tuple[Float[Tensor, "head d_head d_model"], Tensor | None]:
        """W_Q^h and its bias (head, d_head), before the scaling, any head norm and any rotation: see `towers`."""
        return self._projection(layer, 0, self.n_heads)

    def key_weight(self, layer: int) -> tuple[Float[Tensor, "kv_head d_head d_model"], Tensor | None]:
        """W_K of every key head and its bias (kv_head, d_head), before any head norm and any rotation: see `towers`."""
        return self._projection(layer, 1, self.n_key_value_heads)

    def value_weight(self, layer: int) -> tuple[Float[Tensor, "kv_head d_head d_model"], Tensor | None]:
        """W_V of every value head and its bias (kv_head, d_head)."""
        return self._projection(layer, 2, self.n_key_value_heads)

    def score_scaling(self, layer: int) -> float:
        """By what query-key products are multiplied, usually `d_head ** -0.5`."""
        attention = self.part(layer, "attention")
        return attention.scaling if hasattr(attention, "scaling") else 1 / float(attention.scale_attn)

    def value_head(self, head: int) -> int:
        """The key-value head that query head `head` reads (grouped-query attention)."""
        return head // (self.n_heads // self.n_key_value_heads)
