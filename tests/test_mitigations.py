"""The two mitigations against runs put together by hand, one head and one position at a time."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import random_prompts
from independent import changed_at, log_softmax
from reference import Reference
from tolerances import near
from towerlab_experiments import mitigations as module
from towerlab_experiments.mitigations import remedied
from twotowers.heads import Head

SETS = {"some": [Head(0, 1), Head(1, 0)], "one": [Head(1, 1)]}


def measured(model, encoded):
    model = replace(model)
    model.encode = lambda _: encoded
    changes = {"as it is": lambda prompt: prompt}
    return remedied(model, encoded, SETS, changes).sel(change="as it is")


def test_the_majority_shortcut_is_the_sum_of_its_subheads(model, monkeypatch):
    monkeypatch.setattr(module, "A_C", 0.5)
    encoded = random_prompts(1, lengths=(11,))  # bar, foo, bar
    result = measured(model, encoded)
    for i, heads in enumerate(SETS.values()):
        slow = Reference(model, encoded[0].ids)
        x = slow.resid_final + 0.5 * 2 * sum(slow.position(layer, head, 5) for layer, head in heads)
        logits = log_softmax(slow.by_hand.logits(x.numpy()))
        at = result.sel(remedy="remedy").isel(head_set=i)
        near(at["log_prob_true"][0], logits[encoded[0].true_id])
    remedied, plain = (result["log_prob_true"].sel(remedy=name) for name in ("remedy", "none"))
    assert abs(remedied - plain).min() > 1e-4


def free_weights(by_hand, run, layer):
    """Weights of the last position by queries and keys without any position."""
    read = run.read[layer]
    if by_hand.kind == "gpt2":
        places = by_hand.w["transformer.wpe.weight"][: len(read)]
        places = places - places.mean(-1, keepdims=True)
        weight = by_hand.w[f"transformer.h.{layer}.ln_1.weight"]
        read = read - weight * places / by_hand.scale_of(run.resid[layer])
    query, key, _ = by_hand.split(layer, read)
    key = key.repeat(by_hand.heads // by_hand.kv_heads, 0)
    scores = np.einsum("hd,hpd->hp", query[:, -1], key) * by_hand.score_scale()
    return np.exp([*map(log_softmax, scores)])


@pytest.mark.parametrize("share", [(0.5, 0.5), (0.0, 1.0)])
def test_the_recency_shortcut_is_that_of_the_formulas(model, share, monkeypatch):
    monkeypatch.setattr(module, "SHARE", share)
    encoded = random_prompts(2, lengths=(14,))
    result = measured(model, encoded).sel(remedy="remedy", head_set="some")
    for i, e in enumerate(encoded):
        by_hand = Reference(model, e.ids).by_hand

        def shortcut(layer, weights, run, by_hand=by_hand):
            free = free_weights(by_hand, run, layer)
            mixed = share[0] * weights[:, -1] + share[1] * free
            return changed_at(SETS["some"], lambda _, head: mixed[head], -1)(layer, weights)

        expected = log_softmax(by_hand.run(e.ids, weights=shortcut).logits)[e.true_id]
        near(result["log_prob_true"][i], expected)
