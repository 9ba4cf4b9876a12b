"""The scorecard: every printed row has a rule, every rule a study, and what is missing or damaged is said."""

import pandas as pd
import pytest
from conftest import ROOT
from twotowers.exhibits import (
    attention_weights,
    best_head,
    flips,
    interventions,
    locate,
    mitigation,
    mrr,
    project,
    scorecard,
    towers_apart,
    variants,
    which_heads,
)
from twotowers.exhibits.claim import Claim, Verdict
from twotowers.exhibits.scorecard import NOT_RUN, RULES, Model, Rule
from twotowers.paper.published import published
from twotowers.stats import tables

PROVENANCE = {"about": {"name": "mini", "fingerprint": "mini@0"}, "notes": [], "unavailable": ""}
LEARNS = pd.DataFrame(
    {"order": ["counterbalanced", "paper's order"], "accuracy": [0.9, 0.9], "low": 0.8, "passes": [True, True]}
)


def saved(folder, name, table, **more):
    tables.save(table, folder, name, PROVENANCE | more)


def of(folder):
    (model,) = scorecard.models([str(folder)])
    return model


def test_every_printed_row_has_one_rule_but_for_the_toy_example():
    rows = published()
    hits = pd.Series(0, index=rows.index)
    for rule in RULES:
        hits[rule.published.index] += 1
    assert (hits == (rows["source"] != scorecard.TOY)).all()


def test_every_table_of_a_rule_is_a_study_s_and_its_claim_a_function_of_its_chapter():
    from twotowers.studies import attention_weights as _a, best_head as _b, flips as _c, interventions as _d  # noqa
    from twotowers.studies import locate as _e, mitigation as _f, mrr as _g, project as _h, two_towers as _i  # noqa
    from twotowers.studies import towers_apart as _j, variants as _k, which_heads as _l  # noqa
    from twotowers.studies.context import CHAPTERS

    names = {study.name for studies in CHAPTERS.values() for study in studies} | {"authors-numbers", ""}
    assert {rule.table for rule in (*RULES, scorecard.SIMILARITY, scorecard.OPPOSITE)} <= names
    rooms = (attention_weights, best_head, flips, interventions, locate, mitigation, mrr, project, towers_apart, variants,
             which_heads, scorecard)  # fmt: skip
    assert all(rule.claim is None or rule.claim.__module__ in {r.__name__ for r in rooms} for rule in RULES)


def test_every_rule_s_chapter_is_known_and_every_claim_of_the_ladder_has_a_rule():
    assert all(rule.page for rule in (*RULES, scorecard.SIMILARITY) if rule.table and rule.table != "authors-numbers")
    assert {f"book/{page}.ipynb" for page in scorecard.PAGES} >= {
        f"book/{p.name}" for p in ROOT.glob("book/[0-9]*.ipynb")
    }
    judged = {rule.claim for rule in (*RULES, scorecard.SIMILARITY, scorecard.OPPOSITE)}
    assert all(parts and set(parts) <= judged for parts in scorecard.CLAIMS.values())


def test_without_tables_nothing_is_run():
    empty = Model("mini", "mini@0")
    assert set(scorecard.score([empty])["verdict"]) == {NOT_RUN}
    assert set(scorecard.ladder([empty])["verdict"]) == {NOT_RUN}
    assert "No model" in scorecard.ladder_markdown(scorecard.ladder([]))


def test_the_weakest_part_of_a_claim_decides_it(monkeypatch):
    strong = Rule("fig 1", "says", "a", locate.accuracy)
    weak = Rule("fig 2", "says", "b", mrr.overall)
    monkeypatch.setattr(scorecard, "RULES", (strong, weak))
    monkeypatch.setattr(scorecard, "CLAIMS", {"1. It": (strong.claim, weak.claim)})
    for of_it, decides in ((Verdict.CONTROL, "b"), (Verdict.HOLDS, "a")):
        said = {"a": (Verdict.HOLDS, ""), "b": (of_it, "")}
        monkeypatch.setattr(Model, "judged", lambda self, rule, said=said: said[rule.table])
        (row,) = scorecard.ladder([Model("mini", "")]).to_dict("records")
        assert (row["verdict"], row["decides"]) == (str(of_it), decides)
    assert f"| {Verdict.HOLDS} (fig 1) |" in scorecard.ladder_markdown(pd.DataFrame([row]))


@pytest.mark.parametrize("verdict", [Verdict.HOLDS, Verdict.CONTROL, None])
def test_the_claim_s_verdict_is_the_scorecard_s(tmp_path, verdict):
    rule = Rule("fig", "says", "t", lambda t: Claim(verdict, f"{len(t)} rows."))
    saved(tmp_path, "t", pd.DataFrame({"a": [1, 2]}))
    assert of(tmp_path).judged(rule)[0] == Verdict.UNTESTABLE  # chapter 1 was not run
    saved(tmp_path, scorecard.ACCURACY, LEARNS)
    assert of(tmp_path).judged(rule) == (verdict or scorecard.FOUND, "2 rows.")
    saved(tmp_path, scorecard.ACCURACY, LEARNS.assign(passes=False))
    assert of(tmp_path).judged(rule)[0] == Verdict.UNTESTABLE


@pytest.mark.parametrize("control, whole", [
    (Verdict.HOLDS, Verdict.HOLDS), (Verdict.FAILS, Verdict.CONTROL), (Verdict.CONTROL, Verdict.CONTROL),
    (Verdict.UNDECIDED, Verdict.UNDECIDED), (NOT_RUN, Verdict.UNDECIDED),
])  # fmt: skip
def test_a_rule_holds_only_with_its_control(tmp_path, control, whole):
    beside = Rule("fig", "the control", "" if control == NOT_RUN else "t", lambda t: Claim(control, "It."))
    rule = Rule("fig", "says", "t", lambda t: Claim(Verdict.HOLDS, "Rows."), control=beside)
    saved(tmp_path, "t", pd.DataFrame({"a": [1, 2]}))
    saved(tmp_path, scorecard.ACCURACY, LEARNS)
    verdict, sentence = of(tmp_path).judged(rule)
    assert verdict is whole and (f"Its control (the control): {control}." in sentence) == (control != Verdict.HOLDS)
    fails = Rule("fig", "says", "t", lambda t: Claim(Verdict.FAILS, "Rows."), control=beside)
    assert of(tmp_path).judged(fails) == (Verdict.FAILS, "Rows.")


def test_a_damaged_unavailable_or_foreign_table_is_not_testable(tmp_path):
    rule = RULES[0]
    saved(tmp_path, rule.table, pd.DataFrame({"other": [1]}))
    assert "cannot be read" in of(tmp_path).judged(rule)[1]
    path = tmp_path / f"{rule.table}.csv"
    path.write_text(path.read_text() + "5\n")
    assert "damaged" in of(tmp_path).judged(rule)[1]
    saved(tmp_path, rule.table, pd.DataFrame(), unavailable="too few prompts")
    assert of(tmp_path).judged(rule) == (Verdict.UNTESTABLE, "too few prompts")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert set(of(tmp_path).tables) == {rule.table}


def test_numbers_are_comparable_on_the_same_model_only():
    cards = scorecard.score([Model("mini", "a"), Model("openai-community--gpt2-large", "b")])
    own = cards[cards["where"] == "v1 table 2"].set_index("model")["numbers"]
    assert own.tolist() == ["not comparable", "same model"]
    assert set(cards[cards["where"] == "v1 fig 6"]["numbers"]) == {""}  # a statement, no number


def test_printed_numbers_agree_or_not():
    t = pd.DataFrame({"agrees": [True, True], "measured": [1.0, 2.001], "published": [1.0, 2.0]})
    assert scorecard.authors_numbers(t).verdict is Verdict.HOLDS
    assert scorecard.authors_numbers(t.assign(agrees=[True, False])).verdict is Verdict.FAILS
