"""Parts of the margin add up to the model's own margin, on every architecture in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import random_prompts, tiny
from twotowers.analysis.decide import split, split_heads
from twotowers.analysis.factorial import factorial
from twotowers.analysis.margin_parts import margin_parts
from twotowers.errors import TwoTowersError
from twotowers.model import loading, unembed
from twotowers.model.capture import capture, predict
from twotowers.prompts.datasets import draw
from twotowers.prompts.prompt import encode_all

WORDS = (7, 9)  # ids of foo and bar in random_prompts


def logit_minus(vectors, model, scale):
    """bs of foo less bs of bar, from the definition."""
    a, b = model.unembedding.weight[list(WORDS)]
    return (unembed.prepared(vectors, model.unembedding, "frozen", scale) @ (a - b)).numpy()


def without_cap(margin, model, encoded):
    cap = model.unembedding.softcap
    if cap is None:
        return margin
    logits = torch.stack([capture(model, [e]).logits[0, list(WORDS)] for e in encoded])
    plain = cap * (logits / cap).atanh()
    return (plain[:, 0] - plain[:, 1]).numpy()


def test_parts_add_up_to_the_model_s_own_margin(any_model):
    encoded = random_prompts(4)
    parts = margin_parts(any_model, encoded, scores=False)
    total = parts.embedding + parts.attention.sum(1) + parts.ffn.sum(1) + parts.constant
    np.testing.assert_allclose(total, without_cap(parts.margin, any_model, encoded), atol=1e-10)
    log_prob = predict(any_model, encoded)[1]
    np.testing.assert_allclose(parts.margin, (log_prob[:, 0] - log_prob[:, 1]).numpy(), atol=1e-10)
    assert (parts.constant != 0).any() == any(
        bias is not None for bias in (any_model.unembedding.norm_bias, any_model.unembedding.bias)
    )


def test_a_block_s_part_is_its_heads_and_its_bias_each_read_in_the_vocabulary(any_model):
    encoded = random_prompts(2, lengths=(11,))
    parts, seen = margin_parts(any_model, encoded, scores=False), capture(any_model, encoded)
    scale = unembed.norm_scale(seen.resid_final, any_model.unembedding)
    for layer in range(any_model.n_layers):
        bias = any_model.output_bias(layer)
        of_bias = 0 if bias is None else logit_minus(bias.expand(2, -1), any_model, scale)
        np.testing.assert_allclose(parts.heads[:, layer].sum(1) + of_bias, parts.attention[:, layer], atol=1e-10)
        for head in range(any_model.n_heads):
            vector = seen.z[layer][:, head] @ any_model.output_weight(layer)[head]
            expected = logit_minus(vector, any_model, scale)
            np.testing.assert_allclose(parts.heads[:, layer, head], expected, atol=1e-10)


def test_scores_are_the_mean_over_one_label_less_that_over_the_other(any_model):
    encoded = random_prompts(2, lengths=(11,))
    seen = capture(any_model, encoded, {"scores"})
    at = [2, 5, 8]  # labels: bar, foo, bar
    if (seen.scores[..., at] < -1e4).any():
        with pytest.raises(TwoTowersError, match="sliding window"):
            margin_parts(any_model, encoded)
        return
    expected = seen.scores[..., 5] - (seen.scores[..., 2] + seen.scores[..., 8]) / 2
    found = margin_parts(any_model, encoded).scores
    np.testing.assert_allclose(found, expected.permute(1, 0, 2).numpy(), atol=1e-12)


def test_batches_and_lengths_change_nothing():
    model, encoded = tiny("llama"), random_prompts(7, lengths=(14, 11, 8))
    whole, single = margin_parts(model, encoded), margin_parts(model, encoded, max_tokens=1)
    for name in ("margin", "embedding", "attention", "ffn", "heads", "constant", "scores"):
        np.testing.assert_allclose(getattr(whole, name), getattr(single, name), atol=1e-6)
    assert margin_parts(model, encoded, scores=False).scores is None


def test_effects_of_the_parts_add_up_to_the_effect_of_the_margin():
    """In a trained model, float32: what split_heads gives the heads, and split the other parts, is split's whole."""
    model = loading.load("mini-gpt2")
    prompts, design = factorial(draw("animal/country", 3))
    parts = margin_parts(model, encode_all(prompts, model.tokenizer))
    whole = split(parts.margin, design, draws=2)["nats"][:-2].to_numpy()
    heads = split_heads(parts.heads, design).dropna(subset="nats").groupby("term", sort=False)["nats"].sum()
    others = parts.margin - parts.heads.sum((1, 2))
    np.testing.assert_allclose(heads + split(others, design, draws=2)["nats"][:-2].to_numpy(), whole, atol=1e-6)
    rest = parts.embedding + parts.attention.sum(1) - parts.heads.sum((1, 2)) + parts.ffn.sum(1) + parts.constant
    np.testing.assert_allclose(rest, others, atol=1e-4)


def test_what_has_no_margin_between_two_labels_is_refused():
    model, (one,) = tiny("gpt2"), random_prompts(1)
    same = replace(one, prompt=replace(one.prompt, demonstrations=one.prompt.demonstrations[:1]), label_positions=(2,))
    for encoded, message in [
        ([], "no prompts"),
        ([replace(one, label_ids={"foo": 7, "bar": 9, "baz": 11})], "3 labels"),
        ([same], "one label only"),
    ]:
        with pytest.raises(TwoTowersError, match=message):
            margin_parts(model, encoded)
