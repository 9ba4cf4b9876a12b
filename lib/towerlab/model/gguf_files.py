"""A GGUF file as a folder of safetensors, taken only if transformers passed over nothing of it.

    about(path)         # ("llama", "Q4_1, dequantised"), from the header
    as_folder(path)     # in the user's cache; made once, which takes minutes

    >>> about(Path(__file__))  # another file in its place
    Traceback (most recent call last):
    twotowers.errors.TwoTowersError: the header of ... cannot be read, it is damaged ...

transformers leaves out what it does not know of a file without a word, and takes a default for what
it does not find. So every field that can change a number is compared with the config that was made
of it, every tensor must have found its place, and the words of the book must have the ids that the
file's own vocabulary gives them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import __version__ as transformers_version
from transformers.integrations.gguf import gguf_tokenizer_mapping, reader
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)
from twotowers.errors import TwoTowersError

from towerlab.cache import user_cache
from towerlab.model import own_tokenizer, packages
from towerlab.model.files import MADE_FROM
from towerlab.model.weights import check_loaded, reading
from towerlab.progress import say

# of the file, not of the model; tokens are looked at below
_SAID = re.compile(r"general\.|tokenizer\.|quantize\.|split\.")
_TYPES = {"gemma3": "gemma3_text"}  # architecture -> model type, where they differ
_FLOATS = ("F32", "F16", "BF16", "F64")
# How text is cut before merges (tokenizer.ggml.pre), beside the ways that transformers knows.
_AS_GPT2, _DIGITS = ("gpt-2", "phi-2", "olmo", "mpt"), ("smollm", "starcoder")
# llama.cpp begins these with a token, and looks for whole words first
_AS_LLAMA3 = ("llama3", "llama-v3", "llama-bpe")


def about(path: Path) -> tuple[str, str]:
    """Model type and quantisation ("" for floats). Raises TwoTowersError for what can be seen to be
    no whole model."""
    fields, tensors = _header(path)
    with reading(str(path), "header"):
        if fields.get("general.type", "model") != "model":
            raise TwoTowersError(
                f"'{path}' is of the type {fields['general.type']}: give the whole model, an "
                "adapter merged into it"
            )
        if fields.get("split.count", 1) > 1:
            part = f"part {fields.get('split.no', 0) + 1} of {fields['split.count']}"
            raise TwoTowersError(
                f"'{path}' is {part}: join them (llama-gguf-split --merge FIRST WHOLE) and give "
                "the whole"
            )
        kind = str(fields["general.architecture"])
        quantised = [
            name for name, _ in Counter(tensors.values()).most_common() if name not in _FLOATS
        ]
        try:
            name = LlamaFileType(fields.get("general.file_type")).name.removeprefix("MOSTLY_")
        except ValueError:  # not said, or newer than the library
            name = ""
        if not any(name.startswith(one) for one in quantised):  # the tensors have the last word
            name = " + ".join(quantised)
        return _TYPES.get(kind, kind), f"{name}, dequantised" if quantised else ""


def as_folder(path: Path) -> Path:
    """The folder of float32 safetensors, with what it was made from in its config. Raises
    TwoTowersError as said above."""
    _, quantisation = about(path)

    def write(folder: Path) -> None:
        say(f"{path.name}: its quantised weights are written out as floats, once ...")
        _convert(
            path,
            folder,
            {"file": path.name, "sha256": packages.digest(path), "quantisation": quantisation},
        )

    return packages.ensure(
        user_cache()
        / "gguf"
        / f"{packages.digest(path)[:24]}-transformers-{transformers_version}-whole",
        write,
    )


def _header(path: Path, arrays: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """All fields, and the type of every tensor. Raises TwoTowersError for a file that is damaged or
    not whole."""
    types, end = {}, 0
    with reading(str(path), "header"):
        try:
            blob = reader._mapped(str(path))
            fields, count, at = reader._read_metadata(blob, str(path), arrays)
        except ValueError as error:  # empty, or another file in its place
            raise EOFError(error) from None
        tensors, at = reader._read_tensor_table(blob, count, at)
        for name, shape, number, offset in tensors:
            kind = GGMLQuantizationType(number)
            # Sizes are gguf's, whose kinds are all read: transformers' reader of headers knows few.
            numbers, size = GGML_QUANT_SIZES[kind]
            types[name] = kind.name
            end = max(end, offset + math.prod(shape) // numbers * size)
        align = fields.get("general.alignment", 32)
        if (end := end + -(-at // align) * align) > len(blob):
            raise EOFError(f"its tensors end at byte {end:,} of {len(blob):,}")
        return fields, types


def _convert(path: Path, folder: Path, made_from: dict[str, str]) -> None:
    fields, tensors = _header(path, ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"))
    name, source = str(path), {"gguf_file": path.name, "trust_remote_code": False}
    with reading(name, "contents"):
        config = AutoConfig.from_pretrained(path.parent, **source)
        _check_fields(name, fields, config)
        _tokenizer(path, fields).save_pretrained(folder)
        hf, report = AutoModelForCausalLM.from_pretrained(
            path.parent,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **source,
        )
        kind = fields["general.architecture"]
        placed = get_gguf_hf_weights_map(
            hf, TENSOR_PROCESSORS.get(kind, TensorProcessor)(config={})
        )
        if over := sorted(set(tensors) - set(placed)):
            raise _unlike(name, f"it has a tensor {over[0]}, which transformers passes over")
        check_loaded(name, hf, report)
        # transformers marks the model as quantised, though its weights are floats by now
        hf.hf_quantizer = None
        if hasattr(hf.config, "quantization_config"):
            del hf.config.quantization_config
        setattr(hf.config, MADE_FROM, made_from)
        hf.save_pretrained(folder)


def _unlike(name: str, why: str) -> TwoTowersError:
    what = f"'{name}' is a GGUF file that transformers does not read as it is ({why})"
    return TwoTowersError(f"{what}: give the model's own folder of safetensors")


def _check_fields(name: str, fields: dict[str, Any], config: Any) -> None:
    """Raise TwoTowersError unless every field that can change a number says what the config says,
    and none is wanting."""
    kind, heads, its = fields["general.architecture"], config.num_attention_heads, config.to_dict()
    rope = its.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    width = config.hidden_size // heads
    d_head = its.get("head_dim") or width
    eps = (
        "attention.layer_norm_epsilon"
        if f"{kind}.attention.layer_norm_epsilon" in fields
        else "attention.layer_norm_rms_epsilon"
    )
    kv_heads, parallel = its.get("num_key_value_heads"), its.get("use_parallel_residual", False)
    says: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": its.get("intermediate_size") or 4 * config.hidden_size,
        "attention.head_count": heads,
        eps: next((value for key, value in its.items() if key.endswith(("eps", "epsilon"))), None),
    }
    # What the config says, and what llama.cpp takes where a file does not say.
    pairs: dict[str, tuple[Any, Any]] = {key: (value, ...) for key, value in says.items()}
    pairs |= {
        "attention.head_count_kv": (kv_heads or heads, ... if kv_heads else heads),
        "attention.causal": (True, True),
        "attention.key_length": (d_head, width), "attention.value_length": (d_head, width),
        "attention.sliding_window": (its.get("sliding_window"), None),
        "use_parallel_residual": (parallel, parallel),
        "attn_logit_softcapping": (its.get("attn_logit_softcapping"), None),
        "final_logit_softcapping": (its.get("final_logit_softcapping"), None),
        "vocab_size": (config.vocab_size, len(fields.get("tokenizer.ggml.tokens", ()))),
    }  # fmt: skip
    if rope:
        turned = int(d_head * rope.get("partial_rotary_factor", 1.0))
        pairs |= {
            "rope.freq_base": (rope.get("rope_theta"), 10000.0),
            "rope.scaling.type": (rope.get("rope_type"), "default"),
            "rope.dimension_count": (turned, d_head),
        }
    given = {
        key.removeprefix(f"{kind}."): value for key, value in fields.items() if not _SAID.match(key)
    }
    for key in dict.fromkeys((*given, *pairs)):
        ours, taken = pairs.get(key, (None, None))
        value = given.get(key, taken)
        value = "default" if key == "rope.scaling.type" and value == "none" else value
        if value is ...:
            raise _unlike(name, f"it has no field {kind}.{key}, and transformers takes {ours}")
        if key not in pairs:
            if value:
                raise _unlike(name, f"it has a field {kind}.{key}, which transformers passes over")
        elif value != ours and not (
            isinstance(value, float) and math.isclose(value, ours or 0, rel_tol=1e-5)
        ):
            raise _unlike(
                name,
                f"{kind}.{key} is {value if key in given else 'not said'}, and transformers takes "
                f"{ours}",
            )


def _tokenizer(path: Path, fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer that the file describes, which is not always the one that transformers makes of
    it."""
    ggml = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in fields.items()
        if key.startswith("tokenizer.ggml.")
    }
    if ggml.get("model") == "gpt2":
        pre = ggml.get("pre")
        if pre not in (*_AS_GPT2, *_DIGITS, *gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS):
            raise _unlike(str(path), f"it cuts text in a way called {pre}, which is unknown")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
        backend = tokenizer.backend_tokenizer
        if pre in _DIGITS:  # each digit by itself before all else
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(True), backend.pre_tokenizer]
            )
        if pre in _AS_LLAMA3:
            backend.model.ignore_merges = True
            tokenizer.add_bos_token = ggml.get("add_bos_token", True)
        return tokenizer
    if ggml.get("model") != "llama":
        raise _unlike(str(path), f"its tokenizer is {ggml.get('model')}, not gpt2 or llama")
    tokens, kinds, proto = ggml["tokens"], ggml["token_type"], ModelProto()
    for token, score, kind in zip(tokens, ggml["scores"], kinds, strict=True):
        proto.pieces.add(piece=token.replace(" ", "▁"), score=score, type=kind)
    ids = {key[:3]: ggml.get(f"{key}_token_id", -1) for key in ("bos", "eos", "unknown", "padding")}
    for key, at in ids.items():
        setattr(proto.trainer_spec, f"{key}_id", at)
    proto.trainer_spec.model_type = proto.trainer_spec.BPE
    proto.trainer_spec.byte_fallback = 6 in kinds
    proto.trainer_spec.unk_piece = proto.pieces[max(ids["unk"], 0)].piece
    proto.normalizer_spec.add_dummy_prefix = ggml.get("add_space_prefix", True)
    proto.normalizer_spec.remove_extra_whitespaces = ggml.get("remove_extra_whitespaces", False)
    proto.normalizer_spec.precompiled_charsmap = bytes(ggml.get("precompiled_charsmap", ()))
    names = {f"{key}_token": proto.pieces[at].piece for key, at in ids.items() if at >= 0}
    begins = {
        "add_bos_token": ggml.get("add_bos_token", True),
        "add_eos_token": ggml.get("add_eos_token", False),
    }
    return own_tokenizer.of_pieces(proto, names | begins, str(path))
