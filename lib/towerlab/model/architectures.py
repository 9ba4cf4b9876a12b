"""The table of architectures: paths of the parts of a causal language model, one row each.

    >>> ARCHITECTURES["gpt2"].attention_out, ARCHITECTURES["llama"].attention_out
    ('attn.c_proj', 'self_attn.o_proj')

A new architecture is a new row in this table and a tiny model in `tests/conftest.py`, never a
subclass. A row is used only after `proof.prove` has shown, on the loaded weights, that blocks add
up to the residual stream, heads to their block, and our logits to the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """Paths of the modules of an architecture, and how its attention and FFN work.

    Paths of a block's parts are relative to the block. A path is "" if there is no such module.
    `attention_out` / `ffn_out` name the linear map W_O / fc2, and `attention_norm_after` /
    `ffn_norm_after` a norm between that map and the residual stream.
    """

    layers: str
    attention: str
    attention_norm: str  # "" where attention reads the residual stream as it is (OLMo 2)
    attention_out: str
    ffn_out: str
    ffn_norm: str  # "" where the FFN reads the residual stream as it is (OLMo 2)
    # fc1; of a gated FFN the gate's map and the map that it multiplies, or one map with both
    ffn_in: tuple[str, ...]
    ffn_activation: str  # of fc1, or of the gate only
    final_norm: str
    centred: bool  # LayerNorm subtracts the mean, RMSNorm does not
    positions: str  # "learned" (added to the embeddings) or "rotary" (turns query and key)
    attention_norm_after: str = ""
    ffn_norm_after: str = ""
    # "separate" (one map each), "fused" (rows: all of Q, then K, then V), "by head" (Q, K, V of
    # head 0, ...)
    qkv: str = "separate"
    # paths in the attention module; one path if the maps are together
    qkv_maps: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    # module that gives cos and sin; "" if each attention module has its own (GPT-J)
    rotary: str = ""
    # that module has angles for each kind of layer in config.layer_types (Gemma 3)
    rotary_by_kind: bool = False
    # field of the config: whether layer l rotates; "" if all layers do (SmolLM3 leaves some out)
    rotating_layers: str = ""
    # whether rotary rotates (0, 1), (2, 3), ...; otherwise the first half with the second
    rotates_neighbours: bool = False
    # norms of query and key before rotation: of each head by itself (Qwen 3), or of all heads of a
    # layer together (OLMo 2); the width of the norm's weight decides
    head_norms: tuple[str, str] = ("", "")
    gain: float = 0.0  # added to the weight of every norm: Gemma multiplies by 1 + weight
    # attribute of the attention module that scores are multiplied by; "" for no scaling
    scaling: str = "scaling"
    divides_scores: bool = False  # scores are divided by that attribute instead (GPT-J)
    # whether the FFN reads the layer's input, without the attention output; or the config's field
    parallel: bool | str = False
    # without transformers' AttentionInterface: the method that gets query, key, value, mask
    attention_method: str = ""
    # field of the config: whether that method masks positions outside a window in layer l
    window_layers: str = ""
    # fields of the config with their only supported value, or its field
    requires: tuple[tuple[str, Any], ...] = ()

    @property
    def attention_block(self) -> str:
        """Path of the module whose output is added to the residual stream."""
        return self.attention_norm_after or self.attention_out

    @property
    def ffn_block(self) -> str:
        """Path of the module whose output is added to the residual stream."""
        return self.ffn_norm_after or self.ffn_out

    def refusal(self, config: Any) -> str | None:
        """Return the reason why the row does not describe a config, or None.

        Args:
            config: Configuration of a model. If the supported value in `requires` is a string, it
                names another field of the config.

        Returns:
            The field with its value and the supported value, or None.
        """
        for field, only in self.requires:
            value = getattr(config, field, None)
            supported = getattr(config, only) if isinstance(only, str) else only
            if value != supported:
                return f"expected {field} {supported}, got {value}"
        return None


_LLAMA = Architecture(
    layers="model.layers", attention="self_attn", attention_norm="input_layernorm",
    attention_out="self_attn.o_proj", ffn_out="mlp.down_proj", ffn_norm="post_attention_layernorm",
    ffn_in=("mlp.gate_proj", "mlp.up_proj"), ffn_activation="mlp.act_fn",
    final_norm="model.norm", centred=False, positions="rotary", rotary="model.rotary_emb",
)  # fmt: skip

_GPT2 = Architecture(
    layers="transformer.h", attention="attn", attention_norm="ln_1",
    attention_out="attn.c_proj", ffn_out="mlp.c_proj", ffn_norm="ln_2", ffn_in=("mlp.c_fc",),
    ffn_activation="mlp.act", final_norm="transformer.ln_f", centred=True, positions="learned",
    qkv="fused", qkv_maps=("c_attn",),
)  # fmt: skip

_NORM_AFTER = replace(
    _LLAMA, ffn_norm="pre_feedforward_layernorm",
    attention_norm_after="post_attention_layernorm", ffn_norm_after="post_feedforward_layernorm",
    # A bias before the norm would be scaled by it, differently in every prompt; no published model
    # has one.
    requires=(("attention_bias", False),),
)  # fmt: skip

_GEMMA2 = replace(_NORM_AFTER, gain=1.0)

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": _GPT2,
    "gpt_neo": replace(
        _GPT2, attention="attn.attention", attention_out="attn.attention.out_proj",
        qkv="separate", qkv_maps=_LLAMA.qkv_maps, scaling="",
        attention_method="_attn", window_layers="attention_layers",
    ),
    "gptj": replace(
        _GPT2, attention_out="attn.out_proj", ffn_out="mlp.fc_out", ffn_norm="ln_1",
        ffn_in=("mlp.fc_in",), parallel=True, positions="rotary", rotates_neighbours=True,
        qkv="separate", qkv_maps=_LLAMA.qkv_maps, scaling="scale_attn", divides_scores=True,
        attention_method="_attn",
    ),
    "gpt_neox": replace(
        _LLAMA, layers="gpt_neox.layers", attention="attention",
        attention_out="attention.dense", ffn_out="mlp.dense_4h_to_h",
        ffn_in=("mlp.dense_h_to_4h",), ffn_activation="mlp.act", parallel="use_parallel_residual",
        final_norm="gpt_neox.final_layer_norm", centred=True, rotary="gpt_neox.rotary_emb",
        qkv="by head", qkv_maps=("query_key_value",),
    ),
    "opt": Architecture(
        layers="model.decoder.layers", attention="self_attn", attention_norm="self_attn_layer_norm",
        attention_out="self_attn.out_proj", ffn_out="fc2",
        ffn_norm="final_layer_norm", ffn_in=("fc1",), ffn_activation="activation_fn",
        final_norm="model.decoder.final_layer_norm", centred=True, positions="learned",
        # opt-350m normalises after each block and has no final norm; it also projects between two
        # widths.
        requires=(("do_layer_norm_before", True), ("_remove_final_layer_norm", False),
                  ("word_embed_proj_dim", "hidden_size"), ("layer_norm_elementwise_affine", True)),
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "seed_oss": _LLAMA,
    "helium": replace(_LLAMA, rotates_neighbours=True),
    # The value is 1 if a layer does rotate, in spite of the name.
    "smollm3": replace(_LLAMA, rotating_layers="no_rope_layers"),
    "phi3": replace(
        _LLAMA, qkv="fused", qkv_maps=("qkv_proj",), ffn_in=("mlp.gate_up_proj",),
        ffn_activation="mlp.activation_fn",
    ),
    "phi": replace(
        _LLAMA, attention_out="self_attn.dense", ffn_out="mlp.fc2", ffn_norm="input_layernorm",
        ffn_in=("mlp.fc1",),
        ffn_activation="mlp.activation_fn", parallel=True,
        final_norm="model.final_layernorm", centred=True, requires=(("qk_layernorm", False),),
    ),
    "starcoder2": replace(
        _LLAMA, ffn_out="mlp.c_proj", ffn_in=("mlp.c_fc",),
        ffn_activation="mlp.act", centred=True,
    ),
    # The 12B of StableLM 2 has both of these.
    "stablelm": replace(
        _LLAMA, centred=True, requires=(("qk_layernorm", False), ("use_parallel_residual", False)),
    ),
    "qwen2": _LLAMA,
    "qwen3": replace(_LLAMA, head_norms=("q_norm", "k_norm")),
    "olmo2": replace(_NORM_AFTER, attention_norm="", ffn_norm="", head_norms=("q_norm", "k_norm")),
    "gemma": replace(_LLAMA, gain=1.0),
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2, head_norms=("q_norm", "k_norm"), rotary_by_kind=True,
        # Gemma 3 ignores a soft cap of scores; the other is an encoder, in which later words change
        # earlier ones.
        requires=(*_GEMMA2.requires, ("attn_logit_softcapping", None),
                  ("use_bidirectional_attention", False)),
    ),
}  # fmt: skip
