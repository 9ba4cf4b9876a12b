"""Edits of heads: exact, composable, always undone."""

import pytest
import torch
from conftest import random_prompts, tiny
from twotowers.analysis import edit_heads
from twotowers.analysis.edit_heads import Edit, edited
from twotowers.errors import TwoTowersError
from twotowers.model.capture import capture


def test_scale_one_changes_nothing_bit_for_bit(any_model):
    encoded = random_prompts(3, lengths=(11,))
    before = capture(any_model, encoded).logits
    with edited(any_model, [Edit(tuple(edit_heads.all_heads(any_model)), scale=1.0)]):
        assert torch.equal(capture(any_model, encoded).logits, before)
    assert torch.equal(capture(any_model, encoded).logits, before)


def test_zeroing_all_heads_of_a_layer_leaves_its_output_bias(any_model):
    heads = tuple((1, h) for h in range(any_model.n_heads))
    with edited(any_model, [Edit(heads)]):
        seen = capture(any_model, random_prompts(2, lengths=(11,)))
    bias = any_model.output_bias(1)
    expected = torch.zeros_like(seen.attention_output[1]) if bias is None else bias.expand_as(seen.attention_output[1])
    torch.testing.assert_close(seen.attention_output[1], expected)


def test_two_edits_compose_and_the_model_is_restored_after_an_error(any_model):
    encoded = random_prompts(2, lengths=(11,))
    plain = capture(any_model, encoded)
    with edited(any_model, [Edit(((0, 1),), scale=0.5)]), edited(any_model, [Edit(((0, 1),), scale=0.5)]):
        twice = capture(any_model, encoded)
    torch.testing.assert_close(twice.attention_out_input[0, :, 1], plain.attention_out_input[0, :, 1] * 0.25)
    with pytest.raises(RuntimeError, match="on purpose"), edited(any_model, [Edit(((0, 1),))]):
        raise RuntimeError("on purpose")
    assert torch.equal(capture(any_model, encoded).logits, plain.logits)


def test_an_edit_of_the_last_position_leaves_the_others_alone(any_model):
    encoded = random_prompts(2, lengths=(11,))
    plain = capture(any_model, encoded, {"streams"})
    with edited(any_model, [Edit(((0, 0),), positions="last")]):
        changed = capture(any_model, encoded, {"streams"})
    assert torch.equal(changed.stream_inputs[1][:, :-1], plain.stream_inputs[1][:, :-1])
    assert not torch.equal(changed.stream_inputs[1][:, -1], plain.stream_inputs[1][:, -1])


@pytest.mark.parametrize("heads", [[(9, 0)], [(0, 9)], [(-1, 0)], []])
def test_heads_outside_the_model_are_refused(heads):
    with pytest.raises(TwoTowersError, match=r"is not in|no heads"):
        edit_heads.check_heads(heads, tiny("gpt2"))


def test_a_head_replaced_by_what_it_fed_to_w_o_changes_nothing(any_model):
    encoded = random_prompts(1)
    plain = capture(any_model, encoded)
    own = plain.attention_out_input[1, 0, :1]
    with edited(any_model, [Edit(((1, 0),), positions="last", replacement=own)]):
        torch.testing.assert_close(capture(any_model, encoded).logits, plain.logits)
    with edited(any_model, [Edit(((1, 0),), positions="last", replacement=own + 1)]):
        assert (capture(any_model, encoded).logits - plain.logits).abs().max() > 1e-3
