"""The pages of `make book`, on a book of two small chapters that need no model."""

import json
import os
import signal
import sys
import time
from html.parser import HTMLParser

import nbformat
import pytest
from book_builder import (
    ROOT,
    add_cell,
    build,
    edit,
    needs_proc,
    pids_in,
    start,
    wait_for,
)

sys.path.insert(0, str(ROOT / "book/_ext"))
import assemble

HOSTILE = "</script><script>alert(1)</script><!--<script>"


# --- a page by itself ---


class Scripts(HTMLParser):
    """What a browser takes for scripts, and every other tag."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self.inside = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = tag == "script"
        self.scripts += [""] * self.inside
        self.tags.append(tag)

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self.inside = False


def test_data_of_a_chart_cannot_end_its_script():
    alt = pytest.importorskip("altair")
    chart = (
        alt.Chart(alt.Data(values=[{"x": HOSTILE}, {"x": "</SCRIPT >"}]), title=HOSTILE).mark_point().encode(x="x:N")
    )
    html = "".join(chart._repr_mimebundle_()["text/html"])
    assert len(Scripts(html).scripts) > 1, "as Altair writes it, the data end the script"
    output = {"output_type": "display_data", "data": {"text/html": html.splitlines(keepends=True)}, "metadata": {}}
    page = Scripts(assemble.shown(output)["data"]["text/html"])
    (script,) = page.scripts
    written = json.loads(script)
    assert page.tags == ["div", "script"] and written["title"] == HOSTILE
    assert written["data"]["values"] == [{"x": HOSTILE}, {"x": "</SCRIPT >"}]


def test_charts_that_altair_writes_in_another_way_are_refused():
    with pytest.raises(ValueError, match="in another way"):
        assemble.chart_block('<div id="altair-viz-1"></div><script>draw()</script>')


def page(tmp_path, stamp):
    source = tmp_path / "source.ipynb"
    source.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Title")])))
    (tmp_path / "m/.done").mkdir(parents=True)
    (tmp_path / "m/.done/01-a.json").write_text(json.dumps(stamp))
    return assemble.Page(tmp_path, "m", "01-a", source)


def texts(notebook):
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def test_a_chart_brings_only_the_columns_that_it_names():
    spec = {"encoding": {"x": {"field": "score"}, "y": {"field": "a\\.b"}}, "transform": [{"filter": "datum.kept > 0"}],
            "datasets": {"d": [{"score": 0.123456789, "kept": 3, "a.b": "x", "left": 1}, {"score": None}]}}  # fmt: skip
    columns = assemble.lean(spec)["datasets"]["d"]
    assert columns == {"score": [0.1235, None], "kept": [3, None], "a.b": ["x", None]}
    assert assemble.lean({"mark": "bar"}) == {"mark": "bar"}


@pytest.mark.parametrize(
    ("number", "written"),
    [(0.123456, 0.1235), (-1.23456e-7, -1.235e-7), (99.999, 100.0), (12345.6, 12346), (3.0, 3), (123456, 123456),
     (True, True), ("0.123456", "0.123456"), ([0.123456, "a"], [0.1235, "a"]), (float("inf"), float("inf"))],
)  # fmt: skip
def test_a_number_of_a_chart_has_four_digits_and_all_before_the_point(number, written):
    assert assemble.four_digits(number) == written


def test_a_page_says_where_its_tables_lie(tmp_path):
    one = page(tmp_path, {"status": "done", "tables": {"01-a-x": "0", "01-a-y": "0"}})
    one.executed.write_text(one.source.read_text())
    (title, last) = texts(one.notebook("tables/m"))
    assert title == "# Title" and f"`{tmp_path}/m/tables`" in last
    assert "{download}`01-a-x.csv </tables/m/01-a-x.csv>`, {download}`01-a-y.csv </tables/m/01-a-y.csv>`" in last


def test_a_page_of_a_failed_chapter_says_so_and_what_it_says_is_no_markup(tmp_path):
    one = page(tmp_path, {"status": "failed", "why": "cell 3 says ValueError: <b>`x`</b>"})
    (_, note) = texts(one.notebook("tables/m"))
    assert "no figure can be shown: ``cell 3 says ValueError: <b>`x`</b>``" in note
    one.executed.write_text(one.source.read_text())
    assert "this page is of the last run that did not" in texts(one.notebook("tables/m"))[1]


# --- the whole way ---


@pytest.fixture(scope="module")
def book(trial_book):
    return trial_book.folder


def html(folder, name):
    return (folder / "_build/html" / name).read_text()


slow = pytest.mark.slow


@slow
def test_chapters_become_pages_with_their_parameters_and_tables(book):
    page = html(book, "book/01-locate.html")
    assert "<strong>20</strong> prompts" in page
    assert "when this chapter runs live" in page and "widget-view" not in page
    assert list((book / "_build/html/_downloads").glob("*/01-locate-trial.csv"))


@slow
def test_another_model_s_pages_stand_beside_and_no_name_is_there_twice(book):
    page = html(book, "book/runs/m/01-locate.html")
    assert "<strong>30</strong> prompts" in page and 'id="equation-score-m"' in page
    assert 'id="equation-score"' in html(book, "book/01-locate.html")
    assert "runs/m/01-locate.html" in html(book, "book/intro.html")


@slow
def test_nothing_runs_when_nothing_changed_and_a_lost_book_is_built_again(book):
    again = build(book)
    assert again.returncode == 0 and again.stdout.count("nothing changed") == 3, again.stdout
    (book / "_build/html").unlink()
    again = build(book)
    assert again.returncode == 0 and again.stdout.count("nothing changed") == 2, again.stdout
    assert "a trial" in html(book, "book/01-locate.html").lower()


@slow
def test_a_failing_chapter_leaves_its_last_good_figures_and_the_page_says_so(book):
    add_cell(book, "02-second", "raise ValueError('broken on purpose')")
    failed = build(book)
    assert failed.returncode == 1 and "failed: cell 5 says ValueError: broken on purpose" in failed.stdout
    edit(book, "02-second", lambda cells: cells.pop())
    page = html(book, "book/02-second.html")
    assert '<span class="pre">purpose' in page and "this page is of the last run that did not" in page
    again = build(book)
    assert again.returncode == 0 and "this page is of the last run" not in html(book, "book/02-second.html"), (
        again.stdout
    )


@slow
def test_a_warning_fails_the_build_each_time_and_leaves_the_last_good_book(book):
    page = book / "book/intro.md"
    before, text = html(book, "book/intro.html"), page.read_text()
    page.write_text(text + "\n{doc}`no-such-page`\n")
    for _ in range(2):  # Sphinx says it once, unless what it made is thrown away
        failed = build(book)
        assert failed.returncode == 1 and "no-such-page" in failed.stdout and failed.stdout.count("\n") < 8
        assert html(book, "book/intro.html") == before
    page.write_text(text)


@slow
@needs_proc
@pytest.mark.parametrize("moment", ["stage", "sphinx", "books"])
def test_kill_9_while_pages_are_built_leaves_the_last_good_book(book, moment):
    page = book / "book/intro.md"
    page.write_text(page.read_text() + f"\nA word about {moment}.\n")
    before = html(book, "book/intro.html")
    marks = {
        "stage": lambda: f"about {moment}" in (book / "_build/stage/book/intro.md").read_text(),
        "sphinx": lambda: f"about {moment}" in (book / "_build/sphinx/_build/html/book/intro.html").read_text(),
        "books": lambda: len(list((book / "_build/books").iterdir())) > 1,
    }
    process, _ = start(book, "book", "--set", "n_prompts=20")
    seen = time.monotonic()
    while process.poll() is None and not there(marks[moment]) and time.monotonic() < seen + 200:
        time.sleep(0.005)
    for pid in [process.pid, *pids_in(book)]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert html(book, "book/intro.html") == before
    wait_for(lambda: not pids_in(book), 20)
    done = build(book)
    assert done.returncode == 0 and f"about {moment}" in html(book, "book/intro.html"), done.stdout
    assert len(list((book / "_build/books").iterdir())) == 1


def there(mark):
    try:
        return mark()
    except OSError:
        return False
