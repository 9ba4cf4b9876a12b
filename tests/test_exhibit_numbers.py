"""Numbers, captions and links of exhibits: the same whatever cells run and in whatever order."""

import json
import sys

import pandas as pd
import pytest
from conftest import ROOT
from twotowers.chapters import notebooks
from twotowers.chapters.chapter import Caption, Chapter, first_words
from twotowers.errors import TwoTowersError
from twotowers.exhibits import listing
from twotowers.exhibits import mrr as shown
from twotowers.exhibits.claim import plain
from twotowers.parameters import Parameters
from twotowers.studies import mrr

sys.path.insert(0, str(ROOT / "book/_ext"))
import assemble

CHAPTERS = sorted(p.stem for p in (ROOT / "book").glob("[0-9]*.ipynb"))
HOSTILE = "<b>`x`</b> [a](b) $1$ {ref}`y` *z*"


def calls(chapter):
    cells = json.loads((ROOT / f"book/{chapter}.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [call for source in code for call in notebooks.published(source)]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_chart_and_table_of_a_chapter_has_a_number_of_its_own(chapter):
    numbers = [*notebooks.exhibits(chapter).values()]
    for kind in ("Fig", "Table"):
        own = [number for number in numbers if number.startswith(kind)]
        assert own == [f"{kind} {int(chapter[:2])}.{i + 1}" for i in range(len(own))]
    drawn = sum((len(c.args) > 1) + (len(c.args) > 3) + sum(k.arg in ("chart", "rows") for k in c.keywords)
                for c in calls(chapter))  # fmt: skip
    assert len(numbers) == drawn > 0


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_what_stands_beside_an_exhibit_is_known(chapter):
    beside = [k.value.value for c in calls(chapter) for k in c.keywords if k.arg == "beside"]
    assert set(beside) <= set(listing.PAPER)


def test_what_is_no_numbered_chapter_has_no_numbers():
    assert notebooks.exhibits("scorecard") == notebooks.exhibits("") == notebooks.exhibits("99-none") == {}
    assert notebooks.published("%matplotlib inline\nchapter.publish(a, b)") == []


@pytest.fixture
def chapter(monkeypatch):
    def golden(self, study):
        (path,) = (ROOT / "tests/golden/03-mrr").glob(f"{study.name}@*.csv")
        table = pd.read_csv(path)
        table.attrs["provenance"] = {"notes": []}
        return table

    monkeypatch.setattr(Chapter, "table", golden)
    made = Chapter(Parameters.of({"model": "mini-gpt2"}))
    made.name, made.shown = "03-mrr", []
    monkeypatch.setattr(
        "twotowers.chapters.chapter.display",
        lambda _, metadata=None: made.shown.append(metadata["exhibit"]) if metadata else None,
    )
    return made


def published(chapter, *exhibits):
    for study, given in exhibits:
        chapter.publish(study, **given)
    found, chapter.shown = chapter.shown, []
    return found


def test_cells_in_any_order_give_the_same_numbers(chapter):
    heads = (mrr.by_head, {"chart": shown.by_head_chart, "beside": "v1 fig 5"})
    sets = (mrr.by_set, {"chart": shown.by_set_chart})
    rows = (mrr.overall, {"rows": shown.overall_rows, "caption": "Means"})
    once, again = published(chapter, heads, sets, rows), published(chapter, rows, sets, sets, heads)
    assert [one["number"] for one in once] == ["Fig 3.1", "Fig 3.2", "Table 3.1"]
    assert again == [once[2], once[1], once[1], once[0]]
    assert once[0]["table"] == "03-mrr-by-head.csv" and once[2]["about"] == "Means"


def test_a_caption_says_its_number_its_counterpart_and_its_table():
    one = Caption("Fig 4.2", "T", "Bars.", "EMNLP table 8", "04-x.csv")
    assert one.markdown == "**Fig 4.2**, beside the paper's table 8 (EMNLP 2024). Bars. `04-x.csv`"
    assert one.anchor == "fig-4-2"
    assert Caption("", "T", "Bars.", "", "04-x.csv").markdown == "Bars. `04-x.csv`"


def test_words_of_data_are_no_markup_in_a_caption():
    from markdown_it import MarkdownIt

    html = MarkdownIt().render(plain(HOSTILE))
    assert "<b>" not in html and "<a" not in html and "<code>" not in html and "<em>" not in html
    assert html.count("&lt;b&gt;") == 1


def test_a_study_says_first_what_its_table_holds():
    def study():
        """Means (nats) of heads, each set apart: head, mean."""

    assert first_words(study, "a") == "Means (nats) of heads, each set apart."


def output(number="Fig 3.1", anchor="fig-3-1", beside="v1 fig 5"):
    exhibit = {"number": number, "anchor": anchor, "beside": beside, "title": HOSTILE, "about": "", "table": "03-a.csv"}
    return {"metadata": {"exhibit": exhibit}, "data": {"text/markdown": ["**Fig 3.1**. Bars. ", "`03-a.csv`"]}}


def test_the_page_gives_a_caption_its_name_and_its_link():
    made = assemble.as_caption(output(), ["03-a"], "tables/m")
    assert made == "(fig-3-1)=\n{.exhibit .fig}\n**Fig 3.1**. Bars. {download}`CSV </tables/m/03-a.csv>`"
    assert assemble.as_caption(output(number=""), [], "tables/m").endswith(
        "{.exhibit .fig}\n**Fig 3.1**. Bars. `03-a.csv`"
    )


def test_the_list_has_a_row_for_every_exhibit_of_the_paper():
    own = output("Table 3.2", "table-3-2", "")
    said = assemble.list_of_exhibits([{"cells": [{"outputs": [output(), own]}]}, {"cells": [{}]}])
    assert all(f"| {where} |" in said for where in listing.PAPER)
    assert "| v1 fig 5 | rank of the label's word in values | {ref}`Fig 3.1 <fig-3-1>` " + plain(HOSTILE) in said
    assert said.count("not in this book") == len(listing.PAPER) - 1
    assert said.endswith("Without a counterpart in the paper: {ref}`Table 3.2 <table-3-2>`.")


def test_what_cannot_be_made_says_why_once_and_its_claim_is_not_testable(chapter, monkeypatch):
    def refused(self, study):
        raise TwoTowersError("no rows")

    said = []
    monkeypatch.setattr(Chapter, "table", refused)
    monkeypatch.setattr("twotowers.chapters.chapter.display", lambda shown: said.append(shown.data))
    exhibits = [(mrr.by_head, {"chart": shown.by_head_chart}), (mrr.by_head, {"claim": shown.by_head})]
    for study, given in (*exhibits, exhibits[0]):
        chapter.publish(study, **given)
    assert said[0] == said[2] == "*This exhibit (`03-mrr-by-head`) cannot be made here: `no rows`*"
    assert "<strong>Not testable here</strong>" in said[1] and "for the same reason as `03-mrr-by-head`" in said[1]


def test_what_is_not_recorded_is_named_without_a_verdict(chapter, monkeypatch):
    monkeypatch.undo()  # tables as they are
    chapter.parameters = chapter.parameters.model_copy(update={"recorded": "only", "seed": 12345})
    said = []
    monkeypatch.setattr("twotowers.chapters.chapter.display", lambda shown: said.append(shown.data))
    chapter.publish(mrr.by_head, shown.by_head_chart, shown.by_head)
    assert said == ["*Not recorded for `mini-gpt2`:* `03-mrr-by-head`"]
