"""Variants of a prompt: one demonstration fewer, other orders, other queries.

    >>> from towerlab.prompts.paper_sets import CASE
    >>> one_fewer(CASE).text                              # v1 section 5.1
    'love : bar like : bar eight : foo one :'
    >>> in_order(CASE, patterns(CASE)[0]).text            # true ones first, v1 section 5.2
    'eight : foo two : foo love : bar like : bar one :'
    >>> patterns(CASE)
    ['TTFF', 'TFTF', 'TFFT', 'FTTF', 'FTFT', 'FFTT']
    >>> one_fewer(CASE, kind=False).text
    'love : bar eight : foo two : foo one :'
    >>> with_query(CASE, "hate", "sentiment").true_label
    'bar'
    >>> exchanged = exchanged_labels(CASE)
    >>> exchanged.text, exchanged.true_label, exchanged_labels(exchanged) == CASE
    ('love : foo like : foo eight : bar two : bar one :', 'bar', True)

Every variant keeps the prompt's block, class pair and separator, so that measurements of a prompt
and its variants can be joined and resampled together. A pattern such as "FFTT" marks the places
with demonstrations of the query's label (T). It is the coordinate `order` of a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
from twotowers.settings import SEEDS

from towerlab.prompts.prompt import Demonstration, Prompt


def one_fewer(prompt: Prompt, kind: bool = True) -> Prompt:
    """Return the prompt without its last true demonstration (v1 section 5.1).

    Args:
        prompt: A prompt with two or more demonstrations of the kind.
        kind: Whether a true or a false demonstration is removed.

    Returns:
        The shorter prompt.
    """
    letter = "T" if kind else "F"
    place = prompt.order.rindex(letter)
    demonstrations = list(prompt.demonstrations)
    del demonstrations[place]
    return replace(prompt, demonstrations=demonstrations)


def in_order(prompt: Prompt, pattern: str) -> Prompt:
    """Return the prompt in the order of a pattern such as "FFTT".

    Args:
        prompt: A prompt.
        pattern: Pattern with the prompt's own numbers of T and F.

    Returns:
        The prompt, with true and false demonstrations each in their own order.
    """
    true = [d for d in prompt.demonstrations if d.label == prompt.true_label]
    false = [d for d in prompt.demonstrations if d.label != prompt.true_label]
    reordered = []
    for letter in pattern:
        of_letter = true if letter == "T" else false
        reordered.append(of_letter.pop(0))
    return replace(prompt, demonstrations=reordered)


def true_first(prompt: Prompt) -> Prompt:
    """Return the prompt of the paper's re-ordered set (v1 section 5.2).

    Args:
        prompt: A prompt.

    Returns:
        The prompt with its true demonstrations first.
    """
    letters = sorted(prompt.order, reverse=True)
    pattern = "".join(letters)
    return in_order(prompt, pattern)


def patterns(prompt: Prompt) -> list[str]:
    """Return every pattern of the prompt's true and false demonstrations, "TTFF" first.

    Args:
        prompt: A prompt.

    Returns:
        Patterns: 6 of 2 + 2 demonstrations.
    """
    places = range(len(prompt.is_true))
    n_true = sum(prompt.is_true)
    found = []
    for true_places in combinations(places, n_true):
        letters = ["F"] * len(places)
        for place in true_places:
            letters[place] = "T"
        found.append("".join(letters))
    return found


def with_query(prompt: Prompt, query: str, cls: str) -> Prompt:
    """Return the prompt with another query, whose label becomes the true label.

    Args:
        prompt: A prompt.
        query: Text of the query.
        cls: Class of the query, one of the demonstrations' classes.

    Returns:
        The prompt with the query.
    """
    label_of = {d.cls: d.label for d in prompt.demonstrations}
    true_label = label_of[cls]
    return replace(prompt, query=query, query_class=cls, true_label=true_label)


def exchanged_labels(prompt: Prompt) -> Prompt:
    """Return the prompt with the two labels exchanged, the true label included.

    Args:
        prompt: A prompt with two labels.

    Returns:
        The prompt with the same texts.
    """
    first, second = prompt.labels
    other = {first: second, second: first}
    demonstrations = []
    for d in prompt.demonstrations:
        exchanged = replace(d, label=other[d.label])
        demonstrations.append(exchanged)
    true_label = other[prompt.true_label]
    return replace(prompt, demonstrations=demonstrations, true_label=true_label)


def factorial(blocks: Sequence[Prompt], orders: Sequence[str]) -> list[Prompt]:
    """Return prompts in some orders x a query of either class x both label assignments.

    They are variants of the first prompt of every block. A query of the other class is a random
    text of that class from the other prompts of the set. The design matrix (last label, mean place,
    match of query and label ...) follows from the coordinates order, labels and true_label.

    Args:
        blocks: Whole blocks, two or more of each class pair.
        orders: Patterns such as "FFTT".

    Returns:
        Prompts, block by block.
    """
    rng = np.random.default_rng([0, SEEDS["other queries"]])
    texts = _texts_by_class(blocks)
    variants = []
    # The last block comes first: the draws depend on the order.
    firsts = {p.block: p for p in reversed(blocks)}
    for prompt in firsts.values():
        shown = {d.text for d in prompt.demonstrations}
        other_class = prompt.other_class
        unused = [text for text in texts[other_class] if text not in shown]
        number = rng.integers(len(unused))
        own_query = prompt.query, prompt.query_class
        other_query = unused[number], other_class
        for pattern, query in product(orders, (own_query, other_query)):
            reordered = in_order(prompt, pattern)
            variant = with_query(reordered, *query)
            exchanged = exchanged_labels(variant)
            variants += [variant, exchanged]
    return sorted(variants, key=lambda p: p.block)


def _texts_by_class(prompts: Sequence[Prompt]) -> dict[str, dict[str, None]]:
    """Return the texts of prompts for each class, each once, in their order."""
    texts: dict[str, dict[str, None]] = {}
    for p in prompts:
        query = Demonstration(p.query, p.true_label, p.query_class)
        for d in (query, *p.demonstrations):
            of_class = texts.setdefault(d.cls, {})
            of_class[d.text] = None
    return texts
