"""The tokenizer of a GGUF file: vocabulary, merges or scores, special tokens, and how text is cut before merges.

    build(header).save_pretrained(folder)

A file names its way of cutting text (tokenizer.ggml.pre) but does not hold it. One that is not known here is refused:
its tokens could be others than those the model learned, and nothing would show it.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS, convert_gguf_tokenizer

from twotowers.errors import TwoTowersError
from twotowers.model.gguf_file import Header

# Names of tokenizer.ggml.pre, by what llama.cpp does (src/llama-vocab.cpp); transformers knows the others.
_LIKE_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais"}
_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_WHOLE_WORDS = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "pixtral",
    "tekken",
}  # a word of the vocabulary is a token
_UNSAID = {"gpt2": "gpt-2", "gptneox": "gpt-2", "qwen2": "qwen2", "qwen3": "qwen2"}  # of older files, by architecture
_CONTROL, _USER_DEFINED = 3, 4


def build(header: Header) -> PreTrainedTokenizerFast:
    """Raises TwoTowersError for a kind of tokenizer or a way to cut text that is not known, and for a damaged one."""
    said = {key.removeprefix("tokenizer.ggml."): value for key, value in header.fields.items() if "tokenizer." in key}
    kind, pre = said["model"], said.get("pre")
    if kind == "gpt2":
        pre = _UNSAID.get(header.architecture, pre) if pre in (None, "default") else pre
        if pre not in _LIKE_GPT2 | _SINGLE_DIGITS | set(GGUF_PRE_TOKENIZER_SPLITS):
            raise TwoTowersError(
                f"'{header.path}' cuts words in a way that is not known here (tokenizer.ggml.pre is {pre}), so its "
                "tokens could be other than the model's: take a file of another model"
            )
    elif kind != "llama":
        raise TwoTowersError(
            f"'{header.path}' has a tokenizer of kind '{kind}', and only gpt2 and llama are read: take another model"
        )
    try:
        backend = _byte_level(said, pre) if kind == "gpt2" else _sentencepiece(said, header.architecture)
        settings = {"add_bos_token": said.get("add_bos_token", kind == "llama" or pre in _WHOLE_WORDS)}
        settings |= {"add_eos_token": said.get("add_eos_token", False)}
        template = header.fields.get("tokenizer.chat_template")
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, **settings, **_special(said), **({"chat_template": template} if template else {})
        )
    except Exception as error:  # of a damaged vocabulary anything can come
        what = f"{type(error).__name__}: {error}".splitlines()[0][:80]
        raise TwoTowersError(f"the tokenizer of '{header.path}' is damaged ({what}): download it again") from None


def _byte_level(said: dict[str, Any], pre: str) -> Tokenizer:
    spelling = bytes_to_unicode()
    alphabet, vocabulary, added = set(spelling.values()), {}, []
    types = said["token_type"].tolist() if "token_type" in said else [1] * len(said["tokens"])
    for i, (token, type) in enumerate(zip(said["tokens"], types, strict=True)):
        if type in (_CONTROL, _USER_DEFINED):  # found whole in a text, before anything is cut
            added.append(AddedToken(token, normalized=False, special=type == _CONTROL))
        elif not set(token) <= alphabet:
            token = "".join(spelling[byte] for byte in token.encode())
        vocabulary[token] = i
    merges = [tuple(merge.split(" ")) for merge in said.get("merges", [])]
    backend = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre in GGUF_PRE_TOKENIZER_SPLITS:
        first = pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated")
        parts = [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        parts = [pre_tokenizers.Digits(individual_digits=True)] if pre in _SINGLE_DIGITS else []
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(added)
    return backend


def _sentencepiece(said: dict[str, Any], architecture: str) -> Tokenizer:
    parts = {"tokenizer_type": "llama", "tokens": said["tokens"]}
    parts |= {name: said[name].tolist() for name in ("scores", "token_type") if name in said}
    parts |= {"merges": said["merges"]} if "merges" in said else {}
    backend, _ = convert_gguf_tokenizer(architecture, parts)
    if isinstance(backend.pre_tokenizer, pre_tokenizers.Metaspace):  # neither Gemma's nor Phi-3's
        backend.pre_tokenizer = None
        spaces = [normalizers.Replace(" ", "▁")]
        ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if said.get("add_space_prefix", True):  # also before a text that starts with a space, as sentencepiece does
            spaces.insert(0, normalizers.Prepend("▁"))
            ends.append(decoders.Strip(" ", 1, 0))
        backend.normalizer, backend.decoder = normalizers.Sequence(spaces), decoders.Sequence(ends)
    return backend


def _special(said: dict[str, Any]) -> dict[str, str]:
    found = {}
    for ours, theirs in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        token = said.get(f"{theirs}_token_id")
        if token is not None and token < len(said["tokens"]):
            found[f"{ours}_token"] = said["tokens"][token]
    return found
