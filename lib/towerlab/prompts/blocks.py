"""Blocks of prompts, the unit of drawing and of resampling.

A block is four prompts with the same texts: one order of the demonstrations and its mirror (true
and false demonstrations exchanged), each under both assignments of two labels to the two classes.
Over a block neither a position nor a label word tells the class. So the mean logit difference is
the effect of the texts (the *choice*), and a preference for one label word cancels (the *bias*).

    >>> prompts = draw_blocks(20, Template(4, "line break"), seed=1)
    >>> len(prompts), len({prompt.dataset for prompt in prompts})
    (80, 20)
    >>> [prompt.order for prompt in draw_blocks(1, Template(1, "space"), seed=1)]
    ['TF', 'FT', 'TF', 'FT']
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pandas as pd
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.settings import CLASS_NAMES, SEPARATORS, Template, read_label_pairs
from twotowers.tables import read_csv, unreadable

from towerlab.prompts.prompt import (
    Demonstration,
    Prompt,
    Prompts,
    demonstrations_in_order,
    encode_all,
)
from towerlab.prompts.variants import exchanged_labels

DONORS = {"labels exchanged": 2, "texts exchanged": 1, "both exchanged": 3}
"""Difference from another prompt of the block -> bits in which the numbers of both differ: see
`donors_of`"""


@cache
def class_pairs() -> tuple[str, ...]:
    """Return the pairs of classes of data/words/pairs.csv, such as "animal/country".

    Returns:
        Class pairs, the paper's pairs first.

    Raises:
        TwoTowersError: If a class is in two class pairs. Their prompts would not be independent.
    """
    path = data_folder() / "words" / "pairs.csv"
    table = read_csv(path, str)
    classes = pd.concat([table["first"], table["second"]])
    for name in classes[classes.duplicated()]:
        raise unreadable(path, f"class '{name}' twice, but each class is in one class pair only")
    pairs = table["first"] + "/" + table["second"]
    return tuple(pairs)


@cache
def words() -> pd.DataFrame:
    """Return data/words/words.csv, with the class of a word as `cls`.

    Returns:
        Table with a row for each word of each class.
    """
    table = read_csv(data_folder() / "words" / "words.csv")
    return table.rename(columns={"class": "cls"})


@cache
def class_words() -> Mapping[str, list[str]]:
    """Return the words of each class that are in no other class.

    Returns:
        Class -> words, in the order of words.csv.
    """
    of_one_class = words().drop_duplicates("word", keep=False)
    by_class = of_one_class.groupby("cls")["word"]
    return by_class.agg(list).to_dict()


def draw_blocks(
    n: int,
    template: Template,
    *,
    seed: int | Sequence[int],
    pairs: Sequence[str] = (),
    label_pairs: Sequence[str] = (),
    texts: Mapping[str, Sequence[str]] | None = None,
) -> list[Prompt]:
    """Return n blocks of four prompts each, with class pairs and label pairs in turn.

    The class pairs take turns, and the label pairs take turns within each class pair. Within a
    class pair, queries of both classes are equally frequent. The four prompts of a block follow one
    another: order, mirror, and both again with the labels exchanged.

    Args:
        n: Number of blocks.
        template: Template: the number of demonstrations of each class, and the separator.
        seed: Seed of the draw.
        pairs: Class pairs; by default all of data/words/pairs.csv.
        label_pairs: Label pairs; by default all of data/words/labels.csv.
        texts: Class -> texts to draw from; by default the word lists.

    Returns:
        Prompts, block by block.

    Raises:
        TwoTowersError: If a class is unknown, or has fewer than k + 2 texts that are no labels.
    """
    pairs = pairs or class_pairs()
    label_pairs = label_pairs or read_label_pairs()
    texts = texts or class_words()
    classes = _members(pairs)
    labels = _members(label_pairs)
    if CLASS_NAMES in label_pairs:
        labels |= classes
    for name in classes:
        if name not in texts:
            raise TwoTowersError(
                f"unknown class '{name}': expected one of {', '.join(sorted(texts))}"
            )
        n_texts = len({*texts[name]} - labels)
        if n_texts < template.k + 2:
            raise TwoTowersError(
                f"too few texts of the class '{name}': expected {template.k + 2} that are no "
                f"labels, got {n_texts}; choose a smaller k, or add texts"
            )
    rng = np.random.default_rng([*np.atleast_1d(seed).tolist(), template.k])
    turns = math.ceil(n / len(pairs))  # of each class pair
    rounds = math.ceil(turns / len(label_pairs))  # of all label pairs
    # The order of the draws decides the blocks: all label pairs, then all classes of queries.
    label_turns = []
    for _ in pairs:
        drawn = [rng.permutation(label_pairs) for _ in range(rounds)]
        label_turns.append(np.ravel(drawn))
    query_turns = [rng.permuted(np.arange(turns) % 2).tolist() for _ in pairs]
    prompts = []
    for block in range(n):
        turn, i = divmod(block, len(pairs))
        pair = pairs[i]
        label_pair = label_turns[i][turn]
        if label_pair == CLASS_NAMES:
            label_pair = pair
        block_labels = tuple(label_pair.split("/"))
        query_class = query_turns[i][turn]
        prompts += _block(block, pair, block_labels, query_class, template, texts, rng)
    return prompts


def _members(pairs: Sequence[str]) -> set[str]:
    """Return all classes or labels of some pairs."""
    return {name for pair in pairs for name in pair.split("/")}


def _block(
    block: int,
    pair: str,
    labels: tuple[str, ...],
    query_class: int,
    template: Template,
    texts: Mapping[str, Sequence[str]],
    rng: np.random.Generator,
) -> list[Prompt]:
    """Return the prompts of one block; `query_class` is 0 or 1, for the class of the pair."""
    classes = pair.split("/")
    true = classes[query_class]
    false = classes[1 - query_class]
    # A class may have its own name among its texts.
    drawn = {}
    for cls in (true, false):
        pool = [text for text in texts[cls] if text not in labels]
        drawn[cls] = rng.permutation(np.array(pool, object)).tolist()
    query = drawn[true][template.k]
    separator = SEPARATORS[template.separator]
    order = rng.permuted(np.arange(2 * template.k) % 2).astype(bool)
    label = dict(zip(classes, labels, strict=True))
    prompts = []
    for is_true in (order, ~order):
        in_order = np.where(is_true, true, false).tolist()
        demonstrations = demonstrations_in_order(in_order, drawn, label)
        prompt = Prompt(demonstrations, query, label[true], labels, true, pair, separator, block)
        prompts.append(prompt)
    exchanged = [exchanged_labels(prompt) for prompt in prompts]
    return prompts + exchanged


def prompt_coordinates(
    prompts: Sequence[Prompt],
) -> dict[str, tuple[str | tuple[str, ...], np.ndarray]]:
    """Return the properties of prompts, as coordinates of a measurement.

    Args:
        prompts: Prompts.

    Returns:
        Name -> dimensions and values. The names are `block`; `class_pair` ("animal/country", the
        clusters of every interval); `label_pair` ("foo/bar", in the order of the pair);
        `query_class` (class of the query); `query`; `true_label`; `true_first` (whether the true
        label is the pair's first, the sign of the bias); `order` ("TFFT", the demonstrations of the
        query's class); `text`; and, if all prompts have equal numbers of demonstrations,
        `is_true_label` (prompt, demonstration).
    """
    rows = [
        {
            "block": p.block, "class_pair": p.dataset, "label_pair": "/".join(p.labels),
            "query_class": p.query_class, "query": p.query, "true_label": p.true_label,
            "true_first": p.true_label == p.labels[0], "order": p.order, "text": p.text,
        } for p in prompts
    ]  # fmt: skip
    columns: dict = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        columns[name] = "prompt", np.array(values)
    numbers = {len(p.demonstrations) for p in prompts}
    if len(numbers) == 1:
        is_true = np.array([p.is_true for p in prompts])
        columns["is_true_label"] = ("prompt", "demonstration"), is_true
    return columns


def donors_of(encoded: Prompts) -> dict[str, list[int]]:
    """Return the donor of every prompt of whole blocks, for each name of DONORS.

    Args:
        encoded: Prompts of whole blocks.

    Returns:
        Name -> numbers of the donors in `encoded`.
    """
    numbers = np.arange(len(encoded))
    return {name: (numbers ^ bits).tolist() for name, bits in DONORS.items()}


def texts_of_one_length(
    tokenizer,
    template: Template,
    pairs: Sequence[str],
    texts: Mapping[str, Sequence[str]],
    label_pair: str,
) -> dict[str, list[str]]:
    """Return texts with equal numbers of tokens within each class pair.

    So any two prompts of a pair have their labels at the same positions. Tokens are counted at the
    beginning of a prompt and inside it. If several lengths are possible, the result has the length
    that leaves most texts to the class with fewer texts.

    Args:
        tokenizer: Tokenizer of the model.
        template: Template of the prompts.
        pairs: Class pairs.
        texts: Class -> texts.
        label_pair: A label pair that the tokenizer can encode.

    Returns:
        Class -> texts, without the pairs in which a class has fewer than k + 2 texts.
    """
    selected = {}
    for pair in pairs:
        labels = (pair if label_pair == CLASS_NAMES else label_pair).split("/")
        lengths = {}
        for cls in pair.split("/"):
            lengths[cls] = _lengths(texts[cls], tokenizer, template, labels)
        first, second = lengths.values()
        # Numbers of texts in the class with fewer.
        scarcer = Counter(first.values()) & Counter(second.values())
        length = max(sorted(scarcer), key=scarcer.__getitem__, default=(0, 0))
        if scarcer[length] >= template.k + 2:
            for cls, length_of in lengths.items():
                selected[cls] = [text for text in length_of if length_of[text] == length]
    return selected


def _lengths(
    texts: Sequence[str], tokenizer, template: Template, labels: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Return for each text its tokens as a prompt's first text, and after a demonstration."""
    separator = SEPARATORS[template.separator]
    prompts = []
    for text in texts:
        demonstration = Demonstration(text, labels[0])
        prompt = Prompt((demonstration,), text, labels[0], labels, separator=separator)
        prompts.append(prompt)
    lengths = {}
    for e in encode_all(prompts, tokenizer):
        first, second = (stop - start for start, stop in (*e.text_spans, e.query_span))
        lengths[e.prompt.query] = first, second
    return lengths
