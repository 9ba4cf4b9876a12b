"""The tokenizer of a loaded model: its tokens are those of its file, and each has its row."""

import json

import pytest
from conftest import VOCABULARY, word_tokenizer
from test_loading import TOKENIZER, not_loaded
from tokenizers import Tokenizer, models, processors
from towerlab.model import loading

WORDS = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(VOCABULARY - 3))]
BEGINS = {
    "no beginning": None,
    "a beginning": processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)]),
    "beginning and end": processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    ),
    "another beginning": processors.TemplateProcessing("w9 $A", special_tokens=[("w9", 12)]),
}
SAID = [
    {"add_bos_token": False},  # as in Llama 3's files, whose tokenizer.json adds it
    {"add_bos_token": True, "add_eos_token": True},
    {"add_bos_token": True, "tokenizer_class": "LlamaTokenizerFast"},
    {"bos_token": {"content": "<other>"}, "pad_token": "<pad>"},
    {"bos_token": "w5", "additional_special_tokens": ["w7"]},
    {"added_tokens_decoder": {"4": {"content": "w5", "special": True}}, "add_prefix_space": True},
]


@pytest.mark.parametrize("begins", BEGINS)
def test_tokens_are_those_of_tokenizer_json_whatever_other_files_say(begins, tmp_path):
    """The class names PreTrainedTokenizerFast, in two files that can contradict each other too."""
    backend = word_tokenizer(WORDS).backend_tokenizer
    if BEGINS[begins]:
        backend.post_processor = BEGINS[begins]
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    text = "w1 w5w6 <other> w2 w7w <s> w77"
    expected = Tokenizer.from_file(str(path)).encode(text).ids
    usual = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    for said in SAID:
        for first, second in ((usual | said, {}), ({"bos_token": "</s>"}, usual | said)):
            (tmp_path / "special_tokens_map.json").write_text(json.dumps(second))
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(first))
            assert loading._tokenizer(tmp_path)(text)["input_ids"] == expected, said


def test_a_tokenizer_of_more_tokens_than_the_weights_have_is_refused(save):
    folder = save("llama")
    word_tokenizer([f"w{i}" for i in range(VOCABULARY + 1)]).save_pretrained(folder)
    not_loaded(folder, "at most 61 tokens, got 62")


def with_token(folder, **token):
    """The tokenizer of a folder has one token more than the embedding has rows."""
    path = folder / TOKENIZER
    fields = json.loads(path.read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    fields["added_tokens"].append(plain | {"id": VOCABULARY} | token)
    path.write_text(json.dumps(fields))
    return folder


def test_tokens_without_a_row_of_the_embedding_are_refused_if_a_prompt_may_have_them(save):
    loading.load(with_token(save("llama"), content="<image>", special=True))  # as Gemma 3 has one
    word = with_token(save("llama"), content="foo", special=False)
    not_loaded(word, r"expected tokens below 61, .*, got 'foo' \(61\); run resize_token_embeddings")
    begins = with_token(save("llama"), content="<begin>", special=True)
    tokenizer = Tokenizer.from_file(str(begins / TOKENIZER))
    beginning = [("<begin>", VOCABULARY)]
    tokenizer.post_processor = processors.TemplateProcessing("<begin> $A", special_tokens=beginning)
    tokenizer.save(str(begins / TOKENIZER))
    not_loaded(begins, r"got '<begin>' \(61\)")


def test_random_tokens_are_refused(save):
    folder = save("llama")
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, [], dropout=0.1))
    tokenizer.save(str(folder / TOKENIZER))
    not_loaded(folder, r"its tokens are random \(dropout 0.1\); set dropout to null")
