"""Chapter 10: every claim on hand-made rows, charts from the same rows, and the studies once on the miniature."""

import numpy as np
import pandas as pd
import pytest
from conftest import sayable
from twotowers.errors import TwoTowersError
from twotowers.exhibits import decides as shown
from twotowers.exhibits.claim import Verdict
from twotowers.parameters import Parameters
from twotowers.studies import decides
from twotowers.studies.run import Run


def said(claim):
    sayable(claim)
    return claim.verdict, claim.sentence


def terms(match, last, nats=(1.0, 0.5, 1.5), learned=True, without=()):
    """A split: the shares (value, low, high) of match and of last; the others have a little."""
    shares = {
        "prior": (0.01, 0, 0.02),
        "last": last,
        "alternation": (0, 0, 0),
        "place": (0, 0, 0.1),
        "count": (0, 0, 0),
    }
    shares |= {"match": match, shown.PLACES: (0, 0, 0), shown.REST: (0.6, 0.5, 0.7)}
    rows = [
        {"term": term, "share": s, "share_low": low, "share_high": high,
         **dict(zip(("nats", "low", "high"), (np.nan,) * 3 if term in (shown.PLACES, shown.REST) else nats, strict=True))}
        for term, (s, low, high) in shares.items() if term not in without
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(dataset=shown.POOLED, n=20, prompts=320, learned=learned)


@pytest.mark.parametrize(
    "match, last, nats, verdict, words",
    [
        ((0.5, 0.4, 0.6), (0.1, 0.0, 0.2), (1.0, 0.5, 1.5), Verdict.HOLDS, "more than any rule"),
        ((0.1, 0.0, 0.2), (0.5, 0.4, 0.6), (1.0, 0.5, 1.5), Verdict.CONTROL, "the last label decides at least as much"),
        ((0.3, 0.1, 0.5), (0.2, 0.1, 0.4), (1.0, 0.5, 1.5), Verdict.UNDECIDED, "cannot be told"),
        ((0.3, 0.1, 0.5), (0.1, 0.0, 0.1), (0.2, -0.1, 0.5), Verdict.UNDECIDED, "cannot be told"),
        ((0.0, 0.0, 0.0), (0.9, 0.8, 1.0), (0.0, 0.0, 0.0), Verdict.FAILS, "most goes with the last label"),
        ((0.3, 0.1, 0.5), (0.1, 0.0, 0.1), (-0.2, -0.3, -0.1), Verdict.FAILS, "does not speak for the true label"),
    ],
)
def test_the_metric_must_beat_every_rule_that_reads_no_text(match, last, nats, verdict, words):
    found, sentence = said(shown.terms(terms(match, last, nats)))
    assert found is verdict and words in sentence


def test_nothing_is_judged_where_nothing_is_learned_and_missing_terms_are_left_out():
    t = terms((0.5, 0.4, 0.6), (0.1, 0.0, 0.2), learned=False)
    assert said(shown.terms(t))[0] is Verdict.UNTESTABLE
    few = terms((0.5, 0.4, 0.6), (0.1, 0.0, 0.2), without=("alternation", "place", "count"))
    assert said(shown.terms(few))[0] is Verdict.HOLDS
    assert shown.terms_chart(few).to_dict() and shown.terms_rows(few).loc[(shown.POOLED, shown.REST), "nats"] == ""


@pytest.mark.parametrize("low, words", [(0.6, "clearly more often"), (0.4, "not clearly more often")])
def test_accuracy_is_set_beside_the_best_rule(low, words):
    t = pd.DataFrame({"rule": ["the model", "repeat the last label"], "accuracy": [0.7, 0.5], "low": [low, 0.5],
                      "high": [0.8, 0.5], "n": 20})  # fmt: skip
    assert words in said(shown.accuracy(t))[1] and len(shown.accuracy_rows(t)) == 2


def heads(score, margin, counts=True):
    rows = [
        {"of": of, "layer": 0, "head": i, "name": f"0-{i}", "located": i == 0, "term": "match", "nats": value}
        for of, values in ((shown.SCORE, score), (shown.MARGIN, margin)) for i, value in enumerate(values)
    ]  # fmt: skip
    t = pd.DataFrame(rows)
    return t.assign(counts=counts & (t["nats"].abs() >= 0.1), discovery=counts, size=0.1)


def test_heads_that_compare_and_write():
    t = heads([0.5, 0.05, -0.5], [0.2, 0.3, 0.0])
    _, sentence = said(shown.heads(t))
    assert "attention score of 1 of 3 heads" in sentence and "what 2 add to the margin" in sentence
    assert "1 do both: `0-0`; 1 of them are among the located heads" in sentence
    assert "most heads add to the margin is match (the metric): 2 heads" in said(shown.deciders(t))[1]
    assert shown.scores_chart(t).to_dict() and shown.margins_chart(t).to_dict()
    assert shown.deciders_rows(t).loc[("match (the metric)", shown.SCORE), "heads that count"] == 2
    assert "0 do both." in said(shown.heads(heads([0.5, 0.0], [0.0, 0.5])))[1]


def test_no_head_counts_without_a_discovery_or_below_the_size():
    for t in (heads([0.5], [0.5], counts=False), heads([0.05], [0.05])):
        assert "In no head of 1" in said(shown.heads(t))[1] and "No head adds" in said(shown.deciders(t))[1]
        assert shown.deciders_rows(t)["heads that count"].sum() == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    given = {"model": "mini-gpt2", "n_prompts": 20, "n_locate": 40, "k": 2, "separator": "space", "recorded": "never"}
    return Run(Parameters.of(given | {"out": str(tmp_path_factory.mktemp("tables"))}))


@pytest.mark.slow
def test_the_studies_on_the_miniature(run):
    table = run.table(decides.terms)
    pooled = table[table["dataset"] == decides.POOLED]
    assert pooled["share"].sum() == pytest.approx(1) and set(pooled["term"]) == set(shown.SHOWN)
    assert said(shown.terms(table))[0] in set(Verdict)
    rules = run.table(decides.accuracy)
    assert (rules.loc[rules["rule"] == "repeat the last label", "accuracy"] == 0.5).all()
    assert said(shown.accuracy(rules)) and said(shown.heads(run.table(decides.heads)))
    # the two sets are of different classes, and each drawn prompt asks for another word
    assert len(decides.sets_of(run)) == 2
    for dataset in decides.sets_of(run):
        queries = [p.query for p in decides.of_different_queries(run, dataset, 20)]
        assert len(queries) == len(set(queries)) > 5


def test_a_model_without_any_margin_says_why(run, monkeypatch):
    class Parts:
        margin = np.zeros(8)

    design = pd.DataFrame({"cluster": [0, 1] * 4, "dataset": "one/two", "labels": ["ab", "ba"] * 4, "count": 0.0,
                           "match": [1, 1, -1, -1] * 2, "last": [-1, 1] * 4, "place": 0, "alternation": 0})  # fmt: skip
    monkeypatch.setattr(decides, "_read", lambda _: ([], design, Parts))
    monkeypatch.setattr(decides, "_terms", lambda _: None)  # needs no model
    with pytest.raises(TwoTowersError, match="nothing decides"):
        decides.terms.function(run)
