"""What the tokens of a vocabulary spell, and which of them say nothing about a topic.

    lexicon = Lexicon.of(model.tokenizer, model.unembedding.vocabulary)
    lexicon.texts[318], lexicon.texts[359]  # 'is', '-ll': the hyphen marks a piece that begins none
    lexicon.plain[318]                      # 'is': lower case, no space, no hyphen
    lexicon.stopword_ids                    # of stop words, punctuation, single letters and bytes

The stop words are a short list of this book (data/words/stop_words.txt); the paper removes some too
and does not say which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode
from twotowers import tables
from twotowers.paths import data_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# as byte-level tokenizers (GPT-2) write bytes
_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}


@lru_cache(maxsize=1)
def stop_words() -> frozenset[str]:
    """English words that say nothing about a topic: articles, pronouns, prepositions,
    auxiliaries."""
    path = data_folder() / "words" / "stop_words.txt"
    return frozenset(tables.read_text(path).split())


@dataclass(frozen=True)
class Lexicon:
    """`texts[id]` for people, `plain[id]` to compare with words ("" where there is no text). Made
    with `of`."""

    texts: tuple[str, ...]
    plain: tuple[str, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> Lexicon:
        """Of every row of an unembedding; rows beyond the tokenizer's own (padding) read "<id
        50300>"."""
        size = min(vocabulary, len(tokenizer))
        tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
        # "Ġ" marks a space in byte-level tokenizers, "▁" in SentencePiece ones; both may occur as
        # letters elsewhere.
        byte_level = sum(t.startswith("Ġ") for t in tokens if t) > sum(
            t.startswith("▁") for t in tokens if t
        )
        special = set(tokenizer.all_special_tokens)
        pairs = [_spell(token, byte_level, token in special) for token in tokens]
        pairs += [(f"<id {i}>", "") for i in range(size, vocabulary)]
        texts, plain = zip(*pairs, strict=True)
        return cls(texts, plain)

    @cached_property
    def stopword_ids(self) -> Int[Tensor, "word"]:
        """Ids of tokens that tell nothing of a topic: stop words, and what holds no word of two
        letters or a digit."""
        stop = stop_words()
        return torch.tensor(
            [i for i, word in enumerate(self.plain) if word in stop or not is_content_word(word)]
        ).long()


@lru_cache(maxsize=100_000)
def content_words(text: str) -> frozenset[str]:
    """The words of a text that are not stop words, in lower case."""
    return (
        frozenset(w for w in re.findall(r"[^\W_]+", text.casefold()) if is_content_word(w))
        - stop_words()
    )


def is_content_word(plain: str) -> bool:
    if any(c.isdigit() for c in plain):
        return True
    letters = [c for c in plain if c.isalpha()]
    # one CJK sign can be a word
    return len(letters) > 1 or (len(letters) == 1 and not letters[0].isascii())


def _spell(token: str | None, byte_level: bool, special: bool) -> tuple[str, str]:
    """(text, plain) of one token as its tokenizer writes it."""
    if token is None:
        return "<unused>", ""
    if special:
        return token, ""
    if byte := _BYTE.fullmatch(token):
        return f"byte {byte[1].upper()}", ""
    text = token.replace("▁", " ")
    if byte_level and all(letter in _BYTE_OF for letter in token):
        raw = bytes(_BYTE_OF[letter] for letter in token)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return f"{'byte' if len(raw) == 1 else 'bytes'} {raw.hex(' ').upper()}", ""
    if not text.strip():
        return "space" if text in (" ", "") else repr(text).strip("'"), ""
    # Only letters can go on a word: a colon is no piece of one.
    readable = text.strip() if text[0].isspace() or not text[0].isalpha() else f"-{text.rstrip()}"
    return readable, text.strip().casefold()
