"""The way from a measurement to a page, on a book of two tiny chapters."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest
import tiny_book
from tiny_book import (
    FIGURE,
    MEASURED,
    NAME,
    SETTINGS,
    build,
    commands_below,
    kill_when,
    notebook,
    start,
)
from towerlab import building


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A book in a folder whose name a shell would stumble over."""
    return tiny_book.make(tmp_path_factory.mktemp("book") / "it's a book")


FAILS = "raise ValueError('no <b>luck</b>')"


def times(home):
    """What was made when: measurement, chapters, pages."""
    names = (
        "measurements/mini-gpt2/words-*/heads.nc",
        "chapters/91-one.ipynb",
        "chapters/92-two.ipynb",
        "html/book/intro.html",
    )
    return [next((home / "_build").glob(name)).resolve().stat().st_mtime_ns for name in names]


def of_others(folder):
    """An environment in which another Python's kernel of the same name comes first in JUPYTER_PATH
    (F9), and which has a Snakemake profile of another project (K5)."""
    kernel = folder / "jupyter/kernels/python3/kernel.json"
    kernel.parent.mkdir(parents=True)
    other = {"argv": ["/bin/false", "{connection_file}"], "display_name": "", "language": "python"}
    kernel.write_text(json.dumps(other))
    (folder / "profile").mkdir()
    (folder / "profile/config.yaml").write_text("executor: of-another-project\n")
    return {"JUPYTER_PATH": str(folder / "jupyter"), "SNAKEMAKE_PROFILE": str(folder / "profile")}


def test_a_chapter_that_fails_stops_no_other_and_its_last_good_page_stays(home, tmp_path):
    """The one build of a push. That all chapters succeed is the build of the book itself."""
    chapter, good = home / "book/91-one.ipynb", home / "_build/chapters/91-one.ipynb"
    good.parent.mkdir(parents=True)
    notebook(good, MEASURED)
    last = nbformat.read(good, 4)
    last.cells[-1].outputs = [nbformat.v4.new_output("stream", text="of the last build")]
    nbformat.write(last, good)
    notebook(chapter, MEASURED, FAILS, measurements=["heads"])
    code, output = build(home, **of_others(tmp_path))
    notebook(chapter, MEASURED, measurements=["heads"])
    assert code == 1 and "91-one failed: ValueError: no <b>luck</b>" in output, output
    assert list((home / "_build/measurements").glob("mini-gpt2/words-*/heads.nc"))
    page = (home / "_build/html/book/91-one.html").read_text()
    assert "of the last build" in page and "This chapter failed when it was last run" in page
    assert "<b>luck" not in page
    page = (home / "_build/html/book/92-two.html").read_text()
    assert 'data-name="fig-2-1"' in page and "Bars." in page and "_static/book/pictures/" in page
    assert NAME in page and "<em>b</em>" in page


def rebuild(home):
    """Build the book without a failure."""
    code, output = build(home)
    assert code == 0, output


@pytest.fixture(scope="module")
def built(home):
    """The book, built without a failure."""
    rebuild(home)
    return home


@pytest.mark.nightly
def test_pages_show_what_chapters_measured(built):
    assert "'prompt': 8" in (built / "_build/html/book/91-one.html").read_text()


@pytest.mark.nightly
def test_after_kill_9_of_a_measurement_the_same_command_goes_on(built):
    (measured,) = (built / "_build/measurements").rglob("heads.nc")
    measured.unlink()
    process = start(built, "book", "--jobs", "2", "--set", SETTINGS)
    kill_when(process, lambda: "measure" in commands_below(process))
    assert not measured.exists()
    rebuild(built)
    assert measured.exists()
    index = (built / "_build/html/searchindex.js").read_text()
    assert "kept by intro" in index  # of a page that did not change


@pytest.mark.nightly
def test_nothing_changed_does_nothing(built):
    before = times(built)
    rebuild(built)
    assert times(built) == before


def python(home, *arguments):
    """Python in the book's folder."""
    environment = os.environ | {"TWOTOWERS_HOME": str(home)}
    command, how = [sys.executable, *arguments], dict(capture_output=True, text=True)
    return subprocess.run(command, cwd=home, env=environment, **how)


@pytest.mark.nightly
def test_a_row_of_another_chapter_runs_no_chapter_again(built):
    """F6."""
    table = built / "data/claims.csv"
    before = table.read_text("utf8")
    try:
        table.write_text(before.replace("query-text,", "query-text-2,", 1), "utf8")
        arguments = "--summary", "--configfile", "_build/settings.json"
        process = python(built, "-m", "snakemake", *arguments)
    finally:
        table.write_text(before, "utf8")
    rows = [line.split("\t") for line in process.stdout.splitlines()[1:]]
    assert {row[2] for row in rows if row[-1] != "no update"} == {"pages"}, process.stderr


@pytest.mark.nightly
def test_a_setting_that_nobody_knows_is_refused_with_the_nearest_name(built):
    settings = "evaluation_block=8", "sepparator=space"
    process = python(built, "-m", "snakemake", "--dry-run", "--config", *settings)
    assert process.returncode == 1
    refusal = "unknown parameter 'evaluation_block': expected one of model, "
    assert refusal in process.stdout + process.stderr


@pytest.mark.nightly
def test_it_fails_until_it_is_mended_and_a_warning_of_sphinx_fails_the_pages_in_words(built):
    notebook(built / "book/91-one.ipynb", MEASURED, FAILS, measurements=["heads"])
    (built / "book/intro.md").write_text("# A book\n\nChanged.\n\n```{nosuch}\n```\n")
    code, output = build(built)
    assert code == 1 and "91-one failed: ValueError" in output, output
    assert "cannot build the pages: book/intro.md:5: WARNING: Unknown directive" in output
    assert "Changed." not in (built / "_build/html/book/intro.html").read_text()


def test_a_second_build_is_told_to_wait(home):
    (home / "_build").mkdir(exist_ok=True)
    with (home / "_build/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output = build(home)
    assert code == 2 and "`twotowers book` is building it" in output and output.count("\n") == 1


@pytest.mark.nightly
def test_ctrl_c_ends_a_build_and_the_same_command_goes_on(built):
    notebook(built / "book/91-one.ipynb", MEASURED, measurements=["heads"])
    (built / "book/intro.md").write_text("# A book\n")
    notebook(built / "book/92-two.ipynb", "import time", "time.sleep(600)")
    process = start(built, "book", "--jobs", "2", "--set", SETTINGS)
    while not list((built / "_build/chapters").glob(".92-two.part.*")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=120)
    failed = [*(built / "_build/chapters").glob("*.failed.ipynb")]
    assert process.returncode and not failed, output
    notebook(built / "book/92-two.ipynb", FIGURE.replace("Bars.", "Bars again."))
    rebuild(built)
    assert "Bars again." in (built / "_build/html/book/92-two.html").read_text()


def test_a_kernel_that_does_not_start_is_named_with_its_log(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("Traceback ...\nRuntimeError: Kernel died before replying to kernel_info\n\n")
    assert building.failure(log) == "RuntimeError: Kernel died before replying to kernel_info"
