"""The loader of models, from an included name, a folder of safetensors, or a Hugging Face id.

    >>> load("mini-gpt2")
    Model(mini-gpt2@75fd623de35f: 4 layers of 8 heads)
    >>> fingerprint("smollm2-135m")  # precomputed: its files name the weights, which are not here
    'smollm2-135m@b179c9523d0e'

transformers fills missing weights with random numbers and ignores weights that it does not expect.
So `load` refuses an incomplete checkpoint, and proves the loaded model (`proof.prove`). It reads no
pickle and runs no code of a model. `training/gguf_to_folder.py` makes a folder from a GGUF file.

torch and transformers are imported in `load`, because importing them takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twotowers.errors import TwoTowersError
from twotowers.files import precomputed_fingerprint, precomputed_models
from twotowers.paths import included_models

from towerlab.model.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from towerlab.model.model import Model

CONFIG, MADE_FROM = "config.json", "made_from"
"""`made_from` is a field of the config of a converted model: SHA-256 and quantisation of its GGUF
file, and the digest of the folder that was written"""
TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
             "spiece.model")  # fmt: skip
WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
FLOATS = ("F64", "F32", "F16", "BF16")
BUFFERS = re.compile(r"(^|\.)(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|\.version$")
"""Tensors of old checkpoints that are not weights: masks, rotary frequencies, a version"""
WHOLE = "give config, safetensors and tokenizer of one whole checkpoint"


def load(
    name: str | os.PathLike,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | dict | None = None,
) -> Model:
    """Load a model and its tokenizer, and prove that the table of architectures describes it.

    Args:
        name: Included name, folder of safetensors, or Hugging Face id.
        dtype: Type of the weights, such as "float32".
        device: Device of the weights.
        device_map: "auto", or module -> device, in place of `device`. Nothing may be offloaded,
            because weights are also read outside the forward pass.

    Returns:
        The proved model, in evaluation mode and without gradients.

    Raises:
        TwoTowersError: If there is no such model or device, if weights are missing, left over, of
            another shape, zero, not finite or not floats, or if the proof fails.
    """
    import torch
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from towerlab.model.attention import implementation
    from towerlab.model.model import Model
    from towerlab.model.proof import prove

    name = str(name)
    check(name, device)
    row = ARCHITECTURES[_read_config(name)["model_type"]]
    folder = _folder(name, (CONFIG, *TOKENIZER, *WEIGHTS))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        for file in folder.glob("model*.safetensors"):
            with safe_open(file, "pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    kind = tensors.get_slice(key).get_dtype()
                    if kind not in FLOATS and not BUFFERS.search(key):
                        raise TwoTowersError(
                            f"cannot use {key} of '{name}': expected floats, got {kind}; give the "
                            "weights before quantisation"
                        )
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if refusal := row.refusal(config):
            raise TwoTowersError(f"cannot load '{name}': {refusal}; choose another model")
        tokenizer = _tokenizer(folder)
        hf, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            device_map=device_map or device,
            attn_implementation=implementation(row),
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `_check_weights` names them
            trust_remote_code=False,
        )
    except (TwoTowersError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # readers raise anything; a panic of Rust is not an Exception
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise TwoTowersError(
            f"cannot load '{name}': {reason}; {WHOLE}, or choose a narrower dtype if memory is "
            "short"
        ) from None
    _check_weights(name, hf, report)
    rows = hf.get_input_embeddings().num_embeddings
    if tokenizer.vocab_size > rows:
        raise TwoTowersError(
            f"cannot use the tokenizer of '{name}': expected at most {rows} tokens, got "
            f"{tokenizer.vocab_size}; {WHOLE}"
        )
    # Nothing is padded, and transformers warns if a prompt could contain that token.
    hf.config.pad_token_id = None
    model = Model(name, hf.eval().requires_grad_(False), tokenizer, row, fingerprint(name))
    prove(model)
    return model


def check(name: str, device: str = "cpu") -> None:
    """Raise TwoTowersError if `load` would refuse a model before it reads weights.

    Args:
        name: Name of a model, as for `load`.
        device: Device of the weights.

    Raises:
        TwoTowersError: If there is no such model or device, or if the config of the model is not
            supported.
    """
    if device != "cpu":
        import torch

        try:
            torch.empty(0, device=device).tolist()  # the device "meta" has no numbers
        except (RuntimeError, AssertionError):
            raise TwoTowersError(
                f"missing device '{device}': expected a device that PyTorch finds; choose one "
                "such as cpu"
            ) from None
    if not _precomputed(name):
        _read_config(name)


def _read_config(name: str) -> dict[str, Any]:
    """Return config.json of a model; weights are not fetched.

    Raises:
        TwoTowersError: If there is no such model, or if it has an adapter, is quantised, needs its
            own code, or is of an unknown architecture.
    """
    folder = _folder(name, (CONFIG, "adapter_config.json", *TOKENIZER))
    if any(folder.glob("adapter_*")):
        raise TwoTowersError(
            f"cannot load '{name}': it has an adapter (LoRA); merge it with merge_and_unload() of "
            "peft, or remove the adapter's files"
        )
    try:
        config = json.loads((folder / CONFIG).read_text("utf8"))
        kind = str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TwoTowersError(
            f"cannot read {CONFIG} of '{name}': {type(error).__name__}: {error}; {WHOLE}"
        ) from None
    if config.get("quantization_config"):
        raise TwoTowersError(
            f"cannot load '{name}': its weights are quantised; give the original weights"
        )
    if any(key.startswith("AutoModel") for key in config.get("auto_map") or ()):
        raise TwoTowersError(
            f"cannot load '{name}': it needs its own code (auto_map), which is never run; remove "
            f"auto_map from {CONFIG} if transformers has the same {kind} model"
        )
    if kind not in ARCHITECTURES:
        raise TwoTowersError(
            f"unknown architecture '{kind}' of '{name}': expected one of "
            f"{', '.join(sorted(ARCHITECTURES))}; choose another model"
        )
    return config


def fingerprint(name: str) -> str:
    """Return `name@` and 12 hexadecimal digits of the hash of a model.

    The hash is the SHA-256 over config, weights and tokenizer. A converted model has the digits of
    its GGUF file, as long as the folder is unchanged. A precomputed model has the fingerprint of
    its measurement files.

    Args:
        name: Name of a model, as for `load`.

    Returns:
        The fingerprint, such as "mini-gpt2@75fd623de35f".
    """
    if precomputed := _precomputed(name):
        return precomputed
    folder = _folder(name, (CONFIG, *TOKENIZER, *WEIGHTS))
    label = folder.resolve().name if os.path.isdir(name) else name
    made_from = _read_config(name).get(MADE_FROM, {})
    digest = folder_digest(folder)
    if made_from.get("folder") == digest:
        digest = made_from["sha256"]
    return f"{label}@{digest[:12]}"


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 over the config without `made_from`, the weights and the tokenizer.

    Args:
        folder: Folder of the model.

    Returns:
        Hexadecimal digits.
    """
    digests = {}
    for pattern in (CONFIG, *TOKENIZER, *WEIGHTS):
        for file in folder.glob(pattern):
            with file.open("rb") as content:
                digests[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
    config = json.loads((folder / CONFIG).read_text("utf8"))
    if config.pop(MADE_FROM, None):
        digests[CONFIG] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _precomputed(name: str) -> str | None:
    """Return the fingerprint of a precomputed model whose weights are missing, else None."""
    return None if os.path.exists(name) else precomputed_fingerprint(name)


def _folder(name: str, patterns: tuple[str, ...]) -> Path:
    """Return the folder of a model; matching files of a Hugging Face id are fetched once."""
    from huggingface_hub import snapshot_download

    folder = included_models().get(name) or Path(name)
    if os.path.isdir(folder):
        return folder
    if os.path.isfile(folder):
        raise TwoTowersError(
            f"cannot load '{name}': expected a folder of safetensors, got a file; convert a GGUF "
            "file with training/gguf_to_folder.py"
        )
    if _precomputed(name):
        raise TwoTowersError(
            f"missing weights of '{name}': only its measurements are precomputed; run `python "
            f"training/gguf_to_folder.py {name} FOLDER/{name}` and give that folder"
        )
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:120]
        known = sorted({*included_models(), *precomputed_models()})
        raise TwoTowersError(
            f"unknown model '{name[:200]}': expected a folder of safetensors, a Hugging Face id, "
            f"or one of {', '.join(known)} ({reason}); check the name"
        ) from None


def _tokenizer(folder: Path) -> Any:
    """Return the tokenizer of tokenizer.json, or of transformers if there is no such file.

    transformers 5 rebuilds many tokenizers from their class. Only the names of special tokens are
    read from other files: these may neither add tokens nor change the beginning of a text.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = str(folder / "tokenizer.json")
    if not os.path.isfile(path):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    fields: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / file).is_file():
            fields |= json.loads((folder / file).read_text("utf8"))
    names = {
        key: token["content"] if isinstance(token, dict) else token
        for key in PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES
        if (token := fields.get(key))
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, **names)
    tokenizer._tokenizer = Tokenizer.from_file(path)  # the class added names that it lacks
    return tokenizer


def _check_weights(name: str, hf: Any, report: dict[str, Any]) -> None:
    """Raise TwoTowersError if weights are missing, left over, misshapen, zero or not finite."""
    for fault, keys in {
        "missing weights": report["missing_keys"],
        "unknown weights": [key for key in report["unexpected_keys"] if not BUFFERS.search(key)],
        "weights of another shape than in the config": [k for k, *_ in report["mismatched_keys"]],
        "weights that cannot be offloaded": [k for k, p in hf.named_parameters() if p.is_meta],
    }.items():
        if keys:
            raise TwoTowersError(
                f"cannot load '{name}': {fault} ({len(keys)}: {', '.join(sorted(keys)[:3])}); "
                f"{WHOLE}"
            )
    for key, weight in hf.named_parameters():
        low, high = map(float, weight.detach().aminmax())  # both are NaN if any number is
        if not (math.isfinite(low) and math.isfinite(high)):
            raise TwoTowersError(
                f"cannot use {key} of '{name}': its numbers are not finite; {WHOLE}, or choose a "
                "wider dtype"
            )
        # An interrupted copy can leave zeros, on which every identity of the proof holds.
        if low == high == 0 and weight.dim() > 1:
            raise TwoTowersError(
                f"cannot use {key} of '{name}': all its numbers are zero; copy the weights again"
            )
