"""What the first screen is put together from; how it looks and works is in tests/test_pages.py."""

import re

import pandas as pd
import pytest
from browser import first
from twotowers import claims


@pytest.fixture
def rows():
    """The verdicts that the opening page's sentences rest on."""
    table = claims.findings()
    return table[table["page"] == "intro"].drop_duplicates(["claim", "model"])


def test_a_sentence_whose_verdicts_moved_is_left_out(rows):
    assert all(first.sentences(rows)) and len(first.sentences(rows)) == 3
    moved = rows.assign(verdict=rows["verdict"].mask(rows["claim"] == "product", claims.UNDECIDED))
    assert [bool(text) for text in first.sentences(moved)] == [True, True, False]


def test_findings_are_counted_over_the_models_that_were_asked(rows, tmp_path, monkeypatch):
    verdicts = {
        "figure 6": "agrees agrees",
        "figure 7": "agrees in_part",
        "table 1": "in_part does_not_agree",
        "table 2": "agrees not_testable",
    }
    judged = [(item, verdict.replace("_", " "), model, "by position" if model == "a" else "")
              for item, both in verdicts.items()
              for model, verdict in zip("ab", both.split(), strict=True)]  # fmt: skip
    results = pd.DataFrame(judged, columns=["claim", "verdict", "model", "mark"])
    monkeypatch.setattr(
        first.evidence, "read", lambda folder, of: results if "figure 6" in of else rows
    )
    text = re.sub("<[^>]*>", "", first.findings(tmp_path))
    assert "4 of 7 tests agree, 2 in part, 1 do not: 4 results" in text
    assert "3 of the 4 are of models that fail" in text and "nearest label (3)" in text
    assert "1 agree fully in no model" in text
    assert "New, as far as we know, in 5 of 5 models: the answer follows" in text
