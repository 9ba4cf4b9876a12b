"""Writes a transformers model as the GGUF file that llama.cpp's convert_hf_to_gguf.py makes of it, for tests.

Names come from the `gguf` package's own table, numbers are changed as that script changes them.
"""

import gguf
import numpy as np

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3", "gpt_neox": "gptneox"}
PLAIN = {type.name: type for type in gguf.GGMLQuantizationType}


def write(hf, path, *, type="F32", tokens=None, without=(), extra=None):
    """`type` is of matrices; norms and biases stay F32. `without`: tensors left out; `extra(writer)`: more fields."""
    config, kind = hf.config, hf.config.model_type
    architecture = ARCHITECTURES.get(kind, kind)
    writer = gguf.GGUFWriter(path, architecture)
    fields(writer, config, kind)
    vocabulary = config.vocab_size
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens or [chr(33 + i) for i in range(vocabulary)])
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges([])
    if extra:
        extra(writer)
    model_arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(model_arch, config.num_hidden_layers)
    for name, tensor in hf.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, end = name.rsplit(".", 1)
        short = names.get_name(stem) or names.get_name(stem.removeprefix("transformer."))
        if f"{short}.{end}" in without:
            continue
        numbers = changed(tensor.float().numpy(), f"{short}.{end}", config, kind)
        kept = PLAIN[type] if numbers.ndim > 1 else PLAIN["F32"]
        writer.add_tensor(f"{short}.{end}", gguf.quantize(np.ascontiguousarray(numbers), kept), raw_dtype=kept)
    if (rope := getattr(config, "rope_parameters", None) or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, config.head_dim))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fields(writer, config, kind):
    heads, width = config.num_attention_heads, config.hidden_size
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(width)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_feed_forward_length(config.n_inner or 4 * width if kind == "gpt2" else config.intermediate_size)
    if kind in ("gpt2", "gpt_neox"):
        writer.add_layer_norm_eps(config.layer_norm_epsilon if kind == "gpt2" else config.layer_norm_eps)
    if kind == "gpt_neox":
        rope = config.rope_parameters
        writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * width / heads))
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind in ("gpt2", "gpt_neox"):
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    d_head = getattr(config, "head_dim", None) or width // heads
    writer.add_key_length(d_head)
    writer.add_value_length(d_head)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if kind in ("llama", "mistral", "smollm3"):
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(d_head)
    if kind == "phi3":
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1) * d_head))
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        if rope["rope_type"] == "longrope":
            writer.add_rope_scaling_attn_factors(1.19)
            for length in ("long", "short"):
                writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("mistral", "gemma2", "gemma3_text", "phi3") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def changed(numbers, name, config, kind):
    """What the converter does to the numbers of a tensor."""
    if kind in ("llama", "mistral", "smollm3") and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        size = numbers.shape[0] // heads // 2
        return numbers.reshape(heads, 2, size, *numbers.shape[1:]).swapaxes(1, 2).reshape(numbers.shape)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return numbers + np.float32(1)
    if kind == "gpt2" and any(part in name for part in ("attn_qkv.w", "attn_output.w", "ffn_up.w", "ffn_down.w")):
        return numbers.T
    if kind == "gpt_neox" and "attn_qkv" in name:
        heads = config.num_attention_heads
        parts = numbers.reshape(heads, 3, -1, *numbers.shape[1:])
        return np.concatenate([parts[:, i].reshape(-1, *numbers.shape[1:]) for i in range(3)])
    return numbers


def llama3_divisors(rope, d_head):
    """By what llama.cpp divides each rotary frequency of a Llama 3."""
    out = []
    for i in range(0, d_head, 2):
        wave = 2 * np.pi * rope["rope_theta"] ** (i / d_head)
        original, low, high = (
            rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        if wave < original / high:
            out.append(1.0)
        elif wave > original / low:
            out.append(rope["factor"])
        else:
            smooth = (original / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, np.float32)
