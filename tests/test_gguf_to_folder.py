"""The script that makes a folder from a GGUF file: it writes the same model, and names its file."""

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from conftest import TINY, VOCABULARY, random_prompts, refused
from tolerances import LOGITS
from towerlab.measure.pipeline import Pipeline
from towerlab.model import checkpoint, loading
from twotowers.settings import Settings

from training import gguf_to_folder

Q8 = gguf.GGMLQuantizationType.Q8_0
BYTES = {"model": "gpt2", "pre": "gpt-2", "token_type": [1] * VOCABULARY, "merges": ["A B"],
         "tokens": [*map(chr, range(33, 32 + VOCABULARY)), "AB"]}  # fmt: skip
PIECES = {"model": "llama",
          "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)),
                     "▁", "a", "b", "▁a", "ab", "▁ab"],
          "scores": [-float(i) for i in range(265)], "token_type": [2, 3, 3] + [6] * 256 + [1] * 6,
          "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}  # fmt: skip


def write(path: Path, tokens=BYTES, fields=None, tensors=None):
    """Write a random Llama as llama.cpp does, in numbers that Q8_0 holds exactly; return it."""
    size = {"vocab_size": len(tokens["tokens"]), "hidden_size": 32, "intermediate_size": 64}
    config = transformers.LlamaConfig(**TINY["llama"] | size)
    torch.manual_seed(0)
    hf = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.copy_(torch.randint(-126, 127, parameter.shape) / 128)
            parameter.view(-1, 32)[:, 0] = 127 / 128
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    said = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 3,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    } | (fields or {})
    said = {f"llama.{key}": x for key, x in said.items()}  # fmt: skip
    for key, x in (said | {f"tokenizer.ggml.{key}": x for key, x in tokens.items()}).items():
        if x is not None:
            types = gguf.GGUFValueType
            writer.add_key_value(key, x, types.UINT32 if type(x) is int else types.get_type(x))
    names, out = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3), dict(tensors or {})
    for name, tensor in hf.state_dict().items():
        stem, end = name.rsplit(".", 1)
        short, x = f"{names.get_name(stem)}.{end}", tensor.numpy()
        if "attn_q." in short or "attn_k." in short:  # llama.cpp rotates neighbours
            x = x.reshape(4 if "attn_q." in short else 2, 2, -1, 32).swapaxes(1, 2).reshape(x.shape)
        out[short] = x
    for name, x in out.items():
        kind = Q8 if x.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(x), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hf


@pytest.mark.parametrize("tokens", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_the_folder_is_the_model_of_the_file_and_has_its_digits(tokens, tmp_path):
    hf = write(tmp_path / "tiny.gguf", tokens)
    gguf_to_folder.main(str(tmp_path / "tiny.gguf"), str(tmp_path / "tiny"))
    model = loading.load(tmp_path / "tiny")
    ids = torch.tensor([e.ids for e in random_prompts(2, lengths=(14,))])
    with torch.inference_mode():
        torch.testing.assert_close(model.hf(ids).logits, hf(ids).logits, atol=LOGITS, rtol=LOGITS)
    expected = [VOCABULARY - 1] if tokens is BYTES else [1, 264, 13, 260]
    assert model.tokenizer("AB" if tokens is BYTES else "ab\na")["input_ids"] == expected
    made_from = json.loads((tmp_path / "tiny/config.json").read_text())["made_from"]
    assert model.fingerprint == f"tiny@{made_from['sha256'][:12]}"
    assert model.config.made_from == made_from
    assert made_from["quantisation"] == "Q8_0, dequantised"


def test_a_converted_model_that_was_changed_is_another_model(tmp_path):
    write(tmp_path / "tiny.gguf")
    folder = tmp_path / "tiny"
    gguf_to_folder.main(str(tmp_path / "tiny.gguf"), str(folder))
    model, whole = loading.load(folder), checkpoint.fingerprint(str(folder))
    text = (folder / "config.json").read_text()
    config = json.loads(text)
    made_from = config["made_from"]
    (folder / "config.json").write_text(text.replace(": 64,", ": 65,"))
    assert checkpoint.fingerprint(str(folder)) != whole
    (folder / "config.json").write_text(text)
    assert checkpoint.fingerprint(str(folder)) == whole
    model.hf.lm_head.weight += 1  # trained further
    model.hf.save_pretrained(folder)
    assert checkpoint.fingerprint(str(folder)) != whole
    config["made_from"] = made_from  # some programs write the fields that they read
    (folder / "config.json").write_text(json.dumps(config))
    assert loading.load(folder).config.made_from == {}


@pytest.mark.parametrize(
    "words, change",
    {
        "block_count: .* got missing": dict(fields={"block_count": None}),
        "rope.scaling.type: .* got linear": dict(fields={"rope.scaling.type": "linear"}),
        "sliding_window: expected None, .* got 6": dict(fields={"attention.sliding_window": 6}),
        "rope_freqs.weight": dict(tensors={"rope_freqs.weight": np.ones(4, np.float32)}),
        "unknown tokenizer 'gpt2, my-own'": dict(tokens=BYTES | {"pre": "my-own"}),
    }.items(),
)
def test_what_transformers_would_ignore_is_refused_and_nothing_is_written(words, change, tmp_path):
    write(tmp_path / "tiny.gguf", **change)
    files = (str(tmp_path / "tiny.gguf"), str(tmp_path / "tiny"))
    refused(words, gguf_to_folder.main, *files)
    assert os.listdir(tmp_path) == ["tiny.gguf"]


@pytest.mark.slow
def test_a_converted_smollm2_has_the_identity_of_its_precomputed_files(tmp_path):
    file = Path(os.environ.get("TWOTOWERS_GGUF", "")) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not file.is_file():
        pytest.skip(f"{file.name} in the folder TWOTOWERS_GGUF")
    gguf_to_folder.main(str(file), str(tmp_path / "smollm2-135m"))
    converted, precomputed = (
        Pipeline(Settings(model=name)) for name in (str(tmp_path / "smollm2-135m"), "smollm2-135m")
    )
    assert converted.identity("heads") == precomputed.identity("heads")
    assert converted.name == precomputed.name
