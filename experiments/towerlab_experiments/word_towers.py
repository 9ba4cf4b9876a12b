"""Similarities of words by the queries and keys of every head: the product of the two towers.

Chapter 13. The query of a word is the mean over prompts that ask it, the key of a word the mean
over labels that follow it in other prompts. Their product S[w, v] is the score that the head would
give to a demonstration of v if w is asked. A similarity of words must order the words of one class,
not only tell two classes apart.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=1, k=1, separator="space"))
    >>> contexts = contexts_of(pipeline.design, n_pairs=2, n_words=4)
    >>> vectors = tower_vectors(pipeline.model, contexts)
    >>> data = word_towers(pipeline.model, contexts, vectors, {"all": [Head(3, 1)]}, {})
    >>> dict(data["similarity"].sizes)
    {'selected_head': 1, 'asked': 16, 'demonstrated': 16}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from towerlab.measure.design import Design
from towerlab.measure.observations import with_dims
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import BY_ATTENTION, draw_random_sets
from towerlab.model import query_key
from towerlab.model.model import Model
from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.files import select_labels
from twotowers.heads import Head, Heads, HeadSets, head_names
from twotowers.settings import SEEDS

from towerlab_experiments.similarities import (
    Values,
    centred,
    class_auc,
    class_effects,
    correlation,
    deviation,
    same_word_first,
)
from towerlab_experiments.word_vectors import (
    Contexts,
    contexts_of,
    places_of_words,
    tower_vectors,
    vectors_of,
)

CLASS_PAIRS = 8
WORDS = 20
"""Maximum numbers of class pairs, and of words of a class"""
BLOCKS_PER_WORD = 5
"""Number of evaluation blocks for each word of a class, if there are fewer than WORDS times as
many"""
FORMS = 20
"""Number of random bilinear forms"""
OTHERS = 5
"""Number of heads of each kind that selected heads are shown with"""
STEPS = 127
"""Number of steps from zero to the largest value, of values in one byte"""
SEVERAL = "several"
"""Label pair of a number that is a mean over label pairs"""


def similarities(
    model: Model,
    layer: int,
    query: Float[Tensor, "half asked head d_head"],
    key: Float[Tensor, "half demonstrated kv_head d_head"],
    distances: Mapping[int, int],
) -> Float[Tensor, "way head asked demonstrated"]:
    """Compute the scores of mean queries with mean keys of the other half.

    A rotation depends only on the distance, so it is averaged over distances. It is linear, so all
    of it is done to the query.

    Args:
        model: Any model.
        layer: Layer of the heads.
        query: Scaled mean queries before rotation.
        key: Mean keys before rotation.
        distances: Distance -> how often it occurs.

    Returns:
        Scores (nats) before a soft cap, for queries of the first half and of the second.
    """
    total = sum(distances.values())
    turned = torch.zeros_like(query)
    for distance, times in distances.items():
        position = torch.tensor(distance, device=query.device)
        turned += times / total * query_key.rotated(model, layer, query, position)
    start = torch.tensor(0, device=key.device)
    unturned = query_key.rotated(model, layer, key, start)
    kv_heads = [model.value_head(head) for head in range(model.n_heads)]
    keys = unturned[:, :, kv_heads]
    return torch.einsum("iwhd,ivhd->ihwv", turned, keys.flip(0))


def input_cosines(
    asked: Float[Tensor, "half word d_model"], demonstrated: Float[Tensor, "half word d_model"]
) -> Float[Tensor, "way asked demonstrated"]:
    """Compute cosines of a layer's inputs, each minus its mean over words, of different halves.

    Args:
        asked: Mean inputs of W_Q at the last position.
        demonstrated: Mean inputs of W_K at labels.
    """

    def unit(x: Tensor) -> Tensor:
        """Return the directions of vectors from their mean."""
        mean = x.mean(1, keepdim=True)
        return normalize(x - mean, dim=-1)

    of_other_half = demonstrated.flip(0)
    return unit(asked) @ unit(of_other_half).mT


def word_towers(
    model: Model,
    contexts: Sequence[Contexts],
    vectors: xr.Dataset,
    shown: HeadSets,
    selected: HeadSets,
) -> xr.Dataset:
    """Compute similarities of words by some heads, and their properties in every head.

    Args:
        model: Any model.
        contexts: Prompts of some class pairs.
        vectors: Their mean queries, keys and inputs (`tower_vectors`).
        shown: Role -> heads whose similarities are kept.
        selected: Class pair -> heads selected on other class pairs.

    Returns:
        Dataset of these variables. Similarities within a class are centred (`similarities`).

        - `class_effect` (word_class, layer, head). Mean similarity of different words of the class
          minus that of the other class of the pair (nats).
        - `within_class_sd`, `reliability`, `symmetry` (word_class, layer, head). Standard deviation
          of the similarities within the class (nats), their correlation in both ways (query of the
          first half of the contexts with key of the second, and the reverse), and with their
          transpose.
        - `same_word_first`, `class_auc` (word_class, layer, head): see `similarities`.
        - `input_symmetry`, `input_same_word_first`, `input_class_auc` (word_class, layer). The same
          properties of the cosine of the layer's inputs.
        - `within_class` (layer, head, word_pair). Mean of both directions of the centred similarity
          of two words, in steps of `within_class_step` (layer, head; nats).
        - `similarity` (selected_head, asked, demonstrated), in steps of `similarity_step` (nats).
        - `embedding_similarity` (word_pair). Cosine of the mean input embeddings of both words.
        - `tokens` (asked). Number of tokens of the word.
        - `is_selected` (word_class, selected_head). Whether the head was selected on other class
          pairs.
        - `random_form_auc` (random_form, word_class): see `random_form_aucs`.
    """
    classes = [cls for one in contexts for cls in one.classes]
    words = np.array([word for one in contexts for word in one.words])
    role_of: dict[tuple[int, int], str] = {}
    for role, heads in shown.items():
        for head in heads:
            role_of.setdefault(head, role)
    kept = list(role_of)
    arrays, similarity = _by_layer(model, contexts, vectors, kept)
    arrays["similarity"], arrays["similarity_step"] = steps(similarity, 1)
    arrays["within_class"], arrays["within_class_step"] = steps(arrays["within_class"], 2)
    embeddings, arrays["tokens"] = word_embeddings(model, contexts)
    _, of_classes = places_of_words(contexts)
    first, second = pairs_of_words(of_classes)
    products = embeddings[first] * embeddings[second]
    arrays["embedding_similarity"] = products.sum(-1)
    class_pairs = [one.pair for one in contexts for _ in one.classes]
    is_selected = np.zeros((len(class_pairs), len(kept)), np.int8)
    for i, pair in enumerate(class_pairs):
        of_pair = selected.get(pair, ())
        is_selected[i] = [head in of_pair for head in kept]
    arrays["is_selected"] = is_selected
    arrays["random_form_auc"] = random_form_aucs(model, contexts, vectors, selected)
    sizes = [len(places) for places in of_classes]
    class_of = np.repeat(classes, sizes)
    data = xr.Dataset(with_dims("word_towers", arrays))
    return data.assign_coords(
        layer=range(model.n_layers),
        head=range(model.n_heads),
        word_class=classes,
        class_pair=("word_class", class_pairs),
        label_pair=("word_class", [SEVERAL] * len(classes)),
        words_in_class=("word_class", sizes),
        asked=words,
        demonstrated=words,
        asked_class=("asked", class_of),
        demonstrated_class=("demonstrated", class_of),
        first_word=("word_pair", words[first]),
        second_word=("word_pair", words[second]),
        pair_class=("word_pair", class_of[first]),
        selected_head=head_names(kept),
        role=("selected_head", list(role_of.values())),
    )


def _by_layer(
    model: Model, contexts: Sequence[Contexts], vectors: xr.Dataset, kept: Heads
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the properties of every head, and the similarities by some heads.

    Similarities are over (selected_head, asked, demonstrated).
    """
    of_pairs, of_classes = places_of_words(contexts)
    encoded = [e for one in contexts for half in one.halves for e in half]
    distances = Counter(e.last - position for e in encoded for position in e.label_positions)
    n_words = sum(map(len, of_pairs))
    similarity = np.empty((len(kept), n_words, n_words))
    of_layers: dict[str, list[np.ndarray]] = {}
    for layer in range(model.n_layers):
        query, key, asked, demonstrated = vectors_of(model, vectors, layer)
        ways = similarities(model, layer, query, key, distances).numpy()
        cosines = input_cosines(asked, demonstrated).numpy()
        of_layer = _properties(ways, of_pairs, of_classes)
        of_inputs = _properties(cosines, of_pairs, of_classes)
        for name in ("symmetry", "same_word_first", "class_auc"):
            of_layer[f"input_{name}"] = of_inputs[name]
        for name, values in of_layer.items():
            of_layers.setdefault(name, []).append(values)
        for i, (own_layer, number) in enumerate(kept):
            if own_layer == layer:
                similarity[i] = ways[:, number].mean(0)
    arrays: dict[str, Any] = {"within_class": np.stack(of_layers.pop("within_class"))}
    for name, parts in of_layers.items():
        of_heads = () if name.startswith("input_") else ("head",)
        arrays[name] = ("layer", *of_heads, "word_class"), np.stack(parts)
    return arrays, similarity


def pairs_of_words(of_classes: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the first and of the second word of every pair of a class.

    Args:
        of_classes: Places of the words of each class.
    """
    first = []
    second = []
    for places in of_classes:
        rows, columns = np.triu_indices(len(places), 1)
        first.append(places[rows])
        second.append(places[columns])
    return np.concatenate(first), np.concatenate(second)


def _properties(
    ways: np.ndarray, of_pairs: Sequence[np.ndarray], of_classes: Sequence[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the properties of similarities (way, ..., asked, demonstrated).

    All are over (..., word_class), and `within_class` over (..., word_pair).
    """
    both = ways.mean(0)
    effects = []
    aucs = []
    for places in of_pairs:
        of_pair = both[..., places[:, None], places]
        effects.append(class_effects(of_pair))
        aucs.append(class_auc(of_pair))
    of_class: dict[str, list[Values]] = {}
    within = []
    for places in of_classes:
        of_ways = ways[..., places[:, None], places]
        rest = centred(of_ways)
        mean_rest = rest.mean(0)
        turned = mean_rest.swapaxes(-1, -2)
        for name, values in (
            ("within_class_sd", deviation(mean_rest)),
            ("reliability", correlation(*rest)),
            ("symmetry", correlation(mean_rest, turned)),
            ("same_word_first", same_word_first(of_ways.mean(0))),
        ):
            of_class.setdefault(name, []).append(values)
        symmetric = (mean_rest + turned) / 2
        rows, columns = np.triu_indices(len(places), 1)
        within.append(symmetric[..., rows, columns])
    properties = {name: np.stack(values, -1) for name, values in of_class.items()}
    properties["class_effect"] = np.concatenate(effects, -1)
    properties["class_auc"] = np.concatenate(aucs, -1)
    properties["within_class"] = np.concatenate(within, -1)
    return properties


def steps(values: np.ndarray, n_kept: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values as whole numbers of steps, in one byte each.

        >>> steps(np.array([[-2.0, 0.5]]), 1)
        (array([[-127,   32]], dtype=int8), array([0.01574803]))

    Args:
        values: Over (*kept, ...).
        n_kept: Number of dimensions that have a step of their own.

    Returns:
        Numbers of steps, and the size of a step (*kept).
    """
    axes = tuple(range(n_kept, values.ndim))
    largest = abs(values).max(axes, keepdims=True)
    step = np.where(largest > 0, largest, 1.0) / STEPS
    in_steps = np.rint(values / step)
    return in_steps.astype(np.int8), step.reshape(values.shape[:n_kept])


def word_embeddings(model: Model, contexts: Sequence[Contexts]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean input embedding of the tokens of each asked word, and their number.

    Args:
        model: Any model.
        contexts: Prompts of some class pairs.

    Returns:
        Embeddings of length 1 (word, d_model), and numbers of tokens (word).
    """
    weight = model.hf.get_input_embeddings().weight
    embeddings = []
    tokens = []
    for one in contexts:
        first_half, _ = one.halves
        asked = {e.prompt.query: e for e in first_half}
        for word in one.words:
            e = asked[word]
            start, stop = e.query_span
            of_word = weight[list(e.ids[start:stop])]
            mean = of_word.double().mean(0)
            embeddings.append(mean.cpu())
            tokens.append(stop - start)
    unit = normalize(torch.stack(embeddings), dim=-1)
    return unit.numpy(), np.array(tokens, np.int8)


def random_form_aucs(
    model: Model, contexts: Sequence[Contexts], vectors: xr.Dataset, selected: HeadSets
) -> np.ndarray:
    """Return `class_auc` of random symmetric forms with the singular values of selected heads.

    A form multiplies two inputs in a random subspace, with weights that are the singular values of
    the head's W_Q^T W_K (without a norm of queries and keys). It compares inputs without having
    learned what to compare.

    Args:
        model: Any model.
        contexts: Prompts of some class pairs.
        vectors: Result of `tower_vectors`.
        selected: Class pair -> heads.

    Returns:
        Over (random_form, word_class), means over the heads; missing where no head was selected.
    """
    shape = FORMS, len(contexts), 2
    aucs = np.full(shape, np.nan)
    forms = [random_subspace(model.d_model, model.d_head, i) for i in range(FORMS)]
    of_pairs, _ = places_of_words(contexts)
    for i, (one, places) in enumerate(zip(contexts, of_pairs, strict=True)):
        of_heads = []
        of_words = vectors.isel(prompt=places)
        for layer, head in selected.get(one.pair, ()):
            _, _, asked, demonstrated = vectors_of(model, of_words, layer)
            values = singular_values(model, layer, head)
            of_forms = []
            for form in forms:
                first = asked @ form
                second = demonstrated.flip(0) @ form
                both = torch.einsum("iwk,k,ivk->wv", first, values, second)
                of_forms.append(class_auc(both.numpy()))
            of_heads.append(of_forms)
        if of_heads:
            aucs[:, i] = np.mean(of_heads, 0)
    return aucs.reshape(FORMS, -1)


def random_subspace(d_model: int, d: int, seed: int) -> Float[Tensor, "d_model d"]:
    """Return random orthonormal columns.

    Args:
        d_model: Number of rows.
        d: Number of columns, at most d_model.
        seed: Seed of the draw.
    """
    rng = np.random.default_rng([0, SEEDS["words"], seed])
    normal = rng.normal(size=(d_model, d))
    basis, _ = np.linalg.qr(normal)
    return torch.from_numpy(basis)


def singular_values(model: Model, layer: int, head: int) -> Float[Tensor, "d_head"]:
    """Return the singular values of a head's W_Q^T W_K, largest first.

    Args:
        model: Any model.
        layer: Layer of the head.
        head: Number of the head within its layer.
    """
    triangles = []
    shared = model.value_head(head)
    for which, number in ((query_key.QUERY, head), (query_key.KEY, shared)):
        weight, _ = model.projection(layer, which)
        of_head = weight[number].double().cpu()
        _, triangle = torch.linalg.qr(of_head.T)
        triangles.append(triangle)
    # The triangles of both matrices have the same product of singular values.
    first, second = triangles
    return torch.linalg.svdvals(first @ second.T)


def cross_fit_heads(pipeline: Pipeline, pairs: Sequence[str]) -> dict[str, list[Head]]:
    """Return for each class pair the heads by attention that other class pairs select.

    Args:
        pipeline: Pipeline of the model.
        pairs: Class pairs.
    """
    selection = select_labels(pipeline.measured("selection"), "arbitrary")
    coordinates = {
        "class_pair": ("prompt", list(pairs)),
        "label_pair": ("prompt", [SEVERAL] * len(pairs)),
    }
    target = xr.Dataset(coords=coordinates)
    k = pipeline.settings.top_k
    selected: dict[str, list[Head]] = {}
    for sets, evaluating in head_selection.cross_fit_sets(selection, target, k):
        heads = sets.get(BY_ATTENTION, [])
        selected |= dict.fromkeys(evaluating["class_pair"].values.tolist(), heads)
    return selected


def without_preference(selection: xr.Dataset, k: int, taken: Heads) -> list[Head]:
    """Return the heads with most attention on labels among those that prefer no class.

    Args:
        selection: Measurement "selection" of the model.
        k: Number of heads.
        taken: Heads to leave out.
    """
    on_labels = head_selection.attention_on_labels(selection)
    ranking = on_labels.where(head_selection.prefers_no_class(selection), -1.0)
    heads = head_selection.top_heads(ranking, k + len(taken))
    others = [head for head in heads if head not in taken]
    return others[:k]


def n_words_of(design: Design) -> int:
    """Return the maximum number of words of a class that are asked.

    Args:
        design: Prompts of the settings.
    """
    if design.is_included:
        return WORDS
    n_words = design.settings.evaluation_blocks // BLOCKS_PER_WORD
    return min(WORDS, max(design.template.k + 2, n_words))


def recipe_word_towers(pipeline: Pipeline) -> xr.Dataset:
    """Measure similarities of words by the queries and keys of every head.

    Each word of up to eight class pairs is asked in four prompts: up to 20 words of a class, or a
    fifth of the number of evaluation blocks. An included model is asked all of them.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    design = pipeline.design
    if design.settings.suite != "words":
        raise NotTestable("towers of words need words as texts")
    by_attention = pipeline.head_sets[BY_ATTENTION]
    if not by_attention:
        raise NotTestable("no head attends more to labels of the query's class")
    contexts = contexts_of(design, CLASS_PAIRS, n_words_of(design))
    recipe = Recipe(tower_vectors, contexts, part=1)
    vectors = pipeline.run("word_towers", recipe)
    selected = cross_fit_heads(pipeline, [one.pair for one in contexts])
    chosen = [by_attention, *selected.values()]
    different = list(dict.fromkeys(chain(*chosen)))
    attending = without_preference(pipeline.measured("selection"), OTHERS, different)
    (random,) = draw_random_sets(pipeline, {BY_ATTENTION: by_attention}, 1)[BY_ATTENTION]
    shown = {
        BY_ATTENTION: different,
        "as much attention": attending,
        "other": [head for head in random if head not in {*different, *attending}],
    }
    return word_towers(pipeline.model, contexts, vectors, shown, selected)


RECIPES = {"word_towers": recipe_word_towers}
"""Measurement -> function of a pipeline that makes it"""
