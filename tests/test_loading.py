"""Loading a model: what is taken, what is refused in one line, narrow dtypes, devices."""

import json
import shutil
import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import TINY, VOCABULARY, random_prompts, tiny, weights_hash
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from twotowers.analysis import locate
from twotowers.analysis.ablate import ablate_sets
from twotowers.analysis.attribution import attribution_patching
from twotowers.errors import TwoTowersError
from twotowers.model import files, hub, loading, proof
from twotowers.model.architectures import ARCHITECTURES
from twotowers.model.capture import capture


@pytest.fixture(scope="module")
def tokenizer():
    words = Tokenizer(tokenizer_models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")


@pytest.fixture
def saved(tmp_path, tokenizer):
    """Saves a tiny model as a folder, and gives its path."""

    def save(kind: str, dtype=torch.float32, **config) -> str:
        hf = tiny(kind, dtype).hf
        folder = tmp_path / kind.replace(" ", "-")
        hf.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        return str(folder)

    return save


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 500
    return text


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(TINY))
def test_every_architecture_loads_from_a_folder_and_is_proven(saved, kind):
    folder = saved(kind)
    model = loading.load(folder)
    assert model.architecture is ARCHITECTURES[kind.split()[0]]
    assert max(proof.prove(model).values()) < 1e-4
    assert model.fingerprint == files.fingerprint(folder)


def test_the_hash_of_a_model_in_memory_follows_every_value():
    one, other = tiny("gpt2"), tiny("gpt2")
    assert one.fingerprint == other.fingerprint
    for name, parameter in other.hf.named_parameters():
        before = parameter.reshape(-1)[-1].clone()
        parameter.view(-1)[-1] += 1e-13  # the least that float64 tells apart, and float32 does not
        assert weights_hash(other.hf) != one.fingerprint.split("@")[1], name
        parameter.view(-1)[-1] = before
    assert weights_hash(other.hf) == one.fingerprint.split("@")[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", sorted(TINY))
def test_narrow_models_keep_their_scores_wide_and_stay_near_float32(kind, dtype):
    # The same numbers in both: float32 weights that the narrow dtype can hold.
    narrow = tiny(kind, loading.DTYPES[dtype])
    wide = tiny(kind, loading.DTYPES[dtype])
    wide.hf.float()
    encoded = random_prompts(3, lengths=(11,))
    seen, expected = (capture(model, encoded, proof.PROVEN) for model in (narrow, wide))
    assert seen.weights.dtype == seen.scores.dtype == torch.float32
    assert seen.z.dtype == loading.DTYPES[dtype]
    tolerance = proof.TOLERANCE[loading.DTYPES[dtype]]
    assert max(proof.identity_errors(narrow, seen).values()) < tolerance
    proof.prove(narrow)
    assert (seen.weights - expected.weights).abs().max() < tolerance
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones_like(seen.weights[..., 0]))
    found, exact = (locate.increases(m, encoded) for m in (narrow, wide))
    assert found.heads.dtype == exact.heads.dtype
    spread = abs(exact.heads).max()
    assert abs(found.heads - exact.heads).max() < 2 * tolerance * max(spread, 1)


@pytest.mark.parametrize("device_map", [{"": "cpu"}, "auto"])
def test_a_device_map_gives_the_same_model(saved, device_map):
    pytest.importorskip("accelerate")
    if device_map == "auto" and torch.cuda.is_available():
        pytest.skip("auto may choose a device that rounds otherwise")
    folder, encoded = saved("gemma2"), random_prompts(2, lengths=(11,))
    spread, whole = loading.load(folder, device_map=device_map), loading.load(folder)
    assert spread.fingerprint == whole.fingerprint
    assert torch.equal(capture(spread, encoded).logits, capture(whole, encoded).logits)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
def test_a_model_whose_blocks_are_dispatched_gives_the_same_numbers(saved, kind, monkeypatch):
    """accelerate's hooks around every block, as where each lies on a device of its own; here all of them are the CPU."""
    accelerate = pytest.importorskip("accelerate")
    folder, encoded = saved(kind), random_prompts(3)
    whole, load = loading.load(folder), transformers.AutoModelForCausalLM.from_pretrained

    def dispatched(*args, **kwargs):
        hf, report = load(*args, **kwargs)
        names = [name for name, module in hf.named_modules() if not list(module.children())]
        blocks = [name for name, _ in hf.named_modules() if name.rpartition(".")[2].isdigit()]
        names = [name for name in names if not name.startswith(tuple(f"{block}." for block in blocks))]
        return accelerate.dispatch_model(hf, dict.fromkeys([*names, *blocks], "cpu"), force_hooks=True), report

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", dispatched)
    spread = loading.load(folder, device_map="auto")
    assert sum(hasattr(module, "_hf_hook") for module in spread.hf.modules()) > spread.n_layers
    assert max(proof.identity_errors(spread, capture(spread, encoded[:1], proof.PROVEN)).values()) < 1e-5
    heads = [(0, 1), (1, 2)]
    for of in (
        lambda model: capture(model, encoded[:1]).logits,
        lambda model: torch.tensor(locate.increases(model, encoded).heads),
        lambda model: ablate_sets(model, encoded, [heads, heads[:1]]).log_prob,
        lambda model: torch.tensor(attribution_patching(model, encoded)),
    ):
        assert torch.equal(of(spread), of(whole))


def test_a_device_map_that_offloads_is_refused(saved, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    folder = saved("llama")
    full = transformers.AutoModelForCausalLM.from_pretrained

    def offloaded(*args, **kwargs):
        return full(*args, **kwargs, offload_folder=str(tmp_path / "offloaded"))

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", offloaded)
    on_disk = {"model.layers.2": "disk", "model.layers.0": "cpu", "model.layers.1": "cpu", "model.embed_tokens": "cpu",
               "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    with pytest.raises(TwoTowersError, match="offloads") as error:
        loading.load(folder, device_map=on_disk)
    one_line(error)


def test_an_unsupported_architecture_is_refused_naming_the_supported(tmp_path):
    transformers.BloomConfig(vocab_size=11, hidden_size=8, n_layer=1, n_head=2).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(TwoTowersError, match="bloom") as error:
        loading.load(tmp_path)
    assert all(name in one_line(error) for name in ARCHITECTURES)


@pytest.mark.parametrize(
    "kind, config, named",
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("opt", {"word_embed_proj_dim": 8}, "word_embed_proj_dim is 8, only 12"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
        ("gemma2", {"attention_bias": True}, "attention_bias"),
        ("llama", {"quantization_config": {"quant_method": "bitsandbytes"}}, r"quantised \(bitsandbytes\), .* GGUF"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\)"),
        ("llama", {"quantization": {"bits": 4}}, r"quantised \(quantization\)"),
        ("olmo2", {"attention_bias": True}, "attention_bias"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"model_type": "gemma3"}, "gemma3 model.* reads images too.*gemma3_text"),
    ],
)
def test_a_variant_that_the_table_does_not_describe_is_refused(saved, kind, config, named):
    with pytest.raises(TwoTowersError, match=named) as error:
        loading.load(saved(kind, **config))
    one_line(error)


def test_an_edited_checkpoint_is_caught_by_the_proof(saved, monkeypatch):
    """A model that adds something of its own to the stream is refused, though its type is in the table."""
    folder = saved("llama")
    block = transformers.models.llama.modeling_llama.LlamaDecoderLayer
    forward = block.forward
    monkeypatch.setattr(block, "forward", lambda self, *args, **kwargs: 1.1 * forward(self, *args, **kwargs))
    with pytest.raises(TwoTowersError, match="embeddings and blocks") as error:
        loading.load(folder)
    one_line(error)


@pytest.mark.parametrize(
    "remove, leave, named",
    [
        (["config.json"], [], "config.json"),
        (["model.safetensors"], [], "no weights"),
        (["model.safetensors"], ["pytorch_model.bin"], "pickled"),
        (["tokenizer.json", "tokenizer_config.json"], [], "tokenizer"),
    ],
)
def test_an_incomplete_folder_is_refused_naming_what_is_missing(saved, tmp_path, remove, leave, named):
    folder = saved("gpt2")
    for name in remove:
        (tmp_path / "gpt2" / name).unlink()
    for name in leave:
        (tmp_path / "gpt2" / name).write_bytes(b"")
    with pytest.raises(TwoTowersError, match=named) as error:
        loading.load(folder)
    one_line(error)


def cut(n):
    return lambda path: path.write_bytes(path.read_bytes()[:n])


@pytest.mark.parametrize(
    "file, damage, named",
    [
        ("model.safetensors", lambda path: path.write_bytes(b""), "damaged, cut off or no safetensors file"),
        ("model.safetensors", lambda path: path.write_bytes(b"not weights"), "damaged, cut off or no safetensors file"),
        ("model.safetensors", lambda path: path.write_bytes(bytes(4096)), "damaged, cut off or no safetensors file"),
        ("model.safetensors", cut(5), "damaged, cut off or no safetensors file"),
        ("model.safetensors", cut(100), "damaged, cut off or no safetensors file"),
        ("model.safetensors", cut(-1), "cut off or no .*not fully covered"),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes() + b"x"), "cut off or no .*not fully covered"),
        ("model.safetensors", lambda path: path.write_text("version https://git-lfs.github.com"), "git lfs pull"),
        ("config.json", cut(40), r"config\.json of '.*' is no valid JSON \(.*line"),
        ("config.json", lambda path: path.write_text("[]"), r"config\.json of '.*' is no valid JSON \(not an object\)"),
        ("config.json", lambda path: path.write_text("{}"), "has no model_type"),
        ("config.json", lambda path: path.write_bytes(b"\xff\xfe"), "no valid JSON"),
        ("tokenizer.json", cut(90), r"tokenizer\.json of '.*' is no valid JSON"),
        ("tokenizer.json", lambda path: path.write_text("{}"), "the tokenizer of '.*' cannot be read"),
        ("tokenizer_config.json", cut(9), r"tokenizer_config\.json of '.*' is no valid JSON"),
        ("generation_config.json", cut(9), r"generation_config\.json of '.*' is no valid JSON"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_naming_it_and_its_remedy(saved, file, damage, named):
    folder = saved("gpt2")
    damage(Path(folder) / file)
    with pytest.raises(TwoTowersError, match=named) as error:
        loading.load(folder)
    text = one_line(error)
    assert any(remedy in text for remedy in ("again", "git lfs", "take the one that belongs"))
    assert "shipped" not in text


def rewritten(folder, change):
    """The checkpoint with other tensors."""
    path = Path(folder) / "model.safetensors"
    tensors = {name: t.clone() for name, t in load_file(path).items()}
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def drop(name):
    return lambda tensors: [tensors.pop(key) for key in list(tensors) if name in key]


@pytest.mark.parametrize(
    "change, named",
    [
        (drop("h.1.attn.c_proj"), r"lacks 2 weights .*h\.1\.attn\.c_proj"),
        (lambda t: t.update({"transformer.h.3.ln_1.weight": torch.ones(16)}), r"holds 1 weights that its config\.json"),
        (lambda t: t.update({"transformer.h.1.mlp.c_fc.qweight": torch.ones(16)}), "GPTQ or AWQ"),
        (lambda t: t.update({"transformer.ln_f.weight": torch.ones(17)}), r"other shapes .*\(transformer\.ln_f\.weight"),
        (lambda t: t["transformer.h.2.mlp.c_fc.weight"].zero_(), r"h\.2\.mlp\.c_fc\.weight of .* is zero throughout"),
        (lambda t: t["transformer.h.2.mlp.c_fc.bias"].fill_(torch.inf), r"h\.2\.mlp\.c_fc\.bias of .* not finite"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_the_config_are_refused_naming_them(saved, change, named):
    with pytest.raises(TwoTowersError, match=named) as error:
        loading.load(rewritten(saved("gpt2"), change))
    one_line(error)


def test_a_config_with_fewer_layers_than_the_weights_is_refused(saved):
    with pytest.raises(TwoTowersError, match=r"holds 11 weights .*transformer\.h\.2\.attn.* same whole checkpoint"):
        loading.load(saved("gpt2", n_layer=2))


@pytest.mark.parametrize("kind, names", [
    ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
    ("gptj", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
    ("gpt_neox", ["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.1.attention.rotary_emb.inv_freq"]),
    ("llama", ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
])  # fmt: skip
def test_the_buffers_of_old_checkpoints_are_no_fault(saved, kind, names):
    loading.load(rewritten(saved(kind), lambda tensors: tensors.update({name: torch.ones(3) for name in names})))


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(saved):
    folder = saved("gpt2")
    larger = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    larger.add_tokens(["one-more"])
    larger.save_pretrained(folder)
    with pytest.raises(
        TwoTowersError, match=r"tokens up to 61, but the model knows 61: .* tokenizer that belongs"
    ) as error:
        loading.load(folder)
    one_line(error)


def test_a_model_in_several_files_must_have_them_all(saved):
    folder = Path(saved("gpt2"))
    (folder / "model.safetensors").unlink()
    tiny("gpt2", torch.float32).hf.save_pretrained(folder, max_shard_size="20KB")
    whole = loading.load(folder)
    assert whole.fingerprint == files.fingerprint(str(folder))
    parts = files.weights(folder, "it")
    assert len(parts) > 2
    parts[1].unlink()
    with pytest.raises(TwoTowersError, match=rf"lacks {parts[1].name} of its {len(parts)} weights files") as error:
        loading.check(folder)
    one_line(error)
    index = folder / files.INDEX
    index.write_text(index.read_text().replace(parts[0].name, "../elsewhere.safetensors"))
    with pytest.raises(TwoTowersError, match="names no files beside it"):
        loading.check(folder)


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder", "a/b/c", "", " ", "x" * 5000, "no-such.gguf"])
def test_a_folder_or_file_that_is_not_there(name):
    for refuse in (loading.load, loading.check, files.fingerprint, files.describe):
        with pytest.raises(TwoTowersError, match=r"no (folder|file) .*mini-gpt2.*smollm2-135m") as error:
            refuse(name)
        assert "\n" not in str(error.value)


def test_a_folder_of_gguf_files_and_a_single_weights_file_name_what_to_give(tmp_path, saved):
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    with pytest.raises(TwoTowersError, match=r"folder of GGUF files: name one of them, such as .*some\.gguf"):
        loading.check(tmp_path)
    with pytest.raises(TwoTowersError, match="give the folder it lies in"):
        loading.check(Path(saved("gpt2")) / "model.safetensors")


def test_an_unknown_hub_id_without_a_network_is_one_line_and_asks_nothing(monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    # Whatever client the hub's library uses, it would open a socket.
    monkeypatch.setattr(socket.socket, "connect", lambda *a, **k: pytest.fail("asked the hub"))
    for refuse in (loading.load, files.fingerprint, files.describe):
        with pytest.raises(TwoTowersError, match="cannot be loaded") as error:
            refuse("no-such-owner/no-such-model")
        assert "hub cannot be reached" in one_line(error)


@pytest.fixture
def hubs_cache(saved, tmp_path, monkeypatch):
    """A model in the hub's cache, and no hub."""
    folder = tmp_path / "hub" / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    shutil.copytree(saved("gpt2"), folder / "snapshots" / ("0" * 40))
    monkeypatch.setattr(hub, "snapshot_download", partial(hub.snapshot_download, cache_dir=tmp_path / "hub"))
    monkeypatch.setattr(hub, "answers", lambda: False)
    return folder / "snapshots" / ("0" * 40)


def test_a_model_in_the_hubs_cache_loads_without_the_hub(hubs_cache):
    model = loading.load("some/model")
    assert model.fingerprint == files.fingerprint("some/model")
    assert model.fingerprint == "some/model@" + files.fingerprint(str(hubs_cache)).split("@")[1]
    assert files.describe("some/model")["n_layers"] == 3
    (hubs_cache / "model.safetensors").unlink()
    with pytest.raises(TwoTowersError, match=r"only a part of it is in the local cache: .* go online") as error:
        loading.load("some/model")
    one_line(error)


def test_nothing_large_is_fetched_of_a_model_that_is_refused(hubs_cache, monkeypatch):
    asked = []
    fetch = hub.snapshot_download
    monkeypatch.setattr(hub, "snapshot_download", lambda *a, **k: asked.extend(k["allow_patterns"]) or fetch(*a, **k))
    config = hubs_cache / "config.json"
    for change, named in [
        ({"model_type": "bloom"}, "bloom"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    ]:
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
        with pytest.raises(TwoTowersError, match=named):
            loading.load("some/model")
    assert asked and not any("safetensors" in pattern for pattern in asked)


@pytest.mark.parametrize(
    "error, named",
    [
        (errors.GatedRepoError, r"'a/model' needs your permission on the hub: .* `hf auth login`"),
        (errors.RepositoryNotFoundError, "is no model on the hub, or not for you"),
        (errors.RevisionNotFoundError, "has no revision"),
        (errors.HfHubHTTPError, r"cannot be fetched from the hub \(500\): try again"),
    ],
)
def test_what_the_hub_refuses_is_one_line(monkeypatch, error, named):
    def refuse(*args, **kwargs):
        raise error("500\nmany\nlines", response=SimpleNamespace(headers={}, request=None, status_code=500))

    monkeypatch.setattr(hub, "answers", lambda: True)
    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(TwoTowersError, match=named) as bad:
        loading.load("a/model")
    one_line(bad)


def test_a_hub_that_answers_is_asked(monkeypatch):
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert hub.answers()
    listener.close()
    assert not hub.answers()
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy"})
    assert hub.answers()
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    assert not hub.answers()


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta"])
def test_a_missing_device_is_refused_naming_those_there_are(device):
    with pytest.raises(TwoTowersError, match="cpu") as error:
        loading.load("mini-gpt2", device=device)
    one_line(error)


def test_an_unknown_dtype_is_refused_naming_the_choices():
    with pytest.raises(TwoTowersError, match="float32, bfloat16, float16, float64"):
        loading.load("mini-gpt2", dtype="int8")


def test_a_shipped_name_loads_its_folder(saved, tmp_path, monkeypatch):
    saved("gpt2")
    monkeypatch.setattr(files, "shipped_models", lambda: {"mini-test": tmp_path / "gpt2"})
    model = loading.load("mini-test")
    assert model.name == "mini-test"
    assert model.fingerprint == files.fingerprint("mini-test")
    assert model.fingerprint == "mini-test@" + files.fingerprint(str(tmp_path / "gpt2")).split("@")[1]


def test_a_fingerprint_does_not_tell_where_a_folder_lies(saved):
    assert loading.load(saved("gpt2")).fingerprint.startswith("gpt2@")
