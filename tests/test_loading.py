"""Loading a model: what is taken, what is refused in one line, what a fingerprint follows."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from conftest import TINY, random_prompts, refused, tiny
from safetensors.torch import load_file, save_file
from towerlab.model import files, loading, packages, proof
from towerlab.model.architectures import ARCHITECTURES
from towerlab.model.capture import capture


def not_loaded(name, words: str, **options) -> None:
    assert len(refused(words, loading.load, name, **options)) < 600


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(TINY))
def test_every_architecture_loads_from_a_folder_and_is_proven(save, kind):
    folder = save(kind)
    model = loading.load(folder)
    assert model.architecture is ARCHITECTURES[kind.split()[0]]
    assert max(proof.prove(model).values()) < 1e-4
    assert model.fingerprint == files.fingerprint(str(folder))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["gpt2", "gptj", "llama", "gemma2"])
def test_narrow_models_keep_their_scores_wide_and_stay_near_float32(kind, dtype):
    # The same numbers in both: float32 weights that the narrow dtype can hold.
    narrow, wide = (tiny(kind, loading.DTYPES[dtype]) for _ in range(2))
    wide.hf.float()
    plain, expected = (
        capture(model, random_prompts(3, lengths=(11,)), proof.PROVEN) for model in (narrow, wide)
    )
    assert plain.weights.dtype == plain.scores.dtype == torch.float32
    assert plain.z.dtype == loading.DTYPES[dtype]
    assert (plain.weights - expected.weights).abs().max() < proof.TOLERANCE[loading.DTYPES[dtype]]


def test_a_device_map_gives_the_same_model_and_may_not_offload(save, tmp_path, monkeypatch):
    folder, encoded = save("llama"), random_prompts(2, lengths=(11,))
    spread, whole = loading.load(folder, device_map={"": "cpu"}), loading.load(folder)
    assert torch.equal(capture(spread, encoded).logits, capture(whole, encoded).logits)
    full = transformers.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM,
        "from_pretrained",
        lambda *args, **kwargs: full(*args, **kwargs, offload_folder=str(tmp_path / "offloaded")),
    )
    on_disk = dict.fromkeys(
        ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"], "cpu"
    )
    on_disk |= {"model.layers.0": "cpu", "model.layers.1": "cpu", "model.layers.2": "disk"}
    not_loaded(folder, "offloads", device_map=on_disk)


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
    not_loaded(folder, "pickled weights only.*save it as safetensors")
    for fields, words in (
        ({"model_type": "own"}, "own model, which is not supported"),
        ({"auto_map": {name: "own.Own" for name in ("AutoConfig", "AutoModelForCausalLM",
                                                    "AutoTokenizer")}},
         r"code of its own \(auto_map: AutoModelForCausalLM\).*take auto_map out of config.json"),
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


@pytest.mark.parametrize(
    "file, damage, words",
    [
        ("model.safetensors", cut, "the weights of .* damaged .* again"),
        (
            "model.safetensors",
            lambda path: path.write_text("version https://git-lfs"),
            "weights of .* damaged .* again",
        ),
        ("model.safetensors", Path.unlink, "no safetensors weights: put model.safetensors there"),
        (
            "model.safetensors",
            changing(C_PROJ, lambda _: None),
            rf"lacks 2 weights .*{C_PROJ}.* same whole checkpoint",
        ),
        (
            "model.safetensors",
            changing("h.2.mlp.c_fc.weight", torch.zeros_like),
            r"h\.2\.mlp\.c_fc\.weight of .* zero throughout",
        ),
        (
            "model.safetensors",
            changing(f"{C_PROJ}.weight", one_nan),
            rf"{C_PROJ}.weight of .* not finite: copy or download it again, or take another",
        ),
        (
            "model.safetensors",
            changing("h.0.mlp.c_fc.weight", lambda w: w.to(torch.int8)),
            "holds I8, no plain floats, .*GGUF",
        ),
        ("config.json", cut, r"config\.json of .* cannot be read"),
        ("config.json", lambda path: path.write_text("{}"), "has no model_type"),
        ("config.json", Path.unlink, "holds no config.json: give a folder"),
        (
            "config.json",
            lambda path: path.write_text("[" * 100_000),
            r"config\.json of .* cannot be read",
        ),
    ],
)
def test_a_damaged_or_incomplete_folder_is_refused_naming_the_remedy(save, file, damage, words):
    folder = save("gpt2")
    damage(folder / file)
    not_loaded(folder, words)


def test_a_model_that_overflows_in_float16_is_refused_naming_wider_numbers(save):
    folder = save("llama")
    changing("layers.1.mlp.", lambda weight: 1e3 * weight)(folder / "model.safetensors")
    not_loaded(folder, "not finite in float16: take dtype=bfloat16 or float32", dtype="float16")
    loading.load(folder)


def test_a_run_warns_of_no_padding(monkeypatch):
    output = []
    monkeypatch.setattr("transformers.modeling_utils.logger.warning_once", output.append)
    loading.load("mini-gpt2").hf(torch.zeros(1, 4, dtype=torch.long))
    assert not output


def test_an_adapter_and_one_file_of_a_model_are_refused_naming_the_way(save):
    folder = save("llama")
    not_loaded(folder / "model.safetensors", "one file of a model: give its folder")
    (folder / "adapter_model.safetensors").write_bytes(
        b""
    )  # beside whole weights, which it would change
    not_loaded(folder, "adapter_model.*merge_and_unload.*take the adapter out")
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    not_loaded(folder, "merge_and_unload")


def test_what_a_folder_was_made_from_stays_with_it(save, tmp_path):
    folder = save("llama", made_from={"file": "x.gguf", "quantisation": "Q4_0, dequantised"})
    model = loading.load(folder)
    assert model.quantisation == "Q4_0, dequantised"
    model.hf.save_pretrained(tmp_path / "copy")
    assert files.describe(str(tmp_path / "copy")).quantisation == "Q4_0, dequantised"


def test_the_buffers_of_old_checkpoints_are_no_fault(save):
    folder = save("llama")
    tensors = load_file(folder / "model.safetensors") | {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    loading.load(folder)


def test_a_model_in_several_files_must_have_them_all(save):
    folder = save("gpt2")
    (folder / "model.safetensors").unlink()
    tiny("gpt2", torch.float32).hf.save_pretrained(folder, max_shard_size="20KB")
    assert loading.load(folder).fingerprint == files.fingerprint(str(folder))
    part = files.weights(folder, "it")[1]
    part.unlink()
    not_loaded(folder, f"lacks {part.name}")


@pytest.mark.parametrize(
    "name", ["./no-such-folder", "/no/such/folder", "a/b/c", "", " ", "x" * 5000, "no-such.gguf"]
)
def test_a_name_of_nothing_is_refused_naming_what_there_is(name):
    for refuse in (loading.load, files.fingerprint, files.describe):
        refused(r"there is no model .*mini-gpt2.*smollm2-135m", refuse, name)


def test_a_hub_model_that_cannot_be_had_is_one_line_and_one_in_the_cache_loads(
    save, tmp_path, monkeypatch
):
    from huggingface_hub import snapshot_download

    folder = tmp_path / "hub" / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots").mkdir()
    save("gpt2").rename(folder / "snapshots" / ("0" * 40))
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda *args, **kwargs: snapshot_download(
            *args, **kwargs, cache_dir=tmp_path / "hub", local_files_only=True
        ),
    )
    assert loading.load("some/model").fingerprint == files.fingerprint("some/model")
    assert files.fingerprint("some/model").startswith("some/model@")
    not_loaded("no-such-owner/no-such-model", "cannot be fetched from the hub")


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "meta"])
def test_a_missing_device_or_unknown_dtype_is_refused_naming_those_there_are(device):
    not_loaded("mini-gpt2", "choose one of cpu", device=device)
    not_loaded("mini-gpt2", "float32, bfloat16, float16, float64", dtype="int8")


def test_a_fingerprint_follows_every_byte_that_defines_the_model(save):
    folder = save("gpt2")
    whole = files.fingerprint(str(folder))
    assert whole.startswith("gpt2@") and len(whole.split("@")[1]) == 12
    (folder / "README.md").write_text("a card")
    assert files.fingerprint(str(folder)) == whole
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        content = (folder / name).read_bytes()
        for at in (0, len(content) // 2, len(content) - 1):
            (folder / name).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert files.fingerprint(str(folder)) != whole, name
        (folder / name).write_bytes(content)
    assert files.fingerprint(str(folder)) == whole
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert files.fingerprint(str(folder)) != whole


def test_what_a_model_is_is_known_without_torch_and_without_fetching_it():
    code = (
        "import sys; from towerlab.model import files;"
        "print(*map(files.fingerprint, ('mini-gpt2', 'smollm2-135m')));"
        "print(*files.describe('smollm2-135m'));"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'slow imports'"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    sha256 = packages.catalogue()["smollm2-135m"].sha256
    assert process.stdout.split()[1:] == [
        f"smollm2-135m@{sha256[:12]}",
        "llama",
        "Q4_1,",
        "dequantised",
    ]
