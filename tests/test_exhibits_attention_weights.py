"""What chapter 4 says, on tables made by hand."""

import pandas as pd
import pytest
from conftest import sayable
from twotowers.exhibits import attention_weights as shown
from twotowers.exhibits.attention_weights import BALANCED, COMPARED, CONTENT, IN, OVER, PAPER, POOLED, RANDOM
from twotowers.exhibits.claim import Verdict


def means(column, effect, over, outdone=0, learned=True, null=0.0):
    rows = [
        {"dataset": dataset, "form": form, "heads": kind, column: value, "low": value - 0.05, "high": value + 0.05,
         "n": 40, "prompts": 80, "outdone": outdone, "draws": 20, "passes": learned, "names": "1-0, 1-2"}
        for dataset in ("a/b", "b/a", *([POOLED] if learned else []))
        for form in (PAPER, BALANCED)
        for kind, value in ((IN, null + effect), (RANDOM, null + effect - over), (OVER, over))
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "effect, over, outdone, verdict",
    [
        (0.2, 0.2, 0, Verdict.HOLDS), (0.2, 0.2, 1, Verdict.HOLDS), (0.2, 0.2, 2, Verdict.CONTROL),
        (0.2, 0.0, 0, Verdict.CONTROL), (-0.2, 0.0, 9, Verdict.FAILS), (0.0, 0.0, 9, Verdict.UNDECIDED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("claim, column, null", [(shown.leaning, "difference", 0.0), (shown.similarity, "auc", 0.5)])
def test_verdicts_need_zero_random_heads_and_nearly_every_draw_beaten(
    claim, column, null, effect, over, outdone, verdict
):
    found = sayable(claim(means(column, effect, over, outdone, null=null)))
    assert found.verdict is verdict
    beyond_draws = "too many random sets of heads reach as much" if outdone == 2 else "but no more than"
    words = {Verdict.HOLDS: "and more", Verdict.CONTROL: beyond_draws, Verdict.FAILS: "do not"}
    assert words.get(verdict, "cannot be told") in found.sentence


@pytest.mark.parametrize("claim, column, null", [(shown.leaning, "difference", 0.0), (shown.similarity, "auc", 0.5)])
def test_a_liking_for_one_class_is_no_metric(claim, column, null):
    t = means(column, 0.2, 0.2, null=null)
    other = (t["dataset"] == "b/a") & (t["heads"] == IN)
    t.loc[other, [column, "low", "high"]] = [null - 0.1, null - 0.15, null - 0.05]
    found = sayable(claim(t))
    assert found.verdict is Verdict.CONTROL and "not clearly when the other is" in found.sentence
    found = sayable(claim(t[t["dataset"] != "b/a"]))
    assert found.verdict is Verdict.UNDECIDED and "may only prefer the labels of one class" in found.sentence
    whole = t[t["dataset"] != "b/a"].replace({"dataset": {"a/b": "trec"}})  # asks about all its classes
    assert claim(whole).verdict is Verdict.HOLDS
    apart = means(column, 0.2, 0.2, null=null).replace({"dataset": {"a/b": "trec:x/y", "b/a": "trec:y/x"}})
    assert claim(apart).verdict is Verdict.HOLDS


@pytest.mark.parametrize("claim, column", [(shown.leaning, "difference"), (shown.similarity, "auc")])
def test_a_model_that_learns_nothing_gets_no_verdict(claim, column):
    found = sayable(claim(means(column, 0.9, 0.9, learned=False)))
    assert found.verdict is Verdict.UNTESTABLE


def heads(column, values, kinds=(IN, RANDOM), form=BALANCED, reading=COMPARED, stands=True):
    return pd.DataFrame(
        {"form": form, "kind": kind, "head": f"1-{i}", column: v, "low": v - 0.1, "high": v + 0.1, "n": 30, "p": 0.01,
         "stands": stands, "reading": reading, "dataset": "a/b", "learned": True}
        for kind in kinds
        for i, v in enumerate(values)
    )  # fmt: skip


def test_heads_that_lean_either_way_are_counted_by_sign():
    t = pd.concat([heads("difference", [0.3, -0.3], form=PAPER), heads("difference", [0.3, 0.2])])
    assert "of 2 in-context heads, 1 look more" in sayable(shown.differences(t)).sentence
    assert "0 of 2 random heads" in shown.differences(t.assign(stands=False)).sentence
    assert shown.differences_chart(t).to_dict()


def test_separation_of_one_head_and_with_content_alone():
    t = heads("auc", [0.7])
    assert "1 of 1 in-context head and 1 of 1 random head" in sayable(shown.separation(t)).sentence
    both = pd.concat([t, heads("auc", [0.4], reading=CONTENT)])
    found = sayable(shown.separation(both)).sentence
    assert "content alone" in found
    assert "0 of the in-context heads" in found
    assert shown.separation_chart(both).to_dict()


def test_every_head_says_both_correlations():
    t = pd.DataFrame(
        {"layer": [0, 0, 1], "head": [0, 1, 0], "name": ["0-0", "0-1", "1-0"], "located": [True, False, False],
         "difference": [0.3, -0.2, 0.0], "stands": [True, True, False], "auc": [0.7, 0.5, 0.2],
         "auc_stands": [True, False, True], "label_margin": [0.5, 0.0, 0.1], "place": [1, 3, 2], "dataset": "a/b",
         "correlation": 0.4, "correlation_low": 0.1, "correlation_high": 0.6, "within": 0.2, "within_low": -0.1,
         "within_high": 0.5}
    )  # fmt: skip
    found = sayable(shown.every_head(t)).sentence
    assert "1 look more at true labels and 1 more at false ones, and 1 score" in found
    assert shown.places(t)["place"].tolist() == [1]
    assert shown.every_head_chart(t).to_dict()
    assert shown.every_head_scatter(t).to_dict()


def test_attention_and_increase_and_what_never_varies():
    t = pd.concat([heads("correlation", [0.9, 0.8]).assign(measure=m) for m in ("spearman", "pearson")])
    assert "2 of 2 in-context heads" in sayable(shown.correlations(t)).sentence
    assert "never varies" in sayable(shown.correlations(t[t["kind"] == IN])).sentence
    assert shown.correlations_chart(t).to_dict()


def test_right_and_wrong():
    t = heads("gap", [0.3, -0.3]).assign(raw=0.1, correlation=0.2, right=30, wrong=10)
    found = sayable(shown.right_wrong(t)).sentence
    assert "25% of prompts" in found
    assert "1 of 2 in-context heads and in 1 of 2 random heads" in found
    assert shown.right_wrong_chart(t).to_dict()


def scores(classes=("a", "b"), keys=("a", "b")):
    return pd.DataFrame(
        {"head": head, "query_class": q, "key_class": k, "score": float(q == k), "relative": float(q == k) - 0.5}
        for head in ("in-context head 1-0", "random head 1-1")
        for q in classes
        for k in keys
    )


def test_class_scores_of_two_classes_and_of_one():
    assert (
        "2 of 2 classes of queries score highest with their own (+1.00 nats)"
        in sayable(shown.class_scores(scores())).sentence
    )
    assert "nothing to compare" in shown.class_scores(scores(("a",), ("a",))).sentence
    assert "nothing to compare" in shown.class_scores(scores(("a",), ("b",))).sentence


@pytest.mark.parametrize("rotary", [True, False])
def test_the_plane_says_what_it_shows(rotary):
    t = pd.DataFrame(
        {"head": ["in-context head 1-0", "random head 1-1"], "tower": ["query", "key"], "class": ["a", "b"],
         "x": [0.0, 1.0], "y": [1.0, 0.0], "share": [0.5, 0.25], "fitted": 40, "rotary": rotary}
    )  # fmt: skip
    assert ("rotation" in sayable(shown.plane(t)).sentence) == rotary
    assert shown.plane_chart(t).to_dict()


@pytest.mark.parametrize("reads, leans, separates, said", [
    ("yes", "yes", "no", "1 read labels and lean so without separating the classes: what"),
    ("yes", "yes", "yes", "0 read labels and lean so without separating the classes."),
    ("no", "no", "no", "0 read labels and lean so without separating the classes."),
    ("yes", "unknown", "no", "is not known"),
])  # fmt: skip
def test_reading_and_leaning_are_not_separating(reads, leans, separates, said):
    t = pd.DataFrame({"head": ["1-0"], "mrr": 0.8, "control": 0.1, "advantage": 0.7, "reads": reads, "leans": leans, "auc": 0.5,
                      "separates": separates})  # fmt: skip
    assert said in sayable(shown.dissociation(t)).sentence
    assert shown.dissociation_rows(t).loc["1-0", "reads the label"] == reads
