"""Restarting from a head's layer gives what whole runs give, on every architecture."""

import pytest
import torch
from conftest import random_prompts
from twotowers import intervene, tracing
from twotowers.capture import captures, predict
from twotowers.errors import TwoTowersError
from twotowers.intervene import Edit, edited


@pytest.mark.parametrize("positions", ["all", "last"])
def test_a_restart_equals_the_whole_run(any_model, positions):
    encoded = random_prompts(5)  # two lengths
    heads = [(0, 1), (any_model.n_layers - 1, 0), (1, any_model.n_heads - 1)]
    # Few tokens at a time: several batches, and heads of a layer in several goes.
    traced = tracing.zero_each(any_model, encoded, heads, positions=positions, max_tokens=40)
    top, labels = predict(any_model, encoded)
    assert torch.equal(traced.plain_top, top)
    torch.testing.assert_close(traced.plain_log_prob, labels, atol=1e-10, rtol=0)
    for i, head in enumerate(heads):
        with edited(any_model, [Edit((head,), positions=positions)]):
            top, labels = predict(any_model, encoded)
        assert torch.equal(traced.top[i], top)
        torch.testing.assert_close(traced.log_prob[i], labels, atol=1e-10, rtol=0)


def test_copies_of_a_layer_in_one_batch_equal_one_at_a_time(any_model):
    encoded, heads = random_prompts(3, lengths=(11,)), intervene.all_heads(any_model)
    together = tracing.zero_each(any_model, encoded, heads)
    alone = tracing.zero_each(any_model, encoded, heads, max_tokens=33)
    torch.testing.assert_close(together.log_prob, alone.log_prob, atol=1e-10, rtol=0)


def test_a_head_replaced_by_what_it_wrote_changes_nothing(any_model):
    encoded = random_prompts(1)
    (seen,) = captures(any_model, encoded)
    own = seen.attention_out_input[:, 0].reshape(any_model.n_layers, any_model.n_heads, any_model.d_head)
    traced = tracing.zero_each(any_model, encoded, [(1, 1)], positions="last", instead=own)
    torch.testing.assert_close(traced.log_prob[0], traced.plain_log_prob, atol=1e-10, rtol=0)


def test_the_table_counts_what_the_prompts_say(any_model):
    encoded = random_prompts(6)
    traced = tracing.zero_each(any_model, encoded, [(0, 0), (1, 1)])
    true = torch.tensor([e.true_id for e in encoded])
    table = traced.table()
    assert table.accuracy[1] == pytest.approx(float((traced.top[1] == true).double().mean()))
    column = [list(e.label_ids).index(e.prompt.true_label) for e in encoded]
    drop = sum(traced.plain_log_prob[i, c] - traced.log_prob[1, i, c] for i, c in enumerate(column)) / len(encoded)
    assert table.log_prob_drop[1] == pytest.approx(float(drop))


def test_a_head_outside_the_model_is_refused(any_model):
    with pytest.raises(TwoTowersError, match="is not in"):
        tracing.zero_each(any_model, random_prompts(1), [(99, 0)])
