"""One whole prompt, the paper's own: through the heads, and taken apart (v1 section 3.1, table 1,
figures 2 and 7; appendix E).

Every variable has a dimension `prompt` of length one. "The word" is the true label's token.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import CASE
    >>> from towerlab.prompts.prompt import encode
    >>> model = load("mini-gpt2")
    >>> data = parts(model, encode(CASE, model.tokenizer), [Head(1, 0)])
    >>> float(data["sum_error"][0]) < 1e-5          # embedding, heads, neurons and biases add up
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers.heads import Head

from towerlab.measure.heads import at_labels, increases
from towerlab.measure.label_reads import top_tokens
from towerlab.measure.observations import observations, read_prompts
from towerlab.measure.paper import case_of
from towerlab.measure.pipeline import Pipeline
from towerlab.model import unembed
from towerlab.model.capture import Capture, label_values
from towerlab.model.model import Model, norm_eps, rms, widen
from towerlab.prompts.prompt import Encoded

WEIGHTS = np.linspace(0, 1, 21)
NEURONS, CANDIDATES = 20, 200


def case(model: Model, encoded: Encoded, heads: Sequence[Head]) -> xr.Dataset:
    """The prompt through the heads: words, attention against increase, and increases of blocks.

    Returns:
        `token` (prompt, named_head, what, place, rank), `query_token` (prompt, named_head, rank):
            top words of values and keys at label positions and of the last query, as in
            `top_tokens`, nothing taken out (v1 table 1).
        `attention`, `place_increase` (prompt, named_head, place): weight of the last position on
            each label, and the increase of the true label by this label's value with that weight:
            the paper's subhead (v1 appendix E), nats.
        `swept_increase` (prompt, named_head, place, weight): the same with any other weight from 0
            to 1 (v1 figure 7), nats.
        `block_increase` (prompt, layer, kind): as in `heads.increases`.
    """
    one, names = [encoded], [str(head) for head in heads]
    words = top_tokens(model, heads, one).sel(mean="kept", drop=True)
    words = words.drop_vars(["layer", "head", "relation", "query_relation"])

    def read(capture: Capture) -> dict[str, Tensor]:
        attention, each = at_labels(capture, capture.weights)[0], []
        for layer, head in heads:
            values = label_values(capture, model, layer)[0, head] @ model.output_weight(layer)[head]
            swept = torch.tensor(WEIGHTS).to(values).expand(len(values), -1)
            weights = torch.cat([attention[layer, head].to(values)[:, None], swept], 1)
            each.append(increases_with(model, capture, layer, weights[..., None] * values[:, None]))
        of_heads = torch.stack([attention[layer, head] for layer, head in heads])
        increase = torch.stack(each)
        arrays = {
            "attention": of_heads,
            "place_increase": increase[..., 0],
            "swept_increase": increase[..., 1:],
        }
        return {name: x[None] for name, x in arrays.items()}

    arrays = read_prompts("case", model, one, {"weights", "values"}, read)
    data = observations("case", one, arrays, weight=WEIGHTS)
    of_heads = words.rename(listed_head="named_head").assign_coords(
        named_head=("named_head", names)
    )
    return xr.merge([increases(model, one), of_heads, data], compat="override", join="override")


def increases_with(
    model: Model,
    capture: Capture,
    layer: int,
    vectors: Float[Tensor, "*vectors d_model"],
    before: Tensor | float = 0.0,
) -> Float[Tensor, "*vectors"]:
    """Increase of the true label (nats) by each vector, at the last position.

    Args:
        vectors: each is added to what enters the layer and `before`.
    """
    scale = unembed.norm_scale(capture.resid_final, model.unembedding)[0]
    start = capture.resid_pre[layer, 0] + before

    def log_probs(rows: Tensor) -> Tensor:
        return unembed.bs_values(
            rows, model.unembedding, scale.expand(rows.shape[:-1])
        ).log_softmax(-1)

    return (log_probs(start + vectors) - log_probs(start))[..., capture.true_ids[0]]


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

    def read(capture: Capture) -> dict[str, Tensor]:
        vectors, (error, n) = head_vectors(model, capture), sum_of_parts(model, capture)
        of_neurons = neurons(model, capture)
        alone = [increases_with(model, capture, *of) for of in enumerate(vectors)]
        last = [
            increases_with(model, capture, layer, of, of.sum(0) - of)
            for layer, of in enumerate(vectors)
        ]
        of_positions = [
            increases_with(model, capture, layer, subvalues(model, capture, layer)[head])
            for layer, head in heads
        ]
        at = zip(*(of_neurons[f"neuron_{of}"].tolist() for of in ("layer", "number")), strict=True)
        to_neurons = [from_heads(model, capture, vectors, *neuron) for neuron in at]
        every = {
            "sum_error": error, "n_parts": torch.tensor(n),
            "increase": torch.stack(alone), "increase_last": torch.stack(last),
            "position_increase": torch.stack(of_positions),
            "head_to_neuron": torch.stack(to_neurons),
            **of_neurons,
        }  # fmt: skip
        return {name: x[None] for name, x in every.items()}

    arrays = read_prompts("parts", model, [encoded], {"weights", "values", "neurons"}, read)
    return observations(
        "parts", [encoded], arrays, named_head=("named_head", [str(head) for head in heads])
    )


def subvalues(model: Model, capture: Capture, layer: int) -> Float[Tensor, "head position d_model"]:
    """What every head of a layer adds to the residual stream from each position."""
    values = capture.values[layer, 0].repeat_interleave(
        model.n_heads // model.n_key_value_heads, dim=0
    )
    weighted = capture.weights[layer, 0].to(values)[..., None] * values
    return torch.einsum("hpk,hkd->hpd", weighted, model.output_weight(layer).to(values))


def head_vectors(model: Model, capture: Capture) -> Float[Tensor, "layer head d_model"]:
    """What every head adds to the residual stream."""
    return torch.stack([subvalues(model, capture, layer).sum(1) for layer in range(model.n_layers)])


def sum_of_parts(model: Model, capture: Capture) -> tuple[Tensor, int]:
    """`sum_error` and `n_parts` of `parts`."""
    total, n = widen(capture.resid_pre[0, 0]).clone(), 1
    for layer in range(model.n_layers):
        of_heads, neurons = subvalues(model, capture, layer), capture.neurons[layer, 0]
        biases = [b for b in (model.output_bias(layer), model.ffn_bias(layer)) if b is not None]
        for part in (of_heads.sum((0, 1)), neurons @ model.ffn_weight(layer).to(neurons), *biases):
            total += widen(part.to(total.device))
        n += of_heads.shape[0] * of_heads.shape[1] + len(neurons) + len(biases)
    final = widen(capture.resid_final[0])
    return (total - final).abs().max() / final.abs().max(), n


def neurons(model: Model, capture: Capture) -> dict[str, Tensor]:
    """The variables of `parts` about neurons, each over (neuron,) or (candidate,)."""
    unembedding, word = model.unembedding, capture.true_ids[0]
    before = capture.attention_output[:, 0]
    if model.parallel:  # attention and FFN read the same input
        before = torch.zeros_like(before)

    def along(rows: Sequence[Float[Tensor, "d_model"]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The CANDIDATES neurons whose output has the largest product with the row of its layer:
        layer and number, increase, rank of the word; and the share of products above zero."""
        products = []
        for layer, row in enumerate(rows):
            of_layer = capture.neurons[layer, 0]
            products.append(of_layer * (model.ffn_weight(layer).to(of_layer) @ row.to(of_layer)))
        every = torch.stack(products)
        found = every.flatten().topk(min(CANDIDATES, every.numel())).indices.tolist()
        numbers = sorted(divmod(i, every.shape[1]) for i in found)
        vectors, increase = [], []
        for layer, group in groupby(numbers, lambda number: number[0]):
            at = [neuron for _, neuron in group]
            strengths = capture.neurons[layer, 0, at][:, None]
            vectors.append(strengths * model.ffn_weight(layer)[at].to(strengths))
            increase.append(increases_with(model, capture, layer, vectors[-1], before[layer]))
        words = capture.true_ids.expand(len(numbers))[:, None]
        ranks = unembed.rank(torch.cat(vectors), words, unembedding)[:, 0]
        share = (every > 0).double().mean()
        return torch.tensor(numbers), torch.cat(increase).double(), ranks, share

    scale, slopes = unembed.norm_scale(capture.resid_final, unembedding)[0], []
    for x in capture.resid_pre[:, 0] + before:
        p = unembed.bs_values(x, unembedding, scale).softmax(-1)
        row = widen(unembedding.weight[word]) - p @ widen(unembedding.weight)
        # Its product with a vector is how fast the log-probability rises along that vector.
        slopes.append(unembed.fold_norm(unembedding, row[None])[0] / scale)
    numbers, increase, ranks, raising = along(slopes)
    largest, best = increase.topk(min(NEURONS, len(increase)))
    numbers = numbers[best.cpu()]
    # The product with the word's row is the word's logit, up to the scale of the final norm.
    word_row = unembed.fold_norm(unembedding, unembedding.weight[capture.true_ids])[0]
    _, of_candidates, candidate_ranks, _ = along([word_row] * model.n_layers)
    return {
        "neuron_layer": numbers[:, 0], "neuron_number": numbers[:, 1], "neuron_increase": largest,
        "neuron_rank": ranks[best], "raising": raising, "candidate_increase": of_candidates,
        "candidate_rank": candidate_ranks,
    }  # fmt: skip


def from_heads(
    model: Model, capture: Capture, vectors: Tensor, layer: int, neuron: int
) -> Float[Tensor, "layer head"]:
    """What each head gives to the input of a neuron: `head_to_neuron` of `parts`."""
    x, own = capture.resid_pre[layer, 0], layer
    if not model.parallel:
        # The layer's FFN reads its own heads, too.
        x, own = x + capture.attention_output[layer, 0], layer + 1
    subkey = widen(model.subkeys(layer)[0][0, neuron]).to(x.device)
    if model.architecture.ffn_norm:
        norm = model.part(layer, "ffn_norm")
        centred = x - x.mean() if model.architecture.centred else x
        subkey = subkey * widen(model.norm_gain(norm)).to(x.device) / rms(centred, norm_eps(norm))
        subkey = subkey - subkey.mean() if model.architecture.centred else subkey
    out = widen(vectors) @ subkey.to(widen(vectors))
    out[own:] = 0
    return out


def _case(pipeline: Pipeline) -> xr.Dataset:
    """The paper's own prompt: increases of blocks and heads, words of values, keys and query,
    attention against increase."""
    return case(*case_of(pipeline))


def _parts(pipeline: Pipeline) -> xr.Dataset:
    """The paper's own prompt taken apart: the sum of all parts, another order, positions, neurons
    and what feeds them."""
    return parts(*case_of(pipeline))
