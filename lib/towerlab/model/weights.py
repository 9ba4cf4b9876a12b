"""What is asked of config and weights before a model is believed: nothing missing or left over.

check_config(name, given, config)   # config.json against what transformers made of it
check_files(name, files)            # the headers of the safetensors files
check_loaded(name, hf, report)      # what transformers says of its reading, and the numbers

>>> with reading("my/model", "weights"):  # whatever a reader raises ends in one line
...     raise EOFError("its tensors end at byte 8 of 4")
Traceback (most recent call last):
twotowers.errors.TwoTowersError: the weights of 'my/model' cannot be read, it is damaged ...
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging
from twotowers.errors import TwoTowersError, is_out_of_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AGAIN = "copy or download it again"
# What old checkpoints hold beside weights: masks, rotary frequencies, a version.
_BUFFERS = re.compile(r"(^|\.)(attn|attention)\.(masked_)?bias$|rotary_emb\.inv_freq$|\.version$")
_FLOATS = ("F64", "F32", "F16", "BF16")
# Fields of config.json that transformers does not know: which numbers change no answer, and what
# else does.
_FREE = re.compile(
    r"^_|pattern|token|drop|init|length|position|ctx|version|seed|temperature|top_|beam|penalt|"
    r"train|summary|loss|cache"
)
_TELLING = re.compile(r"alibi|norm|parallel_res|clip|bias|softcap|rope|layer_types|expert")
# Fields without which transformers takes the default of the class, which no shape of a tensor
# contradicts.
_NEEDED = re.compile(
    r"eps(ilon)?$|softcapping$|^(n_head|num_heads|num_attention_heads|query_pre_attn_scalar)$"
)


@contextmanager
def reading(name: str, part: str) -> Iterator[None]:
    """Without transformers' bars and reports; whatever is raised, a panic of Rust too, as one
    line."""
    previous = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    # the report is not the reader's business; faults are raised
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # where Rust writes of its panics
    try:
        with redirect_stderr(io.StringIO()):  # the bar of GGUF files asks nobody
            yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, TwoTowersError):
        raise
    # readers can raise anything; tokenizers raises bare Exception, and panics are not even that
    except BaseException as error:
        if is_out_of_memory(error):
            raise TwoTowersError(
                f"'{name}' does not fit into memory: take a narrower dtype or a smaller model"
            ) from None
        said = " ".join(str(error).split())[:200].rstrip(" :")
        why = f"{type(error).__name__}: {said}" if said else type(error).__name__
        if isinstance(error, (SafetensorError, EOFError, UnicodeDecodeError, struct.error)):
            raise TwoTowersError(
                f"the {part} of '{name}' cannot be read, it is damaged ({why}): {AGAIN}"
            ) from None
        remedy = "what it says there must be mended in the checkpoint, or another one taken"
        raise TwoTowersError(
            f"transformers {transformers_version} cannot read the {part} of '{name}' ({why}): "
            f"{remedy}"
        ) from None
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
        transformers_logging.set_verbosity(previous)
        if bars:
            transformers_logging.enable_progress_bar()


def check_config(name: str, given: dict[str, Any], config: Any) -> None:
    """Raise TwoTowersError for a field that could change numbers and was passed over, or that a
    default stands in for."""
    kind = type(config)
    known = {field.name for field in fields(kind)} | set(kind.attribute_map)
    known |= {"rope_theta", "rope_scaling"} if "rope_parameters" in known else set()
    for key in known:
        alias = {key, kind.attribute_map.get(key, key)}
        if _NEEDED.search(key) and not alias & set(given) and getattr(config, key) is not None:
            raise TwoTowersError(
                f"config.json of '{name}' does not say {key}, and transformers would take "
                f"{getattr(config, key)}: take the config that belongs to the weights"
            )
    # said twice
    floats = [
        value for key in fields(kind) if isinstance(value := getattr(config, key.name), float)
    ]
    for key, value in given.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        telling = number and value not in (0, 1, *floats) and not _FREE.search(key)
        telling = telling or bool(
            not number and value and not isinstance(value, str) and _TELLING.search(key)
        )
        if key not in known and telling and not (number and _is_read(kind, given, key)):
            raise TwoTowersError(
                f"config.json of '{name}' says {key}={str(value)[:40]}, which a "
                f"{config.model_type} model of transformers passes over: name the model type that "
                "has it; where it means nothing, take it out"
            )


def _is_read(kind: Any, given: dict[str, Any], key: str) -> bool:
    """Whether another value of a field changes any other field of the config."""
    with io.StringIO() as nowhere, redirect_stderr(nowhere):
        try:
            one, other = (
                kind.from_dict(values).to_dict()
                for values in (given, {**given, key: 2 * given[key] + 1})
            )
        except Exception:  # it was read, and refused
            return True
    return {**one, key: None} != {**other, key: None}


def check_files(name: str, files: Sequence[Path]) -> None:
    """Raise TwoTowersError for files of weights that are damaged, hold other than floats, or a
    tensor twice."""
    seen: dict[str, str] = {}
    for file in files:
        with reading(name, "weights"), safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                kind = tensors.get_slice(key).get_dtype()
                if kind not in _FLOATS and not _BUFFERS.search(key):
                    raise TwoTowersError(
                        f"{key} of '{name}' holds {kind}, no plain floats, and config.json does "
                        "not say how they are quantised: take the full weights, or a GGUF file "
                        "of the model"
                    )
                if seen.setdefault(key, file.name) != file.name:
                    raise TwoTowersError(
                        f"{key} of '{name}' stands in {seen[key]} and in {file.name}: take one "
                        "whole checkpoint"
                    )


def check_loaded(name: str, hf: PreTrainedModel, report: dict[str, Any]) -> None:
    """transformers fills what is missing or of another shape with random numbers, and leaves out
    what is over."""
    over = {key for key in report["unexpected_keys"] if not _BUFFERS.search(key)}
    shapes = {key for key, *_ in report["mismatched_keys"]}
    for keys, what in [
        (report["missing_keys"], "lacks {n} weights that its config asks for"),
        (over, "holds {n} weights that its config does not describe"),
        (shapes, "holds {n} weights of other shapes than its config asks for"),
    ]:
        if keys:
            fault = f"{what.format(n=len(keys))} ({', '.join(sorted(keys)[:3])})"
            raise TwoTowersError(
                f"'{name}' {fault}: take config and weights of the same whole checkpoint"
            )
    if any(parameter.is_meta for parameter in hf.parameters()):
        raise TwoTowersError(
            f"device_map offloads part of '{name}': give it more or larger devices, or a narrower "
            "dtype"
        )
    for key, parameter in hf.named_parameters():  # each number is looked at once
        if not parameter.numel():
            continue
        # either is NaN where any is
        low, high = (float(end) for end in parameter.detach().aminmax())
        # A copy that broke off may leave zeros; every identity holds on them, so the proof would
        # not notice.
        if low == high == 0 and parameter.dim() > 1:
            raise TwoTowersError(
                f"{key} of '{name}' is zero throughout: where a copy broke off, {AGAIN}; where it "
                "is meant, put numbers as small as 1e-30 there"
            )
        if not (math.isfinite(low) and math.isfinite(high)):
            narrow = (
                ", or take bfloat16 or float32, where they may fit"
                if hf.dtype == torch.float16
                else ""
            )
            raise TwoTowersError(
                f"{key} of '{name}' holds numbers that are not finite: {AGAIN}, or take another "
                f"checkpoint{narrow}"
            )
