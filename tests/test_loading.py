"""Loading a model: what is taken, what is refused in one line, what a fingerprint follows."""

import hashlib
import json
import os
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from conftest import TINY, python, random_prompts, refused, tiny, word_tokenizer
from safetensors.torch import load_file, save_file
from towerlab.measure.pipeline import Pipeline
from towerlab.model import checkpoint, loading, proof
from towerlab.model.architectures import ARCHITECTURES
from towerlab.model.capture import capture
from twotowers.errors import TwoTowersError
from twotowers.settings import Settings


def not_loaded(name, words: str, **options) -> None:
    assert len(refused(words, loading.load, name, **options)) < 600


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(TINY))
def test_every_architecture_loads_from_a_folder_and_is_proven(save, kind):
    folder = save(kind)
    model = loading.load(folder)
    assert model.architecture is ARCHITECTURES[kind.split()[0]]
    assert max(proof.prove(model).values()) < 1e-4
    assert model.fingerprint == checkpoint.fingerprint(str(folder))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["gpt2", "gptj", "llama", "gemma2"])
def test_narrow_models_keep_their_scores_wide_and_stay_near_float32(kind, dtype):
    # The same numbers in both: float32 weights that the narrow dtype can hold.
    narrow, wide = (tiny(kind, getattr(torch, dtype)) for _ in range(2))
    wide.hf.float()
    plain, expected = (
        capture(model, random_prompts(3, lengths=(11,)), proof.PROVEN) for model in (narrow, wide)
    )
    assert plain.weights.dtype == plain.scores.dtype == torch.float32
    assert plain.z.dtype == getattr(torch, dtype)
    assert (plain.weights - expected.weights).abs().max() < proof.TOLERANCE[getattr(torch, dtype)]


def test_a_device_map_gives_the_same_model(save):
    folder, encoded = save("llama"), random_prompts(2, lengths=(11,))
    spread, whole = loading.load(folder, device_map={"": "cpu"}), loading.load(folder)
    torch.testing.assert_close(capture(spread, encoded).logits, capture(whole, encoded).logits)


def test_an_edited_checkpoint_is_caught_by_the_proof(save, monkeypatch):
    """A model that adds something of its own to the stream is refused, though its type is in the
    table."""
    folder = save("llama")
    block = transformers.models.llama.modeling_llama.LlamaDecoderLayer
    forward = block.forward
    monkeypatch.setattr(
        block, "forward", lambda self, *args, **kwargs: 1.1 * forward(self, *args, **kwargs)
    )
    not_loaded(folder, "embeddings and blocks")


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_pickle_is_loaded_and_no_code_of_a_model_is_run(save, tmp_path):
    folder = save("llama")
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "was-run")))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')")
    loading.load(folder)
    (folder / "model.safetensors").unlink()
    not_loaded(folder, "no file named model.safetensors .*give config, safetensors")
    for fields, words in (
        ({"model_type": "own"}, "unknown architecture 'own' .*gpt2, .*llama"),
        ({"auto_map": {name: "own.Own" for name in ("AutoConfig", "AutoModelForCausalLM",
                                                    "AutoTokenizer")}},
         "its own code .*remove auto_map"),
    ):  # fmt: skip
        not_loaded(save("llama", **fields), words)
    assert not (tmp_path / "was-run").exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def changing(part, change):
    """A change of a file's weights with this part in their names; None leaves them out."""

    def rewrite(path):
        tensors = {
            name: change(tensor) if part in name else tensor
            for name, tensor in load_file(path).items()
        }
        save_file(
            {name: tensor for name, tensor in tensors.items() if tensor is not None},
            path,
            metadata={"format": "pt"},
        )

    return rewrite


def one_nan(weight):
    return weight.where(weight != weight.max(), torch.nan)


C_PROJ = "h.1.attn.c_proj"
BROKEN = json.dumps(
    json.loads(word_tokenizer(["w0"]).backend_tokenizer.to_str())
    | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
)


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


@pytest.mark.parametrize(
    "file, damage, words",
    [
        (WEIGHTS, cut, "cannot load .*SafetensorError.* one whole checkpoint"),
        (WEIGHTS, changing(C_PROJ, lambda _: None), rf"missing weights .2: .*{C_PROJ}"),
        (WEIGHTS, changing("mlp.c_fc.weight", lambda w: w[:-1]), "another shape .* .3: "),
        (WEIGHTS, changing("h.2.mlp.c_fc.weight", torch.zeros_like), "h.2.mlp.c_fc.weight .* zero"),
        (WEIGHTS, changing(f"{C_PROJ}.weight", one_nan), rf"{C_PROJ}.weight of .* not finite"),
        (
            WEIGHTS,
            changing("h.0.mlp.c_fc.weight", lambda w: w.to(torch.int8)),
            "expected floats, got I8",
        ),
        (CONFIG, cut, r"cannot read config\.json of"),
        (CONFIG, Path.unlink, r"cannot read config\.json of"),
        (TOKENIZER, cut, "cannot load"),
        (TOKENIZER, lambda path: path.write_text(BROKEN), "cannot load .*Panic"),
    ],
)
def test_a_damaged_or_incomplete_folder_is_refused_naming_the_remedy(save, file, damage, words):
    folder = save("gpt2")
    damage(folder / file)
    not_loaded(folder, words)


def test_a_model_that_overflows_in_float16_is_refused_naming_wider_numbers(save):
    folder = save("llama")
    changing("layers.1.mlp.", lambda weight: 1e3 * weight)(folder / "model.safetensors")
    not_loaded(folder, "not finite in float16; choose dtype=bfloat16 or float32", dtype="float16")
    loading.load(folder)


def test_an_adapter_and_one_file_of_a_model_are_refused_naming_the_way(save):
    folder = save("llama")
    not_loaded(folder / "model.safetensors", "expected a folder .*gguf_to_folder")
    # It is next to whole weights, which it would change.
    (folder / "adapter_model.safetensors").write_bytes(b"")
    not_loaded(folder, "it has an adapter .*merge_and_unload")


@pytest.mark.parametrize(
    "kind, config, words",
    [
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "are quantised"),
        ("gpt2", {"n_layer": 2}, r"unknown weights .1\d: .*transformer\.h\.2"),
    ],
)
def test_a_config_that_is_not_supported_or_not_that_of_the_weights_is_refused(
    save, kind, config, words
):
    not_loaded(save(kind, **config), words)


def test_buffers_of_old_checkpoints_are_ignored_and_other_tensors_are_not(save):
    folder = save("llama")
    path, layer = folder / "model.safetensors", "model.layers.0.self_attn"
    whole = load_file(path)
    buffer = {f"{layer}.rotary_emb.inv_freq": torch.ones(3)}
    save_file(whole | buffer, path, metadata={"format": "pt"})
    loading.load(folder)
    for extra in (f"{layer}.q_proj.bias", "lm_head.bias", f"{layer}.q_proj.weight_scale"):
        save_file(whole | {extra: torch.ones(16)}, path, metadata={"format": "pt"})
        not_loaded(folder, rf"unknown weights .1: {extra}\)")


def test_a_model_in_several_files_must_have_them_all(save):
    folder = save("gpt2")
    (folder / "model.safetensors").unlink()
    tiny("gpt2", torch.float32).hf.save_pretrained(folder, max_shard_size="20KB")
    assert loading.load(folder).fingerprint == checkpoint.fingerprint(str(folder))
    part = next(folder.glob("model-00002-of-*"))
    part.unlink()
    not_loaded(folder, f"cannot read .*{part.name}': No such file.*one whole checkpoint")


def in_odd_shards(folder, change=None):
    """Two shards with names that only the index knows, as some repositories have."""
    whole = load_file(folder / WEIGHTS)
    if change:
        whole["transformer.h.2.mlp.c_fc.weight"] = change(whole["transformer.h.2.mlp.c_fc.weight"])
    shards = {name: f"{WEIGHTS}-0000{i % 2}-of-00002.safetensors" for i, name in enumerate(whole)}
    for shard in {*shards.values()}:
        tensors = {name: whole[name] for name in whole if shards[name] == shard}
        save_file(tensors, folder / shard, metadata={"format": "pt"})
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": shards})
    )
    return folder


def test_a_fingerprint_follows_the_files_that_the_index_names(save):
    model = loading.load(in_odd_shards(save("gpt2")))
    other = loading.load(in_odd_shards(save("gpt2"), lambda weight: 2 * weight))
    assert model.fingerprint != other.fingerprint
    (save("gpt2") / "model-00001-of-00009.safetensors").write_bytes(b"never read")
    assert loading.load(in_odd_shards(save("gpt2"))).fingerprint == model.fingerprint
    not_loaded(in_odd_shards(save("gpt2"), lambda weight: weight.to(torch.int8)), "got I8")


@pytest.mark.parametrize("index", ["{}", "[]", '{"weight_map": {"a": 1}}', "{"])
def test_an_index_that_names_no_files_is_refused(save, index):
    folder = save("gpt2")
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(index)
    not_loaded(folder, r"cannot read .*index.json'.*one whole checkpoint")


def test_weights_that_change_while_they_are_read_are_refused(save, monkeypatch):
    folder = save("gpt2")
    change = partial(changing("c_fc", lambda weight: 2 * weight), folder / WEIGHTS)
    read = loading._tokenizer
    monkeypatch.setattr(loading, "_tokenizer", lambda folder: (change(), read(folder))[1])
    not_loaded(folder, "its files changed while they were read; wait .* run the same command")


def test_weights_that_change_before_they_are_read_do_not_get_the_old_fingerprint(save, tmp_path):
    folder = save("gpt2")
    pipeline = Pipeline(Settings(model=str(folder)))
    digits = pipeline.fingerprint.partition("@")[2]
    changing("c_fc", lambda weight: 2 * weight)(folder / WEIGHTS)
    with pytest.raises(TwoTowersError, match=f"expected those of the fingerprint {digits}, got "):
        pipeline.model  # noqa: B018


def test_a_loaded_model_does_not_follow_its_files(save):
    folder = save("gpt2")
    model = loading.load(folder)
    before = {name: weight.clone() for name, weight in model.hf.named_parameters()}
    with (folder / WEIGHTS).open("r+b") as file:  # in place, as `cp` writes
        file.seek(4096)
        file.write(bytes(9000))
    for name, weight in model.hf.named_parameters():
        assert torch.equal(weight, before[name]), name


def with_another_end(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_large_file_is_hashed_once_in_each_state(save, monkeypatch):
    monkeypatch.setattr(checkpoint, "LARGE", 1000)
    monkeypatch.setattr(checkpoint, "SETTLED", -1)
    folder, hashed = save("gpt2"), []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, kind: hashed.append(file.name) or digest(file, kind)
    )
    weights = folder / WEIGHTS
    first = checkpoint.fingerprint(str(folder))
    assert checkpoint.fingerprint(str(folder)) == first and hashed.count(str(weights)) == 1
    about = weights.stat()
    with_another_end(weights)
    os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns))  # as `rsync --times` leaves it
    assert checkpoint.fingerprint(str(folder)) != first and hashed.count(str(weights)) == 2


def test_a_file_that_changed_a_moment_ago_is_hashed_each_time(save, monkeypatch):
    """The clock of a file system may not tell two changes apart."""
    monkeypatch.setattr(checkpoint, "LARGE", 1000)
    folder = str(save("gpt2"))
    monkeypatch.setattr(checkpoint, "atomic_write", None)  # nothing is remembered
    assert checkpoint.fingerprint(folder) == checkpoint.fingerprint(folder)


@pytest.mark.parametrize("name", ["./no-such-folder", "a/b/c", " ", "x" * 5000, "a\nb"])
def test_a_name_of_nothing_is_refused_naming_what_there_is(name):
    for refuse in (loading.load, checkpoint.fingerprint, loading.check):
        refused(r"cannot fetch the model .*mini-gpt2.*smollm2-135m.*; check the name", refuse, name)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta"])
def test_a_missing_device_or_unknown_dtype_is_refused(device):
    not_loaded("mini-gpt2", f"missing device '{device}'", device=device)
    not_loaded("mini-gpt2", "dtype", dtype="int8")


def test_a_fingerprint_follows_every_byte_that_defines_the_model(save):
    folder = save("gpt2")
    whole = checkpoint.fingerprint(str(folder))
    assert whole.startswith("gpt2@") and len(whole.split("@")[1]) == 12
    (folder / "README.md").write_text("a card")
    assert checkpoint.fingerprint(str(folder)) == whole
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        with_another_end(folder / name)
        assert checkpoint.fingerprint(str(folder)) != whole, name
        with_another_end(folder / name)
    assert checkpoint.fingerprint(str(save("gpt2", layer_norm_epsilon=1e-6))) != whole


def test_a_precomputed_model_is_known_by_its_files_without_torch_and_its_weights_are_asked_for():
    code = (
        "import sys, twotowers.book, towerlab.measure.pipeline;"
        "from towerlab.model import checkpoint, loading;"
        "print(*map(checkpoint.fingerprint, ('mini-gpt2', 'smollm2-135m')));"
        "loading.check('smollm2-135m');"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'slow imports'"
    )
    process = python(code)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split()[1] == "smollm2-135m@b179c9523d0e"
    not_loaded("smollm2-135m", "missing weights .*gguf_to_folder.py smollm2-135m .*that folder")


@pytest.mark.parametrize("file", [WEIGHTS, TOKENIZER])
def test_a_file_without_its_content_is_named(save, file):
    folder = save("llama")
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    calls = loading.load, checkpoint.fingerprint
    words = f"cannot use '.*{file}': .*pointer of git-lfs; run `git lfs pull`"
    for call in calls:
        refused(words, call, str(folder))
    (folder / file).unlink()
    (folder / file).symlink_to("../../blobs/gone")  # as in a cache that was cleaned
    for call in calls:
        refused(f"cannot read '.*{file}': No such file or directory; ", call, str(folder))


def test_a_norm_without_weight_is_refused(save):
    """As OLMo has them: a row of the table would not help."""
    model = tiny("gpt2")
    model.hf.transformer.ln_f = torch.nn.LayerNorm(16, elementwise_affine=False)
    refused("a LayerNorm of 'gpt2': expected a norm with a weight", lambda: model.unembedding)
