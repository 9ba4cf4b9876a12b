"""Demonstrations chosen for a query: which they are, against loops; their answers are those of
`measure.answers`, which test_independent compares with formulas."""

import numpy as np
import pytest
import tiny_blocks
import xarray as xr
from tolerances import near
from towerlab_experiments.chosen_demonstrations import (
    choices_of,
    chosen,
    contrasted,
    head_scores,
    prompts_of,
    yardsticks,
)
from twotowers import identity
from twotowers.settings import Settings

DESIGN = tiny_blocks.design(k=2)
WORDS = [*tiny_blocks.TEXTS["a"][:4], *tiny_blocks.TEXTS["b"][:4]]


@pytest.mark.parametrize("query", range(8))
def test_k_of_each_class_are_chosen_by_rank_and_never_the_query(query):
    scores = np.random.default_rng(query).normal(size=(8, 8))
    scores[query, query] = 9.0
    classes = (range(4), range(4, 8)) if query < 4 else (range(4, 8), range(4))
    for own, other, of_choice in ((1, 1, scores), (1, -1, contrasted(scores)), (-1, -1, -scores)):
        numbers = chosen(of_choice, query, 2)
        for of_class, sign in zip(classes, (own, other), strict=True):
            ranked = sorted(
                (i for i in of_class if i != query), key=lambda i: -sign * scores[query, i]
            )
            assert [i for i in numbers if i in of_class] == ranked[:2]


def towers():
    rng = np.random.default_rng(0)
    return xr.Dataset(
        {
            "similarity": (
                ("selected_head", "asked", "demonstrated"), rng.integers(-99, 99, (3, 8, 8))
            ),
            "similarity_step": ("selected_head", [0.5, 2.0, 1.0]),
        },
        {
            "asked": WORDS, "demonstrated": WORDS, "asked_class": ("asked", [*"aaaabbbb"]),
            "role": ("selected_head", ["by attention", "by attention", "as much attention"]),
        },
    )  # fmt: skip


def test_scores_are_means_of_heads_without_the_attraction_of_a_demonstration():
    data = towers()
    mean = (data.similarity[0] * 0.5 + data.similarity[1] * 2).values / 2
    got = head_scores(data, "by attention")
    for v in range(8):
        rows = [[w for w in of_class if w != v] for of_class in (range(4), range(4, 8))]
        attraction = np.mean([mean[of_class, v].mean() for of_class in rows])
        near(got[:, v], mean[:, v] - attraction)


def test_yardsticks_are_those_of_the_tables(monkeypatch):
    found = yardsticks("animal/country", ["dog", "cat", "france", "spain"])
    assert [*found] == ["sentence embedding", "letters"]
    for scores in found.values():
        np.testing.assert_array_equal(scores, scores.T)
    embedding = found["sentence embedding"]
    assert embedding[2, 3] > embedding[0, 3] and embedding[0, 1] > embedding[0, 2]
    assert found["letters"][2, 3] == 0
    for scores in yardsticks("animal/country", ["dog", "my word", "france", "spain"]).values():
        assert np.isnan(scores[0, 1])
    data = towers()
    rng = np.random.default_rng(0)
    choices = choices_of(data, "a/b", rng)
    assert [*choices] == ["towers", "farthest", "contrast", "other heads", "random"]
    np.testing.assert_array_equal(choices["towers"], -choices["farthest"])
    assert (choices["other heads"] != choices["towers"]).any()
    no_others = data.isel(selected_head=[0, 1])
    without = choices_of(no_others, "a/b", rng)
    assert [*without] == ["towers", "farthest", "contrast", "random"]
    # The next class pair has other draws, or its random demonstrations stand at the same places.
    assert (without["random"] != choices["random"]).all()


def test_both_prompts_of_a_query_have_the_same_texts():
    first, second = prompts_of(DESIGN, "a/b", WORDS, 5, [1, 0, 4, 6], "foo/bar", 0)
    assert first.query == second.query == "b1" and first.query_class == "b"
    assert (first.true_label, second.true_label) == ("bar", "foo")
    shown = [{(d.text, d.cls) for d in p.demonstrations} for p in (first, second)]
    assert shown[0] == shown[1] == {("a1", "a"), ("a0", "a"), ("b0", "b"), ("b2", "b")}
    assert first.order == second.order[::-1]
    assert all((d.label == first.true_label) == (d.cls == "b") for d in first.demonstrations)


def test_another_table_of_similarities_makes_the_file_stale(tmp_path, monkeypatch):
    names = "chosen_demonstrations", "similar_flips"
    before = [identity.identity_of(name, Settings(), "m@0") for name in names]
    read = identity.read_text
    monkeypatch.setattr(
        identity, "read_text", lambda path: read(path) + ("x" if "similarity" in path.name else "")
    )
    after = [identity.identity_of(name, Settings(), "m@0") for name in names]
    assert before[0] != after[0] and before[1] == after[1]
