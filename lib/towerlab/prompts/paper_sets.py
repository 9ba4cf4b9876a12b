"""The paper's own sets of prompts, with labels foo and bar (v1, section 3).

False demonstrations are first, and true demonstrations are nearest to the query.

    >>> prompts = paper_prompts("sentiment/number", 100)      # false class / true class, "foo" true
    >>> prompts[0].text
    'jealous : bar awful : bar eleven : foo forty : foo billion :'
    >>> CHANGES["one true fewer"](prompts[0]).text            # v1 section 5.1
    'jealous : bar awful : bar eleven : foo billion :'
    >>> prompts[0].dataset, prompts[1].block
    ('sentiment/number', 1)

Prompts of sentences come from `paper_prompts("TREC", 100,
texts=sentence_sets("published")["TREC"])` (v1 appendix A). Prompt i of a set is always the same,
for any number of prompts. A prompt's `dataset` is its set, `block` its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from twotowers.errors import TwoTowersError, Unavailable
from twotowers.settings import SEEDS

from towerlab.progress import say
from towerlab.prompts import sentences
from towerlab.prompts.blocks import class_words
from towerlab.prompts.prompt import Demonstration, Prompt
from towerlab.prompts.variants import exchanged_labels, in_order, one_fewer, patterns, with_query

WORD_SETS = ("sentiment/number", "number/sentiment", "animal/country", "country/animal")
"""Named false class / true class; the query is of the true class"""
LISTED_SETS = WORD_SETS[::2]
"""Word sets whose lists of heads the paper shows (v1 figures 3 and 4)"""
K = 2
"""Number of demonstrations of each class"""
LABELS = ("foo", "bar")
CASE = Prompt(
    [
        Demonstration("love", "bar", "sentiment"),
        Demonstration("like", "bar", "sentiment"),
        Demonstration("eight", "foo", "number"),
        Demonstration("two", "foo", "number"),
    ],
    query="one",
    true_label="foo",
    labels=LABELS,
    query_class="number",
    dataset=WORD_SETS[0],
)
"""The paper's example (v1 section 3): love : bar like : bar eight : foo two : foo one :"""
PUBLISHED = {"SST-2": "sst2", "TREC": "trec", "AGNews": "agnews", "ETHOS": "ethos"}
"""The paper's sentence sets (v1 appendix A)"""
CASE_OF = {"words": WORD_SETS[0], "sentences": "science/sport", "published": "AGNews"}
"""Suite -> set of its single prompt; the paper's own are of sentiment/number and of AGNews (v1
appendix C)"""
_SEED = SEEDS["paper's sets"]


def sentence_sets(suite: str) -> dict[str, dict[str, list[str]]]:
    """Return the sentences of the paper's four published sets, or of the book's own sets.

    The book has a set for each class pair. A published set that is not available is left out, with
    a message.

    Args:
        suite: "published" or "sentences".

    Returns:
        Set -> class -> sentences.

    Raises:
        Unavailable: If no published set is available. The error has the reason.
    """
    sets = {}
    if suite == "sentences":
        texts = sentences.class_texts(suite)
        for pair in sentences.class_pairs(suite):
            sets[pair] = {cls: texts[cls] for cls in pair.split("/")}
        return sets
    reason = ""
    for name, file in PUBLISHED.items():
        try:
            sets[name] = sentences.set_texts(file)
        except TwoTowersError as error:
            reason = f"{name} is left out: {error}"
            say(reason)
    if not sets:
        raise Unavailable(f"missing published sets of sentences: {reason}")
    return sets


def paper_prompts(
    name: str, n: int, *, seed: int = 0, texts: Mapping[str, Sequence[str]] | None = None
) -> list[Prompt]:
    """Return the prompts of one set.

    Both classes of a prompt are drawn from all classes of `texts`. Half of each class's texts (by
    seed) are only queries, and the others only demonstrations, as the paper's are from test and
    train (v1 appendix A).

    Args:
        name: The set, false class / true class; of sentences, any name.
        n: Number of prompts.
        seed: Seed of the draw.
        texts: Class -> sentences; by default the word lists.

    Returns:
        Prompts 0 to n - 1 of the set.
    """
    halves = {}
    for cls, class_texts in (texts or {}).items():
        rng = np.random.default_rng([seed, _SEED, *cls.encode()])
        mixed = _mixed(rng, class_texts)
        half = len(mixed) // 2
        halves[cls] = mixed[:half], mixed[half:]
    return [_draw(name, number, seed, halves) for number in range(n)]


def _mixed(rng: np.random.Generator, texts: Iterable[str]) -> list[str]:
    """Return texts in a random order, without labels."""
    usable = [text for text in texts if text not in LABELS]
    objects = np.array(usable, object)
    return rng.permutation(objects).tolist()


def _draw(
    name: str, number: int, seed: int, halves: Mapping[str, tuple[list[str], list[str]]]
) -> Prompt:
    """Return one prompt of a set; `halves` are each class's texts of demonstrations and queries."""
    rng = np.random.default_rng([seed, _SEED, *name.encode(), number])
    if halves:
        false, true, *_ = rng.permutation(list(halves)).tolist()
        true_texts, queries = halves[true]
        false_texts, _ = halves[false]
    else:
        false, true = name.split("/")
        true_texts, queries = class_words()[true], []
        false_texts = class_words()[false]
    true_texts = _mixed(rng, true_texts)
    false_texts = _mixed(rng, false_texts)
    # A word that is asked is not among the demonstrations.
    query = queries[rng.integers(len(queries))] if queries else true_texts[K]
    true_label, false_label = LABELS
    demonstrations = [Demonstration(text, false_label, false) for text in false_texts[:K]]
    demonstrations += [Demonstration(text, true_label, true) for text in true_texts[:K]]
    return Prompt(demonstrations, query, true_label, LABELS, true, name, block=number)


def _other_query(prompt: Prompt) -> Prompt:
    """Return the prompt with a query of its other class.

    The prediction flips (EMNLP tables 5 and 6, as summarised).
    """
    cls = prompt.other_class
    used = {d.text for d in prompt.demonstrations}.union(LABELS)
    unused = [word for word in class_words()[cls] if word not in used]
    rng = np.random.default_rng([_SEED, prompt.block])
    number = rng.integers(len(unused))
    query = unused[number]
    return with_query(prompt, query, cls)


ORDERS = {order: partial(in_order, pattern=order) for order in patterns(CASE)[::-1]}
"""Every order of two true and two false demonstrations, the paper's first -> function that returns
a prompt in that order"""
CHANGES: Mapping[str, Callable[[Prompt], Prompt]] = {
    "as it is": lambda prompt: prompt,
    "labels exchanged": exchanged_labels,
    "one true fewer": one_fewer,
    "true first": ORDERS["TTFF"],
    "true first, labels exchanged": lambda prompt: exchanged_labels(ORDERS["TTFF"](prompt)),
    "query of the other class": _other_query,
    **{order: change for order, change in ORDERS.items() if order not in ("FFTT", "TTFF")},
}
"""Name -> function that changes a prompt of a set. The first, the fourth and the changes with the
name of an order are all six orders (EMNLP table 8, as summarised)"""
COUNTERBALANCED = ("as it is", "labels exchanged", "true first", "true first, labels exchanged")
"""Both orders with both label assignments"""
ASKED = ("as it is", "query of the other class")
"""The queries of both classes (EMNLP tables 5 and 6, as summarised)"""
REORDERED = (
    *("as it is", "one true fewer", "true first"),
    *(order for order in ORDERS if order in CHANGES),
)
"""One demonstration fewer, and all six orders (v1 section 5)"""


def changes_named(names: Iterable[str]) -> dict[str, Callable[[Prompt], Prompt]]:
    """Return some of CHANGES.

    Args:
        names: Names of changes.

    Returns:
        Name -> function that changes a prompt.
    """
    return {name: CHANGES[name] for name in names}
