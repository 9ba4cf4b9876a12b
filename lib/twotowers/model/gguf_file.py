"""What a GGUF file says about itself (llama.cpp, LM Studio, Ollama): metadata, tensors, quantisation. No torch here.

    header = read(Path("SmolLM2-135M-Instruct.Q4_1.gguf"))
    header.quantisation                  # "Q4_1"
    header.fields["llama.block_count"]   # 30

Everything is checked before it is used: a file that is cut off, is no GGUF file, or holds what cannot be read is
refused in one line. Format: docs/gguf.md of the ggml project.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from twotowers.errors import TwoTowersError

MODEL_TYPES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text",
    "olmo2": "olmo2", "phi3": "phi3", "smollm3": "smollm3", "gpt2": "gpt2", "gptneox": "gpt_neox",
}  # fmt: skip
"""general.architecture -> model_type of transformers"""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_FLOATS = ("F32", "F16", "BF16")
_AGAIN = "copy or download it again"
# What people name instead of a GGUF file, by its first bytes.
_OTHERS = {
    b"version https://git-lfs": "is a Git LFS pointer, not the model: run `git lfs pull` in its repository",
    b"PK": "is a zip archive, such as pickled weights: give a GGUF file, or a folder written by save_pretrained",
    b"lmgg": "is in the GGML format that came before GGUF: convert it with llama.cpp, or take a GGUF file",
    b"tjgg": "is in the GGML format that came before GGUF: convert it with llama.cpp, or take a GGUF file",
    b"<": f"is a web page, not a model: {_AGAIN}",
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file: its shape as torch has it (rows first), its type, and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    type: gguf.GGMLQuantizationType
    start: int
    bytes: int


@dataclass(frozen=True)
class Header:
    """Metadata (key -> number, text, list of texts, or array) and tensors (by name) of one file."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        return self.fields["general.architecture"]

    @property
    def model_type(self) -> str:
        """As transformers calls it. llama.cpp has one architecture for Llama and Mistral, which adds a window."""
        return "mistral" if self.fields.get("llama.attention.sliding_window") else MODEL_TYPES[self.architecture]

    def get(self, key: str, default: Any = None) -> Any:
        """A field of this architecture: `get("block_count")` is `llama.block_count` in a Llama."""
        return self.fields.get(f"{self.architecture}.{key}", default)

    @property
    def vocabulary(self) -> int:
        return self.tensors["token_embd.weight"].shape[0]

    @cached_property
    def quantisation(self) -> str:
        """Such as "Q4_K_M"; "" for a file of plain floats."""
        types = Counter()
        for tensor in self.tensors.values():
            if len(tensor.shape) > 1:
                types[tensor.type.name] += prod(tensor.shape)
        if set(types) <= set(_FLOATS):
            return ""
        try:
            named = gguf.LlamaFileType(self.fields.get("general.file_type")).name.removeprefix("MOSTLY_")
        except ValueError:
            named = ""
        # The field is a label that anyone may write; it counts where the tensors agree (Q4_K_M: some are Q4_K).
        agree = named and any(named.startswith(type) for type in types)
        return named if agree else types.most_common(1)[0][0]


class _Bytes:
    """Reads numbers and texts one after the other, never past the end."""

    def __init__(self, data: mmap.mmap, path: Path):
        self.data, self.path, self.at = data, path, 0

    def take(self, n: int) -> int:
        """Where the next `n` bytes start."""
        start, self.at = self.at, self.at + n
        if self.at > len(self.data):
            raise TwoTowersError(f"'{self.path}' ends inside its header, so it is cut off or damaged: {_AGAIN}")
        return start

    def number(self, kind: str) -> Any:
        start = self.take(struct.calcsize(f"<{kind}"))
        return struct.unpack_from(f"<{kind}", self.data, start)[0]

    def text(self) -> str:
        start = self.take(n := self.number("Q"))
        return self.data[start : start + n].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            item, n = self.number("I"), self.number("Q")
            if item == _STRING:
                self.take(8 * n)  # the least they can take: a damaged count is caught before its loop
                self.at -= 8 * n
                return [self.text() for _ in range(n)]
            dtype = np.dtype(f"<{_SCALARS[item]}")
            return np.frombuffer(self.data, dtype, n, self.take(dtype.itemsize * n)).copy()
        return self.number(_SCALARS[kind])


def read(path: Path) -> Header:
    """The header of a GGUF file, whose tensors all lie inside the file and have types that can be dequantised.

    Raises TwoTowersError, in one line with the remedy, for any other file. Weights are not read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(64)
            if start[:4] != b"GGUF":
                raise TwoTowersError(f"'{path}' {_what_else(start)}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except OSError as error:
        raise TwoTowersError(
            f"'{path}' cannot be read ({error.strerror}): check the path and its permissions"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TwoTowersError):
            raise
        raise TwoTowersError(f"the header of '{path}' is damaged ({str(error)[:80]}): {_AGAIN}") from None


def _what_else(start: bytes) -> str:
    if not start:
        return f"is empty: {_AGAIN}"
    if start[8:9] == b"{":
        return "is a safetensors file: give the folder it lies in, with config.json and tokenizer"
    for first, what in _OTHERS.items():
        if start.startswith(first):
            return what
    return "is no GGUF file: give a GGUF file, a folder, a hub id, or a name that `twotowers models` lists"


def _parse(path: Path, data: mmap.mmap) -> Header:
    source = _Bytes(data, path)
    source.take(4)
    if (version := source.number("I")) not in (2, 3):
        raise TwoTowersError(f"'{path}' is GGUF version {version}, only 2 and 3 are read: convert it with llama.cpp")
    n_tensors, n_fields = source.number("Q"), source.number("Q")
    fields: dict[str, Any] = {}
    for _ in range(n_fields):
        key = source.text()
        if key in fields:
            raise ValueError(f"{key} stands there twice")
        fields[key] = source.value(source.number("I"))
    infos = []
    for _ in range(n_tensors):
        name, n_dims = source.text(), source.number("I")
        if n_dims > 4:
            raise ValueError(f"{name} has {n_dims} dimensions")
        shape = tuple(reversed([source.number("Q") for _ in range(n_dims)]))
        infos.append((name, shape, source.number("I"), source.number("Q")))
    if (align := fields.get("general.alignment", 32)) not in {2**i for i in range(3, 20)}:
        raise ValueError(f"general.alignment is {align}")
    first = -(-source.at // align) * align
    _check(path, fields, {name for name, *_ in infos})
    tensors = {}
    for name, shape, kind, offset in infos:
        if name in tensors:
            raise ValueError(f"{name} stands there twice")
        tensors[name] = _tensor(path, name, shape, kind, first + offset)
    if (whole := max(t.start + t.bytes for t in tensors.values())) > len(data):
        raise TwoTowersError(f"'{path}' is cut off, {len(data):,} of {whole:,} bytes are there: {_AGAIN}")
    return Header(path, fields, tensors)


def _check(path: Path, fields: dict[str, Any], names: set[str]) -> None:
    if not isinstance(architecture := fields.get("general.architecture"), str):
        raise TwoTowersError(f"'{path}' names no architecture: {_AGAIN}, or convert it anew with llama.cpp")
    if fields.get("split.count", 0) > 1:
        raise TwoTowersError(f"'{path}' is one part of {fields['split.count']}: join them (llama-gguf-split --merge)")
    if architecture not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise TwoTowersError(
            f"'{path}' is a {architecture} model, which is not supported as GGUF: choose one of {known}"
        )
    lacking = {"tokenizer.ggml.model", "tokenizer.ggml.tokens"} - set(fields) or {"token_embd.weight"} - names
    if lacking:
        raise TwoTowersError(f"'{path}' has no {min(lacking)}, so it is no language model: take its main GGUF file")


@cache
def _block(kind: int) -> tuple[gguf.GGMLQuantizationType | None, int, int]:
    """The type of that number, and how many numbers and bytes a block of it has; None where `gguf` cannot read it."""
    try:
        type = gguf.GGMLQuantizationType(kind)
        numbers, width = gguf.GGML_QUANT_SIZES[type]
        gguf.dequantize(np.zeros((1, width), np.uint8), type)
    except (ValueError, KeyError, NotImplementedError):
        return None, 1, 1
    return type, numbers, width


def _tensor(path: Path, name: str, shape: tuple[int, ...], kind: int, start: int) -> Tensor:
    type, block, width = _block(kind)
    if type is None:
        raise TwoTowersError(
            f"'{path}' stores {name} as type {_name(kind)}, which cannot be dequantised here: take the model in "
            "another quantisation, such as Q8_0 or Q4_K_M"
        )
    if not shape or shape[-1] % block:
        raise ValueError(f"{name} has rows of {shape[-1] if shape else 0} numbers, not of whole blocks of {block}")
    return Tensor(name, shape, type, start, prod(shape) // block * width)


def _name(kind: int) -> str:
    known = {int(one): one.name for one in gguf.GGMLQuantizationType}
    return known.get(kind, f"number {kind}")
