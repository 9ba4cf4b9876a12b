"""What the first screen is put together from; how it looks and works is in tests/test_pages.py."""

import re

import opening_page
import pandas as pd
import pytest
from twotowers import claims


@pytest.fixture
def rows():
    """The verdicts that the opening page's sentences rest on."""
    table = claims.written_findings()
    return table[table["page"] == "intro"].drop_duplicates(["claim", "model"])


def test_a_sentence_whose_verdicts_moved_is_left_out(rows):
    assert all(opening_page.sentences(rows)) and len(opening_page.sentences(rows)) == 3
    moved = rows.assign(verdict=rows["verdict"].mask(rows["claim"] == "product", claims.UNDECIDED))
    assert [bool(text) for text in opening_page.sentences(moved)] == [True, True, False]


@pytest.fixture
def judged(rows, monkeypatch):
    """Four results of the paper in mini-gpt2 and a pretrained model."""
    verdicts = {
        "figure 6": "agrees agrees",
        "figure 9": "agrees,_not_specific in_part",
        "table 1": "in_part does_not_agree",
        "table 2": "agrees,_specificity_not_tested not_testable",
        "figure 22": " agrees",  # in no count
    }
    results = pd.DataFrame(
        [
            {"claim": item, "verdict": verdict.replace("_", " "), "model": model, "stability": 1.0}
            for item, both in verdicts.items()
            for model, verdict in zip(("mini-gpt2", "b"), both.split(" "), strict=True)
            if verdict
        ]
    ).assign(mark=lambda of: of["model"].map({"mini-gpt2": "", "b": claims.BY_POSITION}))
    monkeypatch.setattr(
        opening_page.evidence, "read", lambda folder, of: results if "figure 6" in of else rows
    )
    return results


def test_findings_are_counted_over_the_models_that_were_asked(judged, tmp_path):
    text = re.sub("<[^>]*>", "", opening_page.findings(tmp_path))
    assert "4 of 7 tests of 4 results of the paper agree; random heads agree in 1" in text
    assert "1 of the 4 are of models that fail" in text and "nearest label (1)" in text
    assert "1 agree fully in no model" in text
    assert "New, as far as we know, in 5 of 5 models: not only attention scores" in text


def test_the_summary_tells_firm_verdicts_and_pretrained_models_apart(judged, tmp_path):
    def summary():
        return re.sub("<[^>]*>", "", opening_page.summary(opening_page.tests(tmp_path)))

    assert "7 tests: 2 agree, 1 agree as random heads do, 1 agree without a test" in summary()
    assert "2 in part, 1 do not. Pretrained models alone, 3 tests: 1 agree, 0" in summary()
    assert "Stable in every model: figure 6, table 2. Results that agree fully and" in summary()
    assert "random heads in no model: figure 9, table 1." in summary()
    judged.loc[judged["claim"] == "figure 6", "stability"] = 0.9
    assert "Stable in every model: table 2." in summary()


def test_a_cell_of_the_picture_says_its_verdict_and_leads_to_its_row(judged, tmp_path):
    html = opening_page.picture(tmp_path)
    assert 'title="figure 6, b: agrees (by position)"' in html and ">✓<sup>p</sup></a>" in html
    assert 'class="verdict agrees-not-specific" href="figure-by-figure.html#row-figure-9"' in html
    assert html.count("<td><a") == 8 and "figure 22" not in html
