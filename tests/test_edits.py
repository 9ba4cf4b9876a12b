"""Edits of what heads feed to W_O: against slow references, by hand, the fast way against whole runs, and always undone."""

import math

import pytest
import torch
from conftest import random_prompts, refused, tiny
from plain_hooks import run, weights_of, z_of
from towerlab.model.attention import Attention
from towerlab.model.capture import answer, capture
from towerlab.model.edits import EXCHANGES, UNCHANGED, answers, attend, edited, everywhere, exchange, feed, knockout, steer, zero
from towerlab.model.last_position import LastPosition
from twotowers.errors import TwoTowersError

HEADS = ((0, 1), (1, 0), (1, 1))


def positions(encoded):
    return torch.tensor([e.label_positions for e in encoded])


@pytest.fixture
def base():
    return random_prompts(2, lengths=(11,))


@pytest.fixture
def source():
    return random_prompts(2, lengths=(11,), seed=1)


def under_exchange(model, base, source, what, heads=HEADS, record=()):
    with edited(model, exchange(heads, what, LastPosition(model, source).plain, positions(base))):
        return capture(model, base, record)


def by_hand(model, base, source, what):
    """Logits of one prompt under an exchange, a head at a time: a stock run, and attention by its definition."""
    theirs, (at, of) = run(model, source)["attention"], (list(e.label_positions) for e in (base, source))

    def change(layer, z, attention):
        query, key, value = (x.clone() for x in attention[:3])
        if what in ("query", "all"):
            query[:, :, -1] = theirs[layer][0][:, :, -1]
        if what in ("keys", "all"):
            key[:, :, at] = theirs[layer][1][:, :, of]
        if what in ("values", "all"):
            value[:, :, at] = theirs[layer][2][:, :, of]
        for head in (h for of_head, h in HEADS if of_head == layer):
            weights = weights_of(model, attention, head, base.last, query, key)
            z[0, -1, head * model.d_head : (head + 1) * model.d_head] = z_of(model, weights, value, head)
        return z

    return run(model, base, change)["logits"]


@pytest.mark.parametrize("what", EXCHANGES)
def test_an_exchange_equals_a_plain_loop_over_layers_heads_and_positions(model, base, source, what):
    result = under_exchange(model, base, source, what).logits
    expected = torch.stack([by_hand(model, *pair, what) for pair in zip(base, source, strict=True)])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)
    assert (result - capture(model, base).logits).abs().max() > 1e-4


@pytest.mark.parametrize("max_rows", [4, 1024])  # few: edits of several layers in several goes
def test_rows_of_the_last_position_say_what_whole_runs_say(model, base, source, max_rows):
    last, theirs = LastPosition(model, base), LastPosition(model, source).plain
    query = {layer: state.attention.query[:, :, 0] for layer, state in theirs.items()}
    keys = {layer: state.attention.key[:, :, :3] for layer, state in theirs.items()}
    weights = {layer: state.attention.weights().expand(-1, -1, 11, -1) for layer, state in theirs.items()}
    edits = [UNCHANGED, steer(HEADS, query, keys, positions(base)), steer(HEADS[:2], query, None, positions(base))]
    for heads in (HEADS[1:], HEADS, [(1, 1)], []):
        edits += [exchange(heads, what, theirs, positions(base)) for what in EXCHANGES]
        edits += [zero(heads), attend(heads, weights), feed(heads, {layer: state.z[:, :, 0] for layer, state in theirs.items()})]
    (top, log_prob), (whole_top, whole) = last.answers(edits, max_rows), answers(model, base, edits)
    assert torch.equal(top, whole_top)
    torch.testing.assert_close(log_prob, whole, rtol=0, atol=1e-11)
    assert torch.equal(whole[0], answer(model, base)[1]) and torch.equal(last.capture.logits, capture(model, base).logits)
    torch.testing.assert_close(last.plain_answer()[1], whole[0], rtol=0, atol=1e-11)
    assert (whole[1:] - whole[0]).abs().amax((1, 2)).gt(1e-5).tolist() == [bool(edit.heads) for edit in edits[1:]]


def test_only_the_last_position_of_the_chosen_head_changes_and_attention_is_recorded_as_it_was(model, base, source):
    record = {"streams", "weights"}
    plain, result = capture(model, base, record), under_exchange(model, base, source, "all", [(0, 1)], record)
    # As fed to W_O: what `z` is divided by under Gemma 2 is that of all heads together.
    differs = (result.attention_out_input - plain.attention_out_input)[0].abs().amax((0, 2)) > 1e-9
    assert differs.tolist() == [head == 1 for head in range(model.n_heads)]
    assert torch.equal(result.stream_inputs[1][:, :-1], plain.stream_inputs[1][:, :-1])
    assert torch.equal(result.weights[0], plain.weights[0])
    assert torch.equal(result.logits, under_exchange(model, base, source, "all", [(0, 1)]).logits)


def test_attention_by_hand():
    # One head of two numbers, three positions. Scores 0, log 2, log 5, so weights 1/8, 2/8, 5/8.
    query = torch.tensor([[[[1.0, 0.0]]]])
    key = torch.tensor([[[[0.0, 9.0], [math.log(2), 9.0], [math.log(5), 9.0]]]])
    value = torch.tensor([[[[8.0, 0.0], [0.0, 8.0], [16.0, 0.0]]]])
    for seen, expected in (([True, True, True], [11.0, 2.0]), ([True, True, False], [8 / 3, 16 / 3])):  # then 1/3, 2/3
        z = Attention(query, key, value, torch.tensor([[[seen]]]), 1.0, None).z()
        torch.testing.assert_close(z, torch.tensor([[[expected]]]))


def test_knocked_out_weights_are_zero_and_the_others_share_them_in_proportion(model, base):
    closed = torch.zeros(2, 11, 11, dtype=torch.bool)
    closed[0, 5, 3:5] = closed[1, 10, 7] = closed[1, 4, 9] = True  # the last one is in the future, closed anyway
    for layers in ([0], [0, 1]):
        with edited(model, knockout(model, layers, closed)):
            result = capture(model, base, {"streams"})
        for i, e in enumerate(base):

            def change(layer, z, attention, layers=layers, shut=closed[i]):
                for head, q in ((h, q) for h in range(model.n_heads) for q in range(11) if layer in layers and shut[q].any()):
                    weights = weights_of(model, attention, head, q).masked_fill(shut[q, : q + 1], 0)
                    z[0, q, head * model.d_head : (head + 1) * model.d_head] = z_of(
                        model, weights / weights.sum(), attention.value, head
                    )
                return z

            torch.testing.assert_close(result.logits[i], run(model, e, change)["logits"], rtol=0, atol=1e-10)
        differs = (result.stream_inputs[1] - capture(model, base, {"streams"}).stream_inputs[1]).abs().amax(-1) > 1e-9
        assert differs.nonzero().tolist() == [[0, 5], [1, 10]]
    plain = capture(model, base).logits
    with edited(model, knockout(model, [0, 1], closed & False)):
        assert torch.equal(capture(model, base).logits, plain)


def test_what_would_be_silently_wrong_is_refused():
    model, encoded = tiny("llama"), random_prompts(2, lengths=(11,))
    last = LastPosition(model, encoded)
    edit = exchange(HEADS, "all", last.plain, positions(encoded))
    refused("choose one of query, keys, values, all", exchange, HEADS, "towers", {}, positions(encoded))
    refused("give it to edits.answers", last.answers, [zero(HEADS, everywhere(encoded))])
    refused("run them together", answers, model, encoded[:1], [zero(HEADS, everywhere(encoded))])
    with pytest.raises(RuntimeError, match="on purpose"), edited(model, edit):
        raise RuntimeError("on purpose")
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.hf.modules())
    model.hf.set_attn_implementation("sdpa")
    with pytest.raises(TwoTowersError, match="load it with"), edited(model, edit):
        capture(model, encoded)
    refused("load it with", LastPosition, model, encoded)
    for closed, layers, message in ((torch.eye(11), [0], "attending to itself"), (torch.zeros(11, 11), [3], "layer 3")):
        refused(message, knockout, model, layers, closed[None].bool())
    assert not any("twotowers_readers" in vars(model.part(layer, "attention")) for layer in range(model.n_layers))
