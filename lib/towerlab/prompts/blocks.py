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

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pandas as pd
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.settings import OWN_NAMES, SEPARATORS, Template, read_label_pairs
from twotowers.tables import read_csv

from towerlab.prompts.prompt import Demonstration, Prompt, Prompts, encode_all

DONORS = {"labels exchanged": 2, "texts exchanged": 1, "both exchanged": 3}
"""Difference from another prompt of the block -> bits in which the numbers of both differ: see
`donors_of`"""


@cache
def class_pairs() -> tuple[str, ...]:
    """Return the pairs of classes of data/words/pairs.csv, such as "animal/country".

    Returns:
        Class pairs, the paper's pairs first.
    """
    pairs = read_csv(data_folder() / "words" / "pairs.csv", str)
    return tuple(pairs["first"] + "/" + pairs["second"])


@cache
def words() -> pd.DataFrame:
    """Return data/words/words.csv, with the class of a word as `cls`.

    Returns:
        Table with a row for each word of each class.
    """
    return read_csv(data_folder() / "words" / "words.csv").rename(columns={"class": "cls"})


@cache
def class_words() -> Mapping[str, list[str]]:
    """Return the words of each class that are in no other class.

    Returns:
        Class -> words, in the order of words.csv.
    """
    of_one_class = words().drop_duplicates("word", keep=False)
    return {cls: list(of) for cls, of in of_one_class.groupby("cls")["word"]}


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
    pairs, label_pairs = pairs or class_pairs(), label_pairs or read_label_pairs()
    texts = texts or class_words()
    taken = {*"/".join([*label_pairs, *(pairs if OWN_NAMES in label_pairs else ())]).split("/")}
    for name in {*"/".join(pairs).split("/")}:
        if name not in texts:
            raise TwoTowersError(
                f"unknown class '{name}': expected one of {', '.join(sorted(texts))}"
            )
        if (n_texts := len({*texts[name]} - taken)) < template.k + 2:
            raise TwoTowersError(
                f"too few texts of the class '{name}': expected {template.k + 2} that are no "
                f"labels, got {n_texts}; choose a smaller k, or add texts"
            )
    rng = np.random.default_rng([*np.atleast_1d(seed).tolist(), template.k])
    rounds = -(-n // len(pairs))
    turns = [
        np.ravel([rng.permutation(len(label_pairs)) for _ in range(-(-rounds // len(label_pairs)))])
        for _ in pairs
    ]
    class_turns = [rng.permuted(np.arange(rounds) % 2) for _ in pairs]
    prompts = []
    for block in range(n):
        turn, at = divmod(block, len(pairs))
        classes = pairs[at].split("/")
        label_pair = label_pairs[turns[at][turn]]
        words = classes if label_pair == OWN_NAMES else label_pair.split("/")
        asked = int(class_turns[at][turn])
        prompts += _block(block, pairs[at], tuple(words), asked, template, texts, rng)
    return prompts


def _block(
    block: int,
    pair: str,
    labels: tuple[str, ...],
    asked: int,
    template: Template,
    texts: Mapping[str, Sequence[str]],
    rng: np.random.Generator,
) -> list[Prompt]:
    """Return the prompts of one block, whose query is of the class `asked` (0 or 1) of the pair."""
    classes, out = pair.split("/"), []
    own, other = classes[asked], classes[1 - asked]
    # A class may have its own name among its texts.
    pools = ([text for text in texts[cls] if text not in labels] for cls in (own, other))
    true, false = (rng.permutation(np.array(pool, dtype=object)).tolist() for pool in pools)
    order = rng.permuted(np.arange(2 * template.k) % 2).astype(bool)
    for assignment in (labels, labels[::-1]):
        label = dict(zip(classes, assignment, strict=True))
        for is_true in (order, ~order):
            texts_of = {own: iter(true), other: iter(false)}
            shown = [own if of_own else other for of_own in is_true]
            demonstrations = [Demonstration(next(texts_of[cls]), label[cls], cls) for cls in shown]
            of_pair = own, pair, SEPARATORS[template.separator], block
            out.append(Prompt(demonstrations, true[template.k], label[own], labels, *of_pair))
    return out


def about(prompts: Sequence[Prompt]) -> dict[str, tuple[str | tuple[str, ...], np.ndarray]]:
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
    out: dict = {name: ("prompt", np.array([row[name] for row in rows])) for name in rows[0]}
    if len({len(p.demonstrations) for p in prompts}) == 1:
        out["is_true_label"] = (("prompt", "demonstration"), np.array([p.is_true for p in prompts]))
    return out


def donors_of(encoded: Prompts) -> dict[str, list[int]]:
    """Return the donor of every prompt of whole blocks, for each name of DONORS.

    Args:
        encoded: Prompts of whole blocks.

    Returns:
        Name -> numbers of the donors in `encoded`.
    """
    return {name: [i ^ bits for i in range(len(encoded))] for name, bits in DONORS.items()}


def texts_of_one_length(
    tokenizer, template: Template, pairs: Sequence[str], texts: Mapping[str, Sequence[str]]
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

    Returns:
        Class -> texts, without the pairs in which a class has fewer than k + 2 texts.
    """
    out = {}
    for pair in pairs:
        lengths = {cls: _lengths(texts[cls], tokenizer, template) for cls in pair.split("/")}
        counts = [Counter(of_text.values()) for of_text in lengths.values()]
        scarcer = counts[0] & counts[1]  # in the class with fewer texts
        length = max(sorted(scarcer), key=scarcer.__getitem__, default=(0, 0))
        if scarcer[length] >= template.k + 2:
            for cls, of_text in lengths.items():
                out[cls] = [text for text in of_text if of_text[text] == length]
    return out


def _lengths(texts: Sequence[str], tokenizer, template: Template) -> dict[str, tuple[int, int]]:
    """Return for each text its tokens as a prompt's first text, and after a demonstration."""
    labels, separator = ("foo", "bar"), SEPARATORS[template.separator]
    prompts = [
        Prompt((Demonstration(text, "foo"),), text, "foo", labels, separator=separator)
        for text in texts
    ]
    return {
        e.prompt.query: (e.text_spans[0][1] - e.text_spans[0][0], e.query_span[1] - e.query_span[0])
        for e in encode_all(prompts, tokenizer)
    }
