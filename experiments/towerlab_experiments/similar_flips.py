"""Answers with the label of a similar or of a less similar demonstration exchanged.

Chapter 13. A *quad* is two queries and two demonstrations of one class: each query is similar to
one of the demonstrations, by the scores of the heads in `word_towers`, and less similar to the
other. Both queries follow the same demonstrations, and the label of either of the two is exchanged.
If the answer follows the similarity, it suffers more from the similar one. A query, a word that
weighs much anywhere, or a place among the demonstrations makes no difference to the comparison.

In some heads both queries are then replaced by their mean. Those heads still compare the class, but
no longer the word.

    >>> similarity = np.array([[0, 0, 3, 1], [0, 0, 1, 3], [3, 1, 0, 0], [1, 3, 0, 0.0]])
    >>> quads_of(similarity, np.ones(4), 1)  # 0 is near to 2, and 3 to 1
    [(0, 3, 2, 1)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from towerlab.measure.design import Design
from towerlab.measure.observations import Tensors, answer_variables, observations, read_batches
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import BY_ATTENTION, draw_random_sets, present
from towerlab.model.edits import interchange
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt, Prompts
from towerlab.prompts.variants import exchanged_labels
from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.heads import Heads, HeadSets
from twotowers.settings import SEEDS, SEPARATORS

QUADS = 2
"""Number of quads of each class"""
OF_QUAD = 8
"""Number of prompts of a quad: two assignments of the labels, two exchanged labels, two queries"""
FLIPPED = ("near", "far")
"""Whether the demonstration with the exchanged label is the one that is similar to the query"""
Quad = tuple[int, int, int, int]
"""Numbers of both queries, and of the demonstrations that they are similar to"""


def quads_of(similarity: np.ndarray, tokens: np.ndarray, n: int) -> list[Quad]:
    """Return the quads with the largest contrast of similarities.

    The contrast is the similarity of both queries with their own demonstration minus that with the
    other. The closeness of places in the list must not have the same contrast: neighbours are about
    equally frequent. Both queries have equally many tokens.

    Args:
        similarity: Similarities of the words of a class (word, word), in the order of its list.
        tokens: Number of tokens of each word.
        n: Maximum number of quads. A word is in one quad at most.
    """
    places = np.arange(len(similarity))
    closeness = -abs(places[:, None] - places).astype(float)
    contrast = _contrasts(similarity)
    is_allowed = _contrasts(closeness) <= 0
    is_equal = tokens[:, None] == tokens
    is_allowed &= is_equal[:, :, None, None]
    contrast = np.where(is_allowed, contrast, -np.inf)
    quads: list[Quad] = []
    for _ in range(n):
        best = np.unravel_index(contrast.argmax(), contrast.shape)
        if not contrast[best] > 0:
            break
        first, second, near, far = map(int, best)
        quads.append((first, second, near, far))
        used = list(best)
        for dimension in range(4):
            by_word = np.moveaxis(contrast, dimension, 0)
            by_word[used] = -np.inf
    return quads


def _contrasts(values: np.ndarray) -> np.ndarray:
    """Return the contrasts of all quads, -inf for one with the same word twice."""
    difference = values[:, :, None] - values[:, None]  # (query, near, far)
    contrast = difference[:, None] - difference  # (first, second, near, far)
    places = np.indices(contrast.shape)
    for i, j in combinations(places, 2):
        contrast[i == j] = -np.inf
    return contrast


def quad_prompts(
    design: Design,
    pair: str,
    cls: str,
    words: Mapping[str, Sequence[str]],
    quad: Quad,
    label_pair: str,
    block: int,
) -> list[Prompt]:
    """Return the prompts of a quad: the two queries of each, one after the other.

    Args:
        design: Prompts of the settings.
        pair: Class pair.
        cls: Class of the quad.
        words: Class -> words, of both classes of the pair.
        quad: Numbers of four words of `cls`.
        label_pair: Two labels with a slash between them.
        block: Number of the quad.
    """
    rng = np.random.default_rng([design.settings.seed, SEEDS["words"], block])
    k = design.template.k
    separator = SEPARATORS[design.template.separator]
    own_words = words[cls]
    first, second, *near = (own_words[i] for i in quad)
    (other_class,) = {*pair.split("/")} - {cls}
    unused = [word for word in own_words if word not in (first, second, *near)]
    more = rng.permutation(unused).tolist()
    others = rng.permutation(words[other_class]).tolist()
    of_class = [(text, cls) for text in (*near, *more[: k - 2])]
    of_other_class = [(text, other_class) for text in others[:k]]
    demonstrations = rng.permutation(of_class + of_other_class).tolist()
    labels = label_pair.split("/")
    label = dict(zip((cls, other_class), labels, strict=True))
    prompts = []
    for flipped in near:
        shown = [
            Demonstration(text, label[other_class if text == flipped else of], of)
            for text, of in demonstrations
        ]
        for query in (first, second):
            prompt = Prompt(shown, query, label[cls], labels, cls, pair, separator, block)
            prompts.append(prompt)
    exchanged = []
    for prompt in prompts:
        mirror = replace(prompt, demonstrations=prompt.demonstrations[::-1])
        exchanged.append(exchanged_labels(mirror))
    return prompts + exchanged


@torch.inference_mode()
def similar_flips(model: Model, encoded: Prompts, sets: HeadSets) -> xr.Dataset:
    """Compute the answers to pairs of queries, alone and with a common query in some heads.

    The common query is the mean of the queries of two prompts that differ in their query only, at
    the last position of the plain run. Cost: a run of each prompt, and one run of the last position
    for each set.

    Args:
        model: Any model.
        encoded: Prompts, of which each two in turn differ in their query only, with their labels
            and last positions in the same places.
        sets: Name -> heads.

    Returns:
        Dataset of `base_logit_difference` (prompt), the logit difference without intervention, and
        `logit_difference` (head_set, prompt) with a common query in the heads of a set (nats).
    """

    def run(index: list[int], firsts: Prompts) -> Tensors:
        n = len(index)
        seconds = [encoded[2 * i + 1] for i in index]
        last = LastPosition(model, [*firsts, *seconds])
        common = {}
        for layer, state in last.plain.items():
            query = state.attention.query
            of_partner = query.roll(n, 0)
            mean = (query + of_partner) / 2
            attention = state.attention._replace(query=mean)
            common[layer] = state._replace(attention=attention)
        positions = last.capture.label_positions
        kinds = ["query"] * len(last.batch)
        edits = [interchange(heads, kinds, common, positions) for heads in sets.values()]
        changed = answer_variables(last.batch, *last.answers(edits))
        plain = answer_variables(last.batch, *last.plain_answer())

        def by_pair(answered: Tensors) -> Tensor:
            differences = answered["logit_difference"].unflatten(0, (2, n))
            return differences.transpose(0, 1)

        return {"logit_difference": by_pair(changed), "base_logit_difference": by_pair(plain)}

    arrays = read_batches("similar flips", encoded[::2], 1024, run)
    flat = {}
    for name, values in arrays.items():
        _, _, *rest = values.shape
        flat[name] = values.reshape(len(encoded), *rest)
    # The first demonstration of a quad is near to the first query, the second to the second.
    far = [(i // 2 + i) % 2 for i in range(len(encoded))]
    flipped = np.array(FLIPPED)[far]
    texts = []
    for e in encoded:
        prompt = e.prompt
        of_class = [d for d in prompt.demonstrations if d.cls == prompt.query_class]
        (text,) = [d.text for d in of_class if d.label != prompt.true_label]
        texts.append(text)
    return observations(
        "similar_flips",
        encoded,
        flat,
        head_set=list(sets),
        flipped=("prompt", flipped),
        flipped_text=("prompt", texts),
    )


def class_similarities(towers: xr.Dataset, heads: Heads) -> dict[str, np.ndarray]:
    """Return the similarities of the words of each class, the mean score of some heads.

    Args:
        towers: Measurement "word_towers".
        heads: Heads.

    Returns:
        Class -> similarities (word, word; nats), centred and symmetric, in the order of `asked`.
    """
    in_nats = towers["within_class"] * towers["within_class_step"]
    scores = head_selection.select_heads(in_nats, heads).mean("selected_head")
    similarities = {}
    for cls, of_class in scores.groupby("pair_class"):
        n = int((towers["asked_class"] == cls).sum())
        square = np.zeros((n, n))
        above = np.triu_indices(n, 1)
        square[above] = of_class.values
        similarities[str(cls)] = square + square.T
    return similarities


def quads_of_classes(design: Design, towers: xr.Dataset, heads: Heads) -> list[Encoded]:
    """Return the prompts of the quads of every class, OF_QUAD for each quad.

    Args:
        design: Prompts of the settings.
        towers: Measurement "word_towers" of the model.
        heads: Heads whose mean score is the similarity.

    Raises:
        NotTestable: If no class has a quad.
    """
    label_pairs = design.arbitrary_label_pairs
    asked = towers[["tokens"]].to_dataframe()
    words = {}
    for cls, of_class in asked.groupby("asked_class", sort=False):
        words[str(cls)] = of_class.index.tolist()
    similarities = class_similarities(towers, heads)
    encoded: list[Encoded] = []
    pair_of = towers["class_pair"].to_series()
    for cls, pair in pair_of.items():
        tokens = asked["tokens"][words[cls]].values
        for quad in quads_of(similarities[cls], tokens, QUADS):
            block = len(encoded) // OF_QUAD
            label_pair = label_pairs[block % len(label_pairs)]
            prompts = quad_prompts(design, pair, cls, words, quad, label_pair, block)
            of_quad = design.encode(prompts)
            pairs = zip(of_quad[::2], of_quad[1::2], strict=True)
            if all(first.places == second.places for first, second in pairs):
                encoded += of_quad
    if not encoded:
        raise NotTestable("no class has two words of as many tokens that differ in similarity")
    return encoded


def recipe_similar_flips(pipeline: Pipeline) -> Recipe:
    """Measure answers with the label of a similar or of a less similar demonstration exchanged.

    There are two quads of words of each class. In some heads, two words of the class get a common
    query.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    design = pipeline.design
    sets = present(pipeline.head_sets, BY_ATTENTION)
    if design.template.k < 2:
        raise NotTestable("two demonstrations of a class are needed, so k must be 2 or more")
    heads = sets[BY_ATTENTION]
    towers = pipeline.measured("word_towers")
    encoded = quads_of_classes(design, towers, heads)
    random = draw_random_sets(pipeline, sets)
    return Recipe(similar_flips, encoded, (), sets, random)


RECIPES = {"similar_flips": recipe_similar_flips}
"""Measurement -> function of a pipeline that makes it"""
