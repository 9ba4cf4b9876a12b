"""Blocks of prompts: the unit of drawing and of resampling.

A block is four prompts with the same texts: one order of the demonstrations and its mirror (true
ones stand where false ones stood), each under both assignments of two labels to the two classes.
Over a block neither a place nor a label word tells the class, so the mean logit difference is what
the model owes to the texts (the *choice*), and a liking for one label word cancels (the *bias*).

    >>> prompts = draw_blocks(20, Form(4, "line break"), seed=1)
    >>> len(prompts), len({prompt.dataset for prompt in prompts})
    (80, 20)
    >>> [prompt.order for prompt in draw_blocks(1, Form(1, "space"), seed=1)]
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
from twotowers.settings import OWN_NAMES, SEPARATORS, Form, label_pairs
from twotowers.tables import read_csv

from towerlab.prompts.prompt import Demonstration, Prompt, Prompts, encode_all

DONORS = {"labels exchanged": 2, "texts exchanged": 1, "both exchanged": 3}
"""What differs in the other prompts of a block -> how far on that prompt stands, or back: see
`donors_of`"""


@cache
def class_pairs() -> tuple[str, ...]:
    """Return the pairs of classes of data/words/pairs.csv, such as "animal/country".

    The paper's pairs come first.
    """
    pairs = read_csv(data_folder() / "words" / "pairs.csv", str)
    return tuple(pairs["first"] + "/" + pairs["second"])


@cache
def words() -> pd.DataFrame:
    """Return data/words/words.csv, with the class of a word as `cls`."""
    return read_csv(data_folder() / "words" / "words.csv").rename(columns={"class": "cls"})


@cache
def class_words() -> Mapping[str, list[str]]:
    """Return the words of each class that are in no other class, in the order of words.csv."""
    of_one_class = words().drop_duplicates("word", keep=False)
    return {cls: list(of) for cls, of in of_one_class.groupby("cls")["word"]}


def draw_blocks(
    n: int,
    form: Form,
    *,
    seed: int | Sequence[int],
    pairs: Sequence[str] = (),
    labels: Sequence[str] = (),
    texts: Mapping[str, Sequence[str]] | None = None,
) -> list[Prompt]:
    """n blocks of four prompts each, class pairs in turn and label pairs in turn within each class
    pair.

    Within a class pair both classes are asked equally often. The four prompts of a block follow one
    another: order, mirror, and both again with the labels exchanged.

    Args:
        pairs: class pairs; default all of data/words/pairs.csv.
        labels: label pairs; default all of data/words/labels.csv.
        texts: class -> texts to draw from; default the word lists.

    Raises:
        TwoTowersError: for an unknown class, equal labels, and a class with fewer than k + 2 texts.
    """
    pairs, labels = pairs or class_pairs(), labels or label_pairs()
    texts = texts or class_words()
    taken = {*"/".join([*labels, *(pairs if OWN_NAMES in labels else ())]).split("/")}
    for name in {*"/".join(pairs).split("/")}:
        if name not in texts:
            raise TwoTowersError(f"no class '{name}': choose among {', '.join(sorted(texts))}")
        if (n_texts := len({*texts[name]} - taken)) < form.k + 2:
            raise TwoTowersError(
                f"k={form.k} needs {form.k + 2} texts of the class {name} that are no labels, "
                f"there are {n_texts}: smaller k, or more texts"
            )
    rng = np.random.default_rng([*np.atleast_1d(seed).tolist(), form.k])
    rounds = -(-n // len(pairs))
    turns = [
        np.ravel([rng.permutation(len(labels)) for _ in range(-(-rounds // len(labels)))])
        for _ in pairs
    ]
    class_turns = [rng.permuted(np.arange(rounds) % 2) for _ in pairs]
    prompts = []
    for block in range(n):
        turn, at = divmod(block, len(pairs))
        classes = pairs[at].split("/")
        label_pair = labels[turns[at][turn]]
        words = classes if label_pair == OWN_NAMES else label_pair.split("/")
        asked = int(class_turns[at][turn])
        prompts += _block(block, pairs[at], tuple(words), asked, form, texts, rng)
    return prompts


def _block(
    block: int,
    pair: str,
    labels: tuple[str, ...],
    asked: int,
    form: Form,
    texts: Mapping[str, Sequence[str]],
    rng: np.random.Generator,
) -> list[Prompt]:
    """`asked`: which class of the pair its query is of."""
    classes, out = pair.split("/"), []
    own, other = classes[asked], classes[1 - asked]
    # A class may have its own name among its texts.
    pools = ([text for text in texts[cls] if text not in labels] for cls in (own, other))
    true, false = (rng.permutation(np.array(pool, dtype=object)).tolist() for pool in pools)
    order = rng.permuted(np.arange(2 * form.k) % 2).astype(bool)
    for assignment in (labels, labels[::-1]):
        label = dict(zip(classes, assignment, strict=True))
        for is_true in (order, ~order):
            texts_of = {own: iter(true), other: iter(false)}
            shown = [own if of_own else other for of_own in is_true]
            demonstrations = [Demonstration(next(texts_of[cls]), label[cls], cls) for cls in shown]
            of_pair = own, pair, SEPARATORS[form.separator], block
            out.append(Prompt(demonstrations, true[form.k], label[own], labels, *of_pair))
    return out


def about(prompts: Sequence[Prompt]) -> dict[str, tuple[str | tuple[str, ...], np.ndarray]]:
    """What each prompt is: coordinates of a measurement, as (dimensions, values).

    Returns:
        `block`; `pair` ("animal/country": the clusters of every interval); `labels` ("foo/bar",
            sorted as the pair gives them); `cls` (the query's class); `query`; `true_label`;
            `true_first` (the true label is the pair's first: the sign of the bias); `order`
            ("TFFT": which places hold the query's class); `text`. Where all prompts have as many
            demonstrations also `true` (prompt, place).
    """
    rows = [
        {
            "block": p.block, "pair": p.dataset, "labels": "/".join(p.labels), "cls": p.cls,
            "query": p.query, "true_label": p.true_label, "true_first": p.true_label == p.labels[0],
            "order": p.order, "text": p.text,
        } for p in prompts
    ]  # fmt: skip
    out: dict = {name: ("prompt", np.array([row[name] for row in rows])) for name in rows[0]}
    if len({len(p.demonstrations) for p in prompts}) == 1:
        out["true"] = (("prompt", "place"), np.array([p.is_true for p in prompts]))
    return out


def donors_of(encoded: Prompts) -> dict[str, list[int]]:
    """Return for each name of DONORS the donor of every prompt of whole blocks, as a number."""
    return {name: [i ^ bits for i in range(len(encoded))] for name, bits in DONORS.items()}


def texts_of_one_length(
    tokenizer, form: Form, pairs: Sequence[str], texts: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Texts that have as many tokens as one another and as those of the other class of their pair.

    So any two prompts of a pair have their labels at the same positions. Tokens are counted at the
    beginning of a prompt and within it; of the lengths, the one that leaves the scarcer class most
    texts.

    Args:
        pairs: class pairs.
        texts: class -> texts.

    Returns:
        Class -> texts, without pairs of which a class has fewer than k + 2 of them.
    """
    out = {}
    for pair in pairs:
        lengths = {cls: _lengths(texts[cls], tokenizer, form) for cls in pair.split("/")}
        counts = [Counter(of_text.values()) for of_text in lengths.values()]
        scarcer = counts[0] & counts[1]  # in the class that has fewer
        length = max(sorted(scarcer), key=scarcer.__getitem__, default=(0, 0))
        if scarcer[length] >= form.k + 2:
            for cls, of_text in lengths.items():
                out[cls] = [text for text in of_text if of_text[text] == length]
    return out


def _lengths(texts: Sequence[str], tokenizer, form: Form) -> dict[str, tuple[int, int]]:
    """Text -> its tokens as the first text of a prompt, and after a demonstration."""
    labels, separator = ("foo", "bar"), SEPARATORS[form.separator]
    prompts = [
        Prompt((Demonstration(text, "foo"),), text, "foo", labels, separator=separator)
        for text in texts
    ]
    return {
        e.prompt.query: (e.text_spans[0][1] - e.text_spans[0][0], e.query_span[1] - e.query_span[0])
        for e in encode_all(prompts, tokenizer)
    }
