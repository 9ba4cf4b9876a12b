"""Answers with demonstrations that were chosen for the query, by several similarities.

Chapter 13. Retrieved demonstrations are a common use of a similarity (Liu et al. 2022). Here each
choice takes the same number of demonstrations from both classes, without looking at the class of
the query, except for "contrast".

    >>> scores = np.array([[0, 3, 1, 2], [3, 0, 2, 1], [1, 2, 0, 3], [2, 1, 3, 0.0]])
    >>> chosen(scores, 0, 1), chosen(scores, 0, 1, other=-1)  # two words of each class
    ([1, 3], [1, 2])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr
from twotowers.paths import data_folder
from twotowers.settings import CLASS_NAMES, SEPARATORS
from twotowers.tables import read_csv

from towerlab.measure.answers import answers
from towerlab.measure.pipeline import Design, Pipeline
from towerlab.measure.recipe import Recipe, joined
from towerlab.measure.sets import BY_ATTENTION
from towerlab.measure.similarities import without_attraction
from towerlab.prompts.prompt import Demonstration, Prompt
from towerlab.prompts.word_blocks import spread_words

QUERIES = 3
"""Number of queries of each class"""
YARDSTICKS = {"sentence embedding": "sentence_embedding", "letters": "letters"}
"""Choice -> column of the tables of similarities"""


def chosen(scores: np.ndarray, query: int, k: int, own: int = 1, other: int = 1) -> list[int]:
    """Return the numbers of the demonstrations of a query, k of each class.

    Args:
        scores: Similarities of the words of a class pair (asked, demonstrated), the words of the
            first class and then as many of the second.
        query: Number of the query.
        k: Number of demonstrations of each class.
        own: 1 for the highest scores in the class of the query, -1 for the lowest.
        other: The same for the other class.
    """
    n = len(scores) // 2
    numbers = []
    for start in (0, n):
        sign = own if start <= query < start + n else other
        best = np.argsort(-sign * scores[query], kind="stable").tolist()
        numbers += [i for i in best if start <= i < start + n and i != query][:k]
    return numbers


def head_scores(towers: xr.Dataset, pair: str, role: str) -> np.ndarray:
    """Return the mean score of the heads of a role, for the words of a class pair.

    The attraction of a demonstration is taken out: its mean score over queries, each class counting
    half, without the same word.

    Args:
        towers: Measurement "word_towers" of the model.
        pair: Class pair.
        role: Value of the coordinate `role`.

    Returns:
        Scores (asked, demonstrated; nats).
    """
    is_of_pair = towers["asked_class"].isin(pair.split("/")).values
    of_pair = towers.isel(
        asked=is_of_pair, demonstrated=is_of_pair, selected_head=(towers["role"] == role).values
    )
    in_nats = (of_pair["similarity"] * of_pair["similarity_step"]).mean("selected_head")
    scores = in_nats.transpose("asked", "demonstrated").values
    return without_attraction(scores)


def yardsticks(pair: str, words: Sequence[str]) -> dict[str, np.ndarray]:
    """Return similarities of the words of a class pair that use no head.

    Args:
        pair: Class pair.
        words: Words of the first class, and then of the second.

    Returns:
        Choice -> similarities (word, word). A yardstick that lacks a word is left out.
    """
    within = read_csv(data_folder() / "words" / "similarity.csv")
    across = read_csv(data_folder() / "words" / "pair_similarity.csv")
    both = [within[within["class"].isin(pair.split("/"))], across[across["class_pair"] == pair]]
    found = {}
    for choice, column in YARDSTICKS.items():
        table = [lines.set_index(["first", "second"])[column] for lines in both]
        value = {pair: x for lines in table for pair, x in lines.items()}
        scores = np.array([
            [value.get((a, b), value.get((b, a), np.nan)) if a != b else 0.0 for b in words]
            for a in words
        ])  # fmt: skip
        if np.isfinite(scores).all():
            found[choice] = scores
    return found


def prompts_of(
    design: Design, pair: str, words: Sequence[str], query: int, numbers: Sequence[int],
    label_pair: str, block: int,
) -> list[Prompt]:  # fmt: skip
    """Return two prompts of a query: with the labels exchanged, the order is reversed.

    Args:
        design: Prompts of the settings.
        pair: Class pair.
        words: Words of the first class, and then as many of the second.
        query: Number of the query.
        numbers: Numbers of the demonstrations, k of each class.
        label_pair: Two labels with a slash between them.
        block: Number of the query among all queries. It decides the order.
    """
    classes, labels, n = pair.split("/"), label_pair.split("/"), len(words) // 2
    rng = np.random.default_rng([design.settings.seed, 76, block])
    order, prompts = [numbers[i] for i in rng.permutation(len(numbers))], []
    for assigned in (labels, labels[::-1]):
        places = order if assigned == labels else order[::-1]
        demonstrations = [
            Demonstration(words[i], assigned[i // n], classes[i // n]) for i in places
        ]
        separator = SEPARATORS[design.template.separator]
        true, cls = assigned[query // n], classes[query // n]
        prompts.append(
            Prompt(demonstrations, words[query], true, labels, cls, pair, separator, block)
        )
    return prompts


def choices_of(design: Design, towers: xr.Dataset, pair: str) -> Mapping[str, tuple]:
    """Return the choices of demonstrations for the words of a class pair.

    Args:
        design: Prompts of the settings.
        towers: Measurement "word_towers" of the model.
        pair: Class pair.

    Returns:
        Choice -> scores (asked, demonstrated), and the signs of the query's and the other class.
    """
    scores = head_scores(towers, pair, BY_ATTENTION)
    random = np.random.default_rng([design.settings.seed, 76]).random(scores.shape)
    words = towers["asked"].values[towers["asked_class"].isin(pair.split("/")).values]
    return {
        "towers": (scores, 1, 1),
        "farthest": (scores, -1, -1),
        "contrast": (scores, 1, -1),
        "other heads": (head_scores(towers, pair, "as much attention"), 1, 1),
        "random": (random, 1, 1),
    } | {choice: (values, 1, 1) for choice, values in yardsticks(pair, words.tolist()).items()}


def recipe_chosen_demonstrations(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers with demonstrations chosen by heads, by other similarities, and at random.

    There are three queries of each class, and two prompts for each query and choice.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    design, towers = pipeline.design, pipeline.measured("word_towers")
    label_pairs = [pair for pair in design.label_pairs if pair != CLASS_NAMES]
    prompts: dict[str, list[Prompt]] = {}
    block = 0
    for pair in dict.fromkeys(towers["class_pair"].values.tolist()):
        is_of_pair = towers["asked_class"].isin(pair.split("/")).values
        words = towers["asked"].values[is_of_pair].tolist()
        choices, n = choices_of(design, towers, pair), len(words) // 2
        for start in (0, n):
            for query in spread_words(range(start, start + n), QUERIES):
                label_pair = label_pairs[block % len(label_pairs)]
                for choice, (scores, own, other) in choices.items():
                    numbers = chosen(scores, query, design.template.k, own, other)
                    two = prompts_of(design, pair, words, query, numbers, label_pair, block)
                    prompts.setdefault(choice, []).extend(two)
                block += 1
    most = max(map(len, prompts.values()))
    parts = []
    for choice, of_choice in prompts.items():
        if len(of_choice) == most:  # known for all words
            recipe = Recipe(answers, design.encode(of_choice), stage=choice)
            data = pipeline.make("chosen_demonstrations", recipe)[["logit_difference"]]
            parts.append(data.drop_vars(["text", "order"]).expand_dims({"choice": [choice]}))
    return joined(parts, "choice")


RECIPES = {"chosen_demonstrations": recipe_chosen_demonstrations}
"""Measurement -> function of a pipeline that makes it"""
