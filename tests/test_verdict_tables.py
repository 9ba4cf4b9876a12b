"""No page has a verdict that was typed by hand: a threshold that moves changes all of them."""

import re

import pandas as pd
import pytest
import verdict_map
import verdicts
from chapter_runs import CHAPTERS
from conftest import refused, sources
from twotowers import claims, evidence, paper_results, strips
from twotowers.paper_results import Result

WORDS = {*claims.VERDICTS, claims.AGREES, claims.DISAGREES, claims.AGREES_UNSPECIFIC}
SOURCES = {name: sources(name, "markdown") for name in CHAPTERS}
MARKS = {
    stem: match[1]
    for stem, cells in SOURCES.items()
    for match in map(verdicts.MARK.search, cells)
    if match
}


def judged(build, results, value=0.8):
    """Write the rows of a model with the same number for each result, and return their pages."""
    rows = [
        evidence.verdict_row(result, "mini-gpt2", **paper_results.judge(result, Result(value, "w")))
        for result in results.values()
    ]
    (build / "evidence").mkdir(exist_ok=True)
    for chapter, part in pd.DataFrame(rows).groupby("chapter"):
        part.to_csv(build / f"evidence/{chapter}.csv", index=False)
    written = evidence.read(build / "evidence", results)
    pages = {stem: verdicts.drawn(build, mark) for stem, mark in MARKS.items()}
    pages["figure by figure"] = "".join(
        strips.entry(results[row.claim], [row]) for row in written.itertuples()
    )
    pages |= {"map": verdict_map.drawn(build)}
    return {name: re.sub("<text.*?</text>", "", page) for name, page in pages.items()}  # no zones


def test_a_threshold_that_moves_changes_every_page(tmp_path, monkeypatch):
    results = {name: row for name, row in claims.paper_results().items() if row.agrees is not None}
    moved = {name: row.model_copy(update={"agrees": 9.0}) for name, row in results.items()}
    found = []
    for rules in (results, moved):
        bounds = {"agrees": 0.5, "part": 0.25} if rules is results else {"part": 9.0}
        rules = {name: row.model_copy(update=bounds) for name, row in rules.items()}
        monkeypatch.setattr(claims, "paper_results", lambda rules=rules: rules)
        found.append(judged(tmp_path, rules))
    before, after = found
    of_paper = {stem for stem, mark in MARKS.items() if any(f"{name}" in mark for name in results)}
    assert of_paper >= {"02-project", "04-attention-weights", "05-imbalanced-and-reordered"}
    for page in (*of_paper, "figure by figure", "map"):
        assert ">agrees<" in before[page] or "✓" in before[page]
        assert ">agrees<" not in after[page] and "✓<" not in after[page].split("<table")[-1]
        assert "does not agree" in after[page]


def test_a_verdict_of_all_models_is_told_once():
    row = {"claim": "figure 6", "prompt_set": "", "reason": "", "words": ""}
    rows = pd.DataFrame([row | {"model": m, "verdict": claims.AGREES} for m in "ab"])
    more = rows.assign(claim="figure 7", verdict=[claims.AGREES, claims.DISAGREES])
    both = verdicts.table("figure 6; figure 7", pd.concat([rows, more]))
    above, table = both.split("\n\n")
    assert above.startswith("In all 2 models <") and above.endswith(">agrees</span>: figure 6.")
    assert "figure 6" not in table
    assert table.count("class=") == 2 and "|" not in verdicts.table("figure 6", rows)


@pytest.mark.parametrize("stem", SOURCES)
def test_no_table_of_a_chapter_holds_a_verdict(stem):
    lines = [line for text in SOURCES[stem] for line in text.splitlines() if "|" in line]
    cells = {cell.strip() for line in lines for cell in line.split("|")}
    assert not cells & (WORDS - {"small"})


def test_a_mark_that_names_nothing_is_refused(tmp_path):
    rows = pd.DataFrame(columns=["claim", "model"])
    refused("unknown statement 'figure 60'", verdicts.table, "ours = figure 60", rows)
    assert verdicts.drawn(tmp_path, "figure 6") == ""
