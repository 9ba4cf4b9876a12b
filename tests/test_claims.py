"""The tables that decide what the book says: whole as they are committed, and named with file and
line where they are not."""

import csv
import io
import re

import pytest
from conftest import ROOT, refused
from twotowers import claims


def test_the_shipped_tables_are_whole():
    table = claims.claims()
    assert next(iter(table)) == "learned"
    # controls are of sets of heads
    assert {c.control for c in table.values() if c.heads == ""} == {"none"}
    for c in table.values():
        assert (
            (c.unit == "nats")
            if c.smallest_effect is None
            else c.smallest_effect > 0 or c.null_value == 0.5
        )
        assert c.statement.endswith(".")
    found = claims.findings()
    assert {*found["claim"]} <= {*table} and {*found["verdict"]} <= {*claims.VERDICTS}
    assert not found.duplicated(["page", "sentence", "chapter", "claim", "model"]).any()
    first = claims.read_csv(ROOT / "data/findings.csv")[["page", "sentence", "chapter"]].notna()
    assert first.sum(axis=1).isin([0, 3]).all() and first.iloc[0].all()
    # how rules changed
    assert (ROOT / "data/rules.csv").read_text("utf8").startswith("date,rule,seen,before\n")


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """edit(table, change): the committed tables with one of them changed, where `claims` reads
    them."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "claims.csv").write_bytes((ROOT / "data/claims.csv").read_bytes())
    monkeypatch.setattr(claims, "data_folder", lambda: folder)

    def write(name, change):
        path = folder / f"{name}.csv"
        rows = list(csv.reader(io.StringIO(path.read_text("utf8"))))
        with path.open("w", newline="", encoding="utf8") as out:
            csv.writer(out, lineterminator="\n").writerows(change(rows))

    return write


def cell(column, value, line=3):
    """A change of one cell of a line of the file."""

    def change(rows):
        rows[line - 1][rows[0].index(column)] = value
        return rows

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (cell("null_value", "O"), "line 3, null_value 'O'"),
        (cell("id", "learned"), "line 3, id 'learned' twice"),
        (
            cell("heads", "writer", 6),
            "line 6, heads 'writer': expected '', 'by attribution', 'by written logit difference'",
        ),
        (cell("control", "random"), "line 3, control 'random'"),
        (cell("rule", ""), "line 3, rule ''"),
    ],
)
def test_a_wrong_claim_is_named_with_its_line(edit, change, message):
    edit("claims", change)
    assert "claims.csv" in refused(re.escape(message), claims.claims)


def test_a_finding_goes_on_with_the_sentence_before():
    rows = claims.findings()
    assert (rows[["page", "sentence", "chapter"]] != "").all(axis=None)
    assert rows.groupby("sentence", sort=False).size().iloc[0] > 1
