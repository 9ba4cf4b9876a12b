"""Word sets from a table small enough to count by hand, and the variants."""

from collections import Counter
from math import comb

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twotowers.errors import TwoTowersError
from twotowers.prompts import datasets
from twotowers.prompts.datasets import counterbalanced, draw, imbalanced, orders, reordered, swapped_labels
from twotowers.prompts.prompt import Demonstration, Prompt
from twotowers.prompts.uninformative import silent_texts, uninformative

TABLE = pd.DataFrame(
    [
        *[("one", "number", 0, 0), ("two", "number", 0, 0), ("six", "number", 1, 0), ("ten", "number", 1, 0)],
        *[("love", "sentiment", 0, 0), ("hate", "sentiment", 0, 0), ("nan", "sentiment", 1, 0)],
        *[("like", "sentiment", 0, 1), ("cat", "animal", 0, 0), ("dog", "animal", 0, 0), ("cow", "animal", 0, 0)],
    ],
    columns=datasets.COLUMNS,
)
PAPER = Prompt(
    tuple(Demonstration(*d) for d in [("love", "bar"), ("like", "bar"), ("eight", "foo"), ("two", "foo")]),
    "one",
    "foo",
    ("foo", "bar"),
)


def texts(prompts):
    return [(*(d.text for d in p.demonstrations), p.query) for p in prompts]


def test_every_prompt_there_is_once():
    # 3 plain sentiment words, 4 numbers: 3 * 2 ways for the false ones, 4 * 3 * 2 for the true ones and the query.
    prompts = draw("sentiment/number", 144, table=TABLE)
    assert len({p.text for p in prompts}) == 144
    for p in prompts:
        assert [d.label for d in p.demonstrations] == ["bar", "bar", "foo", "foo"]
        assert [d.cls for d in p.demonstrations] == ["sentiment", "sentiment", "number", "number"]
        assert (p.cls, p.true_label, p.labels, p.dataset) == ("number", "foo", ("foo", "bar"), "sentiment/number")
        assert len(set(texts([p])[0])) == 5 and "like" not in p.text
    with pytest.raises(TwoTowersError, match="144 or fewer"):
        draw("sentiment/number", 145, table=TABLE)


def test_both_ways_of_drawing_give_each_word_its_share():
    few, many = draw("number/animal", 17, table=TABLE), draw("number/animal", 60, table=TABLE)  # of 72
    for prompts, n in ((few, 17), (many, 60)):
        assert len(set(texts(prompts))) == n
        assert {p.query for p in prompts} == {"cat", "dog", "cow"}
    queries = Counter(p.query for seed in range(100) for p in draw("number/animal", 17, seed=seed, table=TABLE))
    assert all(abs(count - 1700 / 3) < 100 for count in queries.values())  # five standard deviations


def test_seeds_names_and_labels():
    prompts = draw("number/animal", 20, table=TABLE)
    assert prompts == draw("number/animal", 20, table=TABLE)
    assert texts(prompts) != texts(draw("number/animal", 20, seed=1, table=TABLE))
    swapped = draw("number/animal", 20, true_label="bar", table=TABLE)
    assert texts(swapped) == texts(prompts)
    assert swapped == [swapped_labels(p) for p in prompts]
    assert texts(draw("number/animal", 20, labels=("x", "y"), table=TABLE)) == texts(prompts)


def test_two_names_of_like_sizes_draw_differently():
    table = pd.concat([TABLE[TABLE["class"] != "number"], TABLE[TABLE["class"] == "animal"].assign(**{"class": "b"})])
    places = [[p.query for p in draw(name, 30, table=table)] for name in ("sentiment/animal", "sentiment/b")]
    assert places[0] != places[1]


def test_heldout_and_seen_words():
    assert {w for t in texts(draw("animal/number", 6, k=1, words="seen", table=TABLE)) for w in t[1:]} == {
        "one",
        "two",
    }
    with pytest.raises(TwoTowersError, match="k=1 needs 1 words of the class animal and heldout gives 0"):
        draw("animal/number", 1, k=1, words="heldout", table=TABLE)


def test_words_that_a_csv_reader_takes_for_missing_stay_words(tmp_path):
    TABLE.to_csv(tmp_path / "words.csv", index=False)
    assert datasets._read_words(tmp_path / "words.csv")["word"].tolist() == TABLE["word"].tolist()
    with pytest.raises(TwoTowersError, match="restore it from the repository"):
        datasets._read_words(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: draw("animals/country", 1, table=TABLE),
            "unknown dataset 'animals/country'.*animal/country.*sentiment",
        ),
        (lambda: draw("animal/animal", 1, table=TABLE), "unknown dataset"),
        (lambda: draw("animal", 1, table=TABLE), "unknown dataset"),
        (lambda: draw("animal/number", 0, table=TABLE), "n=0"),
        (lambda: draw("animal/number", 2.5, table=TABLE), "n=2.5"),
        (lambda: draw("animal/number", 1, seed=-1, table=TABLE), "seed=-1"),
        (lambda: draw("animal/number", 1, k=0, table=TABLE), "k=0"),
        (lambda: draw("number/animal", 1, k=3, table=TABLE), "needs 4 words of the class animal and all gives 3"),
        (lambda: draw("animal/number", 1, words="new", table=TABLE), "words='new'"),
        (lambda: draw("animal/number", 1, labels=("foo", "foo"), table=TABLE), "equal labels"),
        (lambda: draw("animal/number", 1, labels=("a", "b", "c"), table=TABLE), "3 labels"),
        (lambda: draw("animal/number", 1, labels="foo", table=TABLE), "fewer than two"),
        (lambda: draw("animal/number", 1, labels=("foo", "Cat"), table=TABLE), "'Cat' is a word of the class animal"),
        (lambda: draw("sentiment/number", 1, labels=("like", "foo"), table=TABLE), "'like' is a word"),
        (lambda: draw("animal/number", 1, labels=("cat", "foo"), table=TABLE.replace("cat", "Cat")), "'cat' is a word"),
        (lambda: draw("animal/number", 1, true_label="baz", table=TABLE), "true label 'baz'"),
        (lambda: draw("animal/number", 1, table=TABLE.drop(columns="heldout")), "lacks heldout"),
    ],
)
def test_refusals_name_the_remedy(call, words):
    with pytest.raises(TwoTowersError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_label_of_a_class_out_of_play_is_allowed():
    assert len(draw("animal/number", 1, labels=("love", "hate"), table=TABLE)) == 1


def test_a_dataset_of_ones_own(monkeypatch):
    def mine(name, n, **how):
        demonstration = Demonstration(name, how["true_label"])
        return [Prompt((demonstration,) * how["k"], "q", how["true_label"], how["labels"])] * n

    monkeypatch.setitem(datasets.DATASETS, "mine", mine)
    assert (
        draw("mine", 3, true_label="bar", k=1)
        == [Prompt((Demonstration("mine", "bar"),), "q", "bar", ("foo", "bar"))] * 3
    )


def test_imbalanced_drops_one_true_demonstration():
    assert imbalanced(PAPER).text == "love : bar like : bar eight : foo one :"
    assert imbalanced(PAPER, 0).text == "love : bar like : bar two : foo one :"
    with pytest.raises(TwoTowersError, match="2 true demonstrations"):
        imbalanced(PAPER, 2)
    assert imbalanced(PAPER, kind="false").text == "love : bar eight : foo two : foo one :"
    assert imbalanced(PAPER, 0, kind="false").text == "like : bar eight : foo two : foo one :"
    with pytest.raises(TwoTowersError, match="no false demonstration would be left"):
        imbalanced(imbalanced(PAPER, kind="false"), kind="false")
    with pytest.raises(TwoTowersError, match="no true demonstration would be left"):
        imbalanced(imbalanced(PAPER))


def test_reordered_and_orders():
    assert reordered(PAPER).text == "eight : foo two : foo love : bar like : bar one :"
    found = orders(PAPER)
    assert found[0] == reordered(PAPER) and found[-1] == PAPER
    assert found[1].text == "eight : foo love : bar two : foo like : bar one :"
    assert len(found) == len(set(found)) == 6


def test_swapped_labels_leave_texts_alone():
    prompt = Prompt((Demonstration("foo", "bar"), Demonstration("bar", "foo")), "foo", "bar", ("foo", "bar"))
    assert swapped_labels(prompt).text == "foo : foo bar : bar foo :"
    assert swapped_labels(prompt).true_label == "foo" and swapped_labels(prompt).is_true == prompt.is_true
    three = Prompt((Demonstration("a", "x"),), "b", "x", ("x", "y", "z"))
    with pytest.raises(TwoTowersError, match="3 labels"):
        swapped_labels(three)


@pytest.mark.parametrize("variant", [imbalanced, reordered, orders])
@pytest.mark.parametrize("label", ["foo", "bar"])
def test_one_sided_prompts_have_no_variants(variant, label):
    one_sided = Prompt((Demonstration("a", label), Demonstration("b", label)), "c", "foo", ("foo", "bar"))
    with pytest.raises(TwoTowersError, match="a true and a false"):
        variant(one_sided)


@given(st.lists(st.sampled_from(["foo", "bar"]), min_size=2, max_size=7).filter(lambda s: len(set(s)) == 2))
def test_variants_differ_only_where_they_should(labels):
    prompt = Prompt(tuple(Demonstration(f"w{i}", x) for i, x in enumerate(labels)), "q", "foo", ("foo", "bar"))

    def of(variant, label):
        return [d for d in variant.demonstrations if d.label == label]

    found = orders(prompt)
    assert len({p.is_true for p in found}) == len(found) == comb(len(labels), labels.count("foo"))
    assert prompt in found and reordered(prompt) in found
    for variant in found:
        assert all(of(variant, label) == of(prompt, label) for label in ("foo", "bar"))
        assert (variant.query, variant.true_label, variant.labels) == ("q", "foo", ("foo", "bar"))
    assert swapped_labels(swapped_labels(prompt)) == prompt
    if labels.count("foo") > 1:
        assert of(imbalanced(prompt), "foo") == of(prompt, "foo")[:-1]
        assert of(imbalanced(prompt), "bar") == of(prompt, "bar")


@pytest.fixture(scope="module")
def real():
    try:
        return datasets.words_table()
    except TwoTowersError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", datasets.WORD_SETS)
@pytest.mark.parametrize("words", datasets.WORDS)
def test_the_papers_sets_give_a_thousand_prompts(name, words, real):
    prompts = draw(name, 1000, words=words)
    assert len({p.text for p in prompts}) == 1000
    classes = {c: set(real.loc[(real["class"] == c) & ~real["ambiguous"], "word"]) for c in name.split("/")}
    flags = real.set_index("word")["heldout"]
    for p in prompts:
        assert all(d.text in classes[d.cls] for d in p.demonstrations) and p.query in classes[p.cls]
        if words != "all":
            assert all(flags[w] == (words == "heldout") for w in texts([p])[0])


def test_any_pair_of_real_classes_is_a_set(real):
    datasets.check_name("fruit/colour")
    assert draw("fruit/colour", 5)[0].cls == "colour"


def test_counterbalanced_prompts_tell_the_class_by_text_alone():
    drawn = draw("animal/country", 24)
    turned = counterbalanced(drawn)
    for place in range(4):
        assert sum(p.is_true[place] for p in turned) == 12
    assert [p.true_label for p in turned].count("foo") == 12
    for before, after in zip(drawn, turned, strict=True):
        assert sorted(d.text for d in before.demonstrations) == sorted(d.text for d in after.demonstrations)
        assert (before.query, before.cls) == (after.query, after.cls)
        assert all(true == (d.cls == after.cls) for d, true in zip(after.demonstrations, after.is_true, strict=True))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [4, 8, 40])
def test_few_counterbalanced_prompts_are_balanced_too(k, n):
    """Walking through the 70 orders of 4 + 4 one by one would leave 40 prompts with one label true, and places uneven."""
    turned = counterbalanced(draw("animal/country", n, k=k))
    for place in range(2 * k):
        assert sum(p.is_true[place] for p in turned) == n / 2
    assert sum(p.true_label == "foo" for p in turned) == n / 2
    many = counterbalanced(draw("animal/country", 280, k=k))
    assert len({(p.is_true, p.true_label) for p in many}) == 2 * len(orders(many[0])), "each order meets both labels"


def test_uninformative_labels_stand_equally_often_beside_either_class():
    drawn = draw("animal/country", 40)
    shown = uninformative(drawn, seed=3)
    for before, after in zip(drawn, shown, strict=True):
        pairs = Counter((d.cls, d.label) for d in after.demonstrations)
        assert set(pairs.values()) == {1} and len(pairs) == 4
        assert [d.text for d in before.demonstrations] == [d.text for d in after.demonstrations]
        assert (before.query, before.true_label, before.cls) == (after.query, after.true_label, after.cls)
    orders_of_labels = Counter(tuple(d.label for d in p.demonstrations) for p in shown)
    assert len(orders_of_labels) == 4 and min(orders_of_labels.values()) > 3
    assert shown == uninformative(drawn, seed=3) != uninformative(drawn, seed=4)
    with pytest.raises(TwoTowersError, match="an even k"):
        uninformative(draw("animal/country", 1, k=3))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_silent_texts_stand_equally_often_beside_either_label(k):
    drawn = draw("animal/country", 60, k=k)
    shown = silent_texts(drawn, seed=3)
    own = []
    for before, after in zip(drawn, shown, strict=True):
        assert [d.label for d in before.demonstrations] == [d.label for d in after.demonstrations]
        assert {(d.text, d.cls) for d in before.demonstrations} == {(d.text, d.cls) for d in after.demonstrations}
        assert (before.query, before.true_label, before.cls) == (after.query, after.true_label, after.cls)
        own.append(sum(d.label == before.true_label for d in after.demonstrations if d.cls == before.cls))
    assert set(own) == {k // 2, (k + 1) // 2}, "as many beside their own label as beside the other, or one off"
    assert k % 2 == 0 or 0.25 < np.mean(np.array(own) > k / 2) < 0.75
    nearest = np.mean([p.demonstrations[-1].cls == p.cls for p in shown])
    assert 0.25 < nearest < 0.75, "the place nearest to the query holds either class"
    assert shown == silent_texts(drawn, seed=3)


def test_a_false_demonstration_can_be_taken_away_too():
    prompt = draw("animal/country", 1)[0]
    assert [d.text for d in imbalanced(prompt, kind="false").demonstrations] == [
        prompt.demonstrations[i].text for i in (0, 2, 3)
    ]
    with pytest.raises(TwoTowersError, match="'true' or 'false'"):
        imbalanced(prompt, kind="both")
    with pytest.raises(TwoTowersError, match="no false demonstration would be left"):
        imbalanced(imbalanced(prompt, kind="false"), kind="false")


def test_one_text_moves_to_the_other_class_and_the_labels_stay():
    prompts = draw("sentiment/number", 30, table=TABLE)
    classes = {"sentiment": {"love", "hate", "nan"}, "number": {"one", "two", "six", "ten"}}
    for before, after in zip(prompts, datasets.with_other_class_text(prompts), strict=True):
        assert after.demonstrations == before.demonstrations
        assert (after.cls, after.true_label) == ("sentiment", "bar") and after.query in classes["sentiment"]
        assert after.query not in {d.text for d in before.demonstrations}
    for before, after in zip(prompts, datasets.with_other_class_text(prompts, 1), strict=True):
        assert [d.label for d in after.demonstrations] == [d.label for d in before.demonstrations]
        assert (after.query, after.true_label) == (before.query, "foo")
        assert after.demonstrations[1].text in classes["number"] and after.demonstrations[1].cls == "number"
        assert len({after.query, *(d.text for d in after.demonstrations)}) == 5
    assert len({p.query for p in datasets.with_other_class_text(prompts)}) == 3
    assert datasets.with_other_class_text(prompts, 2) == datasets.with_other_class_text(prompts, 2)


def test_a_text_that_cannot_move_is_refused():
    with pytest.raises(TwoTowersError, match="two named classes"):
        datasets.with_other_class_text([PAPER])
    prompts = draw("sentiment/number", 3, table=TABLE)
    with pytest.raises(TwoTowersError, match="demonstrations 0 to 3"):
        datasets.with_other_class_text(prompts, 4)
    with pytest.raises(TwoTowersError, match="no other text of the class sentiment"):
        datasets.with_other_class_text(prompts[:1])
