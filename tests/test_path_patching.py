"""Path patching against whole runs of one prompt at a time in which plain hooks hold everything else still."""

import itertools

import numpy as np
import pytest
from conftest import random_prompts, refused, tiny
from plain_hooks import put, run, weights_of, z_of
from towerlab.measure.ablations import ablations, mean_z
from towerlab.measure.path_patching import WAYS, path_patching

EXACT = dict(rtol=0, atol=1e-9)


def slow(model, e, senders, receivers, replacement):
    """(Set, way) -> logits, and (way, head) -> attention weights of all positions."""
    new = {at: 0.0 if replacement is None else replacement[at] for at in senders}
    change, plain = put(model, senders, new), run(model, e)
    ablated = run(model, e, change)
    direct = run(model, e, lambda layer, *_: change(layer, plain["z"][layer].clone(), None), plain["ffn"])
    out = {(name, way): x["logits"] for name, x in (("none", plain), ("senders ablated", ablated)) for way in WAYS}
    for path, other in (("none", plain), ("total", ablated), ("direct", direct)):
        z = {}
        for layer, head in {head for heads in receivers.values() for head in heads}:
            attention = plain["attention"][layer]
            weights = weights_of(model, attention, head, e.last, other["attention"][layer][0])
            out[path, f"{layer}-{head}"], z[layer, head] = weights, z_of(model, weights, attention[2], head)
        for name, heads in receivers.items():
            out[name, path] = run(model, e, put(model, heads, z))["logits"]
    return out


def sets_of(model):
    """Senders and receivers over several layers; some receivers lie between the senders, some below."""
    top = model.n_layers - 1
    return [(0, 1), (top - 1, 0)], {"above": [(top, 0), (1, 1)], "also": [(top, 1)], "below": [(0, 0)]}


@pytest.mark.parametrize("replaced_by", ["zero", "mean"])
def test_every_variant_equals_runs_in_which_all_else_is_held(model, replaced_by):
    encoded, (senders, receivers) = random_prompts(3, lengths=(11, 13)), sets_of(model)
    replacement = mean_z(model, random_prompts(3, seed=1))["last"] if replaced_by == "mean" else None
    result = path_patching(model, encoded, senders, receivers, replacement, max_tokens=24)
    assert result.log_prob_true.dims == ("heads", "way", "prompt")
    assert result.attention.dims == ("way", "prompt", "listed_head", "place") and "true" in result.coords
    for i, e in enumerate(encoded):
        expected = slow(model, e, senders, receivers, replacement)
        for name, way in itertools.product(result["heads"].values, WAYS):
            log_prob = float(expected[name, way].log_softmax(-1)[e.true_id])
            assert float(result.log_prob_true.sel(heads=name, way=way)[i]) == pytest.approx(log_prob, abs=1e-9)
        attention = {"none": result.attention_plain, **{way: result.attention.sel(way=way) for way in WAYS}}
        for way, head in itertools.product(attention, result["listed_head"].values):
            weights = expected[way, head][list(e.label_positions)]
            np.testing.assert_allclose(attention[way].sel(listed_head=head)[i], weights, atol=1e-6)
    less = path_patching(model, encoded, senders, receivers, replacement, answers_only=["also"])
    assert set(less.listed_head.values) == {f"{layer}-{head}" for name in ("above", "below") for layer, head in receivers[name]}
    np.testing.assert_allclose(less.log_prob_true, result.log_prob_true, **EXACT)
    effects = abs(result.log_prob_true - result.log_prob_true.sel(heads="none")).max("prompt")
    assert float(effects.sel(heads="above").min()) > 1e-5


def test_what_must_be_equal_by_definition(model):
    encoded, (senders, receivers) = random_prompts(2, lengths=(11,)), sets_of(model)
    result = path_patching(model, encoded, senders, receivers).log_prob_true
    plain = result.sel(heads="none")
    np.testing.assert_allclose(result.sel(heads="below"), plain, **EXACT)
    at_last = ablations(model, encoded, {"senders": senders}, ["last"]).log_prob_true.sel(heads="senders").squeeze()
    np.testing.assert_allclose(result.sel(heads="senders ablated", way="total"), at_last, **EXACT)
    # In the layer after the senders nothing lies between but their own layer's FFN, which only a sequential block lets respond.
    next_layer = path_patching(model, encoded, [(0, 1)], {"next": [(1, 0), (1, 1)]}).log_prob_true
    total, direct = (next_layer.sel(heads="next", way=way) for way in WAYS)
    assert np.allclose(total, direct, **EXACT) == model.parallel


def test_no_receiver_and_a_head_outside_the_model():
    model, encoded = tiny("gpt2"), random_prompts(2, lengths=(11,))
    assert path_patching(model, encoded, [(0, 0)], {"empty": []}).log_prob_true.sizes["heads"] == 3
    refused("is not in", path_patching, model, encoded, [(0, 0)], {"a": [(0, 99)]})
