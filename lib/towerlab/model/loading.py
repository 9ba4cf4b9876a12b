"""The loader of models, from an included name, a folder of safetensors, or a Hugging Face id.

    >>> load("mini-gpt2")
    Model(mini-gpt2@75fd623de35f: 4 layers of 8 heads)

transformers fills missing weights with random numbers and ignores weights that it does not expect.
So `load` refuses an incomplete checkpoint, and proves the loaded model (`proof.prove`). It reads no
pickle and runs no code of a model. `training/gguf_to_folder.py` makes a folder from a GGUF file.

torch and transformers are imported in `load`, because importing them takes seconds.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twotowers.errors import TwoTowersError
from twotowers.names import CONFIG

from towerlab.model import checkpoint
from towerlab.model.architectures import ARCHITECTURES
from towerlab.model.checkpoint import WHOLE

if TYPE_CHECKING:
    from towerlab.model.model import Model

FLOATS = ("F64", "F32", "F16", "BF16")
BUFFERS = re.compile(r"(^|\.)(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|\.version$")
"""Tensors of old checkpoints that are not weights: masks, rotary frequencies, a version"""


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
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from towerlab.model.attention import implementation
    from towerlab.model.model import Model
    from towerlab.model.proof import prove

    name = str(name)
    check(name, device)
    row = ARCHITECTURES[_read_config(name)["model_type"]]
    folder = checkpoint.find_folder(name, with_weights=True)
    before = checkpoint.state(folder)
    fingerprint = checkpoint.fingerprint_of_folder(folder, name)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        _check_types(name, folder)
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
        _copy_from_files(hf)
    except (TwoTowersError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # readers raise anything; a panic of Rust is not an Exception
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise TwoTowersError(
            f"cannot load '{name}': {reason}; {WHOLE}, or choose a narrower dtype if memory is "
            "short"
        ) from None
    if checkpoint.state(folder) != before:
        raise TwoTowersError(
            f"cannot load '{name}': its files changed while they were read; wait until no program "
            "writes them, and run the same command again"
        )
    _check_weights(name, hf, report)
    _check_tokenizer(name, tokenizer, hf.get_input_embeddings().num_embeddings)
    # Nothing is padded, and transformers warns if a prompt could contain that token.
    hf.config.pad_token_id = None
    hf.config.made_from = checkpoint.made_from(folder)
    model = Model(name, hf.eval().requires_grad_(False), tokenizer, row, fingerprint)
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
    if not checkpoint.stored_fingerprint(name):
        _read_config(name)


def _read_config(name: str) -> dict[str, Any]:
    """Return config.json of a model; weights are not fetched.

    Raises:
        TwoTowersError: If there is no such model, or if it has an adapter, is quantised, needs its
            own code, or is of an unknown architecture.
    """
    folder = checkpoint.find_folder(name)
    if any(folder.glob("adapter_*")):
        raise TwoTowersError(
            f"cannot load '{name}': it has an adapter (LoRA); merge it with merge_and_unload() of "
            "peft, or remove the adapter's files"
        )
    config = checkpoint.read_config(folder)
    kind = str(config.get("model_type"))
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


def _check_types(name: str, folder: Path) -> None:
    """Raise TwoTowersError if weights are not floats."""
    from safetensors import safe_open

    for file in checkpoint.weight_files(folder):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                kind = tensors.get_slice(key).get_dtype()
                if kind not in FLOATS and not BUFFERS.search(key):
                    raise TwoTowersError(
                        f"cannot use {key} of '{name}': expected floats, got {kind}; give the "
                        "weights before quantisation"
                    )


def _copy_from_files(hf: Any) -> None:
    """Copy weights that are parts of files, which another program may write to later."""
    for tensor in (*hf.parameters(), *hf.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


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


def _check_tokenizer(name: str, tokenizer: Any, rows: int) -> None:
    """Raise TwoTowersError if tokens are random, or have no row of the embedding.

    Special tokens without a row are in no prompt, except if the tokenizer adds them to each text.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if dropout := getattr(getattr(backend, "model", None), "dropout", None):
        raise TwoTowersError(
            f"cannot use the tokenizer of '{name}': its tokens are random (dropout {dropout:g}); "
            "set dropout to null in tokenizer.json"
        )
    if tokenizer.vocab_size > rows:
        raise TwoTowersError(
            f"cannot use the tokenizer of '{name}': expected at most {rows} tokens, got "
            f"{tokenizer.vocab_size}; {WHOLE}"
        )
    added = {id_: token for id_, token in tokenizer.added_tokens_decoder.items() if id_ >= rows}
    used = {id_ for id_, token in added.items() if not token.special}
    used |= added.keys() & {*tokenizer("a : b")["input_ids"]}
    if used:
        raise TwoTowersError(
            f"cannot use the tokenizer of '{name}': expected tokens below {rows}, the number of "
            f"rows of the embedding, got '{added[min(used)]}' ({min(used)}); run "
            "resize_token_embeddings on the model, or remove the token"
        )


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
