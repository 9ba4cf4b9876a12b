"""The workflow of `make book`, on a book of two small chapters that need no model."""

import json

import pytest
from book_builder import build, lay_out


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    folder = lay_out(tmp_path_factory.mktemp("trial"), trial=True)
    done = build(folder)
    assert done.returncode == 0, done.stdout
    return folder


def change_last_cell(folder, source):
    path = folder / "book/02-second.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"][-1]["source"] = source
    path.write_text(json.dumps(notebook))


def test_chapters_pass_tables_on(book):
    assert (book / "_build/tables/mini-gpt2/trial.csv").exists()
    assert "96" in (book / "_build/executed/mini-gpt2/02-second.ipynb").read_text()
    assert (book / "_build/html/book/02-second.html").exists()


def test_parameters_reach_the_chapter(book):
    assert "<strong>20</strong> prompts" in (book / "_build/html/book/01-locate.html").read_text()


def test_a_widget_becomes_a_note(book):
    page = (book / "_build/html/book/01-locate.html").read_text()
    assert "when this chapter runs live" in page
    assert "widget-view" not in page


def test_nothing_runs_when_nothing_changed(book):
    again = build(book)
    assert again.returncode == 0
    assert "running" not in again.stdout and "building" not in again.stdout


def test_only_the_changed_chapter_runs_again(book):
    change_last_cell(book, "1 + 1")
    again = build(book)
    assert again.returncode == 0, again.stdout
    assert "02-second  done" in again.stdout and "01-locate" not in again.stdout


def test_a_failing_cell_fails_the_build_and_leaves_the_last_good_book(book):
    before = (book / "_build/html/book/02-second.html").read_bytes()
    change_last_cell(book, "raise ValueError('broken on purpose')")
    failed = build(book)
    assert failed.returncode != 0
    assert "ValueError: broken on purpose" in failed.stdout
    assert not (book / "_build/executed/mini-gpt2/02-second.ipynb").exists()
    assert (book / "_build/html/book/02-second.html").read_bytes() == before


def test_a_warning_of_sphinx_fails_the_build(book):
    change_last_cell(book, "1 + 1")
    page = book / "book/intro.md"
    page.write_text(page.read_text() + "\n{doc}`no-such-page`\n")
    failed = build(book)
    assert failed.returncode != 0
    assert "no-such-page" in failed.stdout
