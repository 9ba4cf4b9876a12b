"""Texts of the tokens of a vocabulary, and the tokens without a topic.

    lexicon = Lexicon.from_tokenizer(model.tokenizer, model.unembedding.vocabulary)
    lexicon.texts[318], lexicon.texts[359]  # 'is', '-ll': a hyphen marks a piece inside a word
    lexicon.plain[318]                      # 'is': lower case, no space, no hyphen
    lexicon.stopword_ids                    # of stop words, punctuation, single letters and bytes

The stop words are a short list of this book (data/words/stop_words.txt). The paper also removes
some stop words and does not list them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from twotowers import tables
from twotowers.paths import data_folder


@cache
def stop_words() -> frozenset[str]:
    """Return English words without a topic: articles, pronouns, prepositions, auxiliaries.

    Returns:
        Words of data/words/stop_words.txt.
    """
    text = tables.read_text(data_folder() / "words" / "stop_words.txt")
    return frozenset(text.split())


@dataclass(frozen=True)
class Lexicon:
    """Texts of all tokens of a vocabulary, made with `from_tokenizer`.

    `texts[id]` is the text to print. `plain[id]` is the text to compare with words, "" if the token
    has no text.
    """

    texts: tuple[str, ...]
    plain: tuple[str, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocabulary: int) -> Lexicon:
        """Return the texts of all rows of an unembedding.

        Args:
            tokenizer: Tokenizer of the model.
            vocabulary: Number of rows. Rows beyond the tokenizer's tokens (padding) read "<id
                50300>".

        Returns:
            The lexicon.
        """
        size = min(vocabulary, len(tokenizer))
        # Each token is decoded after a colon: some decoders drop the space of the first token.
        colon = tokenizer(":", add_special_tokens=False)["input_ids"][-1:]
        sequences = [[*colon, i] for i in range(size)]
        decoded = tokenizer.batch_decode(sequences, clean_up_tokenization_spaces=False)
        start = len(tokenizer.decode(colon))
        special = set(tokenizer.all_special_ids)
        pairs = [
            (text[start:].strip(), "") if i in special else _spell(text[start:])
            for i, text in enumerate(decoded)
        ]
        pairs += [(f"<id {i}>", "") for i in range(size, vocabulary)]
        return cls(*zip(*pairs, strict=True))

    @cached_property
    def stopword_ids(self) -> Int[Tensor, "word"]:
        """Ids of tokens without a topic.

        These are stop words, and tokens without a word of two letters or a digit.
        """
        stop = stop_words()
        is_stop = [word in stop or not _is_content_word(word) for word in self.plain]
        return torch.tensor(is_stop).nonzero()[:, 0]


@cache
def content_words(text: str) -> frozenset[str]:
    """Return the words of a text that are not stop words, in lower case.

        >>> sorted(content_words("The dog's 2 bones, in a Box"))
        ['2', 'bones', 'box', 'dog']

    Args:
        text: Any text.

    Returns:
        The words.
    """
    words = filter(_is_content_word, re.findall(r"[^\W_]+", text.casefold()))
    return frozenset(words) - stop_words()


def _is_content_word(plain: str) -> bool:
    """Return whether a token can be a word: with a digit, two letters, or one CJK sign."""
    letters = "".join(filter(str.isalpha, plain))
    return len(letters) > 1 or not letters.isascii() or any(map(str.isdigit, plain))


def _spell(text: str) -> tuple[str, str]:
    """Return the text of a decoded token to print, and the text to compare with words."""
    word = text.strip()
    if not word:
        return "space" if text in (" ", "") else repr(text)[1:-1], ""
    # Only letters can continue a word: a colon is not a piece of a word.
    begins = text[0].isspace() or not text[0].isalpha()
    return word if begins else f"-{word}", word.casefold()
