"""The paper's exhibits: their rules can be met and missed, by planted numbers; rows go from a
chapter to the page."""

import math

import pandas as pd
import pytest
from conftest import refused
from twotowers import book, exhibits
from twotowers.exhibits import AGREES, DISAGREES, IN_PART, UNTESTABLE, judge


def test_what_says_nothing_of_a_model_is_named_as_the_table_names_it():
    assert {*exhibits.OF_NO_MODEL} <= {*exhibits.exhibits()}


def test_every_exhibit_of_both_versions_has_its_line():
    every = exhibits.exhibits()
    first = (
        [f"figure {i}" for i in range(2, 28)]
        + [f"table {i}" for i in (1, 2, 3)]
        + ["section 6.2", "chat model"]
    )
    first += [
        f"appendix E, {name}"
        for name in ("sum", "toy example", "order", "parts of a head", "neurons", "coefficients")
    ]
    second = ["twelve heads", *(f"EMNLP table {i}" for i in range(3, 9))]
    assert len(first) == 37 and len(second) == 7
    assert sorted(every) == sorted(
        [*first, *second, "authors' notebooks, gpt2-large", "authors' notebooks, llama-7b"]
    )
    assert all(exhibit.seen for exhibit in every.values() if exhibit.rule)


@pytest.mark.parametrize("item", [item for item, of in exhibits.exhibits().items() if of.rule])
def test_a_rule_can_be_met_in_part_and_missed(item):
    exhibit = exhibits.exhibits()[item]
    assert judge(exhibit, exhibit.agrees) == AGREES and judge(exhibit, math.nan) == UNTESTABLE
    assert judge(exhibit, exhibit.part - 0.01) == DISAGREES
    assert judge(exhibit, exhibit.part) == (IN_PART if exhibit.part < exhibit.agrees else AGREES)


def test_a_chapter_keeps_its_rows_for_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(tmp_path))
    chapter = book.open({"model": "smollm2-135m"})
    chapter.left_out["x<y"] = "it cannot"
    chapter.beside_paper(
        "figure 6",
        "4.1",
        {"smollm2-135m": (0.96, "24 of 25 heads"), "opposite": (0.0, "0 of 25 heads")},
    )
    chapter.close()
    rows = exhibits.read(tmp_path / "exhibits")
    assert dict(zip(rows["model"], rows["verdict"], strict=True)) == {
        "smollm2-135m": AGREES,
        "opposite": DISAGREES,
        "x<y": UNTESTABLE,
    }
    assert set(rows["figure"]) == {"4.1"} and set(rows["chapter"]) == {"4"}
    refused("no rule for 'figure 60'", chapter.beside_paper, "figure 60", "4.1", {})
    refused("no rule for 'chat model'", chapter.beside_paper, "chat model", "4.1", {})


def test_the_sentence_has_the_words_and_no_tag_of_theirs():
    exhibit = exhibits.exhibits()["figure 6"]
    rows = exhibits.rows(exhibit, "4.1", {"m": (1.0, "all <heads>")}, {"n": "too small"})
    text = exhibits.sentence(exhibit, rows)
    assert (
        "all &lt;heads&gt;" in text
        and '<b class="agrees">agrees</b>' in text
        and "too small" in text
    )


@pytest.mark.parametrize("change", [{"rule": ""}, {"part": "2"}, {"not_run": "no model"}])
def test_a_line_that_says_half_is_refused(tmp_path, monkeypatch, change):
    table = pd.read_csv(exhibits.data_folder() / "figures.csv", dtype=str, keep_default_na=False)
    for column, cell in change.items():
        table.loc[table["item"] == "figure 6", column] = cell
    table.to_csv(tmp_path / "figures.csv", index=False)
    monkeypatch.setattr(exhibits, "data_folder", lambda: tmp_path)
    refused(r"cannot read .* \(line ", exhibits.exhibits)
