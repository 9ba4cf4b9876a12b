"""One prompt taken apart, against the slow reference: the sum, another order, positions, neurons
and what feeds them."""

import numpy as np
import pytest
import torch
from conftest import random_prompts
from reference import Reference
from tolerances import near
from towerlab.model import unembed
from towerlab.model.capture import capture
from towerlab_experiments import single_prompt as module
from towerlab_experiments.single_prompt import decomposition
from twotowers.heads import Head


def test_every_number_is_that_of_the_slow_reference(model, monkeypatch):
    # all neurons, so that the search cannot miss one
    monkeypatch.setattr(module, "CANDIDATES", 10_000)
    encoded = random_prompts(1)[0]
    heads = [Head(1, 0), Head(0, 1)]
    data = decomposition(model, encoded, heads).isel(prompt=0)
    slow = Reference(model, encoded.ids)
    word = encoded.true_id
    assert float(data["sum_error"]) < 1e-12
    length, width = len(encoded.ids), len(slow.coefficients[0])
    biases = sum(model.output_bias(0, block) is not None for block in ("attention", "ffn"))
    assert int(data["n_parts"]) == 1 + model.n_layers * (model.n_heads * length + width + biases)
    for layer, head in heads:
        vectors = [slow.head(layer, h) for h in range(model.n_heads)]
        alone = slow.increase(slow.resid_pre[layer], vectors[head], word)
        others = slow.resid_pre[layer] + sum(v for h, v in enumerate(vectors) if h != head)
        near(data["increase"][layer, head], alone)
        last = slow.increase(others, vectors[head], word)
        near(data["increase_last"][layer, head], last)
    for position in range(length):
        by_hand = slow.increase(slow.resid_pre[1], slow.position(1, 0, position), word)
        near(data["position_increase"].sel(selected_head="1-0")[position], by_hand)
    states = [
        x if model.parallel else x + a for x, a in zip(slow.resid_pre, slow.attention, strict=True)
    ]
    neurons, raising = [], []
    for layer, k in np.ndindex(model.n_layers, width):
        vector = slow.neuron(layer, k)
        bs = unembed.bs_values(vector, model.unembedding, slow.scale)
        increase = slow.increase(states[layer], vector, word)
        neurons.append((increase, float(bs[word]), 1 + int((bs > bs[word]).sum()), layer, k))
        raising.append(slow.increase(states[layer], 1e-6 * vector, word) > 0)
    best = sorted(neurons, reverse=True)[: data.sizes["neuron"]]
    assert np.allclose(data["neuron_increase"], [increase for increase, *_ in best], atol=1e-9)
    first = [int(data[f"neuron_{name}"][0]) for name in ("rank", "layer", "number")]
    assert first == list(best[0][2:])
    candidates = sorted(neurons, key=lambda of: -of[1])[: data.sizes["candidate"]]
    candidates.sort(key=lambda of: of[3:])
    assert np.allclose(
        data["candidate_increase"], [increase for increase, *_ in candidates], atol=1e-9
    )
    assert data["candidate_rank"].values.tolist() == [of[2] for of in candidates]
    assert float(data["raising"]) == pytest.approx(np.mean(raising))


def test_heads_and_the_rest_add_up_to_what_the_neuron_reads(model):
    """The gate's input is linear in what was written before, with the norm's scale frozen: all
    heads' products plus those of the embedding, FFN blocks and biases are the whole one."""
    encoded = random_prompts(1)
    plain = capture(model, encoded, {"weights", "values", "neurons"})
    vectors = module.subvalues(model, plain).sum(2)
    for layer, neuron in ((0, 3), (model.n_layers - 1, 1)):
        x = plain.resid_pre[layer, 0] + (0 if model.parallel else plain.attention_output[layer, 0])
        whole = model.normed(layer, "ffn", x)
        subkey = model.subkeys(layer)[0][0, neuron]
        of_heads = module.from_heads(model, plain, vectors, layer, neuron)
        seen = layer if model.parallel else layer + 1
        rest = x - vectors[:seen].sum((0, 1))  # embedding, FFN blocks and biases, as one head more
        of_rest = module.from_heads(model, plain, rest.expand(1, 1, -1), layer, neuron)
        has_norm = bool(model.architecture.ffn_norm)
        bias = getattr(model.part(layer, "ffn_norm"), "bias", None) if has_norm else None
        constant = 0 if bias is None else bias @ subkey
        if layer or not model.parallel:
            near(of_heads.sum() + of_rest.sum() + constant, whole @ subkey)
        assert not of_heads[seen:].any() and torch.isfinite(of_heads).all()
