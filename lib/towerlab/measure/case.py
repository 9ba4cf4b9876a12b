"""One whole prompt, the paper's own: through the heads, and taken apart (v1 section 3.1, table 1,
figures 2 and 7; appendix E).

Every variable has a dimension `prompt` of length one. "The word" is the true label's token.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import CASE
    >>> model = load("mini-gpt2")
    >>> data = parts(model, *model.encode([CASE]), [Head(1, 0)])
    >>> float(data["sum_error"][0]) < 1e-5          # embedding, heads, neurons and biases add up
    True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers.errors import NotTestable
from twotowers.heads import Head, named

from towerlab.measure.heads import at_labels, increases
from towerlab.measure.label_reads import top_tokens
from towerlab.measure.observations import Tensors, observations, read_prompts
from towerlab.measure.paper import case_of, encoded_sets, listed_first
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model import unembed
from towerlab.model.capture import Capture, label_values
from towerlab.model.model import Model, widen
from towerlab.prompts.paper_sets import CASE
from towerlab.prompts.prompt import Encoded, Prompts

WEIGHTS = np.linspace(0, 1, 21)
NEURONS, CANDIDATES = 20, 200
SWEPT, PROMPTS = 3, 20
"""Heads whose attention is varied, and prompts on which it is set against increase"""


def case(model: Model, encoded: Encoded, heads: Sequence[Head]) -> xr.Dataset:
    """The prompt through the heads: words, attention against increase, and increases of blocks.

    Returns:
        `token` (prompt, named_head, what, place, rank), `query_token` (prompt, named_head, rank):
            top words of values and keys at label positions and of the last query, as in
            `top_tokens`, nothing taken out (v1 table 1).
        `attention`, `place_increase` (prompt, named_head, place): weight of the last position on
            each label, and the increase of the true label by this label's value with that weight:
            the paper's subhead (v1 appendix E), nats.
        `swept_increase` (prompt, swept_head, place, weight): the same with any other weight from 0
            to 1, in the first three heads (v1 figure 7), nats.
        `block_increase` (prompt, layer, kind): as in `heads.increases`.
    """
    words = top_tokens(model, heads, [encoded]).sel(mean="kept", drop=True)
    words = words.drop_vars(["layer", "head"]).rename(listed_head="named_head")

    def read(capture: Capture) -> Tensors:
        attention, values = at_own_weights(model, capture, heads)
        starts = [capture.resid_pre[layer, 0] for layer, _ in heads]
        swept = torch.tensor(WEIGHTS).to(values)[:, None] * values[:SWEPT, :, None]
        own = attention.to(values)[..., None] * values
        return {
            "attention": attention[None],
            "place_increase": increases_with(model, capture, starts, own)[None],
            "swept_increase": increases_with(model, capture, starts[:SWEPT], swept)[None],
        }

    arrays = read_prompts("case", model, [encoded], {"weights", "values"}, read)
    names = {"named_head": named(heads), "swept_head": named(heads[:SWEPT]), "weight": WEIGHTS}
    data = observations("case", [encoded], arrays, **names)
    parts = [increases(model, [encoded]), words, data]
    return xr.merge(parts, compat="override", join="override")


def at_own_weights(
    model: Model, capture: Capture, heads: Sequence[Head]
) -> tuple[Float[Tensor, "named_head place"], Float[Tensor, "named_head place d_model"]]:
    """Return the attention of heads on each label of one prompt, and what they would write with
    weight 1."""
    attention = at_labels(capture, capture.weights)[0]
    values = [
        label_values(capture, model, layer)[0, head] @ model.output_weight(layer)[head]
        for layer, head in heads
    ]
    return torch.stack([attention[head] for head in heads]), torch.stack(values)


def label_increases(model: Model, encoded: Prompts, heads: Sequence[Head]) -> xr.Dataset:
    """Return attention on each label, and the increase by this label's value with that weight, in
    several prompts (v1 figure 7).

    Returns:
        `attention` (share) and `place_increase` (nats), over (prompt, named_head, place).
    """

    def read(capture: Capture) -> Tensors:
        attention, values = at_own_weights(model, capture, heads)
        starts = capture.resid_pre[[layer for layer, _ in heads]]
        vectors = attention.to(values)[..., None] * values
        # All heads at once: the unembedding is read once for each call.
        increase = increases_with(model, capture, [starts], [vectors])
        return {"attention": attention[None], "place_increase": increase}

    # One token at most: each prompt is a batch by itself.
    arrays = read_prompts("label increases", model, encoded, {"weights", "values"}, read, 1)
    return observations("label_increases", encoded, arrays, named_head=named(heads))


def increases_with(
    model: Model,
    capture: Capture,
    starts: Iterable[Float[Tensor, "*#vectors d_model"]],
    vectors: Iterable[Float[Tensor, "*vectors d_model"]],
) -> Float[Tensor, "start *vectors"]:
    """Return increases of the true label (nats) by the vectors that are added to each start."""
    scale = unembed.norm_scale(capture.resid_final, model.unembedding)

    def log_prob(rows: Tensor) -> Tensor:
        bs = unembed.bs_values(rows, model.unembedding, scale)
        return bs.log_softmax(-1)[..., capture.true_ids[0]]

    return torch.stack(
        [log_prob(start + of) - log_prob(start) for start, of in zip(starts, vectors, strict=True)]
    )


def parts(model: Model, encoded: Encoded, heads: Sequence[Head]) -> xr.Dataset:
    """The final vector as a sum, parts in another order, positions of a head, neurons; from one
    forward pass.

    Returns:
        `sum_error` (prompt,): largest difference between the final vector and the sum of the
            embedding, every head at every position, every neuron and the biases, as a share of its
            largest component; `n_parts`: how many parts these are.
        `increase`, `increase_last` (prompt, layer, head): increase by a head's vector alone, and
            after all other heads of its layer, nats.
        `position_increase` (prompt, named_head, position): increase by each position's share of a
            head's vector, nats.
        `neuron_layer`, `neuron_number`, `neuron_increase` (nats), `neuron_rank` (prompt, neuron):
            the neurons with the largest increase, and the word's rank in what each writes. They are
            searched for among the CANDIDATES with the largest first-order increase. `raising`
            (prompt,): the share of all neurons whose first-order increase is above zero.
        `candidate_increase` (nats), `candidate_rank` (prompt, candidate): the same of the
            CANDIDATES that write most of the word's logit.
        `head_to_neuron` (prompt, neuron, layer, head): inner product of the neuron's subkey (of a
            gated FFN: its gate's) with what a head wrote before, as the FFN's norm with its scale
            frozen hands it on; 0 for heads that come later.
    """

    def read(capture: Capture) -> Tensors:
        starts, vectors = capture.resid_pre[:, 0], head_vectors(model, capture)
        others = starts[:, None] + vectors.sum(1, keepdim=True) - vectors
        of_positions = [subvalues(model, capture, layer)[head] for layer, head in heads]
        error, n = sum_of_parts(model, capture, vectors)
        of_neurons = neurons(model, capture)
        at = zip(*(of_neurons[f"neuron_{of}"].tolist() for of in ("layer", "number")), strict=True)
        every = {
            "sum_error": error,
            "n_parts": torch.tensor(n),
            "increase": increases_with(model, capture, starts, vectors),
            "increase_last": increases_with(model, capture, others, vectors),
            "position_increase": increases_with(
                model, capture, [starts[layer] for layer, _ in heads], of_positions
            ),
            "head_to_neuron": torch.stack([from_heads(model, capture, vectors, *of) for of in at]),
            **of_neurons,
        }
        return {name: x[None] for name, x in every.items()}

    arrays = read_prompts("parts", model, [encoded], {"weights", "values", "neurons"}, read)
    return observations("parts", [encoded], arrays, named_head=named(heads))


def subvalues(model: Model, capture: Capture, layer: int) -> Float[Tensor, "head position d_model"]:
    """Return what every head of a layer adds to the residual stream from each position."""
    values = model.for_query_heads(capture.values[layer, 0])
    weighted = capture.weights[layer, 0].to(values)[..., None] * values
    return torch.einsum("hpk,hkd->hpd", weighted, model.output_weight(layer).to(values))


def head_vectors(model: Model, capture: Capture) -> Float[Tensor, "layer head d_model"]:
    """Return what every head adds to the residual stream."""
    return torch.stack([subvalues(model, capture, layer).sum(1) for layer in range(model.n_layers)])


def sum_of_parts(model: Model, capture: Capture, vectors: Tensor) -> tuple[Tensor, int]:
    """Return `sum_error` and `n_parts` of `parts`.

    Args:
        model: Any model.
        capture: The prompt.
        vectors: Vectors of all heads, which are sums over positions.
    """
    total, n = widen(capture.resid_pre[0, 0]).clone(), 1
    n_positions = len(capture.prompts[0].ids)
    for layer in range(model.n_layers):
        neurons = capture.neurons[layer, 0]
        biases = [b for b in (model.output_bias(layer), model.ffn_bias(layer)) if b is not None]
        for part in (vectors[layer].sum(0), neurons @ model.ffn_weight(layer).to(neurons), *biases):
            total += widen(part.to(total.device))
        n += model.n_heads * n_positions + len(neurons) + len(biases)
    final = widen(capture.resid_final[0])
    return (total - final).abs().max() / final.abs().max(), n


def neurons(model: Model, capture: Capture) -> Tensors:
    """Return the variables of `parts` about neurons, each over (neuron,) or (candidate,)."""
    unembedding, word = model.unembedding, capture.true_ids
    strengths, states = capture.neurons[:, 0], capture.resid_mid[:, 0]

    def along(rows: Float[Tensor, "layer d_model"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The CANDIDATES neurons whose output has the largest product with the row of its layer:
        layer and number, increase, rank of the word; and the share of products above zero."""
        products = torch.stack(
            [of * (model.ffn_weight(i).to(of) @ rows[i].to(of)) for i, of in enumerate(strengths)]
        )
        found = torch.zeros_like(products, dtype=torch.bool)
        found.view(-1)[products.flatten().topk(min(CANDIDATES, found.numel())).indices] = True
        vectors = torch.cat(
            [
                strengths[layer, at][:, None] * model.ffn_weight(layer)[at].to(strengths)
                for layer, at in enumerate(found)
            ]
        )
        numbers = found.nonzero()
        starts = states[numbers[:, 0]]
        (increase,) = increases_with(model, capture, [starts], [vectors])
        ranks = unembed.rank(vectors, word.expand(len(vectors), 1), unembedding)[:, 0]
        return numbers, increase.double(), ranks, (products > 0).double().mean()

    scale = unembed.norm_scale(capture.resid_final, unembedding)
    p = unembed.bs_values(states, unembedding, scale).softmax(-1)
    rows = widen(unembedding.weight[word]) - p @ widen(unembedding.weight)
    # Its product with a vector is how fast the log-probability rises along that vector.
    slopes = unembed.fold_norm(unembedding, rows) / scale
    numbers, increase, ranks, raising = along(slopes)
    largest, best = increase.topk(min(NEURONS, len(increase)))
    # The product with the word's row is the word's logit, up to the scale of the final norm.
    word_row = unembed.fold_norm(unembedding, unembedding.weight[word])
    _, of_candidates, candidate_ranks, _ = along(word_row.expand(model.n_layers, -1))
    return {
        "neuron_layer": numbers[best, 0], "neuron_number": numbers[best, 1],
        "neuron_increase": largest, "neuron_rank": ranks[best], "raising": raising,
        "candidate_increase": of_candidates, "candidate_rank": candidate_ranks,
    }  # fmt: skip


def from_heads(
    model: Model, capture: Capture, vectors: Tensor, layer: int, neuron: int
) -> Float[Tensor, "layer head"]:
    """Return what each head gives to the input of a neuron: `head_to_neuron` of `parts`."""
    if model.architecture.ffn_norm:
        norm = model.part(layer, "ffn_norm")
        vectors = model.frozen_norm(norm, capture.resid_mid[layer, 0], vectors)
    subkey = model.subkeys(layer)[0][0, neuron].to(vectors.device)
    out = widen(vectors) @ widen(subkey)
    out[layer if model.parallel else layer + 1 :] = 0  # an FFN reads its own layer's heads, too
    return out


def _case(pipeline: Pipeline) -> xr.Dataset:
    """The paper's own prompt: increases of blocks and heads, words of values, keys and query,
    attention against increase."""
    return case(*case_of(pipeline))


def _parts(pipeline: Pipeline) -> xr.Dataset:
    """The paper's own prompt taken apart: the sum of all parts, another order, positions, neurons
    and what feeds them."""
    return parts(*case_of(pipeline))


def _label_increases(pipeline: Pipeline) -> Recipe:
    """Attention on labels against increase in the first prompts of the paper's own set: in the
    first three heads, and in all heads at most one layer away from one of them."""
    if pipeline.settings.suite != "words":
        raise NotTestable("figure 7 is about a prompt of words")
    every = listed_first(pipeline.measured("paper"), CASE.dataset)
    layers = {layer for layer, _ in every[:SWEPT]}
    near = [head for head in every if min(abs(head.layer - layer) for layer in layers) <= 1]
    encoded = encoded_sets(pipeline.design, [CASE.dataset])[:PROMPTS]
    return Recipe(label_increases, encoded, (near,))
