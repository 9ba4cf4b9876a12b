"""What a GGUF file says of itself, and which ones are refused because transformers would read them wrongly.

transformers reads GGUF with `gguf_file=`. It leaves out, without a word, what it does not know: scaled rotary
frequencies, biases of Llama, sliding windows, soft caps. So only files whose every field and tensor it is known to use
are taken; the test of the named files pins what it makes of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from twotowers.errors import TwoTowersError

_FIELDS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count",
    "attention.key_length", "attention.value_length", "vocab_size",
}  # fmt: skip
_WIDTHS = ("rope.dimension_count", "attention.key_length", "attention.value_length")  # all equal to d_head
_MATRICES = "attn_norm|attn_q|attn_k|attn_v|attn_output|ffn_norm|ffn_gate|ffn_up|ffn_down"
_TENSORS = {
    "llama": re.compile(rf"((token_embd|output_norm|output)|blk\.\d+\.({_MATRICES}))\.weight"),
    "qwen2": re.compile(rf"((token_embd|output_norm|output)|blk\.\d+\.({_MATRICES}))\.weight|blk\.\d+\.attn_[qkv]\.bias"),
}
_CUTS = ("gpt-2", "smollm", "qwen2")  # how text is cut before merges (tokenizer.ggml.pre)


class Header(NamedTuple):
    """`model_type` as transformers names it; `quantisation` such as "Q4_1, dequantised"; `cut`: tokenizer.ggml.pre."""

    model_type: str
    quantisation: str
    cut: str


def read(path: Path) -> Header:
    """The header of a GGUF file. Raises TwoTowersError for a damaged file and for one that would be read wrongly."""
    from gguf import LlamaFileType
    from transformers.integrations.gguf.reader import read_gguf_metadata

    try:
        fields, tensors = read_gguf_metadata(str(path))
    except Exception as error:  # a damaged file can raise anything
        what = (str(error).splitlines() or [""])[0][:80] or type(error).__name__
        raise TwoTowersError(f"'{path}' is no whole GGUF file ({what}): copy or download it again") from None
    if wrong := _unread(fields, tensors):
        raise TwoTowersError(
            f"'{path}' is a GGUF file that transformers does not read faithfully ({wrong}): give the model's "
            "own folder of safetensors, or make one with `twotowers convert FILE FOLDER` and compare its answers"
        )
    name = LlamaFileType(fields.get("general.file_type", 0)).name.removeprefix("MOSTLY_")
    quantisation = "" if name in ("ALL_F32", "F16", "BF16") else f"{name}, dequantised"
    return Header(fields["general.architecture"], quantisation, fields["tokenizer.ggml.pre"])


def _unread(fields: dict[str, Any], tensors: tuple[str, ...]) -> str:
    """The first thing in the file that transformers would leave out, or ""."""
    kind = fields["general.architecture"]
    if kind not in _TENSORS:
        return f"its architecture is {kind}, not {' or '.join(_TENSORS)}"
    of_kind = {key.removeprefix(f"{kind}."): value for key, value in fields.items() if key.startswith(f"{kind}.")}
    if unknown := sorted(set(of_kind) - _FIELDS):
        return f"it has a field {kind}.{unknown[0]}"
    width = of_kind["embedding_length"] // of_kind["attention.head_count"]
    if other := [field for field in _WIDTHS if of_kind.get(field, width) != width]:
        return f"its {other[0]} is {of_kind[other[0]]}, not {width}"
    if unread := [tensor for tensor in tensors if not _TENSORS[kind].fullmatch(tensor)]:
        return f"it has a tensor {unread[0]}"
    if fields.get("split.count", 1) > 1:
        return "it is one part of several"
    if fields.get("tokenizer.ggml.model") != "gpt2" or fields.get("tokenizer.ggml.pre") not in _CUTS:
        model, cut = (fields.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
        return f"its tokenizer is {model}, {cut}, not gpt2 with {', '.join(_CUTS)}"
    return ""
