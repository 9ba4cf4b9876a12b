"""A GGUF file as a folder of safetensors: dequantised once, exactly, and kept in the user's cache.

    folder = converted(gguf_file.read(path))     # seconds to minutes the first time, then nothing

What llama.cpp's converter did to the weights is undone: it reorders the rows of Q and K where rotation pairs
neighbours (Llama), adds 1 to Gemma's norms, transposes GPT-2's matrices, and splits GPT-NeoX's heads into Q, K and V.
All numbers are kept in float32: those of Q4_K and its kin are not exact in float16.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, PretrainedConfig

from twotowers.errors import TwoTowersError
from twotowers.model import gguf_tokenizer, store
from twotowers.model.gguf_config import config, numbers, places
from twotowers.model.gguf_file import Header, Tensor
from twotowers.paths import user_cache

VERSION = 1  # of what is written; a folder of another version is made anew
SHARD = 2 * 10**9  # bytes of one weights file, and about what converting takes in memory
MANIFEST = "converted.json"

_PERMUTED = ("llama", "smollm3")  # as general.architecture
_ONE_ADDED = ("gemma", "gemma2", "gemma3")


def converted(header: Header) -> Path:
    """The folder with config.json, tokenizer and safetensors of this file; made when it is not in the cache.

    Raises TwoTowersError when the file's model is not supported or the cache has no room.
    """
    source = store.digest(header.path)
    return store.kept(
        user_cache() / "gguf" / source[:24],
        lambda folder: _convert(header, source, folder),
        lambda f: _whole(f, source),
    )


def _whole(folder: Path, source: str) -> bool:
    try:
        said = json.loads((folder / MANIFEST).read_text())
        if (said["version"], said["source"]) != (VERSION, source):
            return False
        return all(store.digest(folder / name) == sha256 for name, sha256 in said["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert(header: Header, source: str, folder: Path) -> None:
    made = config(header)
    weights = _planned(header, made)
    store.room(4 * sum(prod(t.shape) for t in weights.values()), f"'{header.path.name}' in float32")
    made.save_pretrained(folder)
    gguf_tokenizer.build(header).save_pretrained(folder)
    _write(header, made, weights, folder)
    files = {file.name: store.digest(file) for file in folder.iterdir()}
    said = {"version": VERSION, "source": source, "quantisation": header.quantisation, "files": files}
    (folder / MANIFEST).write_text(json.dumps(said, indent=1))


def _planned(header: Header, made: PretrainedConfig) -> dict[str, Tensor]:
    """Name in transformers -> tensor of the file. Every weight of the model must be there, with its shape."""
    with torch.device("meta"):
        wanted = {name: tuple(t.shape) for name, t in AutoModelForCausalLM.from_config(made).state_dict().items()}
    if made.tie_word_embeddings:
        wanted.pop("lm_head.weight")
    plan = {theirs: header.tensors[ours] for ours, theirs in places(header).items()}
    for name, tensor in plan.items():
        shape = tensor.shape[::-1] if _transposed(header, tensor) else tensor.shape
        if name not in wanted or wanted[name] != shape:
            expected = wanted.get(name, "none")
            raise TwoTowersError(
                f"'{header.path}' has {tensor.name} of shape {shape}, where its other fields ask for {expected}: it is "
                "damaged or of an unknown kind, so take another file"
            )
    if lacking := sorted(set(wanted) - set(plan)):
        some = ", ".join(lacking[:3])
        raise TwoTowersError(f"'{header.path}' lacks {len(lacking)} weights ({some}): take a whole model")
    return plan


def _write(header: Header, made: PretrainedConfig, weights: dict[str, Tensor], folder: Path) -> None:
    """Files of some 2 GB, one after the other, so that no model is ever whole in memory; with an index if several."""
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in weights.items():
        if shards[-1] and 4 * sum(prod(t.shape) for t in (*shards[-1].values(), tensor)) > SHARD:
            shards.append({})
        shards[-1][name] = tensor
    n, index = len(shards), {}
    with tqdm(total=len(weights), desc=f"{header.path.name}: dequantising, once", leave=False, disable=None) as bar:
        for i, shard in enumerate(shards, 1):
            file = "model.safetensors" if n == 1 else f"model-{i:05}-of-{n:05}.safetensors"
            whole = {}
            for name, tensor in shard.items():
                whole[name] = torch.from_numpy(_restored(header, tensor, made))
                bar.update()
            save_file(whole, folder / file, metadata={"format": "pt"})
            index |= dict.fromkeys(shard, file)
    if n > 1:
        size = 4 * sum(prod(t.shape) for t in weights.values())
        text = json.dumps({"metadata": {"total_size": size}, "weight_map": index}, indent=1)
        (folder / "model.safetensors.index.json").write_text(text)


def _transposed(header: Header, tensor: Tensor) -> bool:
    return header.architecture == "gpt2" and tensor.name.startswith("blk.") and len(tensor.shape) == 2


def _restored(header: Header, tensor: Tensor, made: PretrainedConfig) -> Float[np.ndarray, "*shape"]:
    """One tensor in float32, as transformers has it."""
    x, name = numbers(header, tensor.name), tensor.name.split(".")[-2]
    if header.architecture in _PERMUTED and name in ("attn_q", "attn_k"):
        heads = made.num_attention_heads if name == "attn_q" else made.num_key_value_heads
        x = x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)  # pairs -> two halves
    elif header.architecture in _ONE_ADDED and name.endswith("norm"):
        x = x - np.float32(1)
    elif header.architecture == "gptneox" and name == "attn_qkv":
        x = x.reshape(3, made.num_attention_heads, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    elif _transposed(header, tensor):
        x = x.T
    return np.array(x, np.float32, order="C")
