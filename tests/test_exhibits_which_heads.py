"""Chapter 12: every claim on hand-made rows, charts from the same rows, and the studies once on the miniature."""

import numpy as np
import pandas as pd
import pytest
from conftest import sayable
from twotowers.errors import TwoTowersError
from twotowers.exhibits import which_heads as shown
from twotowers.exhibits.claim import Verdict
from twotowers.exhibits.which_heads import ACCURACY, CLASS, INCREASE, INDUCTION, LABEL, MARGIN, NAMES, TWO_LABEL, VECTOR
from twotowers.parameters import Parameters
from twotowers.studies import which_heads as which
from twotowers.studies.run import Run

FALLS, STAYS, UNSURE, RISES = (-1.0, -1.2, -0.8), (0.0, 0.0, 0.0), (-0.1, -0.3, 0.1), (1.0, 0.8, 1.2)


def said(claim):
    sayable(claim)
    return claim.verdict, claim.sentence


def zeroed(
    effects=(), versus=STAYS, learned=True, as_low=0, discovery=True, names=("3-1, 3-2", "3-1, 3-3"), rankings=3
):
    """Rows of what_they_do. `effects`: (ranking, measure) -> (less nothing, less random), both none by default."""
    effects, rows = dict(effects), []
    for i, ranking in enumerate((INCREASE, LABEL, CLASS)[:rankings]):
        for measure in (MARGIN, TWO_LABEL, NAMES, ACCURACY):
            change, over = effects.get((ranking, measure), (STAYS, STAYS))
            values = {shown.NOTHING: (1.0, 0.9, 1.0), shown.OURS: (0.5, 0.4, 0.6), shown.RANDOM: (0.9, 0.8, 1.0),
                      shown.CHANGE: change, shown.OVER: over}  # fmt: skip
            if i:
                values[shown.VERSUS] = versus
            rows += [
                {"ranking": ranking, "measure": measure, "heads": heads, "value": v, "low": low, "high": high,
                 "names": names[min(i, 1)], "elsewhere": i}
                for heads, (v, low, high) in values.items()
            ]  # fmt: skip
    t = pd.DataFrame(rows).assign(n=20, draws=5, draws_as_low=as_low, p=0.01, k=2, learned=learned)
    return t.assign(discovery=discovery & (t["heads"] == shown.OVER))


BOTH = (FALLS, FALLS)


@pytest.mark.parametrize(
    "effect, given, verdict, words",
    [
        (BOTH, {}, Verdict.HOLDS, "the choice between the labels goes, and answers are still label words"),
        ((FALLS, UNSURE), {}, Verdict.CONTROL, "no further than without random heads"),
        (BOTH, {"as_low": 1}, Verdict.CONTROL, "no further than without random heads"),
        (BOTH, {"discovery": False}, Verdict.CONTROL, "no further than without random heads"),
        ((STAYS, STAYS), {}, Verdict.FAILS, "neither the choice between the labels nor label words"),
        ((RISES, RISES), {}, Verdict.FAILS, "neither the choice between the labels nor label words"),
        ((UNSURE, STAYS), {}, Verdict.UNDECIDED, "neither the choice between the labels nor label words"),
        (BOTH, {"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_the_papers_heads_must_cost_margin_beyond_random_heads(effect, given, verdict, words):
    t = zeroed({(INCREASE, MARGIN): effect}, **given)
    found, sentence = said(shown.paper(t))
    assert found is verdict and words in sentence and "`3-1`, `3-2`" in sentence


@pytest.mark.parametrize(
    "measures, kind, verdict, words",
    [
        ([MARGIN], shown.CHOICE, Verdict.HOLDS, "the choice alone (by `increase`); nothing clear (by `label margin`"),
        ([NAMES], shown.WORDS, Verdict.FAILS, "label words alone (by `increase`)"),
        ([MARGIN, NAMES], shown.BOTH, Verdict.HOLDS, "the choice and label words (by `increase`)"),
        ([ACCURACY], shown.NOTHING_CLEAR, Verdict.FAILS, "nothing clear (by `increase`, `label margin`"),
    ],
)
def test_a_lost_label_word_is_no_lost_choice(measures, kind, verdict, words):
    t = zeroed({(INCREASE, measure): BOTH for measure in measures})
    assert shown.what_goes(t, INCREASE) == kind and said(shown.paper(t))[0] is verdict
    _, sentence = said(shown.carriers(t))
    assert words in sentence and ("most margin goes with `increase`" in sentence) == (MARGIN in measures)
    assert "No set is learned" in said(shown.carriers(t.assign(learned=False)))[1]


@pytest.mark.parametrize(
    "effect, versus, given, verdict, words",
    [
        (BOTH, FALLS, {}, Verdict.HOLDS, "and more than the heads with the largest increase"),
        (BOTH, UNSURE, {}, Verdict.CONTROL, "not clearly more"),
        ((FALLS, STAYS), FALLS, {}, Verdict.CONTROL, "not clearly more than random heads"),
        ((STAYS, STAYS), RISES, {}, Verdict.FAILS, "costs no margin"),
        ((UNSURE, UNSURE), UNSURE, {}, Verdict.UNDECIDED, "no clear effect"),
        (BOTH, FALLS, {"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
        (BOTH, STAYS, {"names": ("3-1, 3-2", "3-2, 3-1")}, Verdict.CONTROL, "name the same 2 heads"),
        (BOTH, STAYS, {"names": ("3-1", "3-1")}, Verdict.CONTROL, "name the same 1 head,"),
    ],
)
def test_the_label_margin_must_cost_more_than_the_papers_heads(effect, versus, given, verdict, words):
    found, sentence = said(shown.label_margin(zeroed({(LABEL, MARGIN): effect}, versus, **given)))
    assert found is verdict and words in sentence


def test_rankings_that_are_missing():
    t = zeroed()
    assert said(shown.paper(t[t["ranking"] != INCREASE]))[0] is Verdict.UNTESTABLE
    assert said(shown.label_margin(t[t["ranking"] != LABEL]))[0] is Verdict.UNTESTABLE
    alone = zeroed(rankings=1)
    assert said(shown.carriers(alone)) and len(shown.zeroed_rows(alone)) == 3


def test_charts_and_rows_of_what_they_do():
    t = zeroed({(INCREASE, MARGIN): BOTH})
    bars = shown._zeroed(t, [MARGIN])
    assert list(bars["zeroed"]) == ["nothing", *(name for name in (INCREASE, LABEL, CLASS) for _ in range(2))]
    assert shown.choice_chart(t).to_dict() and shown.words_chart(t).to_dict()
    rows = shown.zeroed_rows(t)
    assert (
        rows.loc[INCREASE, "what goes"] == shown.CHOICE
        and "random beside attention by class, 2 of other layers" in rows.index
    )


def pairs(
    shared=3,
    expected=1.0,
    found=True,
    least=0.01,
    class_heads=4,
    learned=True,
    k=5,
    others=(LABEL, CLASS, INDUCTION, VECTOR),
):
    names = [INCREASE, *others]
    t = pd.DataFrame([{"a": a, "b": b} for i, a in enumerate(names) for b in names[i + 1 :]])
    return t.assign(
        heads=32, spearman=0.5, spearman_expected=0.4, spearman_p=0.0005, spearman_found=True, k=k, shared=shared,
        shared_expected=expected, shared_p=0.02, shared_found=found, shared_least_p=least, class_heads=class_heads,
        learned=learned,
    )  # fmt: skip


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "3 of the 5 heads with the largest increase are among the first 5"),
        ({"found": False, "shared": 1, "expected": 1.2}, Verdict.CONTROL, "no more than as many random heads"),
        ({"found": False, "shared": 0, "expected": 0.5}, Verdict.FAILS, "finds other heads"),
        ({"found": False, "shared": 2}, Verdict.UNDECIDED, "cannot be told from random heads"),
        ({"found": False, "shared": 0, "expected": 0.0, "least": 1.0}, Verdict.FAILS, "finds other heads"),
        (
            {"found": False, "shared": 1, "expected": 1.2, "least": 0.2},
            Verdict.UNDECIDED,
            "cannot be told from random heads",
        ),
        ({"class_heads": 0}, Verdict.UNDECIDED, "there is none to find"),
        ({"class_heads": 0, "learned": False}, Verdict.UNTESTABLE, "No set is learned"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
        ({"others": (LABEL,), "class_heads": np.nan}, Verdict.UNTESTABLE, "ranks no heads here"),
        ({"k": 1, "shared": 1, "found": False, "expected": 0.1}, Verdict.UNDECIDED, "1 of the 1 head "),
    ],
)
def test_the_papers_ranking_must_share_more_than_chance_within_layers(given, verdict, words):
    t = pairs(**given)
    found, sentence = said(shown.by_class(t))
    assert found is verdict and words in sentence
    assert shown.agreement_chart(t).to_dict() and len(shown.agreement_rows(t)) == len(t)


def test_known_heads_are_set_beside_the_in_context_heads():
    assert "3 by induction score (more than chance, 1.0)" in said(shown.known(pairs()))[1]
    assert "(no more than chance, 4.0)" in said(shown.known(pairs(expected=4.0, found=False)))[1]
    assert "(not told from chance, 1.0)" in said(shown.known(pairs(found=False)))[1]
    assert "function-vector" not in said(shown.known(pairs(others=(LABEL, INDUCTION))))[1]
    assert "Neither induction scores" in said(shown.known(pairs(others=(CLASS,))))[1]


def scores(chosen):
    """Three rankings of four heads; `chosen`: the heads at the top of each."""
    parts = []
    for ranking, some in zip((INCREASE, LABEL, CLASS), chosen, strict=True):
        t = pd.DataFrame({"ranking": ranking, "layer": 0, "head": range(4), "score": [0.3, 0.2, 0.1, -0.1]})
        parts.append(t.assign(name=[f"0-{i}" for i in range(4)], rank=range(1, 5), chosen=t["head"].isin(some)))
        parts[-1] = parts[-1].assign(tested=ranking != INCREASE, discovery=ranking != INCREASE, unit="nats")
    return pd.concat(parts, ignore_index=True).assign(learned=True)


def test_heads_at_the_top_of_most_rankings():
    t = scores([[0, 1], [0, 2], [0, 1]])
    _, sentence = said(shown.rankings(t))
    assert "`0-0`, `0-1` are at the top of more than half of the 3 rankings; 3 heads of 4" in sentence
    assert "No head is at the top of more than half" in said(shown.rankings(scores([[0], [1], [2]])))[1]
    assert "`0-0` is at the top" in said(shown.rankings(scores([[0], [0], [0]])))[1]
    rows = shown.rankings_rows(t)
    assert rows.loc[LABEL].tolist() == ["0-0, 0-2", 3, 1] and rows.loc[INCREASE, "above zero"] == "not tested"
    assert shown.rankings_chart(t).to_dict()


def test_differences_are_paired_and_random_draws_counted():
    plain, ours = np.array([2.0, 4.0, 3.0, 5.0]), np.array([1.0, 1.0, 1.0, 3.0])
    draws = np.array([[2.0, 4.0, 3.0, 5.0], [1.0, 1.0, 1.0, 3.0]])
    values = {which.NOTHING: plain, which.OURS: ours, which.RANDOM: draws, which.VERSUS: np.full(4, -1.0)}
    rows = {row["heads"]: row for row in which._compared(values, np.array(list("abcc")), 0)}
    assert rows[which.CHANGE]["value"] == -2 and rows[which.OVER]["value"] == -1 and rows[which.VERSUS]["value"] == 0
    assert rows[which.OVER]["draws_as_low"] == 1 and rows[which.OVER]["draws"] == 2 and rows[which.OVER]["n"] == 3
    assert 0 < rows[which.OVER]["p"] < 1 and np.isnan(rows[which.CHANGE]["p"])


@pytest.mark.slow
def test_the_studies_on_the_miniature(tmp_path):
    few = {"model": "mini-gpt2", "n_prompts": 20, "n_locate": 40, "k": 2, "separator": "space", "recorded": "never"}
    run = Run(Parameters.of(few | {"datasets": ["sentiment/number", "animal/country"], "out": str(tmp_path)}))
    t = run.table(which.rankings)
    assert list(dict.fromkeys(t["ranking"])) == list(which.UNITS) and t.groupby("ranking")["rank"].max().eq(32).all()
    own = run.table(which.located.heads).groupby(["layer", "head"])
    for ranking, column in ((INCREASE, "increase"), (LABEL, "label_margin")):  # all 40 prompts: chapter 1's own numbers
        mine = t[t["ranking"] == ranking].set_index(["layer", "head"])["score"]
        np.testing.assert_allclose(mine, own[column].mean(), atol=1e-5)
    agreement, done = run.table(which.agreement), run.table(which.what_they_do)
    assert len(agreement) == 15 and (agreement["shared_least_p"] <= agreement["shared_p"] + 1e-9).all()
    for claim, table in ((shown.rankings, t), (shown.by_class, agreement), (shown.known, agreement), (shown.paper, done),
                         (shown.carriers, done), (shown.label_margin, done)):  # fmt: skip
        said(claim(table))
    zero = done[(done["measure"] == MARGIN) & (done["ranking"] == CLASS)].set_index("heads")["value"]
    assert zero[which.OURS] - zero[which.NOTHING] == pytest.approx(zero[which.CHANGE])


def test_a_ranking_that_cannot_be_made_is_left_out_with_its_reason(monkeypatch, tmp_path):
    run = Run(Parameters.of({"out": str(tmp_path)}))
    heads = pd.DataFrame({"dataset": "a/b", "layer": [0, 0], "head": [0, 1], "increase": [1.0, 2.0]})

    def refuse(*_, **__):
        raise TwoTowersError("an odd k")

    monkeypatch.setattr(Run, "table", lambda *_: heads)
    monkeypatch.setattr(Run, "lm", None)
    monkeypatch.setattr(which, "sets_of", lambda _: ["a/b"])
    monkeypatch.setattr(which, "_ranking_on", lambda _: [])
    for name in ("_tested", "_vectors"):
        monkeypatch.setattr(which, name, refuse)
    for name in ("label_margin", "attention_by_class"):
        monkeypatch.setattr(f"twotowers.analysis.rankings.{name}", refuse)
    monkeypatch.setattr("twotowers.analysis.attribution.attribution_patching", refuse)
    monkeypatch.setattr(which, "_induction", lambda _: np.zeros((1, 2)))
    assert list(which._scores(run)) == [INCREASE]
    assert any("'function vector' is left out: an odd k" in note for note in run.notes)
    assert any("'induction' is left out: it gives no order" in note for note in run.notes)
