"""GGUF files: what transformers makes of the two named ones is pinned, and what it would read wrongly is refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from conftest import USER_CACHE, VOCABULARY, random_prompts, refused
from tolerances import LOGITS
from towerlab import cli
from towerlab.model import files, gguf_header, loading, packages
from twotowers.errors import TwoTowersError

# Name -> prompt, its token ids, the pieces of "a  2", and three tokens with their logits after the prompt.
PINNED = {
    "smollm2-135m": (
        "cat: foo\nFrance: bar\ndog:", [9786, 42, 29856, 198, 33488, 42, 2753, 198, 22676, 42], ["a", "ĠĠ", "2"],
        {0: 5.812724, 1000: 2.951322, 20000: 3.803872},
    ),
    "qwen2.5-coder-1.5b": (
        "cat: foo\nFrance: bar\ndog:", [4616, 25, 15229, 198, 49000, 25, 3619, 198, 18457, 25], ["a", "Ġ", "Ġ", "2"],
        {0: 1.668229, 1000: -1.570403, 20000: -2.275477},
    ),
}  # fmt: skip


def write(hf, path, extra=lambda writer: None, architecture="llama", pre="gpt-2"):
    """A Llama of transformers as the GGUF file that llama.cpp makes of it."""
    config, writer = hf.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([chr(33 + i) for i in range(VOCABULARY - 1)] + ["AB"])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["A B"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in hf.state_dict().items():
        stem, end = name.rsplit(".", 1)
        short, numbers = f"{names.get_name(stem)}.{end}", tensor.numpy()
        if ".attn_q." in short or ".attn_k." in short:  # llama.cpp rotates neighbours, transformers two halves
            heads = config.num_attention_heads if ".attn_q." in short else config.num_key_value_heads
            numbers = numbers.reshape(heads, 2, -1, config.hidden_size).swapaxes(1, 2).reshape(numbers.shape)
        kind = gguf.GGMLQuantizationType.Q8_0 if numbers.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(short, gguf.quantize(np.ascontiguousarray(numbers), kind), raw_dtype=kind)
    extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def llama():
    """A random Llama whose every number Q8_0 holds exactly: multiples of the 127th part of the row's largest."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32,
        intermediate_size=64, max_position_embeddings=64, rms_norm_eps=1e-5,
    )  # fmt: skip
    hf = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.copy_(torch.randint(-126, 127, parameter.shape) / 128)
            parameter.view(-1, 32)[:, 0] = 127 / 128
    return hf


def test_a_quantised_file_is_the_model_it_was_made_of(llama, tmp_path):
    path = write(llama, tmp_path / "tiny.gguf")
    ids = torch.tensor([e.ids for e in random_prompts(2, lengths=(14,))])
    first, again = loading.load(path), loading.load(path)  # the second from the cache
    with torch.inference_mode():
        for model in (first, again):
            torch.testing.assert_close(model.hf(ids).logits, llama(ids).logits, atol=LOGITS, rtol=LOGITS)
    assert files.describe(str(path)) == ("llama", "Q8_0, dequantised") and first.quantisation == "Q8_0, dequantised"
    assert first.fingerprint == again.fingerprint == f"tiny@{packages.digest(path)[:12]}" == files.fingerprint(str(path))


REFUSED = {
    "its architecture is gemma2": dict(architecture="gemma2"),
    "tokenizer is gpt2, of-my-own": dict(pre="of-my-own"),
    "a field llama.rope.scaling.type": dict(extra=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)),
    "a field llama.attention.sliding_window": dict(extra=lambda w: w.add_sliding_window(6)),
    "a field llama.expert_count": dict(extra=lambda w: w.add_expert_count(8)),
    "a tensor rope_freqs.weight": dict(extra=lambda w: w.add_tensor("rope_freqs.weight", np.ones(4, np.float32))),
    r"a tensor blk\.0\.attn_q\.bias": dict(extra=lambda w: w.add_tensor("blk.0.attn_q.bias", np.ones(32, np.float32))),
    "attention.key_length is 16, not 8": dict(extra=lambda w: w.add_key_length(16)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_transformers_would_leave_out_is_refused(words, llama, tmp_path):
    path = write(llama, tmp_path / "tiny.gguf", **REFUSED[words])
    with pytest.raises(TwoTowersError, match=words) as error:
        loading.load(path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_read_as_it_is_can_be_converted_to_a_folder_that_loads(llama, tmp_path, capsys):
    path, folder = write(llama, tmp_path / "tiny.gguf", lambda w: w.add_expert_count(0)), tmp_path / "tiny"
    refused(r"expert_count.*twotowers convert", loading.load, path)
    assert cli.main(["convert", str(path), str(folder)]) == 0
    assert f"{folder}: tiny@" in capsys.readouterr().out
    model, ids = loading.load(folder), torch.tensor([e.ids for e in random_prompts(2, lengths=(14,))])
    with torch.inference_mode():
        torch.testing.assert_close(model.hf(ids).logits, llama(ids).logits, atol=LOGITS, rtol=LOGITS)
    assert model.tokenizer("AB")["input_ids"] == [VOCABULARY - 1]


def test_a_conversion_overwrites_nothing_and_leaves_nothing_half_written(llama, tmp_path, capsys):
    path = write(llama, tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:3000])
    assert cli.main(["convert", str(path), str(tmp_path)]) == cli.main(["convert", "nothing.gguf", str(tmp_path / "x")]) == 2
    output = capsys.readouterr().err
    assert "is there already" in output and "there is no file" in output
    assert cli.main(["convert", str(path), str(tmp_path / "x")]) == 2 and not (tmp_path / "x").exists()


@pytest.mark.parametrize("length", [0, 3, 100, 2000])
def test_a_file_that_is_cut_off_is_refused(length, llama, tmp_path):
    path = write(llama, tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:length])
    refused("no whole GGUF file", gguf_header.read, path)


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
    loaded = loading.load(path)
    assert loaded.tokenizer(prompt)["input_ids"] == ids and loaded.tokenizer.tokenize("a  2") == pieces
    with torch.inference_mode():
        last = loaded.hf(torch.tensor([ids])).logits[0, -1]
    assert {token: float(last[token]) for token in logits} == pytest.approx(logits, abs=10 * LOGITS)
