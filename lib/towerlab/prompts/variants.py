"""Variants of a prompt: one demonstration fewer, other orders, other queries.

    >>> from towerlab.prompts.paper_sets import CASE
    >>> one_fewer(CASE).text                              # v1 section 5.1
    'love : bar like : bar eight : foo one :'
    >>> in_order(CASE, patterns(CASE)[0]).text            # true ones first, v1 section 5.2
    'eight : foo two : foo love : bar like : bar one :'

Every variant keeps the prompt's block, class pair and separator, so that measurements of a prompt
and its variants can be joined and resampled together. A pattern such as "FFTT" marks the places
with demonstrations of the query's label (T). It is the coordinate `order` of a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from towerlab.prompts.prompt import Prompt


def one_fewer(prompt: Prompt, kind: bool = True) -> Prompt:
    """Return the prompt without its last true demonstration (v1 section 5.1).

    Args:
        prompt: A prompt with two or more demonstrations of the kind.
        kind: Whether a true or a false demonstration is removed.

    Returns:
        The shorter prompt.
    """
    last = max(i for i, true in enumerate(prompt.is_true) if true == kind)
    return _rearrange(prompt, [i for i in range(len(prompt.demonstrations)) if i != last])


def in_order(prompt: Prompt, pattern: str) -> Prompt:
    """Return the prompt in the order of a pattern such as "FFTT".

    Args:
        prompt: A prompt.
        pattern: Pattern with the prompt's own numbers of T and F.

    Returns:
        The prompt, with true and false demonstrations each in their own order.
    """
    places = {
        letter: iter([i for i, kind in enumerate(prompt.order) if kind == letter])
        for letter in "TF"
    }
    return _rearrange(prompt, [next(places[letter]) for letter in pattern])


def patterns(prompt: Prompt) -> list[str]:
    """Return every pattern of the prompt's true and false demonstrations, "TTFF" first.

    Args:
        prompt: A prompt.

    Returns:
        Patterns: 6 of 2 + 2 demonstrations.
    """
    n, true = len(prompt.is_true), sum(prompt.is_true)
    return [
        "".join("T" if i in places else "F" for i in range(n))
        for places in combinations(range(n), true)
    ]


def with_query(prompt: Prompt, query: str, cls: str) -> Prompt:
    """Return the prompt with another query, whose label becomes the true label.

    Args:
        prompt: A prompt.
        query: Text of the query.
        cls: Class of the query, one of the demonstrations' classes.

    Returns:
        The prompt with the query.
    """
    label = next(d.label for d in prompt.demonstrations if d.cls == cls)
    return replace(prompt, query=query, query_class=cls, true_label=label)


def exchanged_labels(prompt: Prompt) -> Prompt:
    """Return the prompt with the two labels exchanged, the true label included.

    Args:
        prompt: A prompt with two labels.

    Returns:
        The prompt with the same texts.
    """
    first, second = prompt.labels
    other = {first: second, second: first}
    demonstrations = tuple(replace(d, label=other[d.label]) for d in prompt.demonstrations)
    return replace(prompt, demonstrations=demonstrations, true_label=other[prompt.true_label])


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
    rng, texts, out = np.random.default_rng([0, 61]), _texts(blocks), []
    for prompt in {p.block: p for p in reversed(blocks)}.values():
        other = next(d.cls for d in prompt.demonstrations if d.cls != prompt.query_class)
        free = [
            text for text in texts[other] if text not in {d.text for d in prompt.demonstrations}
        ]
        queries = (prompt.query, prompt.query_class), (free[rng.integers(len(free))], other)
        for pattern, (query, cls) in product(orders, queries):
            variant = with_query(in_order(prompt, pattern), query, cls)
            out += [variant, exchanged_labels(variant)]
    return sorted(out, key=lambda p: p.block)


def _texts(prompts: Sequence[Prompt]) -> dict[str, list[str]]:
    """Return the texts of each class in a set of prompts."""
    out: dict[str, list[str]] = {}
    for p in prompts:
        for text, cls in ((p.query, p.query_class), *((d.text, d.cls) for d in p.demonstrations)):
            out.setdefault(cls, []).append(text)
    return {cls: list(dict.fromkeys(texts)) for cls, texts in out.items()}


def _rearrange(prompt: Prompt, places: Sequence[int]) -> Prompt:
    """Return the prompt with the demonstrations of some places, in their order."""
    return replace(prompt, demonstrations=tuple(prompt.demonstrations[i] for i in places))
