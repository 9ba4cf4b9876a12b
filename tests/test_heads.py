"""Heads by name, which of them a run takes, and their random controls."""

import pandas as pd
import pytest
from twotowers import heads as head_sets
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.parameters import Parameters
from twotowers.studies.located import top
from twotowers.studies.run import Run

TABLE = pd.DataFrame(
    {
        "dataset": "a",
        "layer": [0, 1, 2],
        "head": [1, 0, 3],
        "label_margin": [0.2, -0.1, 0.5],
        "increase": [3.0, 2.0, -1.0],
    }
)


def test_a_head_is_named_and_read_back():
    assert str(Head(22, 0)) == "22-0" and Head.parse("22-0") == (22, 0)
    for text in ("22", "a-b", "2-5-1", "-1-2", ""):
        with pytest.raises(TwoTowersError, match="write layer-head"):
            Head.parse(text)


def test_the_top_heads_are_those_above_zero_by_the_ranking_asked_for():
    assert top(TABLE, "a", "label", 5) == [(2, 3), (0, 1)]
    assert top(TABLE, "a", "paper", 1) == [(0, 1)]
    with pytest.raises(TwoTowersError, match="no head raises the true label"):
        top(TABLE.assign(label_margin=-1.0), "a", "label", 2)


def test_named_heads_are_taken_in_their_order_and_refused_outside_the_model():
    run = Run(Parameters.of({"heads": "3-7,0-1,3-7"}))
    assert run.heads() == [(3, 7), (0, 1)] and run.heads_from == "given as a parameter"
    with pytest.raises(TwoTowersError, match="head 4-0 is not in mini-gpt2: layers go to 3, heads to 7"):
        Run(Parameters.of({"heads": "4-0"})).heads()


def test_random_heads_are_others_of_the_same_layers():
    heads = [(2, 0), (2, 3), (1, 1)]
    for seed in range(20):
        drawn = head_sets.random_heads(heads, 4, seed)
        assert [layer for layer, _ in drawn] == [2, 2, 1]
        assert len(set(drawn)) == 3 and not set(drawn) & set(heads)
        assert drawn == head_sets.random_heads(heads, 4, seed)
    assert len({tuple(head_sets.random_heads(heads, 4, seed)) for seed in range(20)}) > 3
    assert head_sets.other_heads_of_layers(heads, 4) == [(1, 0), (1, 2), (1, 3), (2, 1), (2, 2)]
    with pytest.raises(TwoTowersError, match="every head of layer 0"):
        head_sets.random_heads([(0, 0), (0, 1)], 2)


def test_control_heads_are_others_of_the_same_layers_while_there_are_any():
    heads = [(2, 0), (2, 3), (1, 1)]
    for seed in range(20):
        same = head_sets.control_heads(heads, 3, 4, seed)
        assert sorted(layer for layer, _ in same) == [1, 2, 2]
        anywhere = head_sets.control_heads(heads, 3, 4, seed, same_layers=False)
        for drawn in (same, anywhere):
            assert len(set(drawn)) == 3 and not set(drawn) & set(heads)
        assert same == head_sets.control_heads(heads, 3, 4, seed)
    layers = {layer for seed in range(20) for layer, _ in head_sets.control_heads(heads, 3, 4, seed, same_layers=False)}
    assert layers == {0, 1, 2}
    assert not {(1, 0), (1, 2)} & set(head_sets.control_heads(heads, 3, 4, beside=[(1, 0), (1, 2)]))
    full = [(2, h) for h in range(3)]
    drawn = head_sets.control_heads(full, 3, 4)
    assert (2, 3) in drawn and len(set(drawn)) == 3 and sum(layer < 2 for layer, _ in drawn) == 2
    with pytest.raises(TwoTowersError, match="leave 5 others"):
        head_sets.control_heads([(a, b) for a in range(3) for b in range(4)][:7], 3, 4)


def test_the_others_of_a_layer_are_drawn_and_none_is_the_head_itself():
    for seed in range(5):
        drawn = head_sets.others_of_layer((2, 1), 8, 5, seed)
        assert len(set(drawn)) == 5 and (2, 1) not in drawn and {layer for layer, _ in drawn} == {2}
        assert drawn == head_sets.others_of_layer((2, 1), 8, 5, seed)
    assert set(head_sets.others_of_layer((0, 0), 3, 5)) == {(0, 1), (0, 2)}
    with pytest.raises(TwoTowersError, match="one head only"):
        head_sets.others_of_layer((0, 0), 1, 5)


def test_near_heads_are_whole_layers_from_the_nearest_on():
    near = head_sets.nearest_heads((2, 1), 6, 4, 10)
    assert near[:3] == [(2, 0), (2, 2), (2, 3)] and set(near[3:]) == {(la, h) for la in (1, 3) for h in range(4)}
    assert {layer for layer, _ in head_sets.nearest_heads((5, 0), 6, 4, 8)} == {5, 4, 3}  # none above the last
    assert len(head_sets.nearest_heads((0, 0), 2, 3, 100)) == 5  # all there are
    assert head_sets.nearest_heads((0, 0), 1, 1, 20) == []
