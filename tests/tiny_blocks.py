"""Prompts for tiny random models, whole blocks and the paper's own: two classes of made-up words,
one token a word."""

from conftest import word_tokenizer
from towerlab.measure.design import Design
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.prompt import encode_all
from twotowers.settings import Settings, Template

TEXTS = {"a": [f"a{i}" for i in range(12)], "b": [f"b{i}" for i in range(12)]}
TEMPLATE = Template(2, "space")


def tokenizer():
    """Every word of TEXTS and of the paper's example, both labels and the colon are one token."""
    example = ["love", "like", "eight", "two", "one"]
    return word_tokenizer(["<unk>", ":", "foo", "bar", *TEXTS["a"], *TEXTS["b"], *example])


def blocks(n, texts=TEXTS, seed=0):
    """n blocks of the class pair a/b, encoded: "a0 : foo b3 : bar ... b1 :"."""
    return encode_all(
        draw_blocks(n, TEMPLATE, seed=seed, pairs=["a/b"], label_pairs=["foo/bar"], texts=texts),
        tokenizer(),
    )


def design(k):
    """Prompts with arbitrary labels and with names of classes, k demonstrations of each class."""
    settings = Settings(k=k, separator="space", label_pairs="foo/bar, class names")
    return Design(settings, tokenizer(), 64, open_templates=list, model="tiny")
