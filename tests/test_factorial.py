"""The factorial of prompts, its design and the rules that look at labels only."""

from dataclasses import replace

import numpy as np
import pytest
from twotowers.analysis.factorial import arrangements, baselines, design, factorial
from twotowers.errors import TwoTowersError
from twotowers.prompts.datasets import class_words, draw, paper_example
from twotowers.prompts.prompt import Demonstration, Prompt

LABELS = {"a": "foo", "b": "bar"}


def labelled(labels, true_label="foo"):
    """A prompt with this sequence of labels; texts and classes do not matter."""
    demonstrations = tuple(Demonstration(f"word{i}", LABELS[letter]) for i, letter in enumerate(labels))
    return Prompt(demonstrations, "query", true_label, ("foo", "bar"))


def different_queries(prompts):
    return list({p.query: p for p in prompts}.values())


def test_all_arrangements_and_a_drawn_half_hold_each_kind_equally_often_at_every_place():
    assert sorted(arrangements(2)) == ["FFTT", "FTFT", "FTTF", "TFFT", "TFTF", "TTFF"]
    assert len(arrangements(4)) == 70
    for seed in range(5):
        drawn = arrangements(4, 10, seed)
        assert len(set(drawn)) == 10 and all(order.count("T") == 4 for order in drawn)
        assert (np.array([[c == "T" for c in order] for order in drawn]).mean(0) == 0.5).all()
    assert arrangements(4, 10, 1) != arrangements(4, 10, 2)
    assert sorted(arrangements(2, 6)) == sorted(arrangements(2))


@pytest.mark.parametrize("k, n", [(2, 3), (2, 8), (2, 0), (0, None)])
def test_arrangements_that_cannot_balance_are_refused(k, n):
    with pytest.raises(TwoTowersError, match="give"):
        arrangements(k, n)


@pytest.mark.parametrize("orders, size", [(None, 6), (2, 2), (("FTTF", "TFFT"), 2)])
def test_a_factorial_is_orthogonal_and_shows_every_label_everywhere_equally_often(orders, size):
    prompts, table = factorial(draw("sentiment/number", 4), orders)
    assert len(prompts) == len(table) == len(set(prompts)) == 4 * size * 2 * 2
    for _, rows in table.groupby("source"):
        first = np.array([[letter == "a" for letter in labels] for labels in rows["labels"]])
        assert (first.mean(0) == 0.5).all()
        sequence = rows[["last", "alternation", "place", "count"]].to_numpy()
        assert (rows["match"].to_numpy() @ np.c_[sequence, np.ones(len(rows))] == 0).all()
        assert (sequence.sum(0) == 0).all()
        assert rows.groupby("query_class")["match"].sum().to_dict() == {"sentiment": 0, "number": 0}
    for prompt, row in zip(prompts, table.itertuples(), strict=True):
        assert prompt.query == row.query and prompt.query in class_words()[prompt.cls]
        assert prompt.query not in {d.text for d in prompt.demonstrations}
        assert {d.label for d in prompt.demonstrations if d.cls == prompt.cls} == {prompt.true_label}


def test_texts_of_a_source_stay_in_all_its_prompts():
    sources = draw("animal/country", 3)
    prompts, table = factorial(sources)
    for i, source in enumerate(sources):
        texts = {frozenset(d.text for d in prompts[at].demonstrations) for at in table.index[table["source"] == i]}
        assert texts == {frozenset(d.text for d in source.demonstrations)}
        assert source.query in set(table.loc[table["source"] == i, "query"])


def test_orders_are_drawn_anew_for_every_source_and_by_the_seed():
    sources = draw("animal/country", 4, k=4)
    _, table = factorial(sources, 4)
    assert len({tuple(rows["order"]) for _, rows in table.groupby("source")}) == 4
    assert factorial(sources, 4)[0] == factorial(sources, 4)[0] != factorial(sources, 4, seed=1)[0]


def test_sources_that_share_a_query_word_are_one_cluster_and_others_are_not():
    sources = draw("sentiment/number", 20)
    _, table = factorial(sources)
    words = table.groupby("cluster")["query"].agg(set)
    for i, one in enumerate(words):
        assert not any(one & other for other in words[i + 1 :])
    assert table.groupby("source")["cluster"].nunique().eq(1).all()
    apart = different_queries(sources)
    assert len(apart) < len(sources)
    assert factorial(apart)[1]["cluster"].nunique() == len(apart)


def test_imbalanced_forms_are_all_orders_with_one_demonstration_fewer_of_either_class():
    sources = draw("animal/country", 2)
    prompts, table = factorial(sources, imbalanced=True)
    assert len(prompts) == 2 * 6 * 2 * 2 * 2
    fewer = table[table["count"] != 0]
    assert len(fewer) == len(table) / 2
    for _, rows in fewer.groupby(["source", "query_class", "match"]):
        assert sorted(rows["labels"]) == ["aab", "aba", "abb", "baa", "bab", "bba"]
    assert fewer["count"].sum() == (fewer["count"] * fewer["match"]).sum() == 0
    assert set(fewer["count"]) == {-1, 1}


def test_the_terms_of_hand_made_prompts():
    row = design([paper_example()]).iloc[0]
    assert (row["query"], row["query_class"], row["order"], row["labels"]) == ("one", "number", "FFTT", "bbaa")
    expected = {
        "bbaa": (1, 0, 1, 0),
        "aabb": (-1, 0, -1, 0),
        "abab": (-1, 1, -0.5, 0),
        "baba": (1, -1, 0.5, 0),
        "abba": (1, 0, 0, 0),
        "aba": (1, -1, 0, 1),
        "abb": (-1, 0, -1, -1),
        "ba": (1, 0, 1, 0),
        "aabbabab": (-1, 1, -0.375, 0),  # places of a: 0, 1, 4, 6; of b: 2, 3, 5, 7
        "babaabba": (1, 0, 0.125, 0),  # 1, 3, 4, 7; and 0, 2, 5, 6
    }
    table = design([labelled(labels) for labels in expected])
    assert table["labels"].tolist() == list(expected)
    assert table[["last", "alternation", "place", "count"]].to_numpy().tolist() == [list(v) for v in expected.values()]
    assert design([labelled("ab"), labelled("ab", "bar")])["match"].tolist() == [1, -1]


def test_the_paper_s_order_is_all_right_by_repeating_the_last_label_and_a_factorial_is_half_right_by_every_rule():
    paper = baselines(draw("animal/country", 5)).set_index("rule")["accuracy"]
    assert paper["repeat the last label"] == paper["continue the sequence"] == paper["the preferred label"] == 1
    assert paper["switch from the last label"] == 0 and paper["the more frequent label"] == 0.5
    balanced = baselines(factorial(draw("animal/country", 5), imbalanced=True)[0])
    assert balanced["accuracy"].eq(0.5).all() and balanced["n"].eq(240).all()


def test_rules_on_hand_made_prompts():
    prompts = [labelled("abab", "foo"), labelled("abba", "foo"), labelled("aabb", "foo"), labelled("aab", "bar")]
    found = baselines(prompts).set_index("rule")["accuracy"].to_dict()
    assert found == {
        "repeat the last label": 0.5,
        "switch from the last label": 0.5,
        "continue the sequence": 0.75,
        "the preferred label": 0.75,
        "the more frequent label": 0.375,
    }


def test_what_has_no_balanced_factorial_is_refused():
    good = draw("animal/country", 3)
    short = replace(good[0], demonstrations=good[0].demonstrations[:-1])
    noisy = replace(
        good[0], demonstrations=(replace(good[0].demonstrations[0], label="foo"), *good[0].demonstrations[1:])
    )
    for prompts, options, message in [
        ([short], {}, "balanced"),
        ([noisy], {}, "each with a label"),
        ([labelled("abab")], {}, "named classes"),
        (draw("animal/country", 3, k=1), {"imbalanced": True}, "k of at least 2"),
        (good[:1], {}, "draw more prompts"),
        (good, {"orders": 3}, "even number"),
        (good, {"orders": ("FFTT", "FTFT")}, "mirror"),
        (good, {"orders": ("FT", "TF")}, "2 T and 2 F"),
        (good, {"orders": ("FFTT", "TTF")}, "2 T and 2 F"),
        (good, {"orders": ("ffTT", "TTff")}, "2 T and 2 F"),
        (good, {"orders": ()}, "2 T and 2 F"),
    ]:
        with pytest.raises(TwoTowersError, match=message):
            factorial(prompts, **options)


def test_what_has_no_design_is_refused():
    for prompts, message in [
        ([], "same two labels"),
        ([labelled("ab"), replace(labelled("ab"), labels=("bar", "foo"))], "same two labels"),
        ([replace(labelled("ab"), labels=("foo", "bar", "baz"))], "same two labels"),
        ([labelled("aa")], "one label only"),
    ]:
        with pytest.raises(TwoTowersError, match=message):
            design(prompts)
