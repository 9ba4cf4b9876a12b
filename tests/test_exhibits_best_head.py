"""Chapters 8 and 9: every claim on hand-made rows."""

from types import SimpleNamespace

import pandas as pd
import pytest
from conftest import DOWN, UP, WIDE, interval, sayable
from twotowers.errors import TwoTowersError
from twotowers.exhibits import best_head as shown
from twotowers.exhibits import sentence_case
from twotowers.exhibits.best_head import BALANCED, BEST, EVERY, PAPER, RANDOM
from twotowers.exhibits.claim import Verdict
from twotowers.exhibits.sentence_case import ANOTHER, OWN
from twotowers.heads import Head
from twotowers.parameters import Parameters
from twotowers.prompts.datasets import WORD_SETS
from twotowers.studies import best_head as study
from twotowers.studies.run import Run


def gaps(effect=UP, gap=UP, own=UP, passing=True, n=20, outdone=1, near=20, head="3-1"):
    rows = [
        {"of": of, "dataset": dataset, **interval("gap", gap, n),
         **dict(zip(("effect", "effect_low", "effect_high"), own if of == shown.OWN else effect, strict=True))}
        for of in ("MRR", shown.OWN, PAPER, BALANCED) for dataset in ([EVERY] if passing else []) + ["SST-2", "TREC"]
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(passing="SST-2, TREC" if passing else "", outdone=outdone, near=near, head=head)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "1 of 20 other heads about its depth reach as much"),
        ({"gap": WIDE}, Verdict.CONTROL, "in the best head less that in random heads"),
        ({"gap": DOWN}, Verdict.CONTROL, "in the best head less that in random heads"),
        ({"effect": DOWN}, Verdict.FAILS, "in the best head less that in random heads"),
        ({"effect": WIDE}, Verdict.UNDECIDED, "in the best head less that in random heads"),
        ({"n": 1}, Verdict.UNDECIDED, "in the best head less that in random heads"),
        ({"passing": False}, Verdict.UNTESTABLE, "learns none of the sets"),
        ({"outdone": 2}, Verdict.CONTROL, "2 of 20 other heads about its depth reach as much"),
        ({"outdone": 2, "near": 40}, Verdict.HOLDS, "2 of 40 other heads about its depth reach as much"),
        ({"outdone": 0, "near": 19}, Verdict.UNDECIDED, "0 of 19 other heads about its depth reach as much"),
        ({"outdone": 1, "near": 1}, Verdict.CONTROL, "1 of 1 other head about its depth reach as much"),
    ],
)
@pytest.mark.parametrize("claim", [shown.reads, shown.looks])
def test_the_best_head_is_judged_on_sets_that_are_learned(claim, given, verdict, words):
    found = sayable(claim(gaps(**given)))
    assert found.verdict is verdict and words in found.sentence


@pytest.mark.parametrize(
    "mirror, low, verdict, words",
    [
        ("b/a", 0.8, Verdict.HOLDS, "Counterbalanced, attention"),
        ("b/a", -0.2, Verdict.CONTROL, "with the other class of a pair asked about"),
        ("c/d", 0.8, Verdict.UNDECIDED, "a liking for the labels of that class"),
    ],
)
def test_a_best_head_that_likes_one_class_is_no_metric(mirror, low, verdict, words):
    t = gaps().replace({"SST-2": "a/b", "TREC": mirror}).assign(passing=f"a/b, {mirror}")
    t.loc[t["dataset"] == mirror, "effect_low"] = low
    claim = sayable(shown.looks(t))
    assert claim.verdict is verdict and words in claim.sentence


@pytest.mark.parametrize("gap, words", [(UP, "2 of 2 sets"), (WIDE, "0 of 2 sets"), (DOWN, "0 of 2 sets")])
def test_a_look_says_on_how_many_sets_it_is_clear(gap, words):
    assert f"clearly above on {words}" in sayable(shown.looks(gaps(gap=gap))).sentence
    assert f"higher in {words}" in sayable(shown.reads(gaps(gap=gap, passing=False))).sentence


@pytest.mark.parametrize(
    "rival, verdict", [({}, Verdict.HOLDS), ({"outdone": 9}, Verdict.CONTROL), ({"effect": DOWN}, Verdict.FAILS)]
)
@pytest.mark.parametrize("claim", [shown.reads, shown.looks])
def test_what_might_be_the_best_head_must_bear_the_claim_out(claim, rival, verdict):
    found = sayable(claim(pd.concat([gaps(), gaps(**rival, head="2-0")], ignore_index=True)))
    assert found.verdict is verdict and f"for `2-0`: {verdict}." in found.sentence
    unlearned = claim(pd.concat([gaps(passing=False), gaps(passing=False, head="2-0")], ignore_index=True))
    assert unlearned.verdict is Verdict.UNTESTABLE and "2-0" not in unlearned.sentence


def test_each_head_that_is_judged_stands_in_the_table():
    t = shown.gaps_rows(pd.concat([gaps(), gaps(outdone=9, head="2-0")], ignore_index=True))
    assert len(t) == 8 and set(t.index.get_level_values("set")) == {EVERY}
    assert t.loc[("2-0", "MRR", EVERY)].tolist() == ["+1.000", "+1.000 [+0.800, +1.200]", "9 of 20"]
    assert set(shown.gaps_rows(gaps(passing=False)).index.get_level_values("set")) == {"SST-2", "TREC"}


@pytest.mark.parametrize("of", ["MRR", shown.OWN])
def test_reading_labels_takes_both_ranks_from_nearly_every_other_head(of):
    t = gaps()
    t.loc[t["of"] == of, "outdone"] = 2
    assert shown.reads(t).verdict is Verdict.CONTROL and shown.looks(t).verdict is Verdict.HOLDS


@pytest.mark.parametrize("own, verdict", [(UP, Verdict.HOLDS), (WIDE, Verdict.UNDECIDED), (DOWN, Verdict.FAILS)])
def test_a_best_head_that_writes_some_label_reads_none(own, verdict):
    assert shown.reads(gaps(own=own)).verdict is verdict


@pytest.mark.parametrize(
    "passes, verdict",
    [((True, True), Verdict.HOLDS), ((True, False), Verdict.UNDECIDED), ((False, False), Verdict.FAILS),
     ((True,), Verdict.HOLDS)],
)  # fmt: skip
def test_learning_from_sentences(passes, verdict):
    rows = [{"dataset": f"set {i}", "form": form, **interval("accuracy", (0.8, 0.7, 0.9)), "passes": one}
            for i, one in enumerate(passes) for form in (PAPER, BALANCED)]  # fmt: skip
    t = pd.DataFrame(rows)
    assert sayable(shown.accuracy(t)).verdict is verdict and shown.accuracy_chart(t).to_dict()
    assert ("Claims below use" in shown.accuracy(t).sentence) is any(passes)


def test_findings_and_charts_of_the_best_head():
    heads = pd.DataFrame({"head": ["3-1", "3-2"], "source": [BEST, RANDOM], "label_margin": [0.5, 0.0], "total": 32,
                          "n_sets": 1, "n_locate": 40, "best_on": 1})  # fmt: skip
    assert (
        "mean over 1 set," in sayable(shown.chosen(heads)).sentence
        and "cannot be told" not in shown.chosen(heads).sentence
    )
    tied = heads.replace({"source": {RANDOM: shown.RIVAL}})
    assert "`3-2` (+0.00) cannot be told from it" in sayable(shown.chosen(tied)).sentence
    t = pd.DataFrame(
        {"dataset": "a", "label": "foo", "source": source, "form": form, "side": side, **interval("mrr", UP), "weight": 0.1}
        for source in (BEST, RANDOM) for form in (PAPER, BALANCED) for side in ("true labels", "difference")
    )  # fmt: skip
    for chart in (shown.mrr_chart, shown.by_label_chart, shown.looks_chart, shown.forms_chart):
        assert chart(t).to_dict()


def counted(other=UP, random=UP, kinds=("key", "query")):
    rows = [{"kind": kind, "against": against, **interval("words", value)}
            for kind in kinds for against, value in (("another text", other), ("random direction", random))]  # fmt: skip
    return pd.DataFrame(rows).assign(head="3-1", n_words=10, own=1.0)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "say words of their own text"),
        ({"kinds": ("key",)}, Verdict.HOLDS, "say words of their own text"),
        ({"random": WIDE}, Verdict.CONTROL, "no more than random directions"),
        ({"other": DOWN}, Verdict.FAILS, "do not say"),
        ({"other": WIDE}, Verdict.UNDECIDED, "do not clearly say"),
    ],
)
def test_keys_must_tell_their_own_text_from_another_and_from_random_directions(given, verdict, words):
    t = counted(**given)
    claim = sayable(sentence_case.counted(t))
    assert claim.verdict is verdict and words in claim.sentence
    assert len(sentence_case.counted_rows(t)) == t["kind"].nunique()


@pytest.mark.parametrize(
    "own, other, verdict",
    [
        (("yes", "yes"), ("no", "no"), Verdict.UNDECIDED),  # so few questions cannot show more
        (("yes", "yes"), ("yes", "yes"), Verdict.CONTROL),
        (("yes", "no"), ("yes", "yes"), Verdict.CONTROL),
        (("no", "unclear"), ("no", "no"), Verdict.FAILS),
        (("no", "no"), ("yes", "yes"), Verdict.FAILS),
    ],
)
def test_a_chat_model_that_says_yes_to_foreign_words_explains_nothing(own, other, verdict):
    rows = [{"number": i, "class": "a", "words_of": of, "words": "x, y", "answer": v, "verdict": v, "chat_model": "m"}
            for of, found in ((OWN, own), (ANOTHER, other)) for i, v in enumerate(found)]  # fmt: skip
    t = pd.DataFrame(rows)
    assert sayable(sentence_case.chat(t)).verdict is verdict and len(sentence_case.chat_rows(t)) == 4


def test_the_case_is_a_finding():
    t = pd.DataFrame(
        {"number": [1, 2], "class": ["a", "b"], "label": ["foo", "bar"], "kind": ["true label", "false label"],
         "weight": [0.4, 0.1], "random": 0.2, "head": "3-1", "dataset": "SST-2", "query_class": "a", "correct": "right",
         "prompts": 20, "difference": 0.3, "usual": 0.2, "usual_low": 0.1, "usual_high": 0.3, "random_usual": 0.0,
         "below": 0.8, "silent": "left out", "rank": 1, "word": "good", "value": 1.0, "relation": None, "vector": "key, text 1"}
    )  # fmt: skip
    assert sayable(sentence_case.looks(t)).verdict is None and len(sentence_case.looks_rows(t)) == 2
    assert sentence_case.looks_chart(t).to_dict()
    for kind in ("key", "query"):  # a model may show no key
        assert sentence_case.words_chart(t.assign(kind=kind)).to_dict() and len(
            sentence_case.word_rows(t.assign(kind=kind))
        )


@pytest.mark.parametrize(
    "pairs, least, verdict, words",
    [
        ([(0.001, True), (0.9, False)], 0.001, Verdict.HOLDS, "in 1 of 1 pairs"),
        ([(0.001, True), (0.9, True)], 0.001, Verdict.UNDECIDED, "in 1 of 2 pairs"),
        ([(0.9, True)], 0.001, Verdict.CONTROL, "in 0 of 1 pairs"),
        ([(1.0, True)], 0.25, Verdict.UNTESTABLE, "even two equal lists"),
        ([(0.001, False)], 0.001, Verdict.UNTESTABLE, "a set of words too"),
    ],
)
def test_heads_of_sentences_are_held_against_those_of_words_where_both_are_learned(pairs, least, verdict, words):
    t = pd.DataFrame(
        {"ranking": ranking, "first": f"set {i}", "second": "a/b", "shared": 3, "k": 5, "expected": 1.0, "both": "1-0",
         "p": p if ranking == "label" else 0.5, "least": least, "rank_correlation": 0.5, "learned": learned}
        for i, (p, learned) in enumerate(pairs) for ranking in ("label", "paper")
    )  # fmt: skip
    claim = sayable(shown.overlaps(t))
    assert (
        claim.verdict is verdict
        and words in claim.sentence
        and set(shown.overlaps_rows(t)["a/b"]) == {"3 (1.0 by chance)"}
    )


def test_sets_of_words_alone_leave_none_to_compare_with(monkeypatch):
    monkeypatch.setattr(study, "available", lambda run: run)
    run = Run(Parameters.of({"datasets": list(WORD_SETS)}))
    with pytest.raises(TwoTowersError, match="name other datasets"):
        study.overlaps.function(run)


def test_heads_that_do_as_well_are_counted_one_by_one(monkeypatch):
    # The best head 3-1, two of its layer, and three near it.
    means = {"3-1": 0.4, "3-0": 0.4, "3-2": 0.0, "2-0": 0.5, "2-1": 0.1, "2-2": 0.3}
    rows = [{"dataset": "a", "prompt": i, "query": f"q{i}", "head": head, "mean": mean + i / 100}
            for head, mean in means.items() for i in range(8)]  # fmt: skip
    t = pd.DataFrame(rows)
    ranks = t.assign(rank=1 / t["mean"].clip(1e-3), other_rank=1e9)
    sums = pd.concat([t.assign(form=form, difference=t["mean"]) for form in (PAPER, BALANCED)])
    monkeypatch.setattr(study, "_judged", lambda _: (ranks, sums))
    monkeypatch.setattr(study, "available", lambda _: SimpleNamespace(passing=["a"]))
    monkeypatch.setattr(study, "best", lambda _: (Head(3, 1), []))
    monkeypatch.setattr(study, "rivals", lambda _: [Head(2, 2)])
    run = Run(Parameters.of({}))
    run.__dict__["about"] = {"layers": 4, "heads": 3}
    found = study.gaps.function(run)
    ours, rival = (found[found["head"] == head] for head in ("3-1", "2-2"))
    assert set(ours["outdone"]) == {2} and set(ours["near"]) == {5} and len(ours) == len(rival) == 8
    assert ours["effect"].to_numpy() == pytest.approx(0.435, abs=1e-6)
    assert ours["gap"].to_numpy() == pytest.approx(0.2, abs=1e-3)
    assert set(rival["outdone"]) == {3} and rival["gap"].to_numpy() == pytest.approx(0, abs=1e-3)


def test_rivals_are_heads_that_their_errors_do_not_tell_from_the_best_one(monkeypatch):
    rows = [{"dataset": dataset, "layer": 1, "head": head, "label_margin": mean, "label_error": error,
             "increase": -mean, "standard_error": 0.0}
            for dataset in "ab" for head, (mean, error) in enumerate([(0.5, 0.1), (0.4, 0.1), (0.2, 0.1), (0.1, 0.5), (-9, 99)])
            ]  # fmt: skip
    monkeypatch.setattr(Run, "table", lambda *_: pd.DataFrame(rows))
    run = lambda **given: Run(Parameters.of(given))  # noqa: E731
    # Errors of a mean over two sets: 0.1 / sqrt(2), so 0.196 tells two heads apart; the last is below zero.
    assert study.rivals(run()) == [(1, 1), (1, 3)]
    assert study.rivals(run(heads="1-2")) == [] and study.rivals(run(ranking="paper")) == []
