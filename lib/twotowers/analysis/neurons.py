"""FFN neurons: what they add to the true label's lead, and what earlier parts of the model make of their coefficients.

A neuron writes `coefficient * fc2` (v1 appendix E). Its coefficient starts from an inner product: that of its subkey, a
row of fc1, with the FFN norm's output. The norm's scale frozen, the product is a sum over all that was written before:

    subkey . norm(x) = (subkey * gamma, centred) . (embedding + heads + FFN blocks + biases) / s + (what biases give)

The coefficient is the activation of this sum. In a gated FFN (Llama) it is no inner product, but the activation of
one, the gate's, times another. So no coefficient is a sum over parts; but the *change* of a coefficient between two
prompts is, exactly, without any choice of a baseline: an activation changes by the slope of its chord times the change
of the sum, and a product by each factor's change times the mean of the other.

The two prompts are one text with its labels exchanged. What a neuron adds to the true label's lead, on average over the
two, is then its change times the mean of what one unit of it adds, but for what norms' scales make (`SCALES`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from twotowers.analysis.logit_changes import logits, margin_rows
from twotowers.errors import TwoTowersError
from twotowers.heads import Heads
from twotowers.model.capture import Capture, captures, read_all
from twotowers.model.model import Model, norm_eps
from twotowers.model.unembed import norm_scale
from twotowers.prompts.datasets import both_assignments
from twotowers.prompts.prompt import Encoded

EMBEDDING, HEADS, BLOCKS, BIASES, SCALES = "embedding", "all heads", "FFN blocks", "biases", "scales"
STEP = 1e-5  # a chord shorter than this gives no slope: the slope at its middle stands in


def neuron_leads(capture: Capture, model: Model) -> Float[Tensor, "batch layer neuron"]:
    """What every neuron adds to the true label's logit less the other's (nats; the difference of its two increases)."""
    capture.require("neurons")
    rows, scale = margin_rows(capture, model), norm_scale(capture.resid_final, model.unembedding)
    unit = torch.stack([rows @ model.ffn_weight(layer).to(rows).T for layer in range(model.n_layers)], 1)
    return capture.neurons.transpose(0, 1).to(rows) * unit / scale[:, None, None]


def top_neurons(model: Model, encoded: Sequence[Encoded], k: int, progress: str | None = None) -> Heads:
    """The k neurons, (layer, neuron), that add most to the true label's lead, on average over prompts."""
    read = lambda seen: neuron_leads(seen, model).sum(0).double()  # noqa: E731
    total = sum(captures(model, encoded, {"neurons"}, progress=progress, read=read))
    best = total.flatten().topk(min(k, total.numel())).indices.tolist()
    return [divmod(i, total.shape[1]) for i in best]


def inner_products(
    capture: Capture, model: Model, neurons: Heads, groups: Sequence[Heads] = ()
) -> Float[Tensor, "batch map neuron part"]:
    """Inner products of subkeys with what was written before, in float64.

    Parts: EMBEDDING, HEADS, BLOCKS (their biases too), BIASES (of attention outputs, of the norm and of fc1), which sum
    to what fc1 gives; then each of the `groups` of heads, which HEADS holds too. Maps: see `Model.subkeys`.
    """
    wide, groups = torch.float64, [set(map(tuple, some)) for some in groups]
    keys, constants = zip(*(_subkey(capture, model, layer, neuron) for layer, neuron in neurons), strict=True)
    keys, layers = torch.stack(keys, 2), [layer for layer, _ in neurons]
    blocks = torch.cat([torch.zeros_like(capture.ffn_output[:1]), capture.ffn_output]).to(wide).cumsum(0)[layers]
    out = keys.new_zeros(*keys.shape[:3], 4 + len(groups))
    out[..., 0] = torch.einsum("bmnd,bd->bmn", keys, capture.resid_pre[0].to(wide))
    out[..., 2] = torch.einsum("bmnd,nbd->bmn", keys, blocks)
    out[..., 3] = torch.stack(constants, 2)
    for below in range(max(layers) + (not model.parallel)):
        reads = [i for i, layer in enumerate(layers) if below < layer + (not model.parallel)]
        weight = model.output_weight(below).to(device=keys.device)
        z = capture.z[below].to(torch.promote_types(weight.dtype, torch.float32))
        met = torch.einsum("bmnd,bhd->bmnh", keys[:, :, reads], torch.einsum("bhk,hkd->bhd", z, weight.to(z)).to(wide))
        out[:, :, reads, 1] += met.sum(-1)
        for i, some in enumerate(groups):
            out[:, :, reads, 4 + i] += met[..., [head for at, head in some if at == below]].sum(-1)
        if (bias := model.output_bias(below)) is not None:
            out[:, :, reads, 3] += keys[:, :, reads] @ bias.to(keys)
    return out


def _subkey(
    capture: Capture, model: Model, layer: int, neuron: int
) -> tuple[Float[Tensor, "batch map d_model"], Float[Tensor, "batch map"]]:
    """A subkey to be met by parts of the stream, the FFN's norm in it, and what biases add to the inner product."""
    key, constant = model.subkeys(layer, [neuron])
    key = key[:, 0].to(capture.resid_pre.device, torch.float64)
    constant = torch.zeros_like(key[:, 0]) if constant is None else constant[:, 0].to(key)
    scale = torch.ones(len(capture.prompts), dtype=key.dtype, device=key.device)
    if model.architecture.ffn_norm:
        norm = model.part(layer, "ffn_norm")
        x = (capture.resid_pre[layer] + (0 if model.parallel else capture.attention_output[layer])).to(key)
        if getattr(norm, "bias", None) is not None:
            constant = constant + key @ norm.bias.detach().to(key)
        key = key * model.norm_gain(norm).to(key)
        if model.architecture.centred:
            key, x = key - key.mean(-1, keepdim=True), x - x.mean(-1, keepdim=True)
        scale = (x.square().mean(-1) + norm_eps(norm)).sqrt()
    return key / scale[:, None, None], constant.expand(len(scale), -1)


def coefficients(products: Float[Tensor, "*rows map neuron part"], activation: Callable) -> Tensor:
    """Coefficients (*rows, neuron) from `inner_products`, before a norm that follows fc2."""
    first, *second = products[..., :4].sum(-1).unbind(-2)
    return activation(first) * second[0] if second else activation(first)


def changes(
    a: Float[Tensor, "*rows map neuron part"], b: Float[Tensor, "*rows map neuron part"], activation: Callable
) -> Float[Tensor, "*rows neuron part"]:
    """Coefficient in `a` less that in `b`, shared out to the parts of their inner products; see the module. Exact."""
    (first, *second), parts = [(s, t) for s, t in zip(_sums(a), _sums(b), strict=True)], (a - b).unbind(-3)
    middle, gap = (first[0] + first[1]) / 2, first[0] - first[1]
    chord = (activation(first[0]) - activation(first[1])) / torch.where(gap.abs() < STEP, 1.0, gap)
    slope = torch.where(gap.abs() < STEP, (activation(middle + STEP) - activation(middle - STEP)) / (2 * STEP), chord)
    if not second:
        return slope[..., None] * parts[0]
    other, gate = sum(second[0]) / 2, (activation(first[0]) + activation(first[1])) / 2
    return (slope * other)[..., None] * parts[0] + gate[..., None] * parts[1]


def _sums(products: Tensor) -> Sequence[Tensor]:
    return products[..., :4].sum(-1).unbind(-2)


@torch.inference_mode()
def read_pairs(
    model: Model, encoded: Sequence[Encoded], neurons: Heads, groups: Sequence[Heads] = (), progress: str | None = None
) -> tuple[Float[np.ndarray, "pair part"], Float[np.ndarray, "pair"]]:
    """What some neurons together add to the true label's lead, shared out; and what all FFN blocks add (nats, mean of a
    pair).

    `encoded` holds prompts in pairs, one text with either assignment of the labels (`both_assignments`). Parts: as
    `inner_products`, the groups last, and then SCALES; without the groups they sum to the lead. Raises TwoTowersError
    for prompts that are no such pairs.
    """
    prompts = [e.prompt for e in encoded]
    if prompts != both_assignments(prompts[::2]):
        raise TwoTowersError("neurons are compared over pairs of prompts: give both assignments of the labels")
    maps, n = len(model.subkeys(0, [0])[0]), len(encoded)
    products = torch.empty(n, maps, len(neurons), 4 + len(groups), dtype=torch.float64)
    units, every = torch.empty(n, len(neurons), dtype=torch.float64), torch.empty(n, dtype=torch.float64)

    def read(seen: Capture) -> None:
        rows, scale = margin_rows(seen, model), norm_scale(seen.resid_final, model.unembedding)
        products[seen.index] = inner_products(seen, model, neurons, groups).cpu()
        for i, (layer, neuron) in enumerate(neurons):
            unit = rows @ model.ffn_weight(layer)[neuron].to(rows) / scale
            units[seen.index, i] = (unit if seen.ffn_scale is None else unit / seen.ffn_scale[layer]).double().cpu()
        every[seen.index] = logits(seen.ffn_output.sum(0), rows, model.unembedding, scale=scale).double().cpu()

    read_all(model, encoded, {"neurons"}, read, progress=progress)
    by_layer = {layer: [i for i, (at, _) in enumerate(neurons) if at == layer] for layer, _ in neurons}
    lead = torch.zeros(n // 2, 5 + len(groups), dtype=torch.float64)
    for layer, mine in by_layer.items():
        activation = model.part(layer, "ffn_activation")
        a, b = (products[start::2, :, mine] for start in (0, 1))
        m, (u, v) = coefficients(products[:, :, mine], activation), (units[start::2, mine] for start in (0, 1))
        lead[:, :-1] += (changes(a, b, activation) * (u - v)[..., None]).sum(1) / 4
        lead[:, -1] += ((m[::2] + m[1::2]) * (u + v)).sum(1) / 4
    return lead.numpy(), every.reshape(-1, 2).mean(1).numpy()
