"""Attention on label positions, and the two towers: held against eager attention, by hand, and on planted vectors."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import random_prompts, tiny
from reference import Reference
from twotowers.analysis import attention, locate
from twotowers.analysis.attention import Reading, Towers, changes, read, two_towers
from twotowers.errors import TwoTowersError
from twotowers.model import query_key
from twotowers.model.capture import capture
from twotowers.studies.variants import _beyond_softmax

HEADS = [(1, 3), (0, 1)]


def some_heads(model):
    return [(1, model.n_heads - 1), (0, 1)]


def own_words(encoded):
    return [encoded.label_ids[d.label] for d in encoded.prompt.demonstrations]


@pytest.mark.parametrize("norm", ["frozen", "recomputed"])
def test_weights_and_increases_at_label_positions_are_the_slow_references(any_model, norm):
    encoded = random_prompts(5, lengths=(14, 15))
    got = read(any_model, encoded, some_heads(any_model), increases=True, norm=norm, max_tokens=30)
    for i in (0, 3):
        slow = Reference(any_model, encoded[i].ids)
        for layer, head in some_heads(any_model):
            at = encoded[i].label_positions
            expected = slow.attentions[layer][head, list(at)]
            np.testing.assert_allclose(got.matrix((layer, head))[i], expected, atol=1e-12)
            gains = [
                slow.increase(slow.resid_pre[layer], slow.position(layer, head, p), word, norm)
                for p, word in zip(at, own_words(encoded[i]), strict=True)
            ]
            np.testing.assert_allclose(got.matrix((layer, head), "increase")[i], gains, atol=1e-9)


def test_increases_of_true_positions_are_those_of_locate(any_model):
    encoded = random_prompts(4, lengths=(14,))
    seen = capture(any_model, encoded, {"weights", "values"})
    every = locate.position_increases(seen, any_model)
    own = attention.label_increases(seen, any_model, some_heads(any_model))
    for i, one in enumerate(encoded):
        for j, (position, true) in enumerate(zip(one.label_positions, one.prompt.is_true, strict=True)):
            for h, (layer, head) in enumerate(some_heads(any_model)):
                same = torch.isclose(own[h, i, j], every[i, layer, head, position], atol=1e-10)
                nothing = seen.weights[layer, i, head, position] < 1e-6  # behind a window, or a softmax that is sure
                assert same if true else not same or nothing


def test_answers_are_the_models_own():
    model, encoded = tiny("gpt2"), random_prompts(6, lengths=(14, 15))
    got = read(model, encoded, HEADS).answers
    for i, one in enumerate(encoded):
        logits = capture(model, [one]).logits[0]
        other = next(word for label, word in one.label_ids.items() if label != one.prompt.true_label)
        assert got.margin[i] == pytest.approx(float(logits[one.true_id] - logits[other]))
        assert got.correct[i] == (int(logits.argmax()) == one.true_id)
    sure = [replace(e, label_ids=e.label_ids | {e.prompt.true_label: int(capture(model, [e]).logits.argmax())})
            for e in encoded]  # fmt: skip
    assert read(model, sure, HEADS).answers.correct.all()


def test_batches_change_nothing():
    model, encoded = tiny("llama", torch.float32), random_prompts(7, lengths=(14, 15))
    whole, small = (read(model, encoded, HEADS, increases=True, max_tokens=t) for t in (4096, 15))
    for column in ("weight", "increase"):
        np.testing.assert_allclose(whole.labels[column], small.labels[column], atol=1e-5)
    np.testing.assert_allclose(whole.answers["margin"], small.answers["margin"], atol=1e-4)


def reading(weights, margin=(1.0, -1.0), heads=((0, 1),)) -> Reading:
    """Two prompts; demonstrations false, true, true."""
    rows = [
        {"prompt": p, "head": f"{a}-{b}", "label": j, "true": j > 0, "weight": w + 0.01 * b * (j == 0),
         "rest": 1 - 1.5 * w}
        for a, b in heads for p, row in enumerate(weights) for j, w in enumerate(row)
    ]  # fmt: skip
    answers = pd.DataFrame({"prompt": [0, 1], "correct": [m > 0 for m in margin], "margin": margin})
    return Reading(pd.DataFrame(rows), answers, list(heads))


def test_sums_by_hand():
    sums = reading([[0.2, 0.3, 0.1], [0.5, 0.0, 0.25]]).sums()
    assert sums["true"].tolist() == pytest.approx([0.4, 0.25]) and sums["false"].tolist() == pytest.approx([0.21, 0.51])
    assert sums["difference"].tolist() == pytest.approx([0.19, -0.26])
    assert sums["margin"].tolist() == [1.0, -1.0] and sums["correct"].tolist() == [True, False]


def test_changes_by_hand_keep_heads_and_prompts_together():
    heads = ((2, 0), (0, 1), (10, 5))
    before = reading([[0.2, 0.3, 0.1], [0.5, 0.0, 0.25]], heads=heads)
    after = reading([[0.3, 0.1, 0.1], [0.4, 0.1, 0.25]], margin=(-0.5, 2.0), heads=heads)
    got = changes(before, after)
    assert got["head"].tolist() == ["2-0", "2-0", "0-1", "0-1", "10-5", "10-5"] and got["prompt"].tolist() == [0, 1] * 3
    assert got["true"].tolist() == pytest.approx([-0.2, 0.1] * 3)
    assert got["false"].tolist() == pytest.approx([0.1, -0.1] * 3)
    assert got["difference"].tolist() == pytest.approx([-0.3, 0.2] * 3)
    assert got["margin"].tolist() == pytest.approx([-1.5, 3.0] * 3) and got["correct"].tolist() == [-1, 1] * 3
    with pytest.raises(TwoTowersError, match="different heads"):
        changes(before, reading([[0.3, 0.1, 0.1], [0.4, 0.1, 0.25]], heads=heads[:2]))


def test_a_removal_by_hand():
    got = attention.renormalised(reading([[0.2, 0.3, 0.1], [0.5, 0.0, 0.2]]))
    assert got["true"].tolist() == pytest.approx([0.3 / 0.85, 0.0 / 0.7])
    assert got["false"].tolist() == pytest.approx([0.21 / 0.85, 0.51 / 0.7])
    everything = attention.renormalised(reading([[0.0, 0.0, 2 / 3], [0.5, 0.0, 0.2]]))
    assert everything["true"].isna().tolist() == [True, False]
    first = attention.renormalised(reading([[0.2, 0.3, 0.1], [0.5, 0.0, 0.2]]), drop=0)
    assert first["true"].tolist() == pytest.approx([0.1 / 0.55, 0.2])


def test_where_only_tokens_count_a_removal_is_all_softmax():
    # Without position embeddings the first layer sees single tokens, so a removal leaves every other score alone.
    model, encoded = tiny("gpt2"), random_prompts(4, lengths=(14,))
    model.hf.transformer.wpe.weight.zero_()
    before = read(model, encoded, [(0, 1), (0, 2)])
    kind = {one.prompt.query: [i for i, t in enumerate(one.prompt.is_true) if t][-1] for one in encoded}
    shorter = []
    for one in encoded:
        j = kind[one.prompt.query]
        prompt = replace(one.prompt, demonstrations=(d := one.prompt.demonstrations)[:j] + d[j + 1 :])
        shorter.append(
            replace(one, prompt=prompt, ids=one.ids[: 3 * j] + one.ids[3 * j + 3 :], label_positions=(2, 5, 8),
                    text_spans=((0, 1), (3, 4), (6, 7)), query_span=(9, 10), last=10)
        )  # fmt: skip
    expected = attention.renormalised(before)
    after = read(model, shorter, [(0, 1), (0, 2)])
    beyond = _beyond_softmax(before, attention.changes(before, after), "difference")
    assert beyond["measured"].abs().max() > 1e-3
    np.testing.assert_allclose(beyond["rest"], 0, atol=1e-12)
    got = after.sums()
    both = got.merge(expected, on=["prompt", "head"])
    np.testing.assert_allclose(both["true_x"], both["true_y"], atol=1e-12)
    np.testing.assert_allclose(both["false_x"], both["false_y"], atol=1e-12)


def test_tower_scores_are_the_logarithms_of_the_weights_but_for_a_constant(any_model):
    encoded = random_prompts(5, lengths=(14, 15))
    found = two_towers(any_model, encoded, some_heads(any_model), max_tokens=30)
    weights = read(any_model, encoded, some_heads(any_model))
    cap = getattr(any_model.config, "attn_logit_softcapping", None)
    for head in some_heads(any_model):
        scores, weight = found[head].scores(), weights.matrix(head)
        scores = scores if cap is None else cap * np.tanh(scores / cap)
        seen = weight > 0  # a sliding window hides the first labels
        gap = np.log(np.where(seen, weight, 1.0)) - scores
        assert seen[:, -1].all() and seen[:, -2].any()
        np.testing.assert_allclose(np.where(seen, gap, gap[:, -1:]), gap[:, -1:].repeat(4, 1), atol=1e-9)


def test_before_rotation_content_alone_counts(any_model):
    # A turn keeps lengths, and turns query and key of one position alike: moved to one position for all, the model's
    # own queries and keys would give the score before rotation. Without rotation the two readings are one.
    encoded = random_prompts(3, lengths=(14, 15))
    turned, plain = (two_towers(any_model, encoded, some_heads(any_model), rotated=r) for r in (True, False))
    for layer, head in some_heads(any_model):
        for side in ("queries", "keys"):
            lengths = [np.linalg.norm(getattr(t[layer, head], side), axis=-1) for t in (turned, plain)]
            np.testing.assert_allclose(*lengths, rtol=1e-5)
        # LongRoPE lengthens what it turns; that is in both readings.
        length = query_key.unrotated(any_model, layer, torch.ones(any_model.d_head, dtype=torch.float64))
        for i, one in enumerate(encoded):
            q, k = (torch.tensor(x[i]) / length for x in (plain[layer, head].queries, plain[layer, head].keys))
            q = query_key.rotated(any_model, layer, q, torch.tensor(one.last))
            k = query_key.rotated(any_model, layer, k, torch.tensor(one.label_positions))
            np.testing.assert_allclose(k @ q, turned[layer, head].scores()[i], rtol=1e-4, atol=1e-4)
        gap = np.abs(turned[layer, head].scores() - plain[layer, head].scores()).max()
        assert gap > 1e-2 if any_model.rotates(layer) else gap < 1e-9


def planted(n=40, k=4, d=8, noise=0.0, seed=0) -> Towers:
    """Queries and keys point along their class: two classes, half of the keys true."""
    rng = np.random.default_rng(seed)
    direction = {"a": np.eye(d)[0], "b": np.eye(d)[1]}
    query_class = np.array(["a", "b"] * (n // 2))
    other = {"a": "b", "b": "a"}
    true = np.array([rng.permutation([True, True, False, False]) for _ in range(n)])[:, :k]
    key_class = np.array([[c if t else other[c] for t in row] for c, row in zip(query_class, true, strict=True)])
    queries = np.array([direction[c] for c in query_class]) + noise * rng.standard_normal((n, d))
    keys = np.array([[direction[c] for c in row] for row in key_class]) + noise * rng.standard_normal((n, k, d))
    return Towers((0, 0), True, queries, keys, query_class, key_class, true)


def test_separation_of_planted_towers_and_against_loops():
    one = planted()
    assert (one.separation() == 1).all()
    assert (replace(one, queries=-one.queries).separation() == 0).all()
    assert (replace(one, queries=0 * one.queries).separation() == 0.5).all()
    noisy = planted(noise=1.0)
    scores, expected = noisy.scores(), []
    for row, true in zip(scores, noisy.true, strict=True):
        wins = [float(a > b) for a in row[true] for b in row[~true]]
        expected.append(sum(wins) / len(wins))
    np.testing.assert_allclose(noisy.separation(), expected)
    assert 0.5 < noisy.separation().mean() < 1


def test_class_scores_are_means_over_all_pairs():
    one = planted(noise=0.7)
    table = one.class_scores().set_index(["query_class", "key_class"])
    for a in "ab":
        for b in "ab":
            keys = one.keys[one.key_class == b]
            every = [q @ key for q in one.queries[one.query_class == a] for key in keys]
            assert table.loc[(a, b), "score"] == pytest.approx(np.mean(every))
            assert table.loc[(a, b), "n_keys"] == len(keys)
        assert table.loc[a, "relative"].sum() == pytest.approx(0) and table.loc[(a, a), "relative"] > 0


def test_the_plane_shows_planted_classes_on_their_sides():
    points, share = planted(noise=0.05).plane()
    assert share > 0.8 and len(points) == 40 * 5
    side = points.groupby(["tower", "class"])["x"].agg(["min", "max"])
    for tower in ("query", "key"):
        a, b = side.loc[tower, "a"], side.loc[tower, "b"]
        assert a["min"] > b["max"] or b["min"] > a["max"]
    assert np.sign(side.loc[("query", "a"), "min"]) == np.sign(side.loc[("key", "a"), "min"])
    assert points.groupby("tower")[["x", "y"]].mean().abs().to_numpy().max() < 1e-12
    again, _ = planted(noise=0.05).plane()
    pd.testing.assert_frame_equal(points, again)


def test_what_cannot_be_read_is_refused():
    model, encoded = tiny("gpt2"), random_prompts(3, lengths=(14,))
    prompt = encoded[0].prompt
    one_kind = replace(encoded[0], prompt=replace(prompt, demonstrations=prompt.demonstrations[:1]))
    for prompts, heads, says in (
        (encoded, [], "no heads given"),
        (encoded, [(3, 0)], "layers go to 2"),
        ([], HEADS, "draw at least one"),
        (random_prompts(2), HEADS, "4 demonstrations in one set"),
        ([one_kind], HEADS, "demonstration left"),
    ):
        for function in (read, two_towers):
            with pytest.raises(TwoTowersError, match=says) as refusal:
                function(model, prompts, heads)
            assert "\n" not in str(refusal.value)
