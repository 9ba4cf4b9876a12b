"""Loading a model: what is taken, what is refused in one line, narrow dtypes, devices."""

import json
import socket

import pytest
import torch
import transformers
from conftest import TINY, VOCABULARY, random_prompts, tiny
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from twotowers.analysis import locate
from twotowers.errors import TwoTowersError
from twotowers.model import loading
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


@pytest.mark.parametrize("kind", sorted(TINY))
def test_every_architecture_loads_from_a_folder_and_is_proven(saved, kind):
    folder = saved(kind)
    model = loading.load(folder)
    assert model.architecture is ARCHITECTURES[kind.split()[0]]
    assert max(loading.prove(model).values()) < 1e-4
    assert model.fingerprint.split("@")[1] == loading.weights_hash(tiny(kind, torch.float32).hf)


def test_a_fingerprint_follows_the_weights():
    one, other = tiny("gpt2", torch.float32), tiny("gpt2", torch.float32)
    assert one.fingerprint == other.fingerprint
    other.hf.transformer.h[1].attn.c_proj.bias[3] += 1e-3
    assert loading.weights_hash(other.hf) != one.fingerprint.split("@")[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", sorted(TINY))
def test_narrow_models_keep_their_scores_wide_and_stay_near_float32(kind, dtype):
    # The same numbers in both: float32 weights that the narrow dtype can hold.
    narrow = tiny(kind, loading.DTYPES[dtype])
    wide = tiny(kind, loading.DTYPES[dtype])
    wide.hf.float()
    encoded = random_prompts(3, lengths=(11,))
    seen, expected = (capture(model, encoded, loading.PROVEN) for model in (narrow, wide))
    assert seen.weights.dtype == seen.scores.dtype == torch.float32
    assert seen.z.dtype == loading.DTYPES[dtype]
    tolerance = loading.TOLERANCE[loading.DTYPES[dtype]]
    assert max(loading.identity_errors(narrow, seen).values()) < tolerance
    loading.prove(narrow)
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
        ("olmo2", {"attention_bias": True}, "attention_bias"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"model_type": "gemma3"}, "gemma3 model.* reads images too.*gemma3_text"),
        ("llama", {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "quantised"),
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


def test_a_broken_weights_file_is_refused_in_one_line(saved, tmp_path):
    folder = saved("gpt2")
    (tmp_path / "gpt2" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(TwoTowersError) as error:
        loading.load(folder)
    one_line(error)


def test_a_checkpoint_that_lacks_weights_is_refused_naming_them(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = saved("gpt2")
    path = tmp_path / "gpt2" / "model.safetensors"
    tensors = load_file(path)
    tensors = {name: t for name, t in tensors.items() if "h.1.attn.c_proj" not in name}
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(TwoTowersError, match=r"h\.1\.attn\.c_proj") as error:
        loading.load(folder)
    one_line(error)


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder", "a/b/c"])
def test_a_folder_that_is_not_there(name):
    with pytest.raises(TwoTowersError, match="no folder") as error:
        loading.load(name)
    one_line(error)


def test_an_unknown_hub_id_without_a_network_is_one_line_and_asks_nothing(monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    # Whatever client the hub's library uses, it would open a socket.
    monkeypatch.setattr(socket.socket, "connect", lambda *a, **k: pytest.fail("asked the hub"))
    with pytest.raises(TwoTowersError, match="cannot load") as error:
        loading.load("no-such-owner/no-such-model")
    assert "hub cannot be reached" in one_line(error)


def test_a_gated_model_without_a_token_names_the_login(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(
            "You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/a/gated.\n"
            "401 Client Error. Access to model a/gated is restricted. You must be authenticated to access it."
        )

    monkeypatch.setattr(loading, "_hub_answers", lambda: True)
    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(TwoTowersError, match=r"'a/gated' needs your permission on the hub: .* `hf auth login`") as bad:
        loading.load("a/gated")
    one_line(bad)


def test_a_hub_that_answers_is_asked(monkeypatch):
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading.constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert loading._hub_answers()
    listener.close()
    assert not loading._hub_answers()
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy"})
    assert loading._hub_answers()
    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", True)
    assert not loading._hub_answers()


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
    monkeypatch.setattr(loading, "shipped_models", lambda: {"mini-test": tmp_path / "gpt2"})
    model = loading.load("mini-test")
    assert model.name == "mini-test"
    assert model.fingerprint == f"mini-test@{loading.weights_hash(model.hf)}"


def test_a_fingerprint_does_not_tell_where_a_folder_lies(saved):
    assert loading.load(saved("gpt2")).fingerprint.startswith("gpt2@")
