"""The tokenizer that runs is the one in the checkpoint's files, whatever class or model type is
named beside it."""

import io
import itertools
import json
import random
import shutil

import pytest
import sentencepiece
import torch
import transformers
from conftest import TINY, refused, save_tiny, shared, word_tokenizer
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers.implementations import ByteLevelBPETokenizer
from towerlab.model import files, loading, own_tokenizer
from towerlab.model.architectures import ARCHITECTURES
from towerlab.prompts import sentences
from towerlab.prompts.blocks import words

TYPES = (
    "gpt2", "gptj", "gpt_neo", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma",
    "gemma2", "phi3", "stablelm", "olmo2",
)  # fmt: skip
CLASSES = (
    None, "PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast",
    "GPT2Tokenizer", "GPTNeoXTokenizerFast", "Qwen2Tokenizer", "GemmaTokenizer",
    "CodeLlamaTokenizer", "NoSuchTokenizer",
)  # fmt: skip
TEXTS = [text for of in sentences.class_texts("sentences").values() for text in of] + [
    " ".join(w.word for w in words())
]
PROBE = [
    "love : bar\nlike : foo 12 a1 :",
    "two : foo three : bar four :",
    "The film, it's 1984!",
    " space",
    *TEXTS[:9],
]
# as Llama 3, shortened
CUT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(split=None, begins=False):
    tokenizer = Tokenizer(models.BPE())
    cut = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return tokenizer


def sentence_piece(**options):
    """The bytes of a SentencePiece model of the book's own texts."""
    model = io.BytesIO()
    options = dict(vocab_size=500, model_type="bpe", byte_fallback=True, minloglevel=9) | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, **options
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Kind of files -> (their folder, text -> ids by the library whose files they are)."""
    out, root = {}, tmp_path_factory.mktemp("tokenizers")

    def json_file(kind, tokenizer):
        (root / kind).mkdir()
        tokenizer.save(str(root / kind / "tokenizer.json"))
        own = Tokenizer.from_file(str(root / kind / "tokenizer.json"))
        out[kind] = (root / kind, lambda text: own.encode(text).ids)

    json_file("tokenizer.json, byte level", byte_level())
    json_file(
        "tokenizer.json, numbers by three, with a beginning token", byte_level(CUT, begins=True)
    )
    model = sentence_piece(normalization_rule_name="identity", remove_extra_whitespaces=False)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    (root / "spm").mkdir()
    (root / "spm" / "tokenizer.model").write_bytes(model)
    out["tokenizer.model"] = (
        root / "spm",
        lambda text: [processor.bos_id(), *processor.encode(text)],
    )
    rebuilt = own_tokenizer.load(root / "spm", "it").backend_tokenizer
    rebuilt.normalizer = normalizers.Replace(" ", "▁")  # no space before the first word
    json_file("tokenizer.json, no space before the first word", rebuilt)
    (root / "merges").mkdir()
    byte_level().model.save(str(root / "merges"))
    plain = ByteLevelBPETokenizer.from_file(
        str(root / "merges" / "vocab.json"), str(root / "merges" / "merges.txt")
    )
    out["vocab.json and merges.txt"] = (root / "merges", lambda text: plain.encode(text).ids)
    return out


def test_ids_are_those_of_the_files_over_model_types_and_classes(tokenizers, tmp_path):
    """Every model type and every class beside each kind of files; all pairs of them beside the one
    whose reading they could change."""
    for kind, (source, own) in tokenizers.items():
        every = (
            itertools.product(CLASSES, TYPES)
            if "merges" in kind
            else zip(itertools.cycle(CLASSES), TYPES, strict=False)
        )
        folder = tmp_path / kind
        shutil.copytree(source, folder)
        for named, model_type in every:
            about = {"tokenizer_class": named} if named else {}
            (folder / "tokenizer_config.json").write_text(
                json.dumps(about | {"unk_token": "<unk>"})
            )
            (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
            tokenizer = own_tokenizer.load(folder, "it")
            for text in PROBE:
                assert tokenizer(text)["input_ids"] == own(text), (kind, named, model_type, text)


def test_where_two_readings_of_the_same_files_differ_the_first_word_and_both_are_named(
    tokenizers, tmp_path
):
    folder = tmp_path / "it"
    shutil.copytree(tokenizers["vocab.json and merges.txt"][0], folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    own_tokenizer.load(
        folder, "it"
    )  # none of the book's words has a number, which Qwen cuts into digits
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(vocabulary | {"12": len(vocabulary)}))
    (folder / "merges.txt").write_text((folder / "merges.txt").read_text() + "1 2\n")
    line = refused(
        r"cannot be told which tokenizer of 'it' .*'x12'.* Qwen2Tokenizer",
        own_tokenizer.load,
        folder,
        "it",
        ["x12/y"],
    )
    assert line.count("[") == 2
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    own_tokenizer.load(folder, "it", ["x12/y"])


@pytest.mark.parametrize(
    "template, flag, expected",
    [
        (True, None, [0]),
        (True, False, []),
        (False, True, [0]),
        (False, None, []),
        (True, True, [0]),
    ],
)
def test_the_beginning_is_the_configs_or_else_the_templates(template, flag, expected, tmp_path):
    byte_level(begins=template).save(str(tmp_path / "tokenizer.json"))
    about = {"bos_token": {"content": "<s>", "lstrip": False}} | (
        {} if flag is None else {"add_bos_token": flag}
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    tokenizer = own_tokenizer.load(tmp_path, "it")
    assert tokenizer("one")["input_ids"] == [
        *expected,
        *tokenizer("one", add_special_tokens=False)["input_ids"],
    ]


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"remove_extra_whitespaces": True},
        {"add_dummy_prefix": False},
        {"model_type": "unigram"},
    ],
)
def test_a_sentencepiece_file_of_any_kind_is_rebuilt_or_refused(cut, tmp_path):
    model = sentence_piece(vocab_size=400, **cut)
    (tmp_path / "tokenizer.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = own_tokenizer.load(tmp_path, "it")
    for text in PROBE:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == processor.encode(text)


def test_no_tokenizer_and_a_broken_one_are_told_apart(tmp_path):
    refused(r"holds no tokenizer: put tokenizer\.json there", own_tokenizer.load, tmp_path, "it")
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    refused("the tokenizer of 'it' ", own_tokenizer.load, tmp_path, "it")
    (tmp_path / "tokenizer.json").write_text("{")
    refused(r"tokenizer\.json of 'it' cannot be read .* again", own_tokenizer.load, tmp_path, "it")
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "New"}}')
    assert "again" not in refused(
        "transformers .* cannot read the tokenizer of 'it'", own_tokenizer.load, tmp_path, "it"
    )


@pytest.mark.parametrize("kind, source", [("gptj", "gpt2"), ("llama", "llama2")])
def test_the_papers_models_load_with_the_tokenizers_at_hand(kind, source, tmp_path):
    """GPT-J's vocabulary and merges, which GPT-2 has, and Llama's SentencePiece file, with tiny
    weights."""
    size = 50400 if kind == "gptj" else 32000
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=size, bos_token_id=1, eos_token_id=2, **TINY[kind]
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    for file in shared(f"tokenizers/{source}").iterdir():
        if file.name != "config.json":
            shutil.copyfile(file, tmp_path / file.name)
    model = loading.load(tmp_path)
    assert model.architecture is ARCHITECTURES[kind] and model.fingerprint == files.fingerprint(
        str(tmp_path)
    )
    expected = {
        "gptj": [23205, 1058, 2318, 198, 2339, 1058],
        "llama": [1, 5360, 584, 2594, 13, 4561, 584],
    }[kind]
    assert model.tokenizer("love : bar\nlike :")["input_ids"] == expected
    text = " ".join(random.Random(0).sample([row.word for row in words()], 200))
    assert (
        model.tokenizer.decode(model.tokenizer(text, add_special_tokens=False)["input_ids"]).strip()
        == text
    )


BROKEN = {
    "Cannot parse precompiled_charsmap": {"normalizer": {"type": "Precompiled",
                                                         "precompiled_charsmap": "AAAA"}},
    "unmatched parenthesis": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("},
                                                "behavior": "Isolated", "invert": False}},
    "no entry found for key": {"post_processor": {"type": "TemplateProcessing", "pair": [],
                                                  "special_tokens": {},
                                                  "single": [{"SpecialToken": {"id": "<x>",
                                                                               "type_id": 0}}]}},
    "gives token 61, and its weights know 61": {},
}  # fmt: skip


@pytest.mark.parametrize("words_of_it", BROKEN)
def test_a_reader_that_panics_or_gives_other_ids_ends_in_one_line(words_of_it, tmp_path, capfd):
    """Some panics come when the file is read, others at the first text; Rust writes of them past
    Python's stderr."""
    save_tiny(tmp_path, "llama")
    others = 59 if "gives" in words_of_it else 3
    word_tokenizer(["<unk>", ":", *(f"w{i}" for i in range(others)), "love"]).save_pretrained(
        tmp_path
    )
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | BROKEN[words_of_it]))
    capfd.readouterr()
    refused(f"tokenizer of .*{words_of_it}", loading.load, tmp_path)
    assert capfd.readouterr().err == ""
