"""One whole prompt, the paper's own: through the heads (v1 section 3.1, table 1, figures 2 and 7), and taken apart (appendix E).

    data = case(model, encode(CASE, model.tokenizer), heads)
    data = parts(model, encode(CASE, model.tokenizer), heads)

Every variable has a dimension `prompt` of length one. "The word" is the true label's token; increases are in nats. Recipe `case`: of
all blocks `block_increase`; of the named heads

- `token` (prompt, named_head, what, place, rank), `query_token` (prompt, named_head, rank): top words of values and keys at label
  positions and of the last query, as in `measure.top_tokens`, nothing taken out (v1 table 1);
- `attention`, `place_increase` (prompt, named_head, place): weight of the last position on each label, and the increase of the true
  label by this label's value with that weight: the paper's subhead (v1 appendix E), nats;
- `swept_increase` (prompt, named_head, place, weight): the same with any other weight from 0 to 1 (v1 figure 7), nats.

Recipe `parts`: the final vector as a sum, parts in another order, positions of a head, neurons.

- `sum_error` (prompt,): largest difference between the final vector and the sum of the embedding, every head at every position,
  every neuron and the biases, as a share of its largest component; `n_parts`: how many parts these are;
- `increase`, `increase_last` (prompt, layer, head): increase by a head's vector alone, and after all other heads of its layer;
- `position_increase` (prompt, named_head, position): increase by each position's share of a head's vector;
- `neuron_layer`, `neuron_number`, `neuron_increase`, `neuron_rank` (prompt, neuron): the neurons with the largest increase, and the
  word's rank in what each writes. They are searched for among the CANDIDATES with the largest first-order increase;
- `head_to_neuron` (prompt, neuron, layer, head): inner product of the neuron's subkey (of a gated FFN: its gate's) with what a head
  wrote before, as the FFN's norm with its scale frozen hands it on; 0 for heads that come later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers.heads import Head

from towerlab.measure.chain import Run
from towerlab.measure.heads import at_labels
from towerlab.measure.increases import increases
from towerlab.measure.observations import observations, read_prompts, variables_of
from towerlab.measure.paper import encoded_case, heads_of_case
from towerlab.measure.top_tokens import top_tokens
from towerlab.model import unembed
from towerlab.model.capture import Capture, label_values
from towerlab.model.model import Model, norm_eps, rms, widen
from towerlab.model.token_text import Lexicon
from towerlab.prompts.prompt import Encoded

WEIGHTS = np.linspace(0, 1, 21)
TOP, NEURONS, CANDIDATES = 10, 20, 200


def case(model: Model, encoded: Encoded, heads: Sequence[Head], lexicon: Lexicon | None = None) -> xr.Dataset:
    """See the module."""
    one, names = [encoded], [str(head) for head in heads]
    words = top_tokens(model, one, heads, TOP, lexicon).sel(mean="kept", drop=True)
    words = words.drop_vars(["layer", "head", "relation", "query_relation"])

    def read(capture: Capture) -> dict[str, Tensor]:
        attention, by_place, swept = [], [], []
        for layer, head in heads:
            attention.append(at_labels(capture, capture.weights)[0, layer, head])
            values = label_values(capture, model, layer)[0, head] @ model.output_weight(layer)[head]
            own = [increases_with(model, capture, layer, w * value[None]) for w, value in zip(attention[-1], values, strict=True)]
            every = [increases_with(model, capture, layer, torch.tensor(WEIGHTS).to(value)[:, None] * value) for value in values]
            by_place.append(torch.cat(own))
            swept.append(torch.stack(every))
        arrays = {"attention": attention, "place_increase": by_place, "swept_increase": swept}
        return {name: torch.stack(of_heads)[None] for name, of_heads in arrays.items()}

    arrays = read_prompts("case", model, one, {"weights", "values"}, read)
    data = observations(one, variables_of("case", **arrays), weight=WEIGHTS)
    of_heads = words.rename(listed_head="named_head").assign_coords(named_head=("named_head", names))
    return xr.merge([increases(model, one), of_heads, data], compat="override", join="override")


def increases_with(model: Model, capture: Capture, layer: int, vectors: torch.Tensor) -> torch.Tensor:
    """Increase of the true label (nats) by each vector (vector, d_model), added to what enters the layer at the last position."""
    scale, word = unembed.norm_scale(capture.resid_final, model.unembedding), capture.true_ids[0]
    rows = capture.resid_pre[layer, 0] + torch.cat([torch.zeros_like(vectors[:1]), vectors])
    log_probs = unembed.bs_values(rows, model.unembedding, scale).log_softmax(-1)[:, word]
    return log_probs[1:] - log_probs[0]


def parts(model: Model, encoded: Encoded, heads: Sequence[Head]) -> xr.Dataset:
    """See the module. One forward pass."""

    def read(capture: Capture) -> dict[str, Tensor]:
        vectors, (error, n) = head_vectors(model, capture), sum_of_parts(model, capture)
        numbers, increases, ranks = top_neurons(model, capture)
        every = {
            "sum_error": torch.tensor(error, dtype=torch.float64), "n_parts": torch.tensor(n),
            "increase": layer_by_layer(model, capture, vectors),
            "increase_last": layer_by_layer(model, capture, vectors, last=True),
            "position_increase": torch.stack([by_position(model, capture, *head) for head in heads]),
            "neuron_layer": numbers[:, 0], "neuron_number": numbers[:, 1], "neuron_increase": increases, "neuron_rank": ranks,
            "head_to_neuron": torch.stack([from_heads(model, capture, vectors, *at) for at in numbers.tolist()]),
        }  # fmt: skip
        return {name: x[None] for name, x in every.items()}

    arrays = read_prompts("parts", model, [encoded], {"weights", "values", "neurons"}, read)
    return observations([encoded], variables_of("parts", **arrays), named_head=("named_head", [str(head) for head in heads]))


def head_vectors(model: Model, capture: Capture) -> Float[Tensor, "layer head d_model"]:
    """What every head adds to the residual stream."""
    each = [torch.einsum("hk,hkd->hd", z[0], model.output_weight(layer).to(z)) for layer, z in enumerate(capture.z)]
    return torch.stack(each)


def sum_of_parts(model: Model, capture: Capture) -> tuple[float, int]:
    """(error, number) of the sum of all parts: see the module."""
    total, n = widen(capture.resid_pre[0, 0]).clone(), 1
    for layer in range(model.n_layers):
        values = capture.values[layer, 0].repeat_interleave(model.n_heads // model.n_key_value_heads, dim=0)
        of_positions = torch.einsum("hp,hpk->hpk", capture.weights[layer, 0].to(values), values)
        subvalues = torch.einsum("hpk,hkd->hpd", of_positions, model.output_weight(layer).to(values))
        neurons = capture.neurons[layer, 0]
        of_neurons = neurons @ model.ffn_weight(layer).to(neurons)
        biases = [b for b in (model.output_bias(layer), model.ffn_bias(layer)) if b is not None]
        total += widen(subvalues).sum((0, 1)) + widen(of_neurons) + sum(widen(b.to(total)) for b in biases)
        n += of_positions.shape[0] * of_positions.shape[1] + len(neurons) + len(biases)
    final = widen(capture.resid_final[0])
    return float((total - final).abs().max() / final.abs().max()), n


def layer_by_layer(model: Model, capture: Capture, vectors: Tensor, last: bool = False) -> Float[Tensor, "layer head"]:
    """Increase by every head's vector, added to what enters its layer, or `last`: to that and all other heads of the layer."""
    out = []
    for layer, of_heads in enumerate(vectors):
        rest = of_heads.sum(0) - of_heads
        both = increases_with(model, capture, layer, torch.cat([rest + of_heads, rest]) if last else of_heads)
        out.append(both[: len(of_heads)] - both[len(of_heads) :] if last else both)
    return torch.stack(out)


def by_position(model: Model, capture: Capture, layer: int, head: int) -> Float[Tensor, "position"]:
    """Increase by what a head takes from each position."""
    values = capture.values[layer, 0, model.value_head(head)]
    weighted = capture.weights[layer, 0, head].to(values)[:, None] * values
    return increases_with(model, capture, layer, weighted @ model.output_weight(layer)[head].to(values))


def top_neurons(model: Model, capture: Capture) -> tuple[Tensor, Tensor, Tensor]:
    """(layer and number, increase, rank of the word) of the neurons with the largest increase, largest first."""
    unembedding, word = model.unembedding, capture.true_ids
    scale, found = unembed.norm_scale(capture.resid_final, unembedding), []
    states = capture.resid_pre if model.parallel else capture.resid_pre + capture.attention_output
    for layer, x in enumerate(states[:, 0]):
        p = unembed.bs_values(x, unembedding, scale[0]).softmax(-1)
        row = widen(unembedding.weight[word[0]]) - p @ widen(unembedding.weight)
        slope = unembed.fold_norm(unembedding, row[None])[0] / scale[0]  # of the log-probability, along any vector
        neurons = capture.neurons[layer, 0]
        first_order = neurons * (model.ffn_weight(layer).to(neurons) @ slope.to(neurons))
        at = first_order.topk(min(CANDIDATES, len(first_order))).indices
        found += [(float(first_order[i]), layer, int(i)) for i in at]
    rows = []
    for _, layer, i in sorted(found, reverse=True)[:CANDIDATES]:
        vector = (capture.neurons[layer, 0, i] * model.ffn_weight(layer)[i].to(capture.neurons))[None]
        before = states[layer, 0] - capture.resid_pre[layer, 0]  # from what enters the layer to what its FFN adds to
        both = increases_with(model, capture, layer, torch.cat([before[None] + vector, before[None]]))
        rows.append((float(both[0] - both[1]), layer, i, vector))
    rows = sorted(rows, key=lambda row: -row[0])[:NEURONS]
    vectors = torch.cat([vector for *_, vector in rows])
    ranks = unembed.rank(vectors, word.expand(len(rows))[:, None], unembedding)[:, 0]
    return torch.tensor([row[1:3] for row in rows]), torch.tensor([row[0] for row in rows], dtype=torch.float64), ranks


def from_heads(model: Model, capture: Capture, vectors: Tensor, layer: int, neuron: int) -> Float[Tensor, "layer head"]:
    """What each head gives to the input of a neuron: see `head_to_neuron`."""
    x, own = capture.resid_pre[layer, 0], layer
    if not model.parallel:
        x, own = x + capture.attention_output[layer, 0], layer + 1  # its FFN reads this layer's heads, too
    subkey = widen(model.subkeys(layer)[0][0, neuron]).to(x.device)
    if model.architecture.ffn_norm:
        norm = model.part(layer, "ffn_norm")
        centred = x - x.mean() if model.architecture.centred else x
        subkey = subkey * widen(model.norm_gain(norm)).to(x.device) / rms(centred, norm_eps(norm))
        subkey = subkey - subkey.mean() if model.architecture.centred else subkey
    out = widen(vectors) @ subkey.to(widen(vectors))
    out[own:] = 0
    return out


def _case(run: Run) -> xr.Dataset:
    """The paper's own prompt: increases of blocks and heads, words of values, keys and query, attention against increase."""
    encoded = encoded_case(run)
    return case(run.model, encoded, heads_of_case(run, encoded))


def _parts(run: Run) -> xr.Dataset:
    """The paper's own prompt taken apart: the sum of all parts, another order, positions, neurons and what feeds them."""
    encoded = encoded_case(run)
    return parts(run.model, encoded, heads_of_case(run, encoded))
