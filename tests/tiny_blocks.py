"""Whole blocks of prompts for tiny random models: two classes of made-up words, one token a word."""

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.prompt import encode_all
from transformers import PreTrainedTokenizerFast
from twotowers.forms import Form

TEXTS = {"a": [f"a{i}" for i in range(12)], "b": [f"b{i}" for i in range(12)]}
FORM = Form(2, "space")


def tokenizer():
    """Every word of TEXTS, both labels and the colon are one token."""
    words = ["<unk>", ":", "foo", "bar", *TEXTS["a"], *TEXTS["b"]]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


def blocks(n, texts=TEXTS, seed=0):
    """n blocks of the class pair a/b, encoded: "a0 : foo b3 : bar ... b1 :"."""
    return encode_all(draw_blocks(n, FORM, seed=seed, pairs=["a/b"], labels=["foo/bar"], texts=texts), tokenizer())


def positions(batch):
    return [e.label_positions for e in batch]
