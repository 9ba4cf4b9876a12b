"""Answers with demonstrations that were chosen for the query, by several similarities.

Chapter 13. Retrieved demonstrations are a common use of a similarity (Liu et al. 2022). Here each
choice takes the same number of demonstrations from both classes, without looking at the class of
the query, except for "contrast".

    >>> scores = np.array([[0, 3, 1, 2], [3, 0, 2, 1], [1, 2, 0, 3], [2, 1, 3, 0.0]])
    >>> chosen(scores, 0, 1), chosen(contrasted(scores), 0, 1)  # two words of each class
    ([1, 3], [1, 2])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr
from towerlab.measure.design import Design
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe, joined
from towerlab.measure.sets import BY_ATTENTION
from towerlab.prompts.prompt import Demonstration, Prompt
from towerlab.prompts.variants import exchanged_labels
from towerlab.prompts.word_blocks import spread
from twotowers.paths import data_folder
from twotowers.settings import SEEDS, SEPARATORS
from twotowers.tables import read_csv

from towerlab_experiments.answers import answers
from towerlab_experiments.similarities import without_attraction

QUERIES = 3
"""Number of queries of each class"""
YARDSTICKS = ("sentence embedding", "letters")
"""Choices by columns of the tables of similarities"""


def chosen(scores: np.ndarray, query: int, k: int) -> list[int]:
    """Return the numbers of the demonstrations of a query: the k highest scores of each class.

    Args:
        scores: Scores of the words of a class pair (asked, demonstrated), the words of the first
            class and then as many of the second.
        query: Number of the query.
        k: Number of demonstrations of each class.
    """
    half = len(scores) // 2
    of_query = scores[query]
    descending = np.argsort(-of_query, kind="stable").tolist()
    others = [i for i in descending if i != query]
    first = [i for i in others if i < half]
    second = [i for i in others if i >= half]
    return first[:k] + second[:k]


def head_scores(of_pair: xr.Dataset, role: str) -> np.ndarray:
    """Return the mean score of the heads of a role, for the words of a class pair.

    The attraction of a demonstration is taken out: its mean score over queries, each class counting
    half, without the same word.

    Args:
        of_pair: Measurement "word_towers" of the model, words of the pair.
        role: Value of the coordinate `role`.

    Returns:
        Scores (asked, demonstrated; nats).
    """
    in_nats = of_pair["similarity"] * of_pair["similarity_step"]
    has_role = of_pair["role"] == role
    mean = in_nats.isel(selected_head=has_role.values).mean("selected_head")
    scores = mean.transpose("asked", "demonstrated")
    return without_attraction(scores.values)


def _words_of(towers: xr.Dataset, pair: str) -> xr.Dataset:
    """Return a measurement of the words of the classes of a pair."""
    classes = pair.split("/")
    is_of_pair = towers["asked_class"].isin(classes).values
    return towers.isel(asked=is_of_pair, demonstrated=is_of_pair)


def yardsticks(pair: str, words: Sequence[str]) -> dict[str, np.ndarray]:
    """Return similarities of the words of a class pair that use no head.

    Args:
        pair: Class pair.
        words: Words of the first class, and then of the second.

    Returns:
        Choice -> similarities (word, word), NaN if a yardstick lacks a word.
    """
    folder = data_folder() / "words"
    within = read_csv(folder / "similarity.csv")
    across = read_csv(folder / "pair_similarity.csv")
    classes = pair.split("/")
    is_class = within["class"].isin(classes)
    is_pair = across["class_pair"] == pair
    lines = pd.concat([within[is_class], across[is_pair]])
    similarities = {}
    for choice in YARDSTICKS:
        column = choice.replace(" ", "_")
        similarities[choice] = _matrix(lines, column, words)
    return similarities


def _matrix(lines: pd.DataFrame, column: str, words: Sequence[str]) -> np.ndarray:
    """Return a table of two words in each line as a matrix, 0 for same words."""
    table = lines.pivot_table(column, "first", "second", aggfunc="last", sort=False)
    square = table.reindex(index=words, columns=words)
    above = square.to_numpy(float)
    is_missing = np.isnan(above)
    scores = np.where(is_missing, above.T, above)
    is_same = np.equal.outer(words, words)
    return np.where(is_same, 0.0, scores)


def prompts_of(
    design: Design,
    pair: str,
    words: Sequence[str],
    query: int,
    numbers: Sequence[int],
    label_pair: str,
    block: int,
) -> list[Prompt]:
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
    classes = pair.split("/")
    labels = label_pair.split("/")
    half = len(words) // 2
    seed = [design.settings.seed, SEEDS["chosen demonstrations"], block]
    order = np.random.default_rng(seed).permutation(numbers).tolist()
    separator = SEPARATORS[design.template.separator]
    demonstrations = []
    for i in order:
        side = i // half
        demonstrations.append(Demonstration(words[i], labels[side], classes[side]))
    side = query // half
    prompt = Prompt(
        demonstrations, words[query], labels[side], labels, classes[side], pair, separator, block
    )
    mirror = replace(prompt, demonstrations=demonstrations[::-1])
    return [prompt, exchanged_labels(mirror)]


def contrasted(scores: np.ndarray) -> np.ndarray:
    """Return scores with the other sign for words of different classes.

    Args:
        scores: As in `chosen`.
    """
    half = len(scores) // 2
    is_second = np.repeat([False, True], half)
    is_same_class = np.equal.outer(is_second, is_second)
    return np.where(is_same_class, scores, -scores)


def choices_of(of_pair: xr.Dataset, pair: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the choices of demonstrations for the words of a class pair.

    Args:
        of_pair: Measurement "word_towers" of the model, words of the pair.
        pair: Class pair.
        rng: Draws the random scores. All class pairs share it, so that no two have the same draws.

    Returns:
        Name of a choice -> its scores (asked, demonstrated): the highest ones are chosen. A choice
        is left out if no head has its role, or if its yardstick lacks a word.
    """
    scores = head_scores(of_pair, BY_ATTENTION)
    words = of_pair["asked"].values.tolist()
    choices = {
        "towers": scores,
        "farthest": -scores,
        "contrast": contrasted(scores),
        "other heads": head_scores(of_pair, "as much attention"),
        "random": rng.random(scores.shape),
        **yardsticks(pair, words),
    }
    known = {}
    for name, of_choice in choices.items():
        if np.isfinite(of_choice).all():
            known[name] = of_choice
    return known


def _prompts_by_choice(design: Design, towers: xr.Dataset) -> dict[str, list[Prompt]]:
    """Return the prompts of all class pairs, for each choice of demonstrations."""
    label_pairs = design.arbitrary_label_pairs
    pairs = towers["class_pair"].values.tolist()
    k = design.template.k
    prompts: dict[str, list[Prompt]] = {}
    rng = np.random.default_rng([design.settings.seed, SEEDS["chosen demonstrations"]])
    block = 0
    for pair in dict.fromkeys(pairs):
        of_pair = _words_of(towers, pair)
        words = of_pair["asked"].values.tolist()
        half = len(words) // 2
        first = spread(range(half), QUERIES)
        second = [half + i for i in first]
        choices = choices_of(of_pair, pair, rng)
        for query in [*first, *second]:
            label_pair = label_pairs[block % len(label_pairs)]
            for name, scores in choices.items():
                numbers = chosen(scores, query, k)
                two = prompts_of(design, pair, words, query, numbers, label_pair, block)
                prompts.setdefault(name, []).extend(two)
            block += 1
    return prompts


def recipe_chosen_demonstrations(pipeline: Pipeline) -> xr.Dataset:
    """Measure answers with demonstrations chosen by heads, by other similarities, and at random.

    There are three queries of each class, and two prompts for each query and choice.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    design = pipeline.design
    towers = pipeline.measured("word_towers")
    prompts = _prompts_by_choice(design, towers)
    most = max(map(len, prompts.values()))
    parts = []
    for choice, of_choice in prompts.items():
        if len(of_choice) == most:  # known for all words
            encoded = design.encode(of_choice)
            recipe = Recipe(answers, encoded, stage=choice)
            data = pipeline.run("chosen_demonstrations", recipe)
            data = data[["logit_difference"]]
            data = data.drop_vars(["text", "order"])
            parts.append(data.expand_dims({"choice": [choice]}))
    return joined(parts, "choice")


RECIPES = {"chosen_demonstrations": recipe_chosen_demonstrations}
