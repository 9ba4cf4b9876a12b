"""Output of some heads from each label position: ranks in the vocabulary, words, vectors.

Chapters 1 to 4, 8, 9. `vo = W_O^h W_V^h norm(x)` is the value-output vector of a head at a label
position. The coordinates `is_true_label` (whether a demonstration has the query's label),
`true_label` and `label_pair` give the label of each demonstration.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=1, k=2, separator="space"))
    >>> data = label_reads(pipeline.model, pipeline.design.intervention(), [(1, 0)])
    >>> data["own_rank"].dims, data["selected_head"].values.tolist()
    (('prompt', 'selected_head', 'demonstration'), ['1-0'])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor
from towerlab.measure.design import EVALUATION
from towerlab.measure.observations import (
    Tensors,
    captured_answers,
    observations,
    read_batches,
    read_prompts,
)
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import draw_random_sets, present
from towerlab.model import query_key, unembed
from towerlab.model.attention import block_inputs
from towerlab.model.capture import Capture, label_values
from towerlab.model.model import Model
from towerlab.model.token_text import Lexicon, content_words
from towerlab.prompts.blocks import class_words
from towerlab.prompts.prompt import MAX_TOKENS, Demonstration, Prompt, Prompts
from twotowers import head_selection
from twotowers.catalogue import RELATIONS
from twotowers.errors import NotTestable
from twotowers.heads import Heads, head_coordinates

from towerlab_experiments.head_values import label_attention, ov_logit_differences

VECTORS = ["value", "key", "key, attention only"]
MEAN = ["kept", "taken out"]
WORDS_PER_VECTOR = 10


def label_reads(model: Model, encoded: Prompts, heads: Heads, ranks: bool = True) -> xr.Dataset:
    """Compute ranks, attention and OV logit differences of heads at each label, and answers.

    The recipe `label_reads` keeps the ranks, and `paper_ranks` only `own_rank`. Cost: one forward
    pass, then one pass over the vocabulary for each head. Memory: d_head numbers for every prompt,
    head and demonstration.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.
        heads: Heads to list.
        ranks: Whether to compute both ranks.

    Returns:
        Dataset of the model's answers (prompt), and of these variables over (prompt, selected_head,
        demonstration).

        - `own_rank`, `other_rank`. Rank in vo, over the whole vocabulary, of the token of the
          demonstration's own label and of the other label (1 = highest; equal logits share the best
          rank). A head that writes one word from every position ranks both labels alike, averaged
          over demonstrations. The paper's MRR averages 1 / `own_rank` (v1 section 4.3).
        - `attention`. Weight of the last position on the label position.
        - `ov_logit_difference`. Logit of the label's own token minus that of the other label in vo,
          with the final norm's scale frozen (nats). Times `attention` it is the position's addition
          to the logit difference of its label (EMNLP: "logit minus", as summarised).
    """
    layers, numbers = np.transpose(heads)

    def read(capture: Capture) -> Tensors:
        values = []
        for layer, head in heads:
            of_layer = label_values(capture, model, layer)
            values.append(of_layer[:, head])
        attention = label_attention(capture)
        differences = ov_logit_differences(capture, model)
        return {
            **captured_answers(capture),
            "values": torch.stack(values, 1),
            "attention": attention[:, layers, numbers],
            "ov_logit_difference": differences[:, layers, numbers],
        }

    arrays: dict[str, Any] = read_prompts(
        "label reads", model, encoded, {"weights", "values"}, read, 2048
    )
    values = torch.from_numpy(arrays.pop("values"))
    if ranks:
        own, other = _label_ranks(model, encoded, heads, values).unbind(-1)
        dims = "prompt", "selected_head", "demonstration"
        arrays |= {"own_rank": (dims, own), "other_rank": (dims, other)}
    return observations("paper", encoded, arrays, **head_coordinates(heads))


def _label_ranks(
    model: Model,
    encoded: Prompts,
    heads: Heads,
    values: Float[Tensor, "prompt selected_head demonstration d_head"],
) -> Int[Tensor, "prompt selected_head demonstration 2"]:
    """Return the ranks of a demonstration's label and of the other label in its value."""
    words = []  # (prompt, demonstration, 2)
    for e in encoded:
        own_first = e.label_pair_ids
        other_first = own_first[::-1]
        words.append([own_first if is_true else other_first for is_true in e.prompt.is_true])
    tokens = torch.tensor(words).to(model.device)
    of_heads = []
    for i, (layer, head) in enumerate(heads):
        of_head = values[:, i].to(model.device)
        weight = model.output_weight(layer)[head]
        ranks = unembed.rank(of_head, tokens, model.unembedding, through=weight)
        of_heads.append(ranks)
    return torch.stack(of_heads, 1).int().cpu()


def query_and_keys(
    model: Model, batch: Prompts, layers: Sequence[int]
) -> tuple[
    Float[Tensor, "batch layer head d_head"],
    Float[Tensor, "batch demonstration layer kv_head d_head"],
]:
    """Return the last position's scaled queries and the keys at label positions.

    Both are before rotation. Layers above the highest one are not run.

    Args:
        model: Any model.
        batch: Prompts of one token length, with equal numbers of demonstrations.
        layers: Layers, in the order of the result.

    Returns:
        Queries (batch, layer, head, d_head), and keys (batch, demonstration, layer, kv_head,
        d_head).
    """
    queries = []
    keys = []
    inputs = block_inputs(model, batch, layers)
    positions = torch.tensor([e.label_positions for e in batch], device=model.device)[..., None]
    for layer in layers:
        stream = inputs[layer]
        last = model.normed(layer, "attention", stream[:, -1])
        of_labels = model.normed(layer, "attention", stream.take_along_dim(positions, 1))
        queries.append(query_key.queries(model, layer, last))
        keys.append(query_key.keys(model, layer, of_labels))
    return torch.stack(queries, 1), torch.stack(keys, 2)


def query_key_vectors(model: Model, encoded: Prompts, heads: Heads) -> xr.Dataset:
    """Compute the queries of heads at the last position, and their keys at label positions.

    Both are before any rotation to positions. The scaling is part of the query, so their product is
    the score (nats) as if no position were rotated.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.
        heads: Heads to list.

    Returns:
        Dataset of `query_vector` (prompt, selected_head, component) and `key_vector` (prompt,
        selected_head, demonstration, component).
    """
    layers, numbers = np.transpose(heads)
    kv_heads = [model.value_head(head) for head in numbers]
    own = np.arange(len(heads))

    def run(_, batch: Prompts) -> Tensors:
        queries, keys = query_and_keys(model, batch, layers.tolist())
        of_heads = keys[:, :, own, kv_heads]
        return {"query_vector": queries[:, own, numbers], "key_vector": of_heads.transpose(1, 2)}

    arrays = read_batches("query_key_vectors", encoded, MAX_TOKENS, run)
    return observations("query_key_vectors", encoded, arrays, **head_coordinates(heads))


def recipe_label_reads(pipeline: Pipeline) -> Recipe:
    """Measure ranks, attention and OV logit differences of all sets of heads at labels.

    Also of the heads with the largest increase, as many as the paper lists, and of random sets that
    are matched to the heads by attribution.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    name = "by attribution"
    sets = pipeline.head_sets
    random = draw_random_sets(pipeline, {name: sets[name]})[name]
    increases = pipeline.measured("selection_increases")
    every_set = [*present(sets).values(), *random, head_selection.listed(increases)]
    heads = dict.fromkeys(chain(*every_set))
    encoded = pipeline.design.intervention()
    return Recipe(label_reads, encoded, (list(heads),))


def recipe_query_key_vectors(pipeline: Pipeline) -> Recipe:
    """Measure queries and keys of the best head by attention and by written logit difference.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    sets = pipeline.head_sets
    if not sets["by attention"]:
        raise NotTestable("no head attends more to labels of the query's class")
    best = sets["by attention"][:1]
    best += sets["by written logit difference"][:1]
    heads = list(dict.fromkeys(best))
    encoded = pipeline.design.evaluation(0.5)
    return Recipe(query_key_vectors, encoded, (heads,))


def top_tokens(
    model: Model, encoded: Prompts, heads: Heads, means: Sequence[str] = MEAN
) -> xr.Dataset:
    """Compute the top words of the values, keys and queries of heads.

    The vectors are projected to the vocabulary. At label positions there are three, along the
    dimension `vector`:

    - "value" is the value-output vector, the output of the head from there at weight 1
      (v1 table 1).
    - "key" is the layer's input, which the key matrix reads. It is the same for all heads of a
      layer.
    - "key, attention only" is the sum of the attention outputs of earlier layers, that is the
      layer's input minus the embedding and minus all earlier FFN outputs (as in the authors'
      code). It is empty in layer 0.

    At the last position the vector is the query before rotation, carried through W_K into the space
    that the key matrix reads.

    bs-values have the final norm's scale frozen (nats). Stop words and punctuation are left out,
    unless they are labels. A label of several tokens is identified by its first token. Memory:
    d_model numbers for every prompt, head, demonstration and vector.

    Args:
        model: Any model.
        encoded: A few prompts, because all vectors of all demonstrations are kept.
        heads: Heads to list.
        means: Treatments of the mean, of MEAN.

    Returns:
        Dataset of `token` and `relation` (prompt, selected_head, vector, demonstration, mean,
        rank), and of `query_token` and `query_relation` (prompt, selected_head, mean, rank). A
        relation is an index of RELATIONS: the relation of the token to its demonstration, or to the
            query.
        `mean` is "kept" or "taken out". If it is taken out, the mean over the prompts at the same
        demonstration is subtracted, because most of an unchanged key or query is equal in all
        prompts and independent of their texts.
    """
    lexicon = Lexicon.from_tokenizer(model.tokenizer, model.unembedding.vocabulary)

    def read(capture: Capture) -> Tensors:
        vectors = [_vectors_of_head(model, capture, layer, head) for layer, head in heads]
        return {
            "vectors": torch.stack(vectors, 1),
            "scale": model.unembedding.norm.scale(capture.resid_final),
        }

    arrays = read_prompts("top tokens", model, encoded, {"values", "streams"}, read, 2048)
    vectors = torch.from_numpy(arrays["vectors"]).to(model.device)
    scale = torch.from_numpy(arrays["scale"]).to(model.device)
    # (prompt, head, vector, mean, label or query, d_model)
    of_means = {"kept": vectors, "taken out": vectors - vectors.mean(0)}
    stacked = torch.stack([of_means[mean] for mean in means], 3)
    scales = scale[:, None, None, None, None]
    label_ids = [token for e in encoded for token in e.label_ids.values()]
    labels = torch.tensor(label_ids)
    is_label = torch.isin(lexicon.stopword_ids, labels)
    stopwords = lexicon.stopword_ids[~is_label]
    _, ids = unembed.top_words(stacked, WORDS_PER_VECTOR, model.unembedding, scales, stopwords)
    ids = ids.cpu()
    tokens = np.array(lexicon.texts)[ids]
    relations = _relations(lexicon, encoded, ids)
    in_first_layer = [layer == 0 for layer, _ in heads]
    empty = slice(None), in_first_layer, VECTORS.index("key, attention only")
    tokens[empty] = ""
    relations[empty] = 0
    # The query is the same for all vectors.
    at_labels = slice(None, -1)
    at_query = slice(None), slice(None), 0, slice(None), -1
    variables = {
        "token": tokens[..., at_labels, :],
        "relation": relations[..., at_labels, :],
        "query_token": (("prompt", "selected_head", "mean", "rank"), tokens[at_query]),
        "query_relation": relations[at_query],
    }
    return observations(
        "top_tokens",
        encoded,
        variables,
        **head_coordinates(heads),
        vector=VECTORS,
        mean=list(means),
        rank=range(1, 1 + ids.shape[-1]),
    )


def _vectors_of_head(
    model: Model, capture: Capture, layer: int, head: int
) -> Float[Tensor, "batch vector label_or_query d_model"]:
    """Return VECTORS of a head at labels. The query follows the labels, once for each vector."""
    values = label_values(capture, model, layer)[:, head]
    value = values @ model.output_weight(layer)[head]
    positions = capture.label_positions[..., None]
    by_attention = capture.stream_attention[:layer].sum(0)
    at_labels = [value]
    for stream in (capture.stream_inputs[layer], by_attention):
        key = stream.take_along_dim(positions, 1)
        at_labels.append(key.to(value))
    query = carried_query(capture, model, layer, head).to(value)
    rows = [torch.cat([vectors, query[:, None]], 1) for vectors in at_labels]
    return torch.stack(rows, 1)


def _relations(
    lexicon: Lexicon,
    encoded: Prompts,
    ids: Int[Tensor, "prompt selected_head vector mean label_or_query rank"],
) -> np.ndarray:
    """Return the relation of each word to the prompt, as its number in RELATIONS."""
    words = np.array(lexicon.plain)[ids]
    relations = np.zeros(ids.shape, np.int8)
    for i, e in enumerate(encoded):
        for place in range(ids.shape[4]):
            codes = relations_of(e.prompt, place, class_words())
            for label, token in e.label_ids.items():
                # A label's token may be a piece of it.
                codes[lexicon.plain[token]] = codes[label.casefold()]
            here = i, ..., place, slice(None)
            code_of = np.vectorize(codes.get, otypes=[np.int8])
            relations[here] = code_of(words[here], 0)
    return relations


def carried_query(
    capture: Capture, model: Model, layer: int, head: int
) -> Float[Tensor, "batch d_model"]:
    """Return the last query, before rotation and with its scaling, carried through W_K.

    Args:
        capture: Values of a batch.
        model: Model of the capture.
        layer: Layer of the head.
        head: Number of the head within its layer.

    Returns:
        Vectors in the input space of W_K (batch, d_model).
    """
    normed = model.normed(layer, "attention", capture.resid_pre[layer])
    query = query_key.queries(model, layer, normed)[:, head]
    return query_key.query_in_input_space(model, layer, head, query, normed)


def relations_of(
    prompt: Prompt, demonstration: int, words: Mapping[str, Iterable[str]]
) -> dict[str, int]:
    """Return the relation of words to a demonstration, or to the query.

    The words of the prompt's texts do not tell its class, so words of other texts have no relation.
    A word of both classes belongs to its own class.

        >>> shown = Demonstration("cat", "foo", "animal"), Demonstration("red sea", "bar", "colour")
        >>> prompt = Prompt(shown, "dog", "foo", ("foo", "bar"), "animal")
        >>> words = {"animal": ["cat", "dog", "owl"], "colour": ["red", "blue"]}
        >>> def related(place, *some):
        ...     codes = relations_of(prompt, place, words)
        ...     return [RELATIONS[codes[word]] for word in some]
        >>> related(0, "foo", "bar", "cat", "owl", "blue", "dog", "sea")
        ['own label', 'other label', 'own text', 'own class', 'other class', 'none', 'none']
        >>> related(1, "foo", "bar", "cat", "owl", "blue", "red", "sea")
        ['other label', 'own label', 'none', 'other class', 'own class', 'own text', 'own text']
        >>> related(-1, "dog", "cat")
        ['own text', 'none']

    Args:
        prompt: A prompt.
        demonstration: Number of the demonstration. The query follows the last demonstration.
        words: Class -> words of the class.

    Returns:
        Word (lower case) -> index of RELATIONS.
    """
    query = Demonstration(prompt.query, prompt.true_label, prompt.query_class)
    texts = [*prompt.demonstrations, query]
    own = texts[demonstration]
    codes: dict[str, int] = {}

    def add(relation: str, group: Iterable[str]) -> None:
        """Give a group of words this relation, in place of an earlier one."""
        code = RELATIONS.index(relation)
        codes.update({word.casefold(): code for word in group})

    for text in texts:
        if text.cls != own.cls:
            add("other class", words.get(text.cls, ()))
    add("own class", words.get(own.cls, ()))
    for text in texts:
        add("none", content_words(text.text))
    add("own text", content_words(own.text))
    for word in prompt.labels:
        add("own label" if word == own.label else "other label", [word])
    return codes


def recipe_top_tokens(pipeline: Pipeline) -> xr.Dataset:
    """Measure the top words of three heads by attribution and of the two best by attention.

    The prompts are one block of every class pair.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    design = pipeline.design
    sets = pipeline.head_sets
    best = sets["by attribution"][:3]
    best += sets["by attention"][:2]
    heads = list(dict.fromkeys(best))
    blocks = design.blocks(len(design.intervention_pairs), EVALUATION)
    return top_tokens(pipeline.model, design.encode(blocks), heads)


RECIPES = {
    "label_reads": recipe_label_reads,
    "query_key_vectors": recipe_query_key_vectors,
    "top_tokens": recipe_top_tokens,
}
"""Measurement -> function of a pipeline that makes it"""
