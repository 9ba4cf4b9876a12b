"""What tokens spell: GPT-2's bytes, SentencePiece's, padding; and which words say nothing."""

from conftest import word_tokenizer
from tokenizers import decoders
from towerlab.model.token_text import Lexicon, stop_words
from towerlab.prompts.blocks import class_words


def lexicon(tokens, decoder):
    tokenizer = word_tokenizer(("<unk>", ":", *tokens))
    tokenizer.backend_tokenizer.decoder = decoder
    return Lexicon.from_tokenizer(tokenizer, len(tokens) + 3)


def test_byte_level_tokens_are_readable():
    tokens = ("Ġlove", "ll", "ĠZÃ¼rich", "Ã", "Ġ", "Ċ", "Ġ7", "A", "ĠLove")
    result = lexicon(tokens, decoders.ByteLevel())
    assert result.texts == (
        "<unk>", ":", "love", "-ll", "Zürich", "�", "space", "\\n", "7", "-A", "Love", "<id 11>"
    )  # fmt: skip
    assert result.plain == ("", ":", "love", "ll", "zürich", "�", "", "", "7", "a", "love", "")
    assert result.stopword_ids.tolist() == [0, 1, 3, 5, 6, 7, 9, 11]


def test_sentencepiece_tokens_are_readable():
    llama = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    result = lexicon(("▁love", "ly", "▁", "▁the", "語"), decoders.Sequence(llama))
    assert result.texts == ("<unk>", ":", "love", "-ly", "space", "the", "-語", "<id 7>")
    assert result.stopword_ids.tolist() == [0, 1, 4, 5, 7]


def test_stop_words_are_no_words_of_a_class_and_no_label():
    assert not stop_words() & set().union(*class_words().values())
    assert not stop_words() & {"foo", "bar"} and {"the", "of", "is"} <= stop_words()
    assert all(word == word.casefold() for word in stop_words())
