"""Prompts that ask and show every word of two classes equally often, for similarities of words.

    >>> words = {"animal": ["dog", "cat", "cow"], "country": ["italy", "spain", "peru"]}
    >>> prompts = word_blocks("animal/country", words, Template(1, "space"), "foo/bar", seed=0)
    >>> len(prompts), {prompt.query for prompt in prompts} == {*words["animal"], *words["country"]}
    (12, True)

A block asks up to k words of each class, each after the same two lists of demonstrations. A list is
shown under both assignments of the labels, in an order and in its mirror. So neither a query nor a
demonstration tells which label is right, or which place the right label has. The prompts of a block
have four beginnings, which need to be run only once (`model.prefixes`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from twotowers.errors import TwoTowersError
from twotowers.settings import SEPARATORS, Template

from towerlab.prompts.prompt import Prompt, demonstrations_in_order
from towerlab.prompts.variants import exchanged_labels

T = TypeVar("T")


def spread(items: Sequence[T], n: int) -> list[T]:
    """Return n items evenly spread over a list; all of a shorter list.

        >>> spread(["a", "b", "c", "d", "e"], 3)
        ['a', 'c', 'e']

    Args:
        items: Words, numbers of words, or orders.
        n: Number of items.
    """
    n_items = len(items)
    places = np.linspace(0, n_items - 1, min(n, n_items))
    return [items[round(place)] for place in places]


def word_blocks(
    pair: str,
    words: Mapping[str, Sequence[str]],
    template: Template,
    label_pair: str,
    seed: int | Sequence[int],
) -> list[Prompt]:
    """Return blocks in which each word of two classes is asked twice.

    Every list of demonstrations has the words that were shown least often so far.

    Args:
        pair: Class pair.
        words: Class -> words, equally many for both classes.
        template: Template.
        label_pair: Two labels with a slash between them.
        seed: Seed of the draw.

    Returns:
        Prompts, four for each block.

    Raises:
        TwoTowersError: If a class has too few words.
    """
    classes = pair.split("/")
    labels = label_pair.split("/")
    k = template.k
    n = min(len(words[cls]) for cls in classes)
    if n < k + 1:
        raise TwoTowersError(
            f"too few words of the class pair '{pair}': expected {k + 1} of each class, got {n}; "
            "choose a smaller k, or add words"
        )
    rng = np.random.default_rng(seed)
    shown = Counter[str]()

    def drawn(asked: Sequence[str]) -> dict[str, list[str]]:
        lists = {}
        for cls in classes:
            unasked = [word for word in words[cls] if word not in asked]
            pool = rng.permutation(unasked).tolist()
            pool.sort(key=shown.__getitem__)
            lists[cls] = pool[:k]
            shown.update(lists[cls])
        return lists

    separator = SEPARATORS[template.separator]
    label = dict(zip(classes, labels, strict=True))
    prompts = []
    n_blocks = math.ceil(n / min(k, n - k))
    asked_words = [np.array_split(rng.permutation(words[cls]), n_blocks) for cls in classes]
    for block, asked in enumerate(zip(*asked_words, strict=True)):
        queries = [(c, i, query) for c in range(2) for i, query in enumerate(asked[c].tolist())]
        order = rng.permutation(np.repeat([False, True], k))
        asked_texts = [query for *_, query in queries]
        both = [drawn(asked_texts) for _ in range(2)]
        for c, i, query in queries:
            query_class = classes[c]
            for j, lists in enumerate(both):
                # Each word is asked once this way and once with order and labels exchanged.
                is_mirror = (c + i + j) % 2 == 1
                in_order = np.where(order ^ is_mirror, *classes).tolist()
                demonstrations = demonstrations_in_order(in_order, lists, label)
                prompt = Prompt(
                    demonstrations,
                    query,
                    label[query_class],
                    labels,
                    query_class,
                    pair,
                    separator,
                    block,
                )
                prompts.append(exchanged_labels(prompt) if is_mirror else prompt)
    return prompts
