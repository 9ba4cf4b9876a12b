"""What tokens spell: GPT-2's bytes, SentencePiece's, padding; and which words say nothing."""

from conftest import shared, word_tokenizer
from towerlab.model.token_text import Lexicon, content_words, stop_words
from towerlab.prompts.blocks import class_words
from transformers import AutoTokenizer


def test_byte_level_tokens_are_readable():
    tokens = ("<unk>", "Ġlove", "ll", ":", "ĠZÃ¼rich", "Ã", "âĢ", "Ġ", "Ċ", "Ġ7", "A", "ĠLove")
    result = Lexicon.of(word_tokenizer(tokens), len(tokens) + 1)
    assert result.texts == (
        "<unk>", "love", "-ll", ":", "Zürich", "byte C3", "bytes E2 80", "space", "\\n", "7", "-A",
        "Love", "<id 12>",
    )  # fmt: skip
    assert result.plain == ("", "love", "ll", ":", "zürich", "", "", "", "", "7", "a", "love", "")
    assert result.stopword_ids.tolist() == [0, 2, 3, 5, 6, 7, 8, 10, 12]


def test_sentencepiece_tokens_are_readable():
    tokens = ("<unk>", "▁love", "ly", "<0xE2>", "▁", "▁the", "語", "Ġ")
    result = Lexicon.of(word_tokenizer(tokens), len(tokens))
    assert result.texts == ("<unk>", "love", "-ly", "byte E2", "space", "the", "-語", "-Ġ")
    assert result.stopword_ids.tolist() == [0, 3, 4, 5]


def test_stop_words_are_no_words_of_a_class_and_no_label():
    assert not stop_words() & set().union(*class_words().values())
    assert not stop_words() & {"foo", "bar"} and {"the", "of", "is"} <= stop_words()
    assert all(word == word.casefold() for word in stop_words())


def test_content_words_of_a_text():
    assert content_words("The dog's 2 bones, in a Box") == {"dog", "2", "bones", "box"}


def test_gpt2s_and_llamas_own_tokens():
    gpt2 = Lexicon.of(AutoTokenizer.from_pretrained(shared("tokenizers/gpt2")), 50257)
    assert (
        gpt2.texts[22944] == "foo"
        and gpt2.texts[2318] == "bar"
        and gpt2.texts[50256] == "<|endoftext|>"
    )
    assert gpt2.plain.count("bar") >= 4  # bar, Bar, BAR, with and without their space
    stories = Lexicon.of(AutoTokenizer.from_pretrained(shared("models/stories260K")), 512)
    assert stories.texts[5] == "byte 02" and stories.texts[300] == "ha"
