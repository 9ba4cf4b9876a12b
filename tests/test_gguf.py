"""GGUF files: what is read is the model that was written, its tokens are its own, and what would be
passed over is refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from conftest import TINY, USER_CACHE, VOCABULARY, random_prompts, refused
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tolerances import LOGITS
from towerlab.model import files, gguf_files, loading, packages

# Name -> prompt, its token ids, the pieces of "a  2", and, of a model that is soon read, three
# tokens with their logits after it.
PINNED = {
    "smollm2-135m": (
        "cat: foo\nFrance: bar\ndog:", [9786, 42, 29856, 198, 33488, 42, 2753, 198, 22676, 42],
        ["a", "ĠĠ", "2"], {0: 5.812724, 1000: 2.951322, 20000: 3.803872},
    ),
    "qwen2.5-coder-1.5b": (
        "cat: foo\nFrance: bar\ndog:", [4616, 25, 15229, 198, 49000, 25, 3619, 198, 18457, 25],
        ["a", "Ġ", "Ġ", "2"], {},
    ),
    "gemma-3-270m": (  # Q5_0 in a file called Q4_K_M
        "cat: foo\nFrance: bar\ndog:",
        [2, 9307, 236787, 46293, 107, 31756, 236787, 3029, 107, 21029, 236787],
        ["a", "▁▁", "2"], {0: -15.254061, 1000: 0.26155, 20000: 6.306149},
    ),
}  # fmt: skip
PINNED["qwen2.5-coder-0.5b-q4_k_m"] = PINNED["qwen2.5-coder-1.5b"]
GPT2 = {"model": "gpt2", "pre": "gpt-2",
        "tokens": [chr(33 + i) for i in range(VOCABULARY - 1)] + ["AB"], "merges": ["A B"],
        "token_type": [1] * VOCABULARY}  # fmt: skip
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "c", "▁a",
          "ab", "▁ab", "bc", ":", "▁:", "foo", "▁b", "d", "e", "f", "g", "o", "oo"]  # fmt: skip
LLAMA = {"model": "llama", "pre": "default", "tokens": PIECES,
         "scores": [-float(i) for i in range(len(PIECES))],
         "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) - 259), "bos_token_id": 1,
         "eos_token_id": 2, "unknown_token_id": 0}  # fmt: skip
# Architecture of the file -> (tiny model, fields beside the common ones)
KINDS = {
    "llama": ("llama", {"rope.dimension_count": 8}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"attention.key_length": 128, "attention.value_length": 128}),
    "gemma2": ("gemma2", {"attention.key_length": 8, "attention.value_length": 8,
                          "attention.sliding_window": 6,
                          "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": ("gemma3_text", {"attention.key_length": 8, "attention.value_length": 8,
                               "attention.sliding_window": 6}),
    "gpt2": ("gpt2", {}),
}  # fmt: skip


def model_of(architecture, vocabulary=VOCABULARY):
    """A random model as llama.cpp's file of it can say it: what the header has no field for has its
    default."""
    kind = KINDS[architecture][0]
    values = TINY[kind] | {"hidden_size": 32, "intermediate_size": 64}
    if kind.startswith("gemma"):
        values |= {"query_pre_attn_scalar": 256, "attn_logit_softcapping": None,
                   "final_logit_softcapping": None, "layer_types": None,
                   "rope_parameters": None}  # fmt: skip
        values |= (
            {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
            if kind == "gemma2"
            else {}
        )
    if kind == "gpt2":
        values = TINY[kind] | {"n_embd": 32, "n_positions": 1024}
    values |= {"qwen2": {"use_sliding_window": False}, "qwen3": {"head_dim": 128}}.get(kind, {})
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, **values
    )
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in (
            hf.parameters()
        ):  # numbers that Q8_0 holds exactly: multiples of the 127th part of the row's largest
            parameter.copy_(torch.randint(-126, 127, parameter.shape) / 128)
            parameter.view(-1, min(32, parameter.shape[-1]))[:, 0] = 127 / 128
    hf.tie_weights()
    return hf


def write(
    hf,
    path,
    architecture="llama",
    tokens=GPT2,
    fields=None,
    tensors=None,
    kind=gguf.GGMLQuantizationType.Q8_0,
):
    """A model of transformers as the GGUF file that llama.cpp makes of it. A field of None, or a
    tensor, is left out."""
    config, writer = hf.config, gguf.GGUFWriter(path, architecture)
    eps = next(value for key, value in config.to_dict().items() if "eps" in key)
    said = {
        "context_length": config.max_position_embeddings, "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": getattr(config, "intermediate_size", 4 * config.hidden_size),
        "attention.head_count": config.num_attention_heads,
        f"attention.layer_norm_{'' if architecture == 'gpt2' else 'rms_'}epsilon": eps,
    }  # fmt: skip
    if architecture != "gpt2":
        rope = config.rope_parameters.get("full_attention", config.rope_parameters)
        said |= {
            "attention.head_count_kv": config.num_key_value_heads,
            "rope.freq_base": float(rope["rope_theta"]),
        }
    said = {
        f"{architecture}.{key}": value
        for key, value in (said | KINDS.get(architecture, (0, {}))[1]).items()
    }
    said |= {f"tokenizer.ggml.{key}": value for key, value in tokens.items()}
    for key, value in (
        said | {"general.file_type": int(gguf.LlamaFileType.MOSTLY_Q8_0)} | (fields or {})
    ).items():
        if value is not None:
            writer.add_key_value(
                key,
                value,
                gguf.GGUFValueType.UINT32
                if type(value) is int
                else gguf.GGUFValueType.get_type(value),
            )
    names = gguf.get_tensor_name_map(
        next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture),
        config.num_hidden_layers,
    )
    out = {}
    for name, tensor in hf.state_dict().items():
        stem, end = name.rsplit(".", 1)
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        short, numbers = f"{names.get_name(stem)}.{end}", tensor.numpy()
        if architecture == "llama" and (
            ".attn_q." in short or ".attn_k." in short
        ):  # llama.cpp rotates neighbours there
            heads = (
                config.num_attention_heads if ".attn_q." in short else config.num_key_value_heads
            )
            numbers = (
                numbers.reshape(heads, 2, -1, config.hidden_size)
                .swapaxes(1, 2)
                .reshape(numbers.shape)
            )
        if architecture == "gpt2" and any(
            part in short for part in ("attn_qkv.w", "attn_output.w", "ffn_up.w", "ffn_down.w")
        ):
            numbers = numbers.T
        if architecture in ("gemma2", "gemma3") and short.endswith("norm.weight"):
            numbers = numbers + 1
        out[short] = numbers
    for short, numbers in (out | (tensors or {})).items():
        if numbers is None:
            continue
        of = (
            kind
            if numbers.ndim > 1 and numbers.shape[-1] % 32 == 0
            else gguf.GGMLQuantizationType.F32
        )
        writer.add_tensor(
            short, gguf.quantize(np.ascontiguousarray(numbers, np.float32), of), raw_dtype=of
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", KINDS)
def test_a_file_of_any_family_is_the_model_it_was_made_of(architecture, tmp_path):
    hf = model_of(architecture)
    kind = gguf.GGMLQuantizationType[
        "F32" if architecture == "gpt2" else "Q8_0"
    ]  # transposed, no row would be exact
    path = write(hf, tmp_path / "tiny.gguf", architecture, kind=kind)
    ids = torch.tensor([e.ids for e in random_prompts(2, lengths=(14,))])
    first, again = loading.load(path), loading.load(path)  # the second from the cache
    with torch.inference_mode():
        for model in (first, again):
            torch.testing.assert_close(
                model.hf(ids).logits, hf(ids).logits, atol=LOGITS, rtol=LOGITS
            )
    quantisation = (
        "" if architecture == "gpt2" else "Q8_0, dequantised"
    )  # as the folder that was made of it says
    assert (
        files.describe(str(path)) == (KINDS[architecture][0], quantisation)
        and first.quantisation == quantisation
    )
    assert (
        first.fingerprint
        == again.fingerprint
        == f"tiny@{packages.digest(path)[:12]}"
        == files.fingerprint(str(path))
    )
    assert first.tokenizer("AB")["input_ids"] == [VOCABULARY - 1]


def ones(*shape):
    return np.ones(shape, np.float32)


REFUSED = {
    "no field llama.block_count, and transformers takes": dict(fields={"llama.block_count": None}),
    "no field llama.attention.head_count_kv": dict(fields={"llama.attention.head_count_kv": None}),
    "no field llama.attention.layer_norm_rms_epsilon": dict(
        fields={"llama.attention.layer_norm_rms_epsilon": None}
    ),
    "rope.scaling.type is linear": dict(
        fields={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    ),
    "sliding_window is 6, and transformers takes None": dict(
        fields={"llama.attention.sliding_window": 6}
    ),
    "a field llama.expert_count": dict(fields={"llama.expert_count": 8}),
    "a field llama.logit_scale": dict(fields={"llama.logit_scale": 0.5}),
    "a field llama.attention.scale": dict(fields={"llama.attention.scale": 0.5}),
    "attention.key_length is 16, and transformers takes 8": dict(
        fields={"llama.attention.key_length": 16}
    ),
    "a tensor rope_freqs.weight": dict(tensors={"rope_freqs.weight": ones(4)}),
    r"a tensor blk\.0\.attn_q\.bias": dict(tensors={"blk.0.attn_q.bias": ones(32)}),
    r"a tensor blk\.7\.ffn_up\.weight": dict(tensors={"blk.7.ffn_up.weight": ones(64, 32)}),
    r"lacks 1 weights .*layers\.1\.mlp\.up_proj": dict(tensors={"blk.1.ffn_up.weight": None}),
    r"1 weights of other shapes .*layers\.1\.mlp\.up_proj": dict(
        tensors={"blk.1.ffn_up.weight": ones(32, 32)}
    ),
    "cuts text in a way called of-my-own": dict(tokens=GPT2 | {"pre": "of-my-own"}),
    "cuts text in a way called None": dict(tokens=GPT2 | {"pre": None}),
    "its tokenizer is bert": dict(tokens=GPT2 | {"model": "bert"}),
    "is of the type adapter: give the whole model": dict(
        fields={"general.type": "adapter", "adapter.type": "lora"}
    ),
    "part 1 of 2: join them": dict(fields={"split.count": 2, "split.no": 0}),
    "2 weights of other shapes .*lm_head": dict(fields={"llama.vocab_size": 60}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_would_be_passed_over_or_made_up_is_refused(words, tmp_path):
    path = write(model_of("llama"), tmp_path / "tiny.gguf", **REFUSED[words])
    refused(words, loading.load, path)
    assert not list(packages.user_cache().glob("gguf/.*.part"))


def test_what_changes_no_number_is_let_through(tmp_path):
    fields = {"general.name": "it", "quantize.imatrix.file": "x",
              "tokenizer.chat_template": "{{ x }}", "llama.expert_count": 0,
              "llama.rope.scaling.type": "none", "llama.attention.causal": True}  # fmt: skip
    loading.load(write(model_of("llama"), tmp_path / "tiny.gguf", fields=fields))


@pytest.mark.parametrize(
    "prefix, begins", [(True, True), (False, True), (True, False), (True, None)]
)
def test_a_vocabulary_of_pieces_gives_the_ids_of_sentencepiece(prefix, begins, tmp_path):
    tokens = (
        LLAMA | {"add_space_prefix": prefix} | ({} if begins is None else {"add_bos_token": begins})
    )
    model = loading.load(
        write(model_of("llama", len(PIECES)), tmp_path / "tiny.gguf", tokens=tokens)
    )
    proto = ModelProto()
    for piece, score, kind in zip(PIECES, LLAMA["scores"], LLAMA["token_type"], strict=True):
        proto.pieces.add(piece=piece, score=score, type=kind)
    proto.trainer_spec.model_type, proto.trainer_spec.byte_fallback = 2, True
    proto.normalizer_spec.add_dummy_prefix = prefix
    proto.normalizer_spec.remove_extra_whitespaces = False
    processor = SentencePieceProcessor(model_proto=proto.SerializeToString())
    for text in ("ab : foo\nabc :", "a  b", "foo", " ab"):
        assert model.tokenizer(text)["input_ids"] == [1] * (begins is not False) + processor.encode(
            text
        )


def test_a_vocabulary_that_begins_with_a_token_does_so_though_the_file_does_not_say(tmp_path):
    tokens = GPT2 | {
        "pre": "llama-bpe",
        "bos_token_id": 4,
        "tokens": [*GPT2["tokens"][:-2], "AB", "CDE"],
    }  # reached by no merge
    model = loading.load(write(model_of("llama"), tmp_path / "tiny.gguf", tokens=tokens))
    assert model.tokenizer("CDE")["input_ids"] == [4, VOCABULARY - 1]


@pytest.mark.parametrize(
    "file_type, kind, expected",
    [(None, "Q4_0", "Q4_0, dequantised"), (1, "Q4_0", "Q4_0, dequantised"),
     (41, "Q8_0", "Q8_0, dequantised"), (2, "F32", ""),
     (15, "Q8_0", "Q8_0, dequantised"), (7, "Q8_0", "Q8_0, dequantised"), (1, "F16", "")],
)  # fmt: skip
def test_quantisation_is_told_by_the_tensors(file_type, kind, expected, tmp_path):
    path = write(
        model_of("llama"),
        tmp_path / "it.gguf",
        fields={"general.file_type": file_type},
        kind=gguf.GGMLQuantizationType[kind],
    )
    assert files.describe(str(path)) == ("llama", expected)


@pytest.mark.parametrize("kind", ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_file_of_any_quantisation_is_read(kind, tmp_path):
    """Blocks of 32 numbers; those of 256 are in the named files. Files called Q4_K_M hold Q5_0,
    too, where a row is no multiple of 256."""
    hf, of = model_of("llama"), gguf.GGMLQuantizationType[kind]
    model = loading.load(write(hf, tmp_path / "tiny.gguf", kind=of))
    rows = hf.get_input_embeddings().weight.detach().numpy()
    expected = gguf.dequantize(gguf.quantize(rows, of), of)
    np.testing.assert_array_equal(model.hf.get_input_embeddings().weight.numpy(), expected)


@pytest.mark.parametrize("length", [0, 3, 100, 2000, -40, -9000])
def test_a_file_that_is_cut_off_is_refused(length, tmp_path):
    path = write(model_of("llama"), tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:length])
    refused("header of .* damaged .* again", files.describe, str(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", PINNED)
def test_the_named_files_give_the_pinned_tokens_and_logits(name):
    model = packages.catalogue()[name]
    places = [USER_CACHE / "models" / name / model.file, Path.home() / "models" / model.file]
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        pytest.skip(f"{name}: twotowers models {name}")
    assert packages.digest(path) == model.sha256
    assert files.describe(str(path)) == files.describe(name)
    prompt, ids, pieces, logits = PINNED[name]
    tokenizer = gguf_files._tokenizer(
        path, gguf_files._header(path, ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"))[0]
    )
    assert tokenizer(prompt)["input_ids"] == ids and tokenizer.tokenize("a  2") == pieces
    if logits:
        with torch.inference_mode():
            last = loading.load(path).hf(torch.tensor([ids])).logits[0, -1]
        assert {token: float(last[token]) for token in logits} == pytest.approx(
            logits, abs=10 * LOGITS
        )
