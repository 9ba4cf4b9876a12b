"""Answers and weights with a mitigation, measures by hand, and the known remedies."""

import numpy as np
import pytest
import torch
from conftest import random_prompts, tiny
from twotowers.analysis import biases, mitigate
from twotowers.analysis.edit_heads import Edit, all_heads, edited
from twotowers.errors import TwoTowersError
from twotowers.model import proof
from twotowers.model.answers import Answers, answers
from twotowers.model.capture import capture, predict
from twotowers.prompts.datasets import draw, orders
from twotowers.prompts.prompt import Demonstration, Encoded, Prompt


def flags(text):
    return np.array([character == "1" for character in text])


def test_spread_by_chance_is_what_dealing_anew_leaves():
    same = np.stack([flags("1100")] * 6)  # no answer depends on the order
    assert biases.spread_by_chance(same) == 0
    # One prompt, right in one order of two: every deal gives accuracies 0 and 1.
    assert biases.spread_by_chance(np.array([[True], [False]])) == pytest.approx(0.5)


def test_weight_spread_by_hand():
    weights = np.zeros((1, 2, 1, 2))
    weights[0, :, 0] = [[0.2, 0.4], [0.4, 0.4]]  # demonstration 0 moves by 0.2 between the orders, 1 stays
    np.testing.assert_allclose(biases.weight_spread(weights), [[0.05, 0.35]])


def test_answers_over_orders_stay_with_their_prompt():
    model, encoded = tiny("gpt2"), random_prompts(6, lengths=(14,))
    found, _ = biases.read_orders(model, [encoded[:3], encoded[3:]], [(0, 0)])
    top, labels = predict(model, encoded)
    for i, one in enumerate(encoded):
        assert found.correct[i % 3, i // 3] == (top[i] == one.true_id)
        foo, bar = labels[i].tolist()
        lead = foo - bar if one.prompt.true_label == "foo" else bar - foo
        assert found.margin[i % 3, i // 3] == pytest.approx(lead)
        assert found.two_label[i % 3, i // 3] == (lead > 0)


def test_the_margin_is_over_the_likeliest_other_label():
    prompt = Prompt((), "q", "b", ("a", "b", "c"))
    one = Encoded(prompt, (1,), (), (), (0, 1), 0, {"a": 4, "b": 5, "c": 6})
    found = Answers.read(np.array([5, 4]), np.array([[-3.0, -1.0, -2.0], [-0.5, -1.0, -9.0]]), [one, one])
    assert found.correct.tolist() == [True, False] and found.two_label.tolist() == [True, False]
    assert found.margin.tolist() == [1.0, -0.5]


def all_orders(n):
    """Every order of n drawn prompts, each word one token of the tiny models: positions as in the paper's example."""
    words = {}
    out = []
    for prompt in draw("animal/country", n):
        out.append([])
        for one in orders(prompt):
            texts = [text for d in one.demonstrations for text in (d.text, ":", d.label)] + [one.query, ":"]
            ids = tuple(words.setdefault(text, 10 + len(words) % 50) for text in texts)
            label_ids = {"foo": words["foo"], "bar": words["bar"]}
            out[-1].append(Encoded(one, ids, (2, 5, 8, 11), (), (12, 13), 13, label_ids))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("shortcut", [None, "mean", "replace", "add"])
def test_weights_follow_a_demonstration_through_the_orders(kind, shortcut):
    model, by_prompt, heads = tiny(kind), all_orders(2), [(0, 1), (1, 2)]
    answered, found = biases.read_orders(model, by_prompt, heads, shortcut)
    assert found.shape == (2, 6, 2, 4)
    reference = by_prompt[0][-1].prompt  # false ones first, true ones last
    canonical = [d.text for d in reference.demonstrations[2:] + reference.demonstrations[:2]]
    keep, share = (1, 0) if shortcut is None else mitigate.SHORTCUTS[shortcut]
    for at, one in enumerate(by_prompt[0]):
        with mitigate.position_free(model, heads, (keep, share)):
            seen = capture(model, [one], {"weights", "streams"})
            expected = answers(model, [one])
        assert answered.margin[at, 0] == pytest.approx(expected.margin[0])
        free = mitigate.free_weights(seen, model, heads)
        for i, (layer, head) in enumerate(heads):
            acting = (keep * seen.weights[layer, 0, head] + share * free[i, 0]) / (keep + share)
            for place, demonstration in enumerate(one.prompt.demonstrations):
                expected = float(acting[one.label_positions[place]])
                assert found[0, at, i, canonical.index(demonstration.text)] == pytest.approx(expected)
    if shortcut == "replace" and kind == "llama":  # in the first layer a position-free weight never changes
        assert found[:, :, 0].std(1).max() < 1e-6 < found[:, :, 1].std(1).max()


def uneven(n):
    return random_prompts(n, lengths=(11, 17))  # 3 and 5 demonstrations: one more bar than foo


def test_majority_answers_at_zero_are_the_models_own_and_each_set_is_its_own():
    model, encoded = tiny("gpt2"), uneven(7)
    sets, a_cs = [[(0, 0)], [(1, 1), (2, 3)]], [0.0, 0.03, 30.0]
    found = biases.majority_answers(model, encoded, sets, a_cs)
    plain = answers(model, encoded)
    assert found.correct.shape == (2, 3, 7)
    for i in range(2):
        assert np.array_equal(found.correct[i, 0], plain.correct) and np.array_equal(
            found.two_label[i, 0], plain.two_label
        )
        np.testing.assert_allclose(found.margin[i, 0], plain.margin)
    for row, one in enumerate(encoded):
        seen = capture(model, [one], {"weights", "values"})
        for i, heads in enumerate(sets):
            for j, a_c in enumerate(a_cs):
                x = seen.resid_final + a_c * mitigate.minority_shortcut(seen, model, heads)
                top = int(proof.finished(model, x).argmax())
                assert found.correct[i, j, row] == (top == one.true_id)
    assert (found.two_label[0, 0] != found.two_label[0, 2]).any() or (
        found.two_label[1, 0] != found.two_label[1, 2]
    ).any()


def test_a_shortcut_from_a_planted_head_raises_the_minority_label():
    """Value vectors that all write the row of foo: the shortcut must make foo likelier, as far as a_c goes."""
    model, encoded = tiny("gpt2"), uneven(4)
    heads = all_heads(model)[:2]
    seen = capture(model, encoded[:1], {"weights", "values"})
    e = model.unembedding
    wanted = e.weight[7] - e.weight[7].mean()
    writes = (torch.linalg.lstsq(model.output_weight(0)[h].T, wanted[:, None]).solution[:, 0] for h in (0, 1))
    plan = torch.stack(list(writes))
    seen.values = seen.values.clone()
    seen.values[0, :, :2] = plan[None, :, None]
    shortcut = mitigate.minority_shortcut(seen, model, heads)
    logits = [proof.finished(model, seen.resid_final + a * shortcut) for a in (0, 1, 3)]
    p = [float(one.log_softmax(-1)[0, 7]) for one in logits]
    assert p[0] < p[1] < p[2]


def test_equal_counts_and_wild_factors_are_refused_before_the_model_runs():
    model = tiny("gpt2")
    model.hf = None  # any run would fail
    with pytest.raises(TwoTowersError, match="equal counts"):
        biases.majority_answers(model, random_prompts(2, lengths=(14,)), [[(0, 0)]], [0.03])
    with pytest.raises(TwoTowersError, match="finite number"):
        biases.majority_answers(model, uneven(2), [[(0, 0)]], [0.03, float("nan")])


def two_label(n):
    prompt = Prompt((Demonstration("a", "foo"), Demonstration("b", "bar")), "q", "bar", ("foo", "bar"))
    one = Encoded(prompt, (1, 2, 3), (0, 1), ((0, 1), (1, 2)), (1, 2), 2, {"foo": 7, "bar": 9})
    return [one] * n


def stub(monkeypatch, *given):
    """`predict` gives these label probabilities, one call after the other; `encode_all` notes its queries."""
    queries, calls = [], iter(given)
    monkeypatch.setattr(
        biases, "predict", lambda *_, **__: (torch.zeros(1), torch.tensor(next(calls), dtype=torch.float64).log())
    )
    monkeypatch.setattr(biases, "encode_all", lambda prompts, *_: queries.extend(p.query for p in prompts))
    model = tiny("gpt2")
    return model, queries


def test_calibration_divides_by_what_content_free_inputs_get(monkeypatch):
    # The model says foo (0.6 of 0.8) but says so without content too: bar is chosen, which is true.
    plain = [[0.6, 0.2], [0.6, 0.2]]
    free = [[0.8, 0.1], [0.7, 0.1], [0.4, 0.4], [0.4, 0.4]]
    model, queries = stub(monkeypatch, plain, free)
    found = biases.calibrated(model, two_label(2), ("N/A", "[MASK]"))
    # First: the prior of foo is (8/9 + 7/8) / 2 = 0.88, and 0.75 / 0.88 < 0.25 / 0.12.
    # Second: the prior is 0.5, so foo stays, which is false.
    assert found.tolist() == [True, False]
    assert queries == ["N/A", "[MASK]"] * 2


def test_averaging_over_orders_takes_the_mean_probability(monkeypatch):
    # Normalised over the labels: bar 0.1, 0.9, 0.8, mean 0.6. The unnormalised mean would say foo.
    model, _ = stub(monkeypatch, [[0.9, 0.1], [0.01, 0.09], [0.02, 0.08]])
    assert biases.averaged(model, [two_label(3)]).tolist() == [True]


def test_an_edit_and_a_mitigation_go_together():
    model, encoded = tiny("llama"), random_prompts(2, lengths=(11,))
    with edited(model, [Edit(((0, 0),))]):
        zeroed = capture(model, encoded).logits
        with mitigate.position_free(model, [(0, 0)], (1, 0)):
            assert torch.equal(capture(model, encoded).logits, zeroed)
    assert not torch.equal(capture(model, encoded).logits, zeroed)
