"""The list at a chapter's end: the newest verdict of each claim in the notebook's order, whatever cells ran and how often."""

import altair as alt
import nbformat
import pandas as pd
import pytest
from conftest import ROOT
from twotowers.chapters import notebooks
from twotowers.chapters.chapter import Chapter
from twotowers.errors import NotRecorded, TwoTowersError
from twotowers.exhibits import mrr as of_mrr
from twotowers.exhibits.claim import Claim, Verdict, finding
from twotowers.exhibits.scorecard import Rule
from twotowers.parameters import Parameters
from twotowers.studies import mrr
from twotowers.studies.context import Study
from twotowers.studies.run import Run

NOTEBOOK = (
    "publish(s.late, claim=x.early)",
    "publish(s.late, x.chart, x.later)\nchapter.publish(s.other, claim=x.alone)",
)
CHAPTERS = sorted(p.stem for p in (ROOT / "book").glob("[0-9]*.ipynb"))


def study(name):
    def function():
        """Rows of it: a, b."""

    function.__name__ = name
    return Study(f"07-made-{name}", function)


LATE, OTHER = study("late"), study("other")


def chart(t):
    return alt.Chart(t, title="T", description="T. Dots.").mark_point()


def claim(name, verdict, doc=""):
    def judged(t):
        return Claim(verdict, "It is so.")

    judged.__name__, judged.__doc__ = name, doc
    return judged


@pytest.fixture
def chapter(monkeypatch, tmp_path):
    """A chapter of a hand-made notebook, whose tables are all there."""
    cells = [nbformat.v4.new_code_cell(f"chapter.{source}") for source in NOTEBOOK]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "07-made.ipynb")
    monkeypatch.setattr(notebooks, "book_folder", lambda: tmp_path)
    table = pd.DataFrame({"a": [1]})
    table.attrs["provenance"] = {"notes": []}
    monkeypatch.setattr(Chapter, "table", lambda self, study: table)
    made = Chapter(Parameters.of({"model": "mini-gpt2"}))
    made.name, made.shown = "07-made", []
    monkeypatch.setattr(
        "twotowers.chapters.chapter.display", lambda one, metadata=None: made.shown.append(getattr(one, "data", one))
    )
    return made


def told(chapter):
    """The list's lines, without the sentence above."""
    chapter.takeaways()
    return chapter.shown[-1].splitlines()[2:]


def refusing(monkeypatch, error):
    def refused(self, study):
        raise error

    monkeypatch.setattr(Chapter, "table", refused)


def test_a_claim_s_exhibit_is_that_of_its_call_or_of_its_study(chapter):
    assert [*notebooks.claims("07-made").items()] == [
        (("late", "early"), "Fig 7.1"), (("late", "later"), "Fig 7.1"), (("other", "alone"), ""),
    ]  # fmt: skip
    assert notebooks.claims("99-none") == notebooks.claims("scorecard") == {}


def test_the_newest_verdict_of_each_claim_stands_in_the_notebook_s_order(chapter):
    chapter.publish(OTHER, claim=claim("alone", Verdict.UNTESTABLE, "A <b>claim</b> of it: shown so. More."))
    chapter.publish(LATE, claim=claim("early", Verdict.HOLDS, "Heads read."))
    once = told(chapter)
    assert once == [
        "- **Holds**: heads read (`07-made-late.csv`)",  # its figure is not on the page yet, so no link leads there
        "- **Not testable here**: a \\<b\\>claim\\</b\\> of it (`07-made-other.csv`)",
    ]
    chapter.publish(LATE, chart, claim("later", Verdict.CONTROL))
    chapter.publish(LATE, claim=claim("early", Verdict.FAILS, "Heads read."))
    again = told(chapter)
    assert again[:2] == [
        "- **Does not hold**: heads read ([Fig 7.1](#fig-7-1))",
        "- **No more than its control**: rows of it ([Fig 7.1](#fig-7-1))",
    ]
    assert again[2:] == once[1:] and told(chapter) == again
    assert chapter.shown[-1].startswith("The claims of this chapter, judged on `mini-gpt2`:\n\n- ")


def test_what_a_chapter_finds_without_a_verdict_is_no_takeaway(chapter):
    chapter.publish(LATE, claim=claim("early", Verdict.HOLDS))
    chapter.publish(LATE, claim=lambda t: finding("It is so."))
    chapter.publish(LATE, claim=claim("early", None))  # its newest word is no verdict
    assert told(chapter) == [] and chapter.shown[-1] == "No claim is judged here on `mini-gpt2`.\n"


def test_what_cannot_be_made_is_not_testable_and_no_link_leads_to_it(chapter, monkeypatch):
    chapter.name = "03-mrr"
    monkeypatch.setattr(notebooks, "book_folder", lambda: ROOT / "book")
    refusing(monkeypatch, TwoTowersError("no rows"))
    chapter.publish(mrr.overall, claim=of_mrr.overall, rows=of_mrr.overall_rows)
    assert told(chapter) == [
        "- **Not testable here**: label words rank higher than in random heads (`03-mrr-overall.csv`)"
    ]


def test_of_what_is_not_recorded_the_paper_s_claims_are_named(chapter, monkeypatch):
    chapter.name = "03-mrr"
    monkeypatch.setattr(notebooks, "book_folder", lambda: ROOT / "book")
    refusing(monkeypatch, NotRecorded("nothing is recorded"))
    chapter.publish(mrr.by_head, claim=of_mrr.by_head)
    chapter.publish(mrr.overall, claim=of_mrr.overall, rows=of_mrr.overall_rows)
    assert told(chapter) == ["- **Not recorded**: label words rank higher than in random heads"]


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_lists_them_behind_its_exhibits(name):
    cells = [c.source for c in nbformat.read(ROOT / f"book/{name}.ipynb", 4).cells]
    at = cells.index("chapter.takeaways()")
    assert cells[at - 1] == "## Takeaways" and cells[at + 1].startswith("## Try it")
    assert not any(notebooks.published(source) for source in cells[at:])


def test_what_a_page_adds_to_a_run_hides_nothing_of_it():
    shared = {name for name in vars(Chapter) if hasattr(Run, name) and not name.startswith("__")}
    assert shared == set()


@pytest.mark.parametrize("control, said", [(Verdict.HOLDS, "Holds"), (Verdict.FAILS, "No more than its control")])
def test_a_claim_of_the_paper_holds_only_with_its_control_as_on_the_scorecard(chapter, monkeypatch, control, said):
    whole, beside = claim("early", Verdict.HOLDS), claim("alone", control)
    rule = Rule("fig", "it moves", LATE.name, whole, control=Rule("fig", "the other way", OTHER.name, beside))
    monkeypatch.setattr("twotowers.chapters.chapter.rule_of", lambda table, one: rule if one is whole else None)
    chapter.publish(LATE, claim=whole)
    assert told(chapter)[0].startswith("- **Undecided**: it moves")  # its control was not asked yet
    chapter.publish(OTHER, claim=beside)
    assert told(chapter)[0].startswith(f"- **{said}**: it moves")
