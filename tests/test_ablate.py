"""Restarting from a head's layer gives what whole runs give, on every architecture."""

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import random_prompts, tiny
from twotowers.analysis import ablate, edit_heads
from twotowers.analysis.edit_heads import Edit, edited
from twotowers.errors import TwoTowersError
from twotowers.model.capture import captures, predict


@pytest.mark.parametrize("positions", ["all", "last"])
def test_a_restart_equals_the_whole_run(any_model, positions):
    encoded = random_prompts(5)  # two lengths
    heads = [(0, 1), (any_model.n_layers - 1, 0), (1, any_model.n_heads - 1)]
    # Few tokens at a time: several batches, and heads of a layer in several goes.
    traced = ablate.ablate_heads(any_model, encoded, heads, positions=positions, max_tokens=40)
    top, labels = predict(any_model, encoded)
    assert torch.equal(traced.plain_top, top)
    torch.testing.assert_close(traced.plain_log_prob, labels, atol=1e-10, rtol=0)
    for i, head in enumerate(heads):
        with edited(any_model, [Edit((head,), positions=positions)]):
            top, labels = predict(any_model, encoded)
        assert torch.equal(traced.top[i], top)
        torch.testing.assert_close(traced.log_prob[i], labels, atol=1e-10, rtol=0)


@pytest.mark.parametrize("positions", ["all", "last"])
def test_everything_touched_is_let_go_also_after_an_error(any_model, positions, monkeypatch):
    def touched():
        return [(dict(m._forward_hooks), dict(m._forward_pre_hooks), m.__dict__.get("forward"),
                 {k for k in vars(m) if k.startswith("twotowers")}, "_attn" in vars(m))
                for m in any_model.hf.modules()]  # fmt: skip

    before, encoded = touched(), random_prompts(2, lengths=(11,))
    ablate.ablate_heads(any_model, encoded, [(0, 0), (1, 1)], positions=positions)
    assert touched() == before
    last = any_model.part(any_model.n_layers - 1, "ffn_out")
    calls = []

    def fails(*args):  # not in the plain run, which comes first
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("broken")

    handle = last.register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="broken"):
        ablate.ablate_heads(any_model, encoded, [(0, 0), (1, 1)], positions=positions)
    handle.remove()
    assert touched() == before


def test_a_forward_that_another_library_put_on_a_module_stays(any_model):
    module, encoded = any_model.part(any_model.n_layers - 1, "attention"), random_prompts(2, lengths=(11,))
    expected = ablate.ablate_heads(any_model, encoded, [(0, 0), (1, 1)])
    stock = module.forward
    module.forward = wrapped = lambda *args, **kwargs: stock(*args, **kwargs)  # as accelerate does for a device_map
    try:
        found = ablate.ablate_heads(any_model, encoded, [(0, 0), (1, 1)])
        assert module.forward is wrapped
    finally:
        del module.forward
    torch.testing.assert_close(found.log_prob, expected.log_prob, atol=1e-12, rtol=0)


def test_copies_of_a_layer_in_one_batch_equal_one_at_a_time(any_model):
    encoded, heads = random_prompts(3, lengths=(11,)), edit_heads.all_heads(any_model)
    together = ablate.ablate_heads(any_model, encoded, heads)
    alone = ablate.ablate_heads(any_model, encoded, heads, max_tokens=33)
    torch.testing.assert_close(together.log_prob, alone.log_prob, atol=1e-10, rtol=0)


def test_a_head_replaced_by_what_it_wrote_changes_nothing(any_model):
    encoded = random_prompts(1)
    (seen,) = captures(any_model, encoded)
    own = seen.attention_out_input[:, 0].reshape(any_model.n_layers, any_model.n_heads, any_model.d_head)
    traced = ablate.ablate_heads(any_model, encoded, [(1, 1)], positions="last", replacement=own)
    torch.testing.assert_close(traced.log_prob[0], traced.plain_log_prob, atol=1e-10, rtol=0)


def test_the_table_counts_what_the_prompts_say(any_model):
    encoded = random_prompts(6)
    traced = ablate.ablate_heads(any_model, encoded, [(0, 0), (1, 1)])
    true = torch.tensor([e.true_id for e in encoded])
    table = traced.table()
    assert table.accuracy[1] == pytest.approx(float((traced.top[1] == true).double().mean()))
    column = [list(e.label_ids).index(e.prompt.true_label) for e in encoded]
    drop = sum(traced.plain_log_prob[i, c] - traced.log_prob[1, i, c] for i, c in enumerate(column)) / len(encoded)
    assert table.log_prob_drop[1] == pytest.approx(float(drop))


def test_a_head_outside_the_model_is_refused(any_model):
    with pytest.raises(TwoTowersError, match="is not in"):
        ablate.ablate_heads(any_model, random_prompts(1), [(99, 0)])


def test_sets_taken_away_together_equal_whole_runs(any_model):
    encoded, last = random_prompts(4), any_model.n_layers - 1
    sets = [[(last, 0), (0, 1), (0, 0)], [(1, 0), (1, 1), (1, 0)], [(last, 1)]]
    traced = ablate.ablate_sets(any_model, encoded, sets, max_tokens=60)
    for i, one in enumerate(sets):
        with edited(any_model, [Edit(tuple(one))]):
            top, labels = predict(any_model, encoded)
        assert torch.equal(traced.top[i], top)
        torch.testing.assert_close(traced.log_prob[i], labels, atol=1e-10, rtol=0)
    with pytest.raises(TwoTowersError, match="sets of several heads"):
        traced.table()
    assert ablate.ablate_sets(any_model, encoded, sets[2:]).table().name.tolist() == [f"{last}-1"]


def test_what_cannot_be_taken_away_is_refused():
    model, encoded = tiny("gpt2"), random_prompts(1)
    with pytest.raises(TwoTowersError, match="choose 'all' or 'last'"):
        ablate.ablate_sets(model, encoded, [[(0, 0)]], positions="first")
    for prompts, sets in (([], [[(0, 0)]]), (encoded, [])):
        with pytest.raises(TwoTowersError, match="nothing to take away"):
            ablate.ablate_sets(model, prompts, sets)
    with pytest.raises(TwoTowersError, match="no heads given"):
        ablate.ablate_sets(model, encoded, [[]])


def test_two_rankings_join_in_the_order_of_the_growing_union():
    heads = [(0, 0), (0, 1), (1, 0), (1, 1)]
    increase = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "increase": [3.0, 2.0, 1.0, 0.0]})
    drop = increase[["layer", "head"]].assign(accuracy_drop=[0.0, 0.0, 0.1, 0.0], log_prob_drop=[0.1, 0.2, 0.0, 0.3])
    table = ablate.ranked(increase, drop).set_index(["layer", "head"])
    assert [table.by_increase[h] for h in heads] == [1, 2, 3, 4]
    assert [table.by_drop[h] for h in heads] == [4, 3, 1, 2]  # accuracy first, then the log-probability
    assert list(table.index) == [(1, 0), (0, 0), (0, 1), (1, 1)]
    assert ablate.in_context_heads(table.reset_index(), 1) == [(1, 0), (0, 0)]
    assert ablate.in_context_heads(table.reset_index(), 2) == [(1, 0), (0, 0), (0, 1), (1, 1)]
    with pytest.raises(TwoTowersError, match="the model has 4 heads"):
        ablate.in_context_heads(table.reset_index(), 5)
    with pytest.raises(TwoTowersError, match="different heads"):
        ablate.ranked(increase[1:], drop)


def test_a_head_serves_the_label_it_raises_more():
    rng = np.random.default_rng(0)
    foo, bar = rng.normal(0, 0.1, (2, 30, 1, 3))
    foo[:, 0, 0] += 1
    bar[:, 0, 1] += 1
    table = ablate.label_heads({"foo": foo, "bar": bar}, [(0, 1), (0, 0), (0, 2)])
    assert list(table["head"]) == ["0-1", "0-0", "0-2"] and list(table["serves"])[:2] == ["bar", "foo"]
    assert table["lean"][1] == pytest.approx(float((foo - bar)[:, 0, 0].mean()))
    assert list(table["clear"])[:2] == [True] * 2
    same = ablate.label_heads({"foo": foo, "bar": foo}, [(0, 2)])
    assert not same["clear"][0]


def test_a_mean_is_put_in_place_of_a_head(any_model):
    encoded = random_prompts(5)
    last, every = (edit_heads.mean_fed(any_model, encoded, where, max_tokens=30) for where in ("last", "all"))
    seen = torch.cat([s.attention_out_input for s in captures(any_model, encoded)], 1)
    torch.testing.assert_close(last, seen.mean(1))
    assert not torch.allclose(last, every)
    one = encoded[:1]
    traced = ablate.ablate_heads(any_model, one, [(1, 1)], replacement=every)
    with edited(any_model, [Edit(((1, 1),), replacement=every[1, [1]])]):
        torch.testing.assert_close(traced.log_prob[0], predict(any_model, one)[1], atol=1e-10, rtol=0)
    with pytest.raises(TwoTowersError, match="choose 'all' or 'last'"):
        edit_heads.mean_fed(any_model, encoded, "first")
    with pytest.raises(TwoTowersError, match="draw at least one"):
        edit_heads.mean_fed(any_model, [])


def test_the_mean_over_all_positions_is_that_of_one_head_by_hand():
    model, encoded = tiny("llama"), random_prompts(3)
    rows = []
    handle = model.part(2, "attention_out").register_forward_pre_hook(lambda _, args: rows.append(args[0]))
    for one in encoded:
        predict(model, [one])
    handle.remove()
    by_hand = torch.cat([r[0] for r in rows]).reshape(-1, model.n_heads, model.d_head).mean(0)
    torch.testing.assert_close(edit_heads.mean_fed(model, encoded, "all")[2], by_hand)
