"""Mean queries, keys and inputs of words, in every layer, from prompts that ask and show the words.

>>> from towerlab.measure.pipeline import Pipeline
>>> from twotowers.settings import Settings
>>> pipeline = Pipeline(Settings(evaluation_blocks=1, k=1, separator="space"))
>>> contexts = contexts_of(pipeline.design, n_pairs=1, n_words=4)
>>> vectors = tower_vectors(pipeline.model, contexts)
>>> [tuple(x.shape) for x in vectors_of(pipeline.model, vectors, 0)][:2]  # halves, words, heads
[(2, 8, 8, 12), (2, 8, 8, 12)]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from towerlab.measure.design import Design
from towerlab.measure.observations import in_memory
from towerlab.model import query_key
from towerlab.model.model import Model, widen
from towerlab.model.prefixes import stream_inputs
from towerlab.prompts.prompt import MAX_TOKENS, Encoded, Prompts
from towerlab.prompts.word_blocks import spread, word_blocks
from twotowers.errors import NotTestable
from twotowers.settings import read_label_pairs

ASKED = ("query", "asked_input")
"""Vectors at the last position"""
DEMONSTRATED = ("key", "demonstrated_input")
"""Vectors at labels"""


class Contexts(NamedTuple):
    """The prompts of one class pair that ask every word, in two halves with other contexts.

    `words` are the words of the pair's first class, and as many of its second.
    """

    pair: str
    words: tuple[str, ...]
    halves: tuple[list[Encoded], list[Encoded]]

    @property
    def classes(self) -> list[str]:
        """The two classes."""
        return self.pair.split("/")


def contexts_of(design: Design, n_pairs: int, n_words: int) -> list[Contexts]:
    """Return the prompts that ask words, for each class pair.

    The halves of a class pair differ in their lists of demonstrations and in their label pair.

    Args:
        design: Prompts of the settings.
        n_pairs: Maximum number of class pairs.
        n_words: Maximum number of words of a class.
    """
    label_pairs = design.arbitrary_label_pairs
    if not label_pairs:
        raise NotTestable("towers of words need labels that are no names of classes")
    all_pairs = [*read_label_pairs(("nonsense", "plain")), *label_pairs]
    labels = {label for pair in all_pairs for label in pair.split("/")}
    contexts = []
    for i, pair in enumerate(design.class_pairs[:n_pairs]):
        pools = {}
        for cls in pair.split("/"):
            texts = design.texts[cls]
            pools[cls] = [text for text in texts if text not in labels]
        sizes = map(len, pools.values())
        n = min(n_words, *sizes)
        words = {}
        for cls, pool in pools.items():
            words[cls] = spread(pool, n)
        halves = []
        for half in range(2):
            number = 2 * i + half
            label_pair = label_pairs[number % len(label_pairs)]
            seed = [design.settings.seed, i, half]
            prompts = word_blocks(pair, words, design.template, label_pair, seed)
            halves.append(design.encode(prompts))
        first, second = halves
        all_words = tuple(chain(*words.values()))
        contexts.append(Contexts(pair, all_words, (first, second)))
    return contexts


def tower_vectors(model: Model, contexts: Sequence[Contexts]) -> xr.Dataset:
    """Compute mean queries and keys of words, and the mean inputs that they are made from.

    Cost: one forward pass of each list of demonstrations and of each query. Memory: queries, keys
    and inputs of all layers, for the prompts of half a class pair and for every word.

    Args:
        model: Any model.
        contexts: Prompts of some class pairs.

    Returns:
        Dataset over (prompt, number), where `prompt` is a word, in the order of `contexts`. The
        numbers of `query` are those of an array (half, layer, head, d_head), of `key` (half, layer,
        kv_head, d_head), and of `asked_input` and `demonstrated_input` (half, layer, d_model): the
        inputs of W_Q at the last position, and of W_K at labels. Queries are scaled. Queries and
        keys are before rotation. Flat, because files round numbers of more dimensions.
    """
    parts = []
    for one in contexts:
        n_words = len(one.words)
        halves = [_mean_vectors(model, one, encoded) for encoded in one.halves]
        of_pair = xr.Dataset()
        for name in (*ASKED, *DEMONSTRATED):
            together = np.stack([means[name] for means in halves], 1)
            rows = together.reshape(n_words, -1)
            of_pair[name] = ("prompt", f"{name}_number"), rows
        parts.append(of_pair)
    return xr.concat(parts, "prompt")


def _mean_vectors(model: Model, one: Contexts, encoded: Prompts) -> dict[str, np.ndarray]:
    """Return means over the prompts that ask or show each word (word, layer, ...)."""
    number = {word: i for i, word in enumerate(one.words)}
    asked = []
    shown = []
    for e in encoded:
        asked.append(number[e.prompt.query])
        shown.append([number[d.text] for d in e.prompt.demonstrations])
    compute = partial(_vectors, model, encoded)
    means = {}
    for name, array in in_memory(compute, MAX_TOKENS).items():
        places = asked if name in ASKED else shown
        means[name] = means_at(array, places)
    return means


@torch.inference_mode()
def _vectors(model: Model, encoded: Prompts, max_tokens: int) -> dict[str, np.ndarray]:
    """Return vectors over (prompt, layer, ...), at labels over (prompt, label, layer, ...)."""
    streams = stream_inputs(model, encoded, max_tokens)
    parts: dict[str, list[np.ndarray]] = {}
    for layer in range(model.n_layers):
        last, labels = (
            model.normed(layer, "attention", stream[..., layer, :].to(model.device))
            for stream in streams
        )
        of_layer = {
            "query": query_key.queries(model, layer, last),
            "key": query_key.keys(model, layer, labels),
            "asked_input": last,
            "demonstrated_input": labels,
        }
        for name, vectors in of_layer.items():
            values = widen(vectors).cpu().numpy()
            parts.setdefault(name, []).append(values)
    stacked = {}
    for name, layers in parts.items():
        axis = 2 if name in DEMONSTRATED else 1
        stacked[name] = np.stack(layers, axis)
    return stacked


def means_at(values: np.ndarray, places: Any) -> np.ndarray:
    """Return the mean of the values at each place.

        >>> means_at(np.array([[1.0], [3.0], [5.0]]), [0, 1, 0])
        array([[3.],
               [3.]])

    Args:
        values: Over (*rows, ...).
        places: Place of each row (*rows).
    """
    places = np.asarray(places)
    numbers = np.arange(places.max() + 1)
    is_there = (places.ravel() == numbers[:, None]).astype(float)
    rows = values.reshape(places.size, -1).astype(float)
    n_there = is_there.sum(1, keepdims=True)
    means = is_there @ rows / n_there
    rest = values.shape[places.ndim :]
    return means.reshape(-1, *rest)


def vectors_of(model: Model, vectors: xr.Dataset, layer: int) -> list[Tensor]:
    """Return the vectors of one layer, in float64.

    Args:
        model: Model of the vectors.
        vectors: Result of `tower_vectors`.
        layer: Layer.

    Returns:
        Queries (half, word, head, d_head), keys (half, word, kv_head, d_head), inputs at the last
        position and at labels (half, word, d_model).
    """
    shapes = {
        "query": (model.n_heads, model.d_head),
        "key": (model.n_key_value_heads, model.d_head),
        "asked_input": (-1,),
        "demonstrated_input": (-1,),
    }
    found = []
    for name, shape in shapes.items():
        rows = vectors[name].values
        n_words = len(rows)
        of_layers = rows.reshape(n_words, 2, model.n_layers, *shape)
        of_layer = of_layers[:, :, layer]
        by_half = torch.from_numpy(of_layer).transpose(0, 1)
        found.append(by_half.double())
    return found


def places_of_words(contexts: Sequence[Contexts]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the places of the words of each class pair, and of each class.

    Args:
        contexts: Prompts of some class pairs, in the order of the words.
    """
    sizes = [len(one.words) for one in contexts]
    numbers = np.arange(sum(sizes))
    ends = np.cumsum(sizes)
    pairs = np.split(numbers, ends[:-1])
    classes = []
    for pair in pairs:
        classes += np.split(pair, 2)
    return pairs, classes
