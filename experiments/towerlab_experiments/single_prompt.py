"""One whole prompt, the paper's own: through the heads, and as a sum of its parts.

Source: v1 section 3.1, table 1, figures 2 and 7; appendix E. Every variable has a dimension
`prompt` of length one. "The word" is the true label's token.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import CASE
    >>> model = load("mini-gpt2")
    >>> data = decomposition(model, *model.encode([CASE]), [(1, 0)])
    >>> float(data["sum_error"][0]) < 1e-5          # embedding, heads, neurons and biases add up
    True
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from towerlab.measure.observations import Tensors, observations, read_prompts
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model import unembed
from towerlab.model.capture import Capture, label_values
from towerlab.model.model import Model, widen
from towerlab.prompts.paper_sets import CASE
from towerlab.prompts.prompt import Encoded, Prompts
from twotowers.errors import NotTestable
from twotowers.heads import Heads, head_names

from towerlab_experiments.head_values import increases, label_attention
from towerlab_experiments.label_reads import top_tokens
from towerlab_experiments.paper import case_of, encoded_sets, listed_first

WEIGHTS = np.linspace(0, 1, 21)
"""Attention weights that are set"""
NEURONS = 20
CANDIDATES = 200
SWEPT = 3
"""Number of heads whose attention is varied"""
PROMPTS = 20
"""Number of prompts on which attention is compared with increase"""
ROWS = 64  # number of vectors projected at a time
EVERY = slice(None)


def single_prompt(model: Model, encoded: Encoded, heads: Heads) -> xr.Dataset:
    """Compute the words, the attention and the increases of heads, and the increases of blocks.

    Args:
        model: Any model.
        encoded: One prompt.
        heads: Heads to follow.

    Returns:
        Dataset with these variables.

        - `token` (prompt, selected_head, vector, demonstration, rank), `query_token` (prompt,
          selected_head, rank). Top words of values and keys at label positions and of the last
          query, as in `top_tokens`, with nothing taken out (v1 table 1).
        - `attention`, `label_increase` (prompt, selected_head, demonstration). Weight of the last
          position on each label, and the increase of the true label by this label's value with that
          weight (nats): the paper's subhead (v1 appendix E).
        - `block_increase` (prompt, layer, kind). As in `heads.increases`.
    """
    words = top_tokens(model, [encoded], heads, ["kept"])
    words = words.isel(mean=0, drop=True)
    of_labels = label_increases(model, [encoded], heads, every_label=True)
    # Words lose their coordinates `layer` and `head`, which are dimensions of the increases.
    of_heads = increases(model, [encoded])
    return of_heads.assign(words).assign(of_labels)


def swept_increases(model: Model, encoded: Encoded, heads: Heads) -> xr.Dataset:
    """Compute the increase by each label's value with every attention weight (v1 figure 7).

    Args:
        model: Any model.
        encoded: One prompt.
        heads: Heads to follow.

    Returns:
        Dataset of `swept_increase` (prompt, swept_head, demonstration, weight), in nats: the
        `label_increase` of `single_prompt` with WEIGHTS in place of the head's own weight.
    """
    weights = torch.tensor(WEIGHTS)[:, None, None]

    def read(capture: Capture) -> Tensors:
        increase = _label_increase(model, capture, heads, weights)
        return {"swept_increase": increase.movedim(0, -1)[None]}

    arrays = read_prompts("swept increases", model, [encoded], {"values"}, read)
    return observations(
        "swept_increases", [encoded], arrays, swept_head=head_names(heads), weight=WEIGHTS
    )


def _label_increase(
    model: Model,
    capture: Capture,
    heads: Heads,
    weights: Float[Tensor, "*rows #selected_head #demonstration"],
    labels: slice | Sequence[int] = EVERY,
) -> Float[Tensor, "*rows selected_head demonstration"]:
    """Return the increase (nats) by the value of some labels of one prompt, with some weights."""
    of_heads = []
    for layer, head in heads:
        values = label_values(capture, model, layer)[0, head, labels]
        of_heads.append(values @ model.output_weight(layer)[head])
    outputs = torch.stack(of_heads)
    # `starts` has the shape (selected_head, 1, d_model).
    layers = [layer for layer, _ in heads]
    starts = capture.resid_pre[layers]
    weighted = weights.to(outputs)[..., None] * outputs
    return _increases_with(model, capture, starts, weighted)


def label_increases(
    model: Model, encoded: Prompts, heads: Heads, *, every_label: bool = False
) -> xr.Dataset:
    """Compute the attention on each label, and the increase by right labels (v1 figure 7).

    It is the increase by the label's value with the weight of that attention.

    Args:
        model: Any model.
        encoded: Prompts.
        heads: Heads to follow.
        every_label: Whether to compute the increase by other labels too.

    Returns:
        Dataset of `attention` (share) and `label_increase` (nats), over (prompt, selected_head,
        demonstration). `label_increase` is NaN where it is not computed.
    """
    layers, numbers = np.transpose(heads)

    def read(capture: Capture) -> Tensors:
        attention = label_attention(capture)
        attention = attention[0, layers, numbers]
        (e,) = capture.prompts
        labels = EVERY if every_label else np.flatnonzero(e.prompt.is_true).tolist()
        increase = attention.new_full(attention.shape, torch.nan)
        increase[:, labels] = _label_increase(
            model, capture, heads, attention[:, labels], labels
        ).to(increase)
        return {"attention": attention[None], "label_increase": increase[None]}

    # One token at most: each prompt is a batch by itself.
    arrays = read_prompts("label increases", model, encoded, {"weights", "values"}, read, 1)
    return observations("label_increases", encoded, arrays, selected_head=head_names(heads))


def _increases_with(
    model: Model,
    capture: Capture,
    starts: Float[Tensor, "*#rows d_model"],
    vectors: Float[Tensor, "*rows d_model"],
) -> Float[Tensor, "*rows"]:
    """Return the increases (nats) of the true label by vectors that are added to some starts."""
    scale = model.unembedding.norm.scale(capture.resid_final)

    def log_prob(states: Tensor) -> Tensor:
        # Heads of one layer start from the same state, which is projected once.
        rows_of_all = states.flatten(0, -2)
        distinct, index = rows_of_all.unique(dim=0, return_inverse=True)
        parts = []
        for rows in distinct.split(ROWS):
            values = unembed.bs_values(rows, model.unembedding, scale)
            log_probs = values.log_softmax(-1)
            parts.append(log_probs[:, capture.true_ids])
        shape = states.shape[:-1]
        return torch.cat(parts)[index].view(shape)

    return log_prob(starts + vectors) - log_prob(starts)


def decomposition(model: Model, encoded: Encoded, heads: Heads) -> xr.Dataset:
    """Compute the final vector as a sum of parts, and the increase by its parts.

    All values are from one forward pass.

    Args:
        model: Any model.
        encoded: One prompt.
        heads: Heads whose positions are taken apart.

    Returns:
        Dataset with these variables.

        - `sum_error` (prompt). Largest difference between the final vector and the sum of the
          embedding, every head at every position, every neuron and the biases, as a share of the
          vector's largest component. `n_parts` (prompt) is the number of these parts.
        - `increase`, `increase_last` (prompt, layer, head). Increase by a head's vector alone, and
          after all other heads of its layer (nats).
        - `position_increase` (prompt, selected_head, position). Increase by each position's share
          of a head's vector (nats).
        - `neuron_layer`, `neuron_number`, `neuron_increase` (nats), `neuron_rank` (prompt, neuron).
          Neurons with the largest increase, and the word's rank in the output of each. They are
          selected from the CANDIDATES with the largest first-order increase. `raising` (prompt) is
          the share of all neurons whose first-order increase is above zero.
        - `candidate_increase` (nats), `candidate_rank` (prompt, candidate). The same values for the
          CANDIDATES that add most to the word's logit.
        - `head_to_neuron` (prompt, neuron, layer, head). Inner product of the neuron's subkey (of a
          gated FFN: its gate's subkey) with a head's output in an earlier or the same layer, after
          the FFN's norm with its scale frozen. It is 0 for later heads.
    """
    layers, numbers = np.transpose(heads)

    def read(capture: Capture) -> Tensors:
        of_positions = subvalues(model, capture)
        vectors = of_positions.sum(2)
        starts = capture.resid_pre[:, :1]
        others = starts + vectors.sum(1, keepdim=True) - vectors
        of_heads = of_positions[layers, numbers]
        neurons = _neurons(model, capture)
        of_layers = neurons["neuron_layer"].tolist()
        of_numbers = neurons["neuron_number"].tolist()
        to_neurons = []
        for layer, number in zip(of_layers, of_numbers, strict=True):
            inputs = from_heads(model, capture, vectors, layer, number)
            to_neurons.append(inputs)
        arrays = {
            **_sum_of_parts(model, capture, vectors),
            **neurons,
            "increase": _increases_with(model, capture, starts, vectors),
            "increase_last": _increases_with(model, capture, others, vectors),
            "position_increase": _increases_with(model, capture, starts[layers], of_heads),
            "head_to_neuron": torch.stack(to_neurons),
        }
        return {name: array[None] for name, array in arrays.items()}

    include = {"weights", "values", "neurons"}
    arrays = read_prompts("decomposition", model, [encoded], include, read)
    return observations("decomposition", [encoded], arrays, selected_head=head_names(heads))


def subvalues(model: Model, capture: Capture) -> Float[Tensor, "layer head position d_model"]:
    """Return the vector that every head adds to the residual stream from each position.

    Args:
        model: Any model.
        capture: Values of one prompt, with "weights" and "values".

    Returns:
        Vectors (layer, head, position, d_model).
    """
    vectors = []
    for layer, weights in enumerate(capture.weights[:, 0]):
        values = model.for_query_heads(capture.values[layer, 0])
        weighted = weights.to(values)[..., None] * values
        output_weight = model.output_weight(layer).to(values)
        vectors.append(weighted @ output_weight)
    return torch.stack(vectors)


def _sum_of_parts(model: Model, capture: Capture, vectors: Tensor) -> Tensors:
    """Return `sum_error` and `n_parts`; vectors of heads are sums over positions."""
    total = widen(capture.resid_pre[0, 0]).clone()
    n_parts = 1
    n_positions = len(capture.prompts[0].ids)
    for layer, neurons in enumerate(capture.neurons[:, 0]):
        of_heads = vectors[layer].sum(0)
        of_neurons = neurons @ model.ffn_weight(layer).to(neurons)
        parts = [of_heads, of_neurons]
        n_parts += model.n_heads * n_positions + len(neurons)
        for block in ("attention", "ffn"):
            bias = model.output_bias(layer, block)
            if bias is not None:
                parts.append(bias)
                n_parts += 1
        for part in parts:
            total += widen(part.to(total.device))
    final = widen(capture.resid_final[0])
    error = (total - final).abs().max()
    size = final.abs().max()
    return {"sum_error": error / size, "n_parts": torch.tensor(n_parts)}


def _neurons(model: Model, capture: Capture) -> Tensors:
    """Return the variables of `decomposition` about neurons, over (neuron,) or (candidate,)."""
    unembedding = model.unembedding
    word = capture.true_ids
    strengths = capture.neurons[:, 0]
    states = capture.resid_mid[:, 0]

    def candidates(rows: Float[Tensor, "layer d_model"]) -> tuple[Tensor, ...]:
        """Return the CANDIDATES neurons whose output is largest along the row of its layer.

        They are given as layer, number, increase, and rank of the word. The last value is the share
        of products above zero.
        """
        of_layers = []
        for layer, strength in enumerate(strengths):
            weight = model.ffn_weight(layer).to(strength)
            along_row = weight @ rows[layer].to(strength)
            of_layers.append(strength * along_row)
        products = torch.stack(of_layers)
        n_candidates = min(CANDIDATES, products.numel())
        largest, _ = products.flatten().topk(n_candidates)
        selected = products >= largest[-1]
        outputs = []
        for layer, neurons in enumerate(selected):
            strength = strengths[layer, neurons]
            weight = model.ffn_weight(layer)[neurons].to(strength)
            outputs.append(strength[:, None] * weight)
        vectors = torch.cat(outputs)
        layers, numbers = selected.nonzero().T
        increase = _increases_with(model, capture, states[layers], vectors)
        words = word.expand(len(vectors), 1)
        ranks = unembed.rank(vectors, words, unembedding)[:, 0]
        raising = (products > 0).double().mean()
        return layers, numbers, increase.double(), ranks, raising

    scale = unembedding.norm.scale(capture.resid_final)
    p = unembed.bs_values(states, unembedding, scale).softmax(-1)
    usual = p @ widen(unembedding.weight)
    rows = widen(unembedding.weight[word]) - usual
    # The product with a vector is the slope of the log-probability along that vector.
    slopes = unembedding.norm.fold(rows) / scale
    layers, numbers, increase, ranks, raising = candidates(slopes)
    n_neurons = min(NEURONS, len(increase))
    largest, best = increase.topk(n_neurons)
    # The product with the word's row is the word's logit, up to the scale of the final norm.
    word_row = unembedding.norm.fold(unembedding.weight[word])
    word_rows = word_row.expand(model.n_layers, -1)
    _, _, by_logit, ranks_by_logit, _ = candidates(word_rows)
    return {
        "neuron_layer": layers[best],
        "neuron_number": numbers[best],
        "neuron_increase": largest,
        "neuron_rank": ranks[best],
        "raising": raising,
        "candidate_increase": by_logit,
        "candidate_rank": ranks_by_logit,
    }


def from_heads(
    model: Model, capture: Capture, vectors: Tensor, layer: int, neuron: int
) -> Float[Tensor, "layer head"]:
    """Return the part of each head in the input of a neuron: `head_to_neuron` of `decomposition`.

    Args:
        model: Any model.
        capture: Values of one prompt.
        vectors: Vectors of all heads (layer, head, d_model).
        layer: Layer of the neuron.
        neuron: Number of the neuron within its layer.

    Returns:
        Inner products (layer, head).
    """
    if model.architecture.ffn_norm:
        norm = model.norm(model.part(layer, "ffn_norm"))
        scale = norm.scale(capture.resid_mid[layer, 0])
        vectors = norm.normalise(vectors, scale)
    rows, _ = model.subkeys(layer)
    subkey = rows[0, neuron].to(vectors.device)
    inputs = widen(vectors) @ widen(subkey)
    # An FFN that is not parallel also reads its own layer's heads.
    first_later = layer if model.parallel else layer + 1
    inputs[first_later:] = 0
    return inputs


def recipe_single_prompt(pipeline: Pipeline) -> xr.Dataset:
    """Measure increases, words and attention on the paper's own prompt.

    The increases are of blocks and heads; the words are of values, keys and query.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    return single_prompt(*case_of(pipeline))


def recipe_swept_increases(pipeline: Pipeline) -> xr.Dataset:
    """Measure the increase by labels on the paper's own prompt, with attention that we set.

    The heads are the first three.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    model, example, heads = case_of(pipeline)
    return swept_increases(model, example, heads[:SWEPT])


def recipe_decomposition(pipeline: Pipeline) -> xr.Dataset:
    """Take the paper's own prompt apart: sum of all parts, another order, positions, neurons.

    The inputs of these neurons from heads are also measured.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    return decomposition(*case_of(pipeline))


def recipe_label_increases(pipeline: Pipeline) -> Recipe:
    """Measure attention on labels, and the increase by right labels, in prompts of the paper.

    They are the first prompts of its own set. The heads are the first three heads, and all heads at
    most one layer away from one of them.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    if pipeline.settings.suite != "words":
        raise NotTestable("figure 7 needs a prompt of words")
    paper = pipeline.measured("paper")
    every_head = pipeline.model.all_heads
    heads = listed_first(paper, CASE.dataset, every_head)
    layers = set()
    for layer, _ in heads[:SWEPT]:
        layers |= {layer - 1, layer, layer + 1}
    near = [head for head in heads if head.layer in layers]
    encoded = encoded_sets(pipeline.design, [CASE.dataset])
    return Recipe(label_increases, encoded[:PROMPTS], (near,))


RECIPES = {
    "single_prompt": recipe_single_prompt,
    "swept_increases": recipe_swept_increases,
    "decomposition": recipe_decomposition,
    "label_increases": recipe_label_increases,
}
"""Measurement -> function of a pipeline that makes it"""
