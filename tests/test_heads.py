"""Which heads a chapter looks at: given, from chapter 1's table, or located; and their random controls."""

import pytest
from conftest import tiny
from twotowers import heads as head_sets
from twotowers.analysis import locate
from twotowers.chapters.chapter import HEADS_TABLE, Chapter, check_parameters
from twotowers.errors import TwoTowersError
from twotowers.stats import tables


def chapter(folder, model, **parameters) -> Chapter:
    given = {"datasets": ["animal/country"], "n_prompts": 5, "top_k": 3, "norm": "frozen", "out": str(folder)}
    one = Chapter("02-project", check_parameters(given | parameters))
    one.__dict__["loaded"] = model  # what the cached property would hold
    return one


def table(model, increase=lambda layer, head: layer - head, norm="frozen"):
    import pandas as pd

    rows = [(a, b, increase(a, b)) for a in range(model.n_layers) for b in range(model.n_heads)]
    return pd.DataFrame(rows, columns=["layer", "head", "increase"]).assign(dataset="animal/country", norm=norm)


def test_given_heads_are_taken_in_their_order_and_once(tmp_path):
    one = chapter(tmp_path, tiny("gpt2"), heads="2-0, 1-3,2-0")
    assert one.heads() == [(2, 0), (1, 3)] and one.heads_from == "given as a parameter"
    assert chapter(tmp_path, tiny("gpt2"), heads=["0-1"]).heads() == [(0, 1)]


@pytest.mark.parametrize(
    ("heads", "says"),
    [("3-0", "layers go to 2"), ("0-4", "heads to 3"), ("2_0", "write layer-head"), ("-1-2", "write layer-head")],
)
def test_a_head_outside_the_model_is_refused(tmp_path, heads, says):
    with pytest.raises(TwoTowersError, match=says) as refusal:
        chapter(tmp_path, tiny("gpt2"), heads=heads).heads()
    assert "\n" not in str(refusal.value)


def test_heads_come_from_chapter_1_and_only_those_that_raise_the_label(tmp_path):
    model = tiny("gpt2")
    tables.save(table(model), tmp_path, HEADS_TABLE, fingerprint=model.fingerprint)
    one = chapter(tmp_path, model)
    assert one.heads() == [(2, 0), (1, 0), (2, 1)] and "animal/country" in one.heads_from
    assert chapter(tmp_path, model, top_k=12).heads() == [(2, 0), (1, 0), (2, 1)]


def test_another_models_table_another_norm_and_an_empty_set_are_refused(tmp_path):
    model = tiny("gpt2")
    tables.save(table(model), tmp_path, HEADS_TABLE, fingerprint="other@123")
    with pytest.raises(TwoTowersError, match="came from the model other@123"):
        chapter(tmp_path, model).heads()
    tables.save(table(model, norm="raw"), tmp_path, HEADS_TABLE, fingerprint=model.fingerprint)
    with pytest.raises(TwoTowersError, match="located with norm raw, not frozen"):
        chapter(tmp_path, model).heads()
    tables.save(table(model, lambda *_: -1.0), tmp_path, HEADS_TABLE, fingerprint=model.fingerprint)
    with pytest.raises(TwoTowersError, match="no head of gpt2 raises the true label"):
        chapter(tmp_path, model).heads()
    tables.save(table(model).drop(columns="norm"), tmp_path, HEADS_TABLE, fingerprint=model.fingerprint)
    with pytest.raises(TwoTowersError, match="lacks norm"):
        chapter(tmp_path, model).heads()


def test_without_a_table_heads_are_located_as_chapter_1_would(tmp_path, monkeypatch):
    from conftest import random_prompts

    model, encoded = tiny("llama"), random_prompts(5)
    one = chapter(tmp_path, model, top_k=1)
    monkeypatch.setattr(Chapter, "encoded", lambda self, name: encoded)
    assert one.heads() == locate.increases(model, encoded).top_heads(1) and "located here" in one.heads_from


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
