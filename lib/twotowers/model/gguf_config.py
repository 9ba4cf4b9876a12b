"""The config of transformers that a GGUF file describes, and where each of its tensors goes.

    config(header), places(header)["blk.0.attn_q.weight"]

Every field of the file's architecture is read or known not to matter, every tensor has its place: what is left over
would make other numbers than the model's, silently, so it is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from math import prod
from typing import Any

import gguf
import numpy as np
from jaxtyping import Float
from transformers import AutoConfig, PretrainedConfig

from twotowers.errors import TwoTowersError
from twotowers.model.gguf_file import Header

# Fields that change nothing in a forward pass, or that the tensors say again.
_IDLE = {
    "vocab_size", "tensor_data_layout", "expert_used_count", "rope.scaling.finetuned", "rope.scaling.attn_factor",
    "rope.scaling.original_context_length", "pooling_type", "attention.causal",
}  # fmt: skip
# Tensors that hold no weights: rotary frequencies, which the config has.
IDLE_TENSORS = re.compile(
    r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.(rope_freqs|attn_rot_embd)\.weight"
)

_LLAMA = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "blk": "model.layers",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_NORM_AFTER = _LLAMA | {
    "ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_NAMES = {
    "gemma2": _NORM_AFTER, "gemma3": _NORM_AFTER, "olmo2": _NORM_AFTER,
    "phi3": _LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gpt2": {
        "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
        "output": "lm_head", "blk": "transformer.h", "attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
    },
    "gptneox": {
        "token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "lm_head",
        "blk": "gpt_neox.layers", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense", "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
}  # fmt: skip


def places(header: Header) -> dict[str, str]:
    """Name of each tensor of weights in the file -> its name in transformers' model."""
    names, found = _NAMES.get(header.architecture, _LLAMA), {}
    for tensor in header.tensors:
        if IDLE_TENSORS.fullmatch(tensor):
            continue
        match = re.fullmatch(r"(?:(blk)\.(\d+)\.)?(\w+)\.(weight|bias)", tensor)
        if match is None or match[3] not in names or match[3] == "blk":
            raise TwoTowersError(
                f"'{header.path}' has a tensor {tensor}, which a plain {header.architecture} model has not: its "
                "numbers would be left out, so take another model"
            )
        block = f"{names['blk']}.{match[2]}." if match[1] else ""
        found[tensor] = f"{block}{names[match[3]]}.{match[4]}"
    return found


def numbers(header: Header, tensor: str) -> Float[np.ndarray, "*shape"]:
    """A tensor of the file in float32, dequantised exactly."""
    one = header.tensors[tensor]
    data = np.memmap(header.path, np.uint8, "r", one.start, (one.bytes,))
    return gguf.dequantize(data.reshape(prod(one.shape[:-1]), -1), one.type).reshape(one.shape)


class _Fields:
    """The fields of the file's architecture; remembers which were asked for."""

    def __init__(self, header: Header):
        self.header, self.asked = header, set(_IDLE)

    def __call__(self, key: str, *default: Any) -> Any:
        self.asked.add(key)
        value = self.header.get(key)
        if value is None:
            if not default:
                raise TwoTowersError(
                    f"'{self.header.path}' does not say its {self.header.architecture}.{key}: convert the model anew "
                    "with llama.cpp"
                )
            return default[0]
        if isinstance(value, np.ndarray):
            if len(set(value.tolist())) != 1:
                raise self.refusal(f"{key} differs from layer to layer")
            value = value.tolist()[0]
        # Stored in 32 bits: 1e-5, not 9.99999974e-06.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def refusal(self, what: str) -> TwoTowersError:
        path, architecture = self.header.path, self.header.architecture
        return TwoTowersError(f"'{path}' is a {architecture} model of a kind that is not supported: {what}")

    def left(self) -> list[str]:
        prefix = f"{self.header.architecture}."
        own = (key.removeprefix(prefix) for key in self.header.fields if key.startswith(prefix))
        return sorted(set(own) - self.asked)


def config(header: Header) -> PretrainedConfig:
    """Raises TwoTowersError for a variant of the architecture that would be computed otherwise than it was made."""
    f = _Fields(header)
    vocabulary, ids = header.vocabulary, {}
    for ours, theirs in {"bos": "bos", "eos": "eos", "pad": "padding"}.items():
        token = header.fields.get(f"tokenizer.ggml.{theirs}_token_id")
        ids[f"{ours}_token_id"] = token if token is not None and token < vocabulary else None
    if f("expert_count", 0):
        raise f.refusal("it is a mixture of experts")
    own = {"gpt2": _gpt2, "gptneox": _neox}.get(header.architecture, _llama)(f)
    if left := f.left():
        raise f.refusal(f"nothing here reads its field {left[0]}")
    tied = "output.weight" not in header.tensors
    return AutoConfig.for_model(header.model_type, vocab_size=vocabulary, tie_word_embeddings=tied, **ids, **own)


def _gpt2(f: _Fields) -> dict[str, Any]:
    return {
        "n_layer": f("block_count"), "n_head": f("attention.head_count"), "n_embd": f("embedding_length"),
        "n_inner": f("feed_forward_length"), "n_positions": f("context_length"),
        "layer_norm_epsilon": f("attention.layer_norm_epsilon"),
    }  # fmt: skip


def _neox(f: _Fields) -> dict[str, Any]:
    heads, width = f("attention.head_count"), f("embedding_length")
    return {
        "num_hidden_layers": f("block_count"), "num_attention_heads": heads, "hidden_size": width,
        "intermediate_size": f("feed_forward_length"), "max_position_embeddings": f("context_length"),
        "layer_norm_eps": f("attention.layer_norm_epsilon"), "use_parallel_residual": f("use_parallel_residual", True),
        "rope_parameters": {
            "rope_type": "default", "rope_theta": f("rope.freq_base", 10_000.0),
            "partial_rotary_factor": f("rope.dimension_count") * heads / width,
        },
    }  # fmt: skip


def _llama(f: _Fields) -> dict[str, Any]:
    """All that descend from Llama, with what each has of its own."""
    heads, width, layers = f("attention.head_count"), f("embedding_length"), f("block_count")
    rotary = f("rope.dimension_count", None)
    d_head = f("attention.key_length", rotary if f.header.architecture == "llama" and rotary else width // heads)
    if f("attention.value_length", d_head) != d_head:
        raise f.refusal("its keys and values differ in width")
    rope = _rope(f, d_head, rotary or d_head)
    common = {
        "num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width, "head_dim": d_head,
        "num_key_value_heads": f("attention.head_count_kv", heads), "intermediate_size": f("feed_forward_length"),
        "max_position_embeddings": f("context_length"), "rms_norm_eps": f("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
    }  # fmt: skip
    own: dict[str, Callable[[], dict[str, Any]]] = {
        "llama": lambda: {
            "attention_bias": "blk.0.attn_q.bias" in f.header.tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in f.header.tensors,
        },
        "mistral": lambda: {"sliding_window": f("attention.sliding_window")},
        "gemma2": lambda: {
            "sliding_window": f("attention.sliding_window", 4096), "query_pre_attn_scalar": d_head,
            "attn_logit_softcapping": f("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": f("final_logit_softcapping", 30.0),
        },
        "gemma3_text": lambda: {
            "sliding_window": f("attention.sliding_window"), "query_pre_attn_scalar": d_head,
            "final_logit_softcapping": f("final_logit_softcapping", None),
            "sliding_window_pattern": f("attention.sliding_window_pattern", 6),
            "rope_parameters": {
                "full_attention": rope | {"rope_theta": f("rope.freq_base", 1_000_000.0)},
                "sliding_attention": {"rope_type": "default", "rope_theta": f("rope.freq_base_swa", 10_000.0)},
            },
        },
        "phi3": lambda: {
            "sliding_window": f("attention.sliding_window", None) or None,
            "original_max_position_embeddings": f(
                "rope.scaling.original_context_length", common["max_position_embeddings"]
            ),
        },
    }  # fmt: skip
    kind = f.header.model_type
    found = common | own.get(kind, dict)()
    # The largest Gemmas scale scores by the width of the model over the heads; no field says so (llama.cpp: "27B").
    if (kind, layers) in {("gemma2", 46), ("gemma3_text", 62)}:
        found["query_pre_attn_scalar"] = width // heads
    return found


def _rope(f: _Fields, d_head: int, rotary: int) -> dict[str, Any]:
    theta = f("rope.freq_base", 10_000.0)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    kind, factor = f("rope.scaling.type", "none"), f("rope.scaling.factor", 0.0) or f("rope.scale_linear", 0.0)
    tensors = f.header.tensors
    if rotary != d_head:
        if f.header.architecture != "phi3":
            raise f.refusal(f"it rotates {rotary} of {d_head} dimensions")
        rope["partial_rotary_factor"] = rotary / d_head
    if "rope_factors_long.weight" in tensors and f.header.architecture == "phi3":
        factors = {kind: numbers(f.header, f"rope_factors_{kind}.weight").tolist() for kind in ("long", "short")}
        return rope | {"rope_type": "longrope"} | {f"{kind}_factor": values for kind, values in factors.items()}
    if kind not in ("none", "linear") or "rope_factors_long.weight" in tensors:
        raise f.refusal(f"its positions are scaled ({kind})")
    if factor not in (0.0, 1.0):
        rope |= {"rope_type": "linear", "factor": factor}
    if "rope_freqs.weight" in tensors:
        rope |= _llama3(f, numbers(f.header, "rope_freqs.weight").reshape(-1), theta, d_head)
    return rope


def _llama3(f: _Fields, divisors: np.ndarray, theta: float, d_head: int) -> dict[str, Any]:
    """Llama 3's scaling, of which a GGUF holds only what each frequency is divided by. Low and high factor are 1 and 4,
    as in every release; the others follow, and must give the same divisors again."""
    waves = 2 * math.pi * theta ** (np.arange(0, d_head, 2) / d_head)
    factor = float(divisors.max())
    if factor == 1.0:
        return {}
    between = (divisors > 1.0001) & (divisors < factor * 0.9999)
    share = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    original = round(float(np.median(((3 * share + 1) * waves)[between]))) if between.any() else 8192
    smooth = np.clip((original / waves - 1) / 3, 0, 1)
    if not np.allclose(1 / ((1 - smooth) / factor + smooth), divisors, rtol=1e-3):
        raise f.refusal("its rotary frequencies are scaled in a way of its own")
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }  # fmt: skip
