"""Fast increases equal plain ones at any size of their inputs, in float32, where sums of exponentials may be lost."""

import copy
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from conftest import VOCABULARY, tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import log_prob
from twotowers.analysis import increase
from twotowers.model import unembed


@lru_cache
def planted(kind: str):
    """A float32 model and its float64 copy, in which the first number of every head moves all words alike."""
    model = tiny(kind, torch.float32)
    model.unembedding.weight[:, 0], model.unembedding.weight[:, 1] = 3.0, -3.0
    for layer in range(model.n_layers):
        model.output_weight(layer)[:, 0] = torch.tensor([1.0, -1.0] + [0.0] * (model.d_model - 2))
    return model, replace(model, hf=copy.deepcopy(model.hf).double())


def off(kind, norm, prompts, vectors, layers, seed, sizes, shift):
    """Largest error of any increase (nats), and the largest bs-value, of random states `sizes` times their usual size;
    `shift` is added to one vector of a head, along the direction that moves all words."""
    model, exact = planted(kind)
    generator = torch.Generator().manual_seed(seed)
    x, z, ffn = (
        10.0**size * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for size, shape in zip(sizes, ((prompts, model.d_model), (len(layers), prompts, model.n_heads, vectors,
                               model.d_head), (len(layers), prompts, model.d_model)), strict=True)
    )  # fmt: skip
    z[:, :, 1, -1, 0] += shift
    scale = torch.rand(prompts, generator=generator, dtype=torch.float64) + 0.5
    words = torch.randint(VOCABULARY, (prompts,), generator=generator)
    written = [torch.einsum("nhrk,hkd->nhrd", z[i], exact.output_weight(layer)) for i, layer in enumerate(layers)]
    bias = [torch.zeros(1) if (b := exact.output_bias(layer)) is None else b for layer in layers]
    states = [x]
    for i in range(len(layers)):
        states.append(states[-1] + written[i].sum((1, 2)) + bias[i] + ffn[i])
    found = increase.increases_along(
        model, torch.stack(states[:-1]).float(), z.float(), ffn.float(), scale.float(), words, norm, layers
    )
    error = largest = 0.0
    for p in (0, prompts - 1):

        def total(v, p=p):
            nonlocal largest
            largest = max(largest, float(unembed.bs_values(v, exact.unembedding, norm, scale[p]).abs().max()))
            return float(log_prob(exact, v, words[p], norm, scale[p]))

        for i in range(len(layers)):
            before = states[i][p]
            between = before + written[i][p].sum((0, 1)) + bias[i][0 if len(bias[i]) == 1 else slice(None)]
            expected = [total(between) - total(before), total(states[i + 1][p]) - total(between)]
            expected += [total(before + v) - total(before) for v in written[i][p].flatten(0, 1)]
            got = torch.cat([found[0][p, i, None], found[1][p, i, None], found[2][p, i].flatten()])
            error = max(error, float((got.double() - torch.tensor(expected)).abs().max()))
    return error, largest


sizes = st.floats(-2, 2.5)


@given(
    kind=st.sampled_from(["gpt2", "llama"]), norm=st.sampled_from(unembed.NORMS),
    prompts=st.sampled_from([2, 30]), vectors=st.sampled_from([1, 6]),  # in full width, or factored
    layers=st.sampled_from([[1], [0, 1], [0, 1, 2]]), seed=st.integers(0, 2**32),
    sizes=st.tuples(sizes, sizes, sizes), shift=st.floats(-60, 60),
)  # fmt: skip
@example("gpt2", "frozen", 2, 1, [1], 0, (0.0, -2.0, 0.0), -16.0)  # a sum of numbers with few digits
@example("gpt2", "raw", 30, 1, [1], 0, (0.0, -2.0, 0.0), -17.0)
@example("llama", "raw", 2, 6, [0, 1], 0, (0.0, -2.0, 0.0), -25.0)  # a sum of nothing at all
@settings(max_examples=60, deadline=None)
def test_fast_increases_are_plain_ones_at_any_size(kind, norm, prompts, vectors, layers, seed, sizes, shift):
    error, largest = off(kind, norm, prompts, vectors, layers, seed, sizes, shift)
    assert error < 1e-5 * (1 + largest)  # float32 holds bs-values themselves no better than to 1e-7 of their size


@pytest.mark.parametrize("shift", [-50, -70, -90, -98, -100, -101, -102, -103, -104, -120, 95])
def test_a_vector_that_moves_all_words_alike_increases_nothing(shift):
    model, _ = planted("gpt2")
    x = torch.randn(3, model.d_model, generator=torch.Generator().manual_seed(1))
    v = torch.tensor([[1.0, -1.0] + [0.0] * (model.d_model - 2)])
    moved = unembed.bs_values(v, model.unembedding, "frozen", torch.ones(1))
    assert moved.std() < 1e-5
    times, words = (shift / moved.mean()).expand(3, 1), torch.tensor([7, 9, 11])
    found = increase.increases_of_vectors(model, x, times, v, torch.ones(3), words)
    assert found.abs().max() < 1e-4
