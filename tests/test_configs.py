"""A model's config: what is not supported, what would be passed over, and what lies on the hub and
is no fault."""

import pytest
import transformers
from test_loading import not_loaded
from towerlab.model import weights

PASSED_OVER = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8,
               "scale_emb": 12, "scale_depth": 1.4,
               "dim_model_base": 256, "logit_scale": 0.0625, "attn_logit_softcapping": 50.0,
               "clip_qkv": 8.0, "sliding_window": 5,
               "alibi": True, "use_qk_norm": True, "layer_types": ["sliding_attention"] * 3,
               "num_local_experts": 8, "rotary_pct": 0.25}  # fmt: skip
WANTING = {
    "llama": "rms_norm_eps",
    "gemma2": "query_pre_attn_scalar",
    "gpt2": "layer_norm_epsilon",
    "gptj": "n_head",
}


@pytest.mark.parametrize(
    "kind, config, words",
    [
        ("llama", {"model_type": "bloom"}, "bloom model, which is not supported: .*gpt2, .*llama"),
        ("gemma3_text", {"model_type": "gemma3"}, "reads images too.*gemma3_text"),
        ("llama", {"model_type": "cohere"}, "cohere model, .*logit_scale.*another kind"),
        ("llama", {"model_type": "granite"}, "granite model, .*residual_multiplier.*another kind"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("gemma2", {"attention_bias": True}, "attention_bias"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\), .*GGUF"),
        ("llama", {"quantization": {"bits": 4}}, r"quantised \(quantization\)"),
        ("gpt2", {"n_layer": 2}, r"holds 11 weights .*transformer\.h\.2"),
        ("gpt2", {"n_embd": 32}, "other shapes"),
        *[
            ("llama", {key: value}, rf"says {key}=.* passes over: name the model type")
            for key, value in PASSED_OVER.items()
        ],
        *[
            (
                kind,
                {key: None},
                rf"does not say (num_attention_heads|{key}), and transformers would take",
            )
            for kind, key in WANTING.items()
        ],
    ],
)
def test_a_config_of_what_is_not_supported_or_not_in_the_weights_is_refused(
    save, kind, config, words
):
    not_loaded(save(kind, **config), words)


# Of configs as they lie on the hub, many of them written by transformers of years ago: what it
# knows no more, and what must be said.
OLD = {
    "gptj": dict(n_head=16, layer_norm_epsilon=1e-05, rotary=True, scale_attn_weights=True,
                 summary_type="cls_index", summary_first_dropout=0.1, summary_activation=None,
                 gradient_checkpointing=False, tokenizer_class="GPT2Tokenizer",
                 task_specific_params={"text-generation": {"max_length": 50, "temperature": 1.0}}),
    "llama": dict(num_attention_heads=32, rms_norm_eps=1e-06, max_sequence_length=2048,
                  torch_dtype="float16", _name_or_path="x"),
    "gpt2": dict(n_head=2, layer_norm_epsilon=1e-05, n_ctx=1024, n_special=0,
                 predict_special_tokens=True),
    "gpt_neo": dict(num_heads=2, layer_norm_epsilon=1e-05, num_layers=2,
                    attention_types=[[["global", "local"], 1]],
                    attention_layers=["global", "local"]),
    "gpt_neox": dict(num_attention_heads=2, layer_norm_eps=1e-05, rotary_emb_base=10000,
                     rotary_pct=0.25, hidden_size=24),
    "opt": dict(num_attention_heads=2, activation_dropout=0.0, prefix="</s>"),
    "phi": dict(num_attention_heads=2, layer_norm_eps=1e-05, partial_rotary_factor=0.4,
                rope_theta=10000.0),
    "qwen2": dict(num_attention_heads=4, rms_norm_eps=1e-06, seq_length=8192, max_window_layers=21,
                  use_sliding_window=False),
    "gemma": dict(num_attention_heads=4, rms_norm_eps=1e-06, hidden_activation=None),
    "stablelm": dict(num_attention_heads=4, layer_norm_eps=1e-05, partial_rotary_factor=0.25,
                     rope_theta=10000),
    "starcoder2": dict(num_attention_heads=4, norm_epsilon=1e-05, layer_norm_epsilon=1e-05,
                       mlp_type="default", norm_type="layer_norm", rope_theta=999999.4),
}  # fmt: skip


@pytest.mark.parametrize("kind", OLD)
def test_configs_as_they_lie_on_the_hub_are_no_fault(kind):
    given = {
        "model_type": kind,
        "vocab_size": 61,
        "architectures": ["Any"],
        "bos_token_id": 1,
        "eos_token_id": 1,
    } | OLD[kind]
    weights.check_config(
        "it", given, type(transformers.AutoConfig.for_model(kind)).from_dict(given)
    )
