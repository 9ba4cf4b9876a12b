"""Exchanges of a head's parts and blocked attention: against a slow reference, by hand, and always undone."""

import math

import pytest
import torch
from conftest import random_prompts, refused, tiny
from plain_hooks import every_head, run, weights_of, z_of
from towerlab.model.attention_edits import EXCHANGES, blocked, exchange, steer
from towerlab.model.attention_hooks import last_scores, reading_attention
from towerlab.model.capture import answer, capture
from towerlab.model.hooks import block_outputs, restarted
from towerlab.model.last_position import LastPosition, edited, head_output
from twotowers.errors import TwoTowersError

HEADS = ((0, 1), (1, 0), (1, 1))


def positions(encoded):
    return torch.tensor([e.label_positions for e in encoded])


def under_exchange(model, base, source, what, heads=HEADS, record=()):
    with edited(model, exchange(heads, what, LastPosition(model, source).plain, positions(base))):
        return capture(model, base, record)


@pytest.mark.parametrize("what", EXCHANGES)
def test_exchanging_with_oneself_changes_nothing(model, what):
    encoded = random_prompts(3, lengths=(11,))
    plain = capture(model, encoded).logits
    same = under_exchange(model, encoded, encoded, what, every_head(model)).logits
    torch.testing.assert_close(same, plain, rtol=0, atol=1e-11)
    assert torch.equal(capture(model, encoded).logits, plain)


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


@pytest.mark.parametrize("max_rows", [4, 1024])  # few: edits of several layers in several goes
def test_rows_of_the_last_position_say_what_whole_runs_say(model, max_rows):
    base, source = random_prompts(2, lengths=(11,)), random_prompts(2, lengths=(11,), seed=1)
    last, source_state = LastPosition(model, base), LastPosition(model, source).plain
    edits = [
        exchange(heads, what, source_state, positions(base)) for heads in (HEADS[1:], HEADS, [(1, 1)], []) for what in EXCHANGES
    ]
    expected = []
    for edit in edits:
        with edited(model, edit):
            expected.append(answer(model, base))
    expected.append(answer(model, base))
    top, log_prob = (
        torch.cat([x, plain[None]]) for x, plain in zip(last.answers(edits, max_rows), last.plain_answer(), strict=True)
    )
    assert torch.equal(top, torch.stack([top for top, _ in expected]))
    torch.testing.assert_close(log_prob, torch.stack([log_prob for _, log_prob in expected]), rtol=0, atol=1e-11)
    torch.testing.assert_close(last.capture.logits, capture(model, base).logits, rtol=0, atol=0)


@pytest.mark.parametrize("what", EXCHANGES)
def test_an_exchange_equals_a_plain_loop_over_layers_heads_and_positions(model, what):
    base, source = random_prompts(2, lengths=(11,)), random_prompts(2, lengths=(11,), seed=1)
    result = under_exchange(model, base, source, what).logits
    expected = torch.stack([by_hand(model, *pair, what) for pair in zip(base, source, strict=True)])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)
    assert (result - capture(model, base).logits).abs().max() > 1e-4


def test_only_the_last_position_of_the_chosen_head_changes_not_its_siblings(model):
    base, source = random_prompts(2, lengths=(11,)), random_prompts(2, lengths=(11,), seed=1)
    plain = capture(model, base, {"streams"})
    result = under_exchange(model, base, source, "all", [(0, 1)], {"streams"})
    # As fed to W_O: what `z` is divided by under Gemma 2 is that of all heads together.
    differs = (result.attention_out_input - plain.attention_out_input)[0].abs().amax((0, 2)) > 1e-9
    assert differs.tolist() == [head == 1 for head in range(model.n_heads)]
    assert torch.equal(result.stream_inputs[1][:, :-1], plain.stream_inputs[1][:, :-1])


def test_attention_can_be_recorded_beside_an_exchange_and_is_the_runs_own(model):
    base, source = random_prompts(2, lengths=(11,)), random_prompts(2, lengths=(11,), seed=1)
    plain = capture(model, base, {"weights"})
    alone = under_exchange(model, base, source, "all")
    result = under_exchange(model, base, source, "all", record={"weights"})
    assert torch.equal(result.logits, alone.logits)
    assert torch.equal(result.weights[0], plain.weights[0])


def test_the_output_of_a_head_by_hand():
    # One head of two numbers, three positions. Scores 0, log 2, log 5, so weights 1/8, 2/8, 5/8.
    query = torch.tensor([[[[1.0, 0.0]]]])
    key = torch.tensor([[[[0.0, 9.0], [math.log(2), 9.0], [math.log(5), 9.0]]]])
    value = torch.tensor([[[[8.0, 0.0], [0.0, 8.0], [16.0, 0.0]]]])
    torch.testing.assert_close(head_output(last_scores(query, key, None, 1.0), value), torch.tensor([[[11.0, 2.0]]]))
    mask = torch.tensor([[[[True, True, False]]]])  # weights 1/3, 2/3
    torch.testing.assert_close(head_output(last_scores(query, key, mask, 1.0), value), torch.tensor([[[8 / 3, 16 / 3]]]))


def test_in_one_layer_labels_that_differ_say_all_by_keys_and_values_and_nothing_by_the_query(float64):
    model = tiny("gpt2")
    model.hf.transformer.h, model.config.n_layer = model.hf.transformer.h[:1], 1
    base = random_prompts(2, lengths=(11,))
    source = []
    for e in base:
        ids = [(7, 9, 11)[i // 3] if i in e.label_positions else word for i, word in enumerate(e.ids)]
        source.append(type(e)(**{**vars(e), "ids": tuple(ids)}))
    plain, theirs = (capture(model, side).logits for side in (base, source))
    result = {what: under_exchange(model, base, source, what, every_head(model)).logits for what in EXCHANGES}
    torch.testing.assert_close(result["all"], theirs, rtol=0, atol=1e-12)
    torch.testing.assert_close(result["query"], plain, rtol=0, atol=1e-12)
    assert min((result[what] - x).abs().max() for what in ("keys", "values") for x in (plain, theirs)) > 1e-3


def test_steering_by_the_difference_of_two_prompts_is_exchanging_them(model):
    base, source = random_prompts(2, lengths=(11,)), random_prompts(2, lengths=(11,), seed=1)
    at, layer, head = positions(base), 1, 1  # in one layer: steering adds to what the layers below have changed
    ours, theirs = (LastPosition(model, side).plain[layer] for side in (base, source))
    query = {layer: (theirs.query - ours.query)[:, :, 0] * ours.scaling}
    index = at[:, None, :, None].expand(-1, model.n_key_value_heads, -1, model.d_head)
    keys = {layer: (theirs.key - ours.key).gather(2, index) / 2}
    for what, edit in (("query", steer([(layer, head)], query, None, at)), ("keys", steer([(layer, head)], None, keys, at, 2.0))):
        expected = under_exchange(model, base, source, what, [(layer, head)]).logits
        with edited(model, edit):
            torch.testing.assert_close(capture(model, base).logits, expected, rtol=0, atol=1e-10)


def test_a_run_restarted_at_a_layer_ends_as_the_whole_run_and_lets_go(model):
    encoded = random_prompts(2, lengths=(11,))
    for layer in range(1, model.n_layers + 1):
        with block_outputs(model, [layer - 1]) as outputs:
            plain = capture(model, encoded).logits
        with restarted(model, layer, outputs[layer - 1]):
            assert torch.equal(model.logits(encoded), plain)
    assert torch.equal(capture(model, encoded).logits, plain)


def weights_of_all(model, layer, encoded, closed=None):
    """Attention weights of all positions (batch, head, position, position) in one layer."""
    plain = []

    def reader(query, key, value, mask, scaling, softcap):
        rows = [
            last_scores(query[:, :, : i + 1], key[:, :, : i + 1], part(mask, i), scaling, softcap) for i in range(query.shape[2])
        ]
        plain.extend(torch.nn.functional.pad(row.softmax(-1), (0, query.shape[2] - row.shape[-1])) for row in rows)

    def part(mask, i):
        return None if mask is None else mask[:, :, : i + 1, : i + 1]

    with reading_attention(model, layer, reader):
        if closed is None:
            capture(model, encoded)
        else:
            with blocked(model, [layer], closed):
                capture(model, encoded)
    return torch.stack(plain, 2)


def test_blocking_zeroes_these_weights_and_the_others_share_them_in_proportion(model):
    encoded = random_prompts(2, lengths=(11,))
    closed = torch.zeros(2, 11, 11, dtype=torch.bool)
    closed[0, 5, 3:5] = closed[1, 10, 7] = closed[1, 4, 9] = True  # the last one is in the future, closed anyway
    before, after = (weights_of_all(model, 1, encoded, shut) for shut in (None, closed))
    shut = closed[:, None].expand_as(after)
    assert (after[shut] == 0).all() and before[0, :, 5, 4].min() > 0
    expected = before.masked_fill(shut, 0)
    torch.testing.assert_close(after, expected / expected.sum(-1, keepdim=True), rtol=0, atol=1e-11)


def test_blocking_changes_the_positions_that_may_not_look_and_no_earlier_ones(model):
    encoded = random_prompts(1, lengths=(11,))
    closed = torch.zeros(1, 11, 11, dtype=torch.bool)
    plain = capture(model, encoded, {"streams"})
    with blocked(model, [0, 1], closed):
        torch.testing.assert_close(capture(model, encoded).logits, plain.logits, rtol=0, atol=1e-11)
    closed[0, 5, 3] = True
    with blocked(model, [0], closed):
        result = capture(model, encoded, {"streams"})
    differs = (result.stream_inputs[1] - plain.stream_inputs[1])[0].abs().amax(-1) > 1e-9
    assert differs.tolist() == [p == 5 for p in range(11)]
    assert torch.equal(capture(model, encoded).logits, plain.logits)


def test_what_would_be_silently_wrong_is_refused():
    model, encoded = tiny("llama"), random_prompts(2, lengths=(11,))
    edit = exchange(HEADS, "all", LastPosition(model, encoded).plain, positions(encoded))
    refused("choose one of query, keys, values, all", exchange, HEADS, "towers", {}, positions(encoded))
    with pytest.raises(RuntimeError, match="on purpose"), edited(model, edit):
        raise RuntimeError("on purpose")
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.hf.modules())
    model.hf.set_attn_implementation("sdpa")
    with pytest.raises(TwoTowersError, match="load it with"), edited(model, edit):
        capture(model, encoded)
    refused("load it with", LastPosition, model, encoded)
    for closed, layers, message in ((torch.eye(11), [0], "attending to itself"), (torch.zeros(11, 11), [3], "layer 3")):
        with pytest.raises(TwoTowersError, match=message), blocked(model, layers, closed[None].bool()):
            pass
    assert not any("twotowers_reader" in vars(model.part(layer, "attention")) for layer in range(model.n_layers))
