"""Where a model's files are and what they are: no torch, no weights but for their digest.

    >>> describe("mini-gpt2")
    About(model_type='gpt2', quantisation='')
    >>> fingerprint("mini-gpt2").split("@")[0], local("mini-gpt2").name
    ('mini-gpt2', 'mini-gpt2')

A model is named by a shipped or catalogued name, a folder, a GGUF file, or a hub id: the first of
these that fits.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from twotowers.errors import TwoTowersError
from twotowers.paths import shipped_models

from towerlab.model import packages

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = "model-*-of-*.safetensors"
TOKENIZER = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "spiece.model",
)
SMALL = ("config.json", "generation_config.json", "adapter_config.json", *TOKENIZER)
MADE_FROM = "made_from"
"""A field of config.json: from which file the book made a folder, and how that file was
quantised"""


class About(NamedTuple):
    """`model_type` as transformers names it; `quantisation`: "" or such as "Q4_1, dequantised"."""

    model_type: str
    quantisation: str


def describe(name: str) -> About:
    """What a model is, without its weights: those of a catalogued or hub model are not fetched.

    Raises TwoTowersError for a name of nothing, and for what can be seen to be no whole model of
    plain weights.
    """
    found = _find(name)
    if isinstance(found, packages.PackagedModel):
        return About(found.model_type, f"{found.quantisation}, dequantised")
    path = found or packages.snapshot(name, SMALL)
    if path.is_file():
        from towerlab.model import gguf_files

        return About(*gguf_files.about(path))
    return about(read_config(path, name))


def about(config: dict[str, Any]) -> About:
    """What config.json says that a model is, and how the file that it was made from was
    quantised."""
    made = config.get(MADE_FROM)
    return About(
        config["model_type"], str(made.get("quantisation", "")) if isinstance(made, dict) else ""
    )


def local(name: str) -> Path:
    """The folder or GGUF file of a model; a catalogued or hub model is fetched when it is in no
    cache."""
    found = _find(name)
    if isinstance(found, packages.PackagedModel):
        return packages.fetch(name)
    return found or packages.snapshot(name, (*SMALL, WEIGHTS, INDEX, SHARDS))


def fingerprint(name: str, path: Path | None = None) -> str:
    """`name@` and 12 hexadecimal digits of the SHA-256 over every byte that defines the model,
    whose folder or file is `path`.

    Of a folder or hub id: config.json, the safetensors files, the tokenizer's files. Of a GGUF
    file: the file. A catalogued model's is known without fetching it; one from the hub is fetched.
    """
    found = _find(name)
    if isinstance(found, packages.PackagedModel):
        return f"{name}@{found.sha256[:12]}"
    path = path or local(name)
    if path.is_file():
        return f"{path.resolve().stem}@{packages.digest(path)[:12]}"
    label = path.resolve().name if found else name  # not where it lies
    files = {
        *weights(path, name),
        *(file for kind in ("config.json", INDEX, *TOKENIZER) for file in path.glob(kind)),
    }
    lines = "".join(
        f"{file.name} {packages.digest(file)}\n" for file in sorted(files) if file.is_file()
    )
    return f"{label}@{hashlib.sha256(lines.encode('utf8', 'surrogateescape')).hexdigest()[:12]}"


def weights(folder: Path, name: str) -> list[Path]:
    """The safetensors files that make up the model. TwoTowersError when there is none, or one is
    missing."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX, name).get("weight_map")
        if not isinstance(shards, dict) or not all(
            isinstance(file, str) for file in shards.values()
        ):
            raise TwoTowersError(
                f"{INDEX} of '{name}' has no weight_map of tensors to files: copy or download it "
                "again"
            )
        files = [folder / file for file in sorted(set(shards.values()))]
        if lacking := [file.name for file in files if not file.is_file()]:
            raise TwoTowersError(
                f"'{name}' lacks {lacking[0]} of its {len(files)} weights files: copy it again"
            )
        return files
    if [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]:
        raise TwoTowersError(
            f"'{name}' holds pickled weights only, which can run code when loaded: save it as "
            "safetensors (model.save_pretrained(folder) with a recent transformers)"
        )
    raise TwoTowersError(
        f"'{name}' holds no safetensors weights: put {WEIGHTS} there "
        "(model.save_pretrained(folder))"
    )


def read_json(file: Path, name: str) -> dict[str, Any]:
    """A JSON object. TwoTowersError for a file that is missing or damaged."""
    try:
        content = json.loads(file.read_text("utf8"))
    except (OSError, ValueError, RecursionError) as error:
        why = str(error).splitlines()[0][:80]
        raise TwoTowersError(
            f"{file.name} of '{name}' cannot be read ({why}): copy or download it again"
        ) from None
    if not isinstance(content, dict):
        raise TwoTowersError(
            f"{file.name} of '{name}' is no JSON object: copy or download it again"
        )
    return content


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """config.json, of a model that is whole as it stands: no adapter beside it, no code of its own,
    not quantised."""
    if adapters := sorted(file.name for file in folder.glob("adapter_*")):
        raise TwoTowersError(
            f"'{name}' holds an adapter (LoRA, {adapters[0]}), which the weights are not without: "
            "merge it (peft: AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload()"
            ".save_pretrained(other)), save the tokenizer there too, and give that folder; or take "
            "the adapter out of this one"
        )
    if not (folder / "config.json").is_file():
        files = sorted(folder.glob("*.gguf"))
        remedy = (
            f"name one of its GGUF files, such as {files[0]}"
            if files
            else "give a folder written by save_pretrained"
        )
        raise TwoTowersError(f"'{name}' holds no config.json: {remedy}")
    config = read_json(folder / "config.json", name)
    if not isinstance(config.get("model_type"), str):
        raise TwoTowersError(
            f"config.json of '{name}' has no model_type: take the one that belongs to the weights"
        )
    for field in ("quantization_config", "compression_config", "quantization"):
        if entry := config.get(field):
            method = entry.get("quant_method") if isinstance(entry, dict) else None
            raise TwoTowersError(
                f"'{name}' is quantised ({method or field}), so its weights cannot be read as "
                "they are: take the full weights, or a GGUF file of the model"
            )
    if own := [key for key in config.get("auto_map") or () if key.startswith("AutoModel")]:
        raise TwoTowersError(
            f"'{name}' runs with code of its own (auto_map: {own[0]}), which the book does not "
            f"run: where transformers' own {config['model_type']} is the same model, take "
            "auto_map out of config.json"
        )
    return config


def _find(name: str) -> Path | packages.PackagedModel | None:
    """The folder or file of a model on this machine, or its row of the catalogue; None for a hub
    id.

    Raises TwoTowersError for what is none of these.
    """
    if known := shipped_models().get(name) or packages.catalogue().get(name):
        return known
    path = Path(name).expanduser()
    try:
        if name.strip() and path.exists():
            if path.suffix in (".safetensors", ".json", ".bin") and path.is_file():
                raise TwoTowersError(
                    f"'{name}' is one file of a model: give its folder, '{path.parent}'"
                )
            return path
    except OSError:  # too long for a path
        pass
    if (
        len(name) <= 96
        and re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name)
        and path.suffix != ".gguf"
    ):
        return None
    raise TwoTowersError(
        f"there is no model '{name}': give a folder, a GGUF file, a hub id, or one of "
        f"{', '.join(packages.model_names())}"
    )
