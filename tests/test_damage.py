"""A hundred folders and files with something wrong in them: each is refused in one line, exit 2,
and nothing is written; or it is shown to be the model that it was."""

import json
import random
import shutil

import pytest
import torch
from conftest import random_prompts, save_tiny
from safetensors.torch import load_file, save_file
from test_gguf import GPT2, model_of, write
from towerlab import cli
from towerlab.model import loading
from twotowers.errors import TwoTowersError

# Fields without which old checkpoints were written, since all had the default that transformers
# still takes.
FREE = {
    "rope_parameters",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "pretraining_tp",
    "dtype",
    "architectures",
}
IDS = torch.tensor([e.ids for e in random_prompts(2, lengths=(11,))])
ODD = ("many", -1, [1, 2], {"a": 1}, 1e30, 10**12, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "it"
    save_tiny(path, "llama")
    return path


def numbers(path):
    model = loading.load(path)
    with torch.inference_mode():
        return model.hf(IDS).logits, model.tokenizer("w1 w2 AB")["input_ids"]


def damage_config(path, rng):
    file = path / "config.json"
    config = json.loads(file.read_text())
    field = rng.choice(
        sorted(key for key, value in config.items() if key not in FREE and value is not None)
    )
    how = rng.choice(("gone", "type", "size"))
    if how == "gone":
        del config[field]
    else:
        value = config[field]
        config[field] = (
            rng.choice(ODD) if how == "type" or not isinstance(value, int) else value * 2 + 1
        )
    file.write_text(json.dumps(config))
    return f"{how}: {field}={config.get(field)!r}"


def damage_weights(path, rng):
    file = path / "model.safetensors"
    tensors = load_file(file)
    name, how = rng.choice(sorted(tensors)), rng.choice(("gone", "type", "size", "more", "cut"))
    if how == "gone":
        del tensors[name]
    elif how == "more":
        tensors[rng.choice((f"{name}_scale", f"extra.{name}"))] = tensors[name].clone()
    else:
        tensors[name] = {
            "type": tensors[name].mul(100).to(torch.int8),
            "size": tensors[name][:-1].clone(),
        }.get(how, tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})
    if how == "cut":
        file.write_bytes(file.read_bytes()[: -rng.randrange(1, 5000)])
    return f"{how}: {name}"


def damage_tokenizer(path, rng):
    file = path / "tokenizer.json"
    content = json.loads(file.read_text())
    how = rng.choice(("cut", "no model", "no vocab", "type", "other", "gone"))
    if how == "gone":
        file.unlink()
        return how
    damaged = {"no model": content | {"model": None},
               "no vocab": content | {"model": {"type": "WordLevel"}}, "other": [1],
               "type": content | {"model": content["model"] | {"vocab": rng.choice(ODD)}},
               }  # fmt: skip
    content = damaged.get(how, content)
    text = json.dumps(content)
    file.write_text(text[: rng.randrange(len(text))] if how == "cut" else text)
    return how


def damage_index(path, rng):
    shutil.move(path / "model.safetensors", path / "a.safetensors")
    file, names = path / "model.safetensors.index.json", list(load_file(path / "a.safetensors"))
    file.write_text(
        json.dumps(
            {"weight_map": rng.choice((None, [1], {names[0]: "b.safetensors"}, {names[0]: 5}, "x"))}
        )
    )
    return "index"


def damage_gguf(path, rng):
    how = rng.choice(("gone", "type", "size", "tensor", "rows", "cut", "part", "tokens"))
    fields, tensors, tokens, hf = {}, {}, GPT2, model_of("llama")
    field = rng.choice(("block_count", "embedding_length", "attention.head_count",
                        "attention.head_count_kv", "feed_forward_length", "context_length",
                        "attention.layer_norm_rms_epsilon", "rope.dimension_count"))  # fmt: skip
    field = "general.architecture" if rng.random() < 0.1 and how == "type" else f"llama.{field}"
    if how in ("gone", "type", "size"):
        fields[field] = {"gone": None, "type": rng.choice(("many", [1.5], False)), "size": 24}[how]
    name = rng.choice(
        (
            "blk.0.attn_q.weight",
            "blk.1.ffn_up.weight",
            "output_norm.weight",
            "token_embd.weight",
            "blk.2.attn_norm.weight",
        )
    )
    if how in ("tensor", "rows"):
        tensors[name] = None if how == "tensor" else torch.ones(3, 32).numpy()
    if how == "tokens":
        tokens = {
            key: value
            for key, value in GPT2.items()
            if key != rng.choice(("model", "pre", "tokens", "merges"))
        }
    write(
        hf,
        path,
        tokens=tokens,
        fields=fields | ({"split.count": 3} if how == "part" else {}),
        tensors=tensors,
    )
    if how == "cut":
        path.write_bytes(path.read_bytes()[: -rng.randrange(50, 20_000)])
    return f"{how}: {fields or name}"


DAMAGE = (damage_config, damage_weights, damage_tokenizer, damage_index)


def test_a_hundred_damaged_models_are_refused_in_one_line(folder, tmp_path, capfd):
    whole, refusals, harmless = numbers(folder), 0, []
    of_file = numbers(write(model_of("llama"), tmp_path / "whole.gguf"))
    capfd.readouterr()
    for i in range(100):
        rng = random.Random(i)
        out, path = tmp_path / f"out{i}", tmp_path / f"it{i}"
        if i % 5 == 4:
            path = path.with_suffix(".gguf")
            what = damage_gguf(path, rng)
        else:
            shutil.copytree(folder, path)
            what = DAMAGE[(i // 5 + i) % 3 if i % 20 else 3](path, rng)
        try:
            logits, ids = numbers(path)
        except TwoTowersError as error:
            line, refusals = str(error), refusals + 1
            capfd.readouterr()
            assert cli.main(["measure", "answers", "--model", str(path), "--out", str(out)]) == 2, (
                what
            )
            said = [
                text
                for text in capfd.readouterr().err.splitlines()
                if "written out as floats" not in text
            ]
            assert (
                len(said) == 1 and said[0][:80] == f"twotowers: {line}"[:80] and len(line) < 900
            ), what
            assert not out.exists() or not [*out.rglob("*")], what
        else:
            expected = of_file if path.suffix else whole
            assert torch.equal(logits, expected[0]) and ids == expected[1], what
            harmless.append(what)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert refusals >= 80, harmless
