"""The tokenizer that lies in a checkpoint's own files. Which class a config names decides nothing.

    >>> load(files.local("mini-gpt2"), "mini-gpt2").convert_ids_to_tokens([300])
    ['Ġdelight']

tokenizer.json is read by `tokenizers`, whose file it is. A SentencePiece file is rebuilt, and must
give the ids that `sentencepiece` gives; vocab.json with merges.txt is cut as GPT-2 cuts, and must
give the ids that a class gives which reads such files and cuts them in its own way. Transformers 5
rebuilds many tokenizers from their class instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tokenizers import AddedToken, Regex, normalizers
from tokenizers.implementations import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import SpmConverter
from transformers.models.auto.tokenization_auto import (
    TOKENIZER_MAPPING_NAMES,
    tokenizer_class_from_name,
)
from transformers.tokenization_utils_base import generate_merges
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.settings import OWN_NAMES, SEPARATORS, label_pairs

from towerlab.model import files
from towerlab.model.weights import reading
from towerlab.prompts import sentences
from towerlab.prompts.blocks import words

SPM = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_NAMES = (
    *PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES,
    "additional_special_tokens",
    "extra_special_tokens",
    "add_bos_token",
    "add_eos_token",
)
Ids = Callable[[str], list[int]]


def load(folder: Path, name: str, own: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder. `own`: words or label pairs of the user's, looked at beside the
    book's.

    Raises TwoTowersError where there is none, and where it cannot be told which of two is right.
    """
    about: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / file).is_file():
            about |= files.read_json(folder / file, name)
    options = {key: _content(about[key]) for key in _NAMES if about.get(key) is not None}
    there = {
        file
        for file in (*SPM, "tokenizer.json", "vocab.json", "merges.txt")
        if (folder / file).is_file()
    }
    try:
        with reading(name, "tokenizer"):
            if "tokenizer.json" in there:
                return PreTrainedTokenizerFast(
                    tokenizer_file=str(folder / "tokenizer.json"), **options
                )
            for file in SPM:
                if file in there:
                    return of_pieces(
                        ModelProto.FromString((folder / file).read_bytes()), options, name, own
                    )
            if {"vocab.json", "merges.txt"} <= there:
                return _of_merges(folder, about, options, name, own)
    except TwoTowersError:
        for file in there & {"tokenizer.json", "vocab.json"}:
            files.read_json(folder / file, name)  # says so where it is damaged
        raise
    raise TwoTowersError(
        f"'{name}' holds no tokenizer: put tokenizer.json there, or tokenizer.model, or "
        "vocab.json with merges.txt, of the same checkpoint (tokenizer.save_pretrained(folder))"
    )


def _content(value: Any) -> Any:
    """A token as old files write it, too: {"content": "<s>", ...}."""
    if isinstance(value, list):
        return [_content(one) for one in value]
    return value["content"] if isinstance(value, dict) and "content" in value else value


def of_pieces(
    proto: ModelProto, options: dict[str, Any], name: str, own: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A SentencePiece model as a fast tokenizer, which must give the ids that the model gives."""
    pieces, cut, trained = proto.pieces, proto.normalizer_spec, proto.trainer_spec
    vocabulary = {piece.piece: i for i, piece in enumerate(pieces)}
    merges = generate_merges(
        vocabulary, {piece.piece: piece.score for piece in pieces if piece.type in (1, 4)}
    )
    scored = (
        vocabulary
        if trained.model_type == trained.BPE
        else [(piece.piece, piece.score) for piece in pieces]
    )
    backend = SpmConverter.build_tokenizer_from_spm_proto(proto, scored, merges)
    steps: list[normalizers.Normalizer] = (
        [normalizers.Precompiled(cut.precompiled_charsmap)] if cut.precompiled_charsmap else []
    )
    steps += (
        [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
        if cut.remove_extra_whitespaces
        else []
    )
    steps += [normalizers.Prepend("▁")] if cut.add_dummy_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    added = [
        AddedToken(p.piece, normalized=False, special=p.type == 3)
        for p in pieces
        if p.type in (3, 4)
    ]
    backend.add_tokens(added)
    names = {
        "add_bos_token": trained.bos_id >= 0,
        "bos_token": trained.bos_piece,
        "unk_token": trained.unk_piece,
    }
    names |= {"mask_token": "<mask>"} if "<mask>" in [token.content for token in added] else {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names | options)
    processor = SentencePieceProcessor(model_proto=proto.SerializeToString())
    compare(name, tokenizer, processor.encode, "sentencepiece", own)
    return tokenizer


def _of_merges(
    folder: Path, about: dict, options: dict, name: str, own: Sequence[str]
) -> PreTrainedTokenizerFast:
    vocabulary, merges = (str(folder / file) for file in ("vocab.json", "merges.txt"))
    backend = ByteLevelBPETokenizer.from_file(
        vocabulary, merges, add_prefix_space=bool(about.get("add_prefix_space"))
    )._tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **options)
    model_type = files.read_json(folder / "config.json", name).get("model_type")
    named = str(
        about.get("tokenizer_class") or TOKENIZER_MAPPING_NAMES.get(model_type) or "GPT2Tokenizer"
    ).removesuffix("Fast")
    kind = tokenizer_class_from_name(named) if named != "GPT2Tokenizer" else None
    # it reads such files, and may cut in another way
    if kind and "merges_file" in kind.vocab_files_names:
        try:
            other = kind.from_pretrained(folder)
        except Exception:  # not these
            return tokenizer
        compare(
            name,
            tokenizer,
            lambda text: other(text, add_special_tokens=False)["input_ids"],
            named,
            own,
        )
    return tokenizer


def probe(own: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """The words, labels and sentences of the book and some label pairs of the user's, laid out as
    prompts; and which these are."""
    labels = [
        label for pair in (*own, *label_pairs()) if pair != OWN_NAMES for label in pair.split("/")
    ]
    # a run on words needs none; one on sentences says what is missing
    here = (data_folder() / "sentences/own.csv").is_file()
    texts = (
        [text for of in sentences.class_texts("sentences").values() for text in of] if here else []
    )
    every = list(
        dict.fromkeys(
            [*labels, *(row.word for row in words()), *(row.cls for row in words()), *texts]
        )
    )
    for at, separator in itertools.product(range(0, len(every), 100), SEPARATORS.values()):
        some = every[at : at + 101]
        yield separator.join(f"{one} : {two}" for one, two in pairwise(some)) + " :", some


def compare(
    name: str, tokenizer: PreTrainedTokenizerFast, other: Ids, whose: str, own: Sequence[str] = ()
) -> None:
    """Raise TwoTowersError, with the first word that differs, unless both give the words of the
    book the same ids."""

    def ours(text: str) -> list[int]:
        return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids

    for text, some in probe(own):
        if ours(text) != other(text):
            word = next((word for word in some if ours(word) != other(word)), text)
            raise TwoTowersError(
                f"it cannot be told which tokenizer of '{name}' is right: {word[:60]!r} is "
                f"{ours(word)[:12]} as its files are read here and {list(other(word))[:12]} to "
                f"{whose}: put the checkpoint's own tokenizer.json there"
            )
