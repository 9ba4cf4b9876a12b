"""The tables that decide what the book says: whole as they are committed, and named with file and
line where they are not."""

import re
import runpy

import pandas as pd
import pytest
from conftest import ROOT, refused
from twotowers import claims, evidence, tables


def test_the_shipped_tables_are_whole():
    table = claims.claims()
    assert next(iter(table)) == "learned"
    # controls are of sets of heads
    assert {c.control for c in table.values() if c.heads == ""} == {"none"}
    for c in table.values():
        least = c.smallest_effect
        assert c.unit == "nats" if least is None else least > 0 or c.null_value == 0.5
        assert c.statement.endswith(".")
    found = claims.written_findings()
    assert found.notna().all(axis=None)  # a finding goes on with the sentence before
    seconds = {name + claims.SECOND for name, rule in claims.solved_rules().items() if rule.measure}
    assert {*found["claim"]} <= {*table, *claims.paper_results(), *seconds}
    answers = {claims.AGREES, claims.IN_PART, claims.DISAGREES}
    answers |= {claims.AGREES_UNSPECIFIC, claims.PART_UNSPECIFIC}
    answers |= {claims.AGREES_TOO_FEW, claims.PART_TOO_FEW}
    assert {*found["verdict"]} <= {*claims.VERDICTS, *answers}
    assert not found.duplicated(["page", "sentence", "chapter", "claim", "model"]).any()
    lines = tables.read_csv(ROOT / "data/findings.csv")
    first = lines[["page", "sentence", "chapter"]].notna()
    assert first.sum(axis=1).isin([0, 3]).all() and first.iloc[0].all()
    # how rules changed
    assert (ROOT / "data/rules.csv").read_text("utf8").startswith("date,rule,seen,before,after\n")


@pytest.mark.parametrize(
    "line, column, value, message",
    [
        (3, "id", "learned", "line 3, id 'learned' twice"),
        (
            6,
            "heads",
            "writer",
            "line 6, heads 'writer': expected '', 'by attribution', 'by written logit difference'",
        ),
        (3, "control", "random", "line 3, control 'random'"),
        (3, "rule", "", "line 3, rule ''"),
    ],
)
def test_a_wrong_claim_is_named_with_its_line(line, column, value, message, tmp_path, monkeypatch):
    table = pd.read_csv(ROOT / "data/claims.csv", dtype=str, keep_default_na=False)
    table.loc[line - 2, column] = value
    table.to_csv(tmp_path / "claims.csv", index=False)
    monkeypatch.setattr(claims, "data_folder", lambda: tmp_path)
    assert "claims.csv" in refused(re.escape(message), claims.claims)


def test_sentences_of_a_page_stand_beside_verdicts_that_moved(tmp_path, monkeypatch, capsys):
    """`make sentences` (F1)."""
    table = claims.written_findings()
    finding = table[table["page"] != "intro"].iloc[0]
    claim, model = finding["claim"], finding["model"]
    row = evidence.verdict_row(claims.claims()[claim], model, claims.UNDECIDED, "too few prompts")
    pd.DataFrame([row]).to_csv(tmp_path / f"{row.chapter}.csv", index=False)
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(tmp_path))
    monkeypatch.setenv("PAGE", finding["page"])
    runpy.run_path(str(ROOT / ".ci/sentences"))
    printed = capsys.readouterr().out
    assert f"FINDING {finding['sentence']}"[:100] in printed
    assert f"{claim} | {model}: {finding['verdict']} BUT NOW undecided" in printed
