"""Attribution patching: the slope of real runs, exact where the model is linear, close where it is not."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import random_prompts, tiny
from twotowers.analysis import ablate, attribution, edit_heads
from twotowers.analysis.attribution import attribution_patching
from twotowers.analysis.edit_heads import Edit, edited
from twotowers.errors import TwoTowersError
from twotowers.model import loading
from twotowers.model.capture import capture, captures, predict
from twotowers.prompts import datasets
from twotowers.prompts.prompt import encode_all
from twotowers.stats.intervals import spearman


def margins(log_prob, encoded):
    """log p(true) - log p(other) from (..., prompt, label)."""
    true = torch.tensor([list(e.label_ids).index(e.prompt.true_label) for e in encoded])
    sign = torch.where(torch.arange(2) == true[:, None], 1.0, -1.0).double()
    return (log_prob * sign).sum(-1)


@pytest.mark.parametrize("positions", ["all", "last"])
def test_it_is_the_slope_of_real_runs(any_model, positions):
    encoded, step = random_prompts(3), 1e-5
    found = attribution_patching(any_model, encoded, positions=positions, max_tokens=30)
    for layer, head in ((0, 1), (1, any_model.n_heads - 1)):
        ends = []
        for scale in (1 + step, 1 - step):
            with edited(any_model, [Edit(((layer, head),), scale, positions)]):
                ends.append(margins(predict(any_model, encoded)[1], encoded))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found[:, layer, head], slope.numpy(), atol=1e-6, rtol=1e-5)


def linear_at_the_end(kind):
    """A tiny model whose last layer is linear: no FFN, and a final norm whose scale hardly depends on its input."""
    model = tiny(kind)
    hf = copy.deepcopy(model.hf)
    model = replace(model, hf=hf)
    for parameter in model.part(model.n_layers - 1, "ffn_out").parameters():
        parameter.zero_()
    name = "eps" if hasattr(model.final_norm, "eps") else "variance_epsilon"
    setattr(model.final_norm, name, 1e9)
    model.final_norm.weight.mul_(1e5)
    return model


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
def test_it_is_exact_where_the_model_is_linear(kind, float64):
    model, encoded = linear_at_the_end(kind), random_prompts(4)
    heads = [(model.n_layers - 1, head) for head in range(model.n_heads)]
    mean = edit_heads.mean_fed(model, encoded)
    for replacement in (None, mean):
        real = ablate.ablate_heads(model, encoded, heads, "last", replacement)
        lost = margins(real.plain_log_prob, encoded) - margins(real.log_prob, encoded)
        found = attribution_patching(model, encoded, replacement=replacement, positions="last")[:, -1]
        assert abs(lost).max() > 0.1
        np.testing.assert_allclose(found.T, lost.numpy(), rtol=1e-5, atol=1e-8)


def test_another_prompts_heads_are_those_of_its_own_run():
    model, encoded = tiny("gpt2"), random_prompts(4)
    other = random_prompts(4, seed=5)
    found = attribution_patching(model, encoded, other, positions="last", max_tokens=30)
    for i in (1, 2):  # the slope does not depend on what is put there, so the attribution of two differences adds up
        (seen,) = captures(model, [other[i]])
        by_mean = attribution_patching(model, encoded[i : i + 1], replacement=seen.z[:, 0], positions="last")
        np.testing.assert_allclose(found[i], by_mean[0], atol=1e-10)
    assert abs(attribution_patching(model, encoded, encoded)).max() == 0


def test_with_all_positions_each_position_meets_its_own():
    model, (one,) = tiny("llama"), random_prompts(1)
    only_last = replace(one, ids=(*one.ids[:-1], 2 + one.ids[-1] % 50))
    every, last = (attribution_patching(model, [one], [only_last], positions=p) for p in ("all", "last"))
    np.testing.assert_allclose(every, last, atol=1e-10)  # earlier positions are the same in both
    assert abs(every).max() > 1e-3


def test_another_metric_may_be_asked_for():
    model, encoded = tiny("gpt2"), random_prompts(2)
    twice = attribution_patching(model, encoded, metric=lambda logits, e: 2 * attribution.margin(logits, e))
    np.testing.assert_allclose(twice, 2 * attribution_patching(model, encoded))


def test_the_margin_is_that_of_the_models_answers(any_model):
    encoded = random_prompts(3, lengths=(11,))
    found = attribution.margin(capture(any_model, encoded).logits, encoded)
    torch.testing.assert_close(found, margins(predict(any_model, encoded)[1], encoded))


@pytest.mark.parametrize("positions", ["all", "last"])
def test_on_a_trained_model_it_ranks_heads_as_ablation_does(positions):
    model = loading.load("mini-gpt2")
    prompts = datasets.counterbalanced(datasets.draw("animal/country", 24))
    encoded, heads = encode_all(prompts, model.tokenizer, model.context), edit_heads.all_heads(model)
    mean = edit_heads.mean_fed(model, encoded, positions)
    real = ablate.ablate_heads(model, encoded, heads, positions, mean)
    lost = (margins(real.plain_log_prob, encoded) - margins(real.log_prob, encoded)).mean(1)
    found = attribution_patching(model, encoded, replacement=mean, positions=positions).mean(0).ravel()
    assert spearman(found, lost) > 0.9


def test_what_cannot_be_attributed_is_refused():
    model, encoded = tiny("gpt2"), random_prompts(2)
    mean = edit_heads.mean_fed(model, encoded)
    for says, args in (
        ("choose 'all' or 'last'", dict(positions="first")),
        ("not both", dict(corrupt=encoded, replacement=mean)),
        ("as many tokens", dict(corrupt=encoded[::-1])),
        ("as many tokens", dict(corrupt=encoded[:1])),
    ):
        with pytest.raises(TwoTowersError, match=says):
            attribution_patching(model, encoded, **args)
    with pytest.raises(TwoTowersError, match="no prompts"):
        attribution_patching(model, [])


def test_hooks_are_let_go():
    model, encoded = tiny("gpt2"), random_prompts(1)
    attribution_patching(model, encoded, encoded)
    assert not any(module._forward_pre_hooks for module in model.hf.modules())
