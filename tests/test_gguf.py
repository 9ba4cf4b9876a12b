"""GGUF files as input: written as llama.cpp writes them, read back, and what is refused."""

import json
import shutil
import struct

import gguf
import numpy as np
import pytest
import torch
import transformers
from conftest import TINY, USER_CACHE, VOCABULARY, random_prompts, shared
from gguf_writer import write
from twotowers.errors import TwoTowersError
from twotowers.model import catalog, files, gguf_file, gguf_weights, loading, proof
from twotowers.model.architectures import ARCHITECTURES
from twotowers.paths import user_cache

_SMALL = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=64,
              max_position_embeddings=64, head_dim=8)  # fmt: skip
_NO_PAD = dict(pad_token_id=None)
# What llama.cpp's format can say of each architecture.
KINDS = {
    "gpt2": dict(n_layer=3, n_head=4, n_embd=32, n_positions=48, n_inner=96),
    "llama": _SMALL,
    "llama biased, Llama 3 scaling": TINY["llama wide heads"],
    "llama linear scaling": _SMALL | dict(
        tie_word_embeddings=True, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}),
    "mistral": _SMALL | dict(sliding_window=6),
    "qwen2": _SMALL | dict(tie_word_embeddings=True),
    "qwen3": _SMALL | dict(head_dim=16),
    "gemma": _SMALL | _NO_PAD,
    "gemma2": _SMALL | _NO_PAD | dict(sliding_window=6, query_pre_attn_scalar=8, attn_logit_softcapping=1.5,
                                      final_logit_softcapping=4.0),
    "gemma3_text": _SMALL | _NO_PAD | dict(
        sliding_window=6, query_pre_attn_scalar=8, num_hidden_layers=7, rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "olmo2": {k: v for k, v in _SMALL.items() if k != "head_dim"} | _NO_PAD,
    "phi3": {k: v for k, v in _SMALL.items() if k != "head_dim"} | _NO_PAD | dict(
        sliding_window=6, original_max_position_embeddings=64, rope_parameters={
            "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}),
    "phi3 longrope": TINY["phi3 longrope"] | _NO_PAD,
    "smollm3": {k: v for k, v in _SMALL.items() if k != "head_dim"} | _NO_PAD | dict(num_hidden_layers=5),
    "gpt_neox": dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64,
                     max_position_embeddings=64, use_parallel_residual=False, rope_parameters={
                         "rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}),
}  # fmt: skip


def random(kind: str, **more):
    """A random model of transformers in float32, every parameter of it far from its initial value."""
    settings = dict(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0) | KINDS[kind] | more
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind.split()[0], **settings), dtype=torch.float32
    )
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return hf.eval()


def logits(hf):
    ids = torch.tensor([e.ids for e in random_prompts(2, lengths=(14,))])
    with torch.no_grad():
        return hf(ids).logits


def plain(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 600
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_comes_back_as_it_was(kind, tmp_path):
    hf = random(kind)
    header = gguf_file.read(write(hf, tmp_path / "tiny.gguf"))
    assert header.model_type == hf.config.model_type and header.quantisation == ""
    back = plain(gguf_weights.converted(header))
    exact = not kind.startswith("gemma")  # 1 is added to its norms and taken off again
    assert set(back.state_dict()) == set(hf.state_dict())
    for name, tensor in hf.state_dict().items():
        torch.testing.assert_close(back.state_dict()[name], tensor, rtol=0, atol=0 if exact else 3e-7)
    torch.testing.assert_close(logits(back), logits(hf), rtol=1e-4, atol=1e-4)
    tied = hf.config.tie_word_embeddings
    assert (back.get_output_embeddings().weight is back.get_input_embeddings().weight) == tied


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_transformers_own_reader_finds_the_same_weights(kind, tmp_path):
    pytest.importorskip("accelerate")
    more = {"head_dim": 8} if kind == "qwen3" else {}
    header = gguf_file.read(write(random(kind, **more), tmp_path / "tiny.gguf"))
    config = transformers.AutoConfig.from_pretrained(gguf_weights.converted(header))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", config=config, dtype=torch.float32
    )
    ours = plain(gguf_weights.converted(header)).state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("type", ["Q8_0", "Q4_1", "Q4_0", "Q5_1", "F16", "BF16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_quantised_weights_load_as_the_numbers_they_stand_for(kind, type, tmp_path):
    hf = random(kind, tie_word_embeddings=True)
    path = write(hf, tmp_path / "tiny.gguf", type=type, extra=lambda w: w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0))
    model = loading.load(path)
    quantised = type.startswith("Q")
    assert model.quantisation == (f"{type}, dequantised" if quantised else "")  # not what the label claims
    assert max(proof.prove(model).values()) < 1e-4
    kept = gguf.GGMLQuantizationType[type]
    assert model.hf.get_output_embeddings().weight is model.hf.get_input_embeddings().weight
    row = hf.get_input_embeddings().weight.detach().numpy()
    expected = gguf.dequantize(gguf.quantize(row, kept), kept)
    np.testing.assert_array_equal(model.unembedding.weight.numpy(), expected)
    assert (np.abs(expected - row).max() > 1e-6) and np.abs(expected - row).max() < 0.2


def test_the_second_load_reads_the_cache_and_a_damaged_cache_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "cache"))
    path = write(random("llama"), tmp_path / "tiny.gguf", type="Q8_0")
    first = loading.load(path)
    (folder,) = (tmp_path / "cache" / "gguf").glob("[!.]*")
    before = (folder / "model.safetensors").read_bytes()
    shutil.copy(path, tmp_path / "renamed.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(gguf_weights, "_convert", lambda *_: pytest.fail("converted again"))
        again = loading.load(tmp_path / "renamed.gguf")
    assert again.fingerprint.split("@") == ["renamed", first.fingerprint.split("@")[1]]
    for damage in (b"", before[:-9], before[:-1] + bytes([before[-1] ^ 1])):
        (tmp_path / "damaged").write_bytes(damage)
        (tmp_path / "damaged").replace(folder / "model.safetensors")  # the loaded model still maps the old file
        assert torch.equal(loading.load(path).unembedding.weight, first.unembedding.weight)
        assert (folder / "model.safetensors").read_bytes() == before
    (folder / gguf_weights.MANIFEST).write_text("{")
    loading.load(path)
    assert json.loads((folder / gguf_weights.MANIFEST).read_text())["quantisation"] == "Q8_0"


def test_large_models_are_kept_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_weights, "SHARD", 20_000)
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "cache"))
    hf = random("qwen2")
    folder = gguf_weights.converted(gguf_file.read(write(hf, tmp_path / "tiny.gguf")))
    assert len(files.weights(folder, "it")) > 3
    assert torch.equal(logits(plain(folder)), logits(hf))


def test_fingerprint_and_description_need_no_weights(tmp_path):
    path = write(
        random("qwen2"), tmp_path / "some.Q8_0.gguf", type="Q8_0", extra=lambda w: w.add_chat_template("{{ x }}")
    )
    about = {"model_type": "qwen2", "n_layers": 2, "n_heads": 4, "vocabulary": VOCABULARY,
             "quantisation": "Q8_0, dequantised", "chat": True}  # fmt: skip
    assert files.describe(str(path)) == about
    model = loading.load(path)
    assert model.fingerprint == files.fingerprint(str(path))
    assert model.fingerprint.startswith("some.Q8_0@")
    assert files.describe(str(gguf_weights.converted(gguf_file.read(path)))) == about | {"quantisation": ""}


# What is refused


def fields(key, value):
    """Adds one field of the architecture, or replaces it."""

    def add(writer):
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, *value)

    return add


U32, F32, STRING = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING


@pytest.mark.parametrize(
    "extra, named",
    [
        (("llama.expert_count", (8, U32)), "mixture of experts"),
        (("llama.rope.scaling.type", ("yarn", STRING)), r"positions are scaled \(yarn\)"),
        (("llama.rope.dimension_count", (4, U32)), "rotates 4 of 8"),
        (("llama.attention.value_length", (4, U32)), "differ in width"),
        (("llama.attention.scale", (0.5, F32)), "nothing here reads its field attention.scale"),
        (("llama.logit_scale", (0.5, F32)), "logit_scale"),
        (("llama.block_count", (1, U32)), r"blk\.1\..* of shape"),
        (("llama.block_count", (3, U32)), r"lacks 9 weights \(model\.layers\.2\."),
        (("llama.feed_forward_length", (60, U32)), r"ffn_\w+\.weight of shape"),
        (("split.count", (3, U32)), "one part of 3"),
        (("tokenizer.ggml.pre", ("of-my-own", STRING)), "tokenizer.ggml.pre is of-my-own"),
        (("tokenizer.ggml.model", ("bert", STRING)), "kind 'bert'"),
    ],
)
def test_a_variant_that_would_be_computed_otherwise_is_refused(extra, named, tmp_path):
    path = write(random("llama"), tmp_path / "tiny.gguf", extra=fields(*extra))
    with pytest.raises(TwoTowersError, match=named) as error:
        loading.load(path)
    one_line(error)


def test_an_architecture_outside_the_table_is_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    for refuse in (loading.check, loading.load, files.describe):
        with pytest.raises(TwoTowersError, match=r"is a mamba model, .* choose one of llama, ") as error:
            refuse(str(tmp_path / "other.gguf"))
        one_line(error)


def test_lacking_and_unknown_tensors_are_named(tmp_path):
    path = write(random("llama"), tmp_path / "less.gguf", without={"blk.1.ffn_up.weight"})
    with pytest.raises(TwoTowersError, match=r"lacks 1 weights \(model\.layers\.1\.mlp\.up_proj\.weight\)"):
        loading.load(path)
    path = write(
        random("llama"), tmp_path / "more.gguf",
        extra=lambda w: w.add_tensor("blk.0.ffn_gate_exps.weight", np.zeros((4, 32), np.float32)),
    )  # fmt: skip
    with pytest.raises(TwoTowersError, match=r"has a tensor blk\.0\.ffn_gate_exps"):
        loading.load(path)


def test_a_file_cut_off_anywhere_is_refused_in_one_line(tmp_path):
    whole = write(random("llama"), tmp_path / "tiny.gguf", type="Q4_1").read_bytes()
    path = tmp_path / "cut.gguf"
    last = max(t.start + t.bytes for t in gguf_file.read(tmp_path / "tiny.gguf").tensors.values())
    for end in [0, 3, 4, 11, 23, 24, 31, *range(40, last, 997), last - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(TwoTowersError) as error:
            loading.check(str(path))
        assert "again" in one_line(error) or end < 4


def test_damaged_headers_are_refused_in_one_line(tmp_path):
    """Bytes changed at random in the header: whatever comes of it, it is one line or a header that was not hurt."""
    whole = bytearray(write(random("llama"), tmp_path / "tiny.gguf").read_bytes())
    end = gguf_file.read(tmp_path / "tiny.gguf").tensors["token_embd.weight"].start
    draw, path, refused = np.random.default_rng(0), tmp_path / "hurt.gguf", 0
    for _ in range(400):
        hurt = whole.copy()
        for at in draw.integers(4, end, 4):
            hurt[at] = draw.integers(256)
        path.write_bytes(hurt)
        try:
            gguf_file.read(path)
        except TwoTowersError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


@pytest.mark.parametrize(
    "content, named",
    [
        (b"", "is empty"),
        (b"GGML" * 9, "no GGUF file"),
        (b"tjgg" * 9, "before GGUF"),
        (b"PK\x03\x04" * 9, "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "web page"),
        (struct.pack("<Q", 90) + b'{"a": {}}' * 10, "safetensors"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), "cut off"),
    ],
)
def test_another_file_is_told_apart(content, named, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(TwoTowersError, match=named) as error:
        loading.load(path)
    one_line(error)


@pytest.mark.parametrize("number, named", [(99, "number 99"), (15, "Q8_K"), (24, "I8")])
def test_a_type_that_cannot_be_dequantised_is_refused(number, named, tmp_path):
    whole = bytearray(write(random("llama"), tmp_path / "tiny.gguf").read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8  # after the dimensions
    whole[at : at + 4] = struct.pack("<I", number)
    (tmp_path / "tiny.gguf").write_bytes(whole)
    with pytest.raises(TwoTowersError, match=f"blk.0.ffn_up.weight as type {named}.* such as Q8_0") as error:
        loading.check(str(tmp_path / "tiny.gguf"))
    one_line(error)


@pytest.mark.parametrize("numbers, named", [(np.nan, "not finite"), (0.0, "zero throughout")])
def test_weights_that_are_no_numbers_are_refused(numbers, named, tmp_path):
    hf = random("llama")
    with torch.no_grad():
        hf.model.layers[1].mlp.up_proj.weight.fill_(numbers)
    with pytest.raises(TwoTowersError, match=rf"layers\.1\.mlp\.up_proj\.weight .* {named}"):
        loading.load(write(hf, tmp_path / "tiny.gguf"))


def test_a_cache_without_room_or_rights_is_one_line(tmp_path, monkeypatch):
    path = write(random("llama"), tmp_path / "tiny.gguf")
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "a-file"))
    with pytest.raises(TwoTowersError, match="TWOTOWERS_CACHE") as error:
        loading.load(path)
    one_line(error)
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "full"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(TwoTowersError, match=r"in float32 takes .* make room, or set TWOTOWERS_CACHE") as error:
        loading.load(path)
    one_line(error)
    assert not list((tmp_path / "full" / "gguf").glob("[!.]*"))


# Tokenizers

TEXTS = [
    "positive: foo negative: bar", " two  spaces", "don't 1234 5, 67.8%", "line\nbreak\n\n two",
    "naïve Ünïcödé 日本語 🙂", "\ttab", "", "a", "The year 2024's end...",
]  # fmt: skip


def through_a_file(tmp_path, kind, pre, tokens, merges=None, scores=None, types=None, **settings):
    """The tokenizer that comes out of a GGUF file with this vocabulary."""

    def extra(writer):
        for key in [key for key in writer.kv_data[0] if key.startswith("tokenizer.")]:
            del writer.kv_data[0][key]
        writer.add_tokenizer_model(kind)
        writer.add_token_list(tokens)
        writer.add_token_types(types or [1] * len(tokens))
        if pre:
            writer.add_tokenizer_pre(pre)
        if merges:
            writer.add_token_merges(merges)
        if scores:
            writer.add_token_scores(scores)
        for name, value in settings.items():
            getattr(writer, f"add_{name}")(value)

    hf = random("gpt2" if kind == "gpt2" else "llama", vocab_size=len(tokens))
    path = write(hf, tmp_path / "tiny.gguf", extra=extra)
    return loading.Files.of(str(path)).tokenizer()


@pytest.mark.slow
def test_gpt2s_tokenizer_survives(tmp_path):
    folder = shared("tokenizers/gpt2")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = sorted(json.loads((folder / "vocab.json").read_text()).items(), key=lambda item: item[1])
    merges = (folder / "merges.txt").read_text().splitlines()[1:]
    ours = through_a_file(tmp_path, "gpt2", "gpt-2", [token for token, _ in tokens], merges, eos_token_id=50256,
                          types=[1] * 50256 + [3])  # fmt: skip
    for text in TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours.decode(ours(text)["input_ids"]) == text
    assert ours.eos_token == "<|endoftext|>" and ours("<|endoftext|>")["input_ids"] == [50256]


@pytest.mark.slow
def test_llamas_tokenizer_survives(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = shared("tokenizers/llama2")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    n = pieces.vocab_size()
    kinds = [(2, pieces.is_unknown), (3, pieces.is_control), (6, pieces.is_byte)]
    types = [next((number for number, has in kinds if has(i)), 1) for i in range(n)]
    parts = [pieces.id_to_piece(i) for i in range(n)], None, [pieces.get_score(i) for i in range(n)], types
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0}
    ours = through_a_file(tmp_path, "llama", None, *parts, **ids)
    for text in TEXTS:
        if text:
            assert ours(text)["input_ids"] == [1, *pieces.encode(text)], text
    bare = through_a_file(tmp_path, "llama", None, *parts, add_space_prefix=False, add_bos_token=False, **ids)
    assert bare.tokenize("positive") == ["pos", "itive"] and ours.tokenize("positive") == ["▁positive"]


def test_digits_are_cut_as_the_file_says(tmp_path):
    letters = [chr(33 + i) for i in range(94)] + ["Ġ", "12", "23"]
    merges = ["1 2", "2 3"]
    whole = through_a_file(tmp_path, "gpt2", "gpt-2", letters, merges)
    assert whole.tokenize("a123") == ["a", "12", "3"]
    assert through_a_file(tmp_path, "gpt2", "smollm", letters, merges).tokenize("a123") == ["a", "1", "2", "3"]
    assert through_a_file(tmp_path, "gpt2", None, letters, merges).tokenize("a123") == ["a", "12", "3"]
    # A word of the vocabulary is one token, whether merges lead to it or not.
    letters.append("cat")
    assert through_a_file(tmp_path, "gpt2", "llama-bpe", letters, merges).tokenize("cat") == ["cat"]
    assert through_a_file(tmp_path, "gpt2", "gpt-2", letters, merges).tokenize("cat") == ["c", "a", "t"]


# Real files


def smollm2():
    """The catalogued file, where the user has fetched it."""
    known = catalog.models()["smollm2-135m"]
    path = USER_CACHE / "models" / known.name / known.file
    if not path.is_file():
        pytest.skip("SmolLM2 is not in the cache: `twotowers models smollm2-135m` fetches it")
    return path


@pytest.mark.slow
def test_smollm2_is_read_as_transformers_reads_it():
    pytest.importorskip("accelerate")
    path = smollm2()
    known = catalog.models()["smollm2-135m"]
    assert files.describe(str(path)) == known.about()
    model = loading.load(path)
    assert model.fingerprint.endswith(f"@{known.sha256[:12]}") and model.quantisation == "Q4_1, dequantised"
    assert max(proof.prove(model).values()) < 1e-4
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(model.hf.state_dict()[name], tensor), name
    ids = model.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert model.tokenizer.decode(model.hf(ids).logits[0, -1].argmax()) == " Paris"
    assert user_cache() != USER_CACHE
    assert set(ARCHITECTURES) >= {model.config.model_type}
