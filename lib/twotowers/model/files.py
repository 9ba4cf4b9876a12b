"""Where a model's files are, what they are, and what is wrong with them: no torch here, no weights are read.

    fingerprint("mini-gpt2")         # "mini-gpt2@1f0c52ab7733": over every byte that defines the model
    describe("my/file.gguf")         # model_type, n_layers, n_heads, vocabulary, quantisation, chat
    local("openai-community/gpt2")   # the folder, fetched if need be

A model is named by a shipped or catalogued name, a folder, a GGUF file, or a hub id: the first of these that fits.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from twotowers.errors import TwoTowersError
from twotowers.model import catalog, gguf_file, hub, store
from twotowers.model.architectures import ARCHITECTURES, REFUSED, Architecture
from twotowers.paths import shipped_models

WEIGHTS, INDEX, SHARDS = "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"
TOKENIZER = (
    "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
    "spiece.model",
)  # fmt: skip
_SMALL = ("config.json", "generation_config.json", *TOKENIZER)
_AGAIN = "copy or download it again"
_FULL = "so its weights cannot be read as they are: take the full weights, or a GGUF file of the model"
# Fields of config.json under which quantised formats describe themselves.
_QUANTISED = ("quantization_config", "compression_config", "quantization")


def check(name: str) -> None:
    """Raise TwoTowersError, in one line with the remedy, for a name of nothing, and for a model that is damaged,
    quantised, or of an architecture outside the table. What must be fetched first is not looked at."""
    path = here(name)
    if path is not None:
        row(name, _config(path, name)["model_type"] if path.is_dir() else describe(name)["model_type"])
        if path.is_dir():
            check_folder(path, name)


def row(name: str, model_type: str) -> Architecture:
    """The row of the table of architectures. TwoTowersError for a model type that has none."""
    if model_type not in ARCHITECTURES:
        remedy = REFUSED.get(model_type) or f"choose one of {', '.join(sorted(ARCHITECTURES))}"
        raise TwoTowersError(f"'{name}' is a {model_type} model, which is not supported: {remedy}")
    return ARCHITECTURES[model_type]


def local(name: str, revision: str | None = None) -> Path:
    """The folder or GGUF file of a model, checked; a catalogued or hub model is fetched when it is not in a cache."""
    path = here(name)
    if path is None and name in catalog.models():
        return catalog.fetch(name)
    if path is None:
        path = hub.fetch(name, revision, (*_SMALL, WEIGHTS, INDEX, SHARDS))
        if not (path / WEIGHTS).is_file() and not (path / INDEX).is_file():
            raise TwoTowersError(
                f"'{name}' has no safetensors weights on the hub, or only a part of it is in the local cache: choose a "
                "revision that has them, or go online"
            )
    if path.is_dir():
        check_folder(path, name)
    return path


def fingerprint(name: str, revision: str | None = None) -> str:
    """`name@` and 12 hexadecimal digits of the SHA-256 over every byte that defines the model.

    Of a folder or hub id: config.json, the safetensors files, the tokenizer's files. Of a GGUF file: the file. A
    catalogued model's is known without fetching it; one from the hub is fetched.
    """
    if (known := catalog.models().get(name)) and name not in shipped_models():
        return f"{name}@{known.sha256[:12]}"
    return fingerprint_of(name, local(name, revision))


def fingerprint_of(name: str, path: Path) -> str:
    """The fingerprint of a model whose folder or GGUF file is at hand. It does not tell where that lies."""
    named = name if name in {**shipped_models(), **catalog.models()} or here(name) is None else _own_name(path)
    if path.is_file():
        return f"{named}@{store.digest(path)[:12]}"
    files = {path / "config.json", *weights(path, name), *(f for kind in TOKENIZER for f in path.glob(kind))}
    if (path / INDEX).is_file():
        files.add(path / INDEX)
    lines = "".join(f"{file.name} {store.digest(file)}\n" for file in sorted(files) if file.is_file())
    return f"{named}@{hashlib.sha256(lines.encode('utf8', 'surrogateescape')).hexdigest()[:12]}"


def describe(name: str, revision: str | None = None) -> dict[str, Any]:
    """model_type, n_layers, n_heads, vocabulary, quantisation ("" or such as "Q4_1, dequantised"), chat (a template?).

    From config.json, the header of the GGUF file, or the catalogue: no weights are fetched. TwoTowersError for a model
    that is quantised otherwise.
    """
    known = catalog.models().get(name)
    if known and name not in shipped_models() and known.path() is None:
        return known.about()
    path = here(name) or hub.fetch(name, revision, _SMALL)
    if path.is_file():
        header = gguf_file.read(path)
        return {
            "model_type": header.model_type, "n_layers": int(np.max(header.get("block_count", 0))),
            "n_heads": int(np.max(header.get("attention.head_count", 0))), "vocabulary": header.vocabulary,
            "quantisation": quantisation(header), "chat": "tokenizer.chat_template" in header.fields,
        }  # fmt: skip
    config = _config(path, name)
    template = tokenizer_settings(path, name).get("chat_template")
    return {
        "model_type": config["model_type"], "n_layers": _first(config, "num_hidden_layers", "n_layer", "num_layers"),
        "n_heads": _first(config, "num_attention_heads", "n_head", "num_heads"),
        "vocabulary": _first(config, "vocab_size"), "quantisation": "",
        "chat": bool(template) or any(path.glob("chat_template*")),
    }  # fmt: skip


def quantisation(header: gguf_file.Header) -> str:
    """What banners and tables say of the weights of a GGUF file: "Q4_1, dequantised"; "" for plain floats."""
    return f"{header.quantisation}, dequantised" if header.quantisation else ""


def check_folder(folder: Path, name: str) -> None:
    """Raise TwoTowersError unless the folder holds a whole, unquantised model with its tokenizer."""
    _config(folder, name)
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (folder / file).is_file():
            _json(folder / file, name)
    if not [*folder.glob("tokenizer.*"), *folder.glob("vocab*"), *folder.glob("spiece.model")]:
        raise TwoTowersError(f"'{name}' holds no tokenizer: put its files there (tokenizer.save_pretrained(folder))")
    tensors = [tensor for file in weights(folder, name) for tensor in _tensors(file, name)]
    if packed := [tensor for tensor in tensors if tensor.endswith((".qweight", ".qzeros"))]:
        raise TwoTowersError(f"'{name}' is quantised (GPTQ or AWQ: it holds {packed[0]}), {_FULL}")


def _config(folder: Path, name: str) -> dict[str, Any]:
    """config.json, of a model that is not quantised."""
    if not (folder / "config.json").is_file():
        if ggufs := sorted(folder.glob("*.gguf")):
            raise TwoTowersError(f"'{name}' is a folder of GGUF files: name one of them, such as {ggufs[0]}")
        raise TwoTowersError(f"'{name}' holds no config.json: give a folder written by save_pretrained")
    config = _json(folder / "config.json", name)
    if not isinstance(config.get("model_type"), str):
        raise TwoTowersError(f"config.json of '{name}' has no model_type: take the one that belongs to the weights")
    for field in _QUANTISED:
        if quantised := config.get(field):
            method = quantised.get("quant_method") if isinstance(quantised, dict) else None
            raise TwoTowersError(f"'{name}' is quantised ({method or field}), {_FULL}")
    return config


def tokenizer_settings(folder: Path, name: str) -> dict[str, Any]:
    """tokenizer_config.json; {} where there is none."""
    file = folder / "tokenizer_config.json"
    return _json(file, name) if file.is_file() else {}


def weights(folder: Path, name: str) -> list[Path]:
    """The safetensors files that make up the model. TwoTowersError when there is none, or one is missing."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        named = _json(folder / INDEX, name).get("weight_map")
        if not isinstance(named, dict) or any(Path(str(f)).name != f for f in named.values()):
            raise TwoTowersError(f"{INDEX} of '{name}' names no files beside it: {_AGAIN}")
        files = [folder / f for f in sorted(set(named.values()))]
        if lacking := [f.name for f in files if not f.is_file()]:
            raise TwoTowersError(f"'{name}' lacks {lacking[0]} of its {len(files)} weights files: {_AGAIN}")
        return files
    if [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]:
        raise TwoTowersError(
            f"'{name}' holds pickled weights only, which can run code when loaded: save it as safetensors "
            "(model.save_pretrained(folder) with a recent transformers)"
        )
    raise TwoTowersError(f"'{name}' holds no weights: put {WEIGHTS} there (model.save_pretrained(folder))")


def _tensors(file: Path, name: str) -> list[str]:
    """Names of the tensors in a safetensors file. TwoTowersError unless the file is whole."""
    try:
        with file.open("rb") as opened:
            start = opened.read(8)
        if start != b"version ":
            with safe_open(file, "np") as opened:
                return list(opened.keys())
    except OSError as error:
        raise TwoTowersError(
            f"{file.name} of '{name}' cannot be read ({error.strerror}): check its permissions"
        ) from None
    except SafetensorError as error:
        why = str(error).rpartition(": ")[2]
        raise TwoTowersError(
            f"{file.name} of '{name}' is damaged, cut off or no safetensors file ({why}): {_AGAIN}"
        ) from None
    raise TwoTowersError(
        f"{file.name} of '{name}' is a Git LFS pointer, not the weights: run `git lfs pull` in its repository"
    )


def here(name: str) -> Path | None:
    """The folder or file of a model on this machine; None for a hub id or a catalogued model that is to be fetched.

    Raises TwoTowersError for what is neither.
    """
    shipped = shipped_models()
    if name in shipped:
        return shipped[name]
    if known := catalog.models().get(name):
        return known.path()
    path = Path(name).expanduser()
    try:
        if name.strip() and path.exists():
            return path
    except OSError:  # too long for a path
        pass
    if hub.is_id(name) and not name.lower().endswith((".gguf", ".safetensors", ".bin", ".pt")):
        return None
    kind = "file" if path.suffix and path.parent.is_dir() else "folder"
    raise TwoTowersError(f"there is no {kind} '{name}': give a folder, a GGUF file, a hub id, or one of {names()}")


def names() -> str:
    """Every name that stands for a model, for messages."""
    return ", ".join([*sorted(shipped_models()), *catalog.models()])


def _own_name(path: Path) -> str:
    path = path.resolve()
    return path.stem if path.is_file() else path.name


def _json(file: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf8"))
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        what = (str(error).splitlines() or ["empty"])[0][:80]
        raise TwoTowersError(f"{file.name} of '{name}' is no valid JSON ({what}): {_AGAIN}") from None
    return found


def _first(config: dict[str, Any], *fields: str) -> int:
    for field in fields:
        if isinstance(config.get(field), int):
            return config[field]
    # Left out where it is the default of the class, which transformers knows (and brings torch).
    from transformers import AutoConfig

    return getattr(AutoConfig.for_model(**config), fields[0])
