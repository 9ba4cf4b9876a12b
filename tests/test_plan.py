"""What a build makes again: a changed row of a table runs the chapters that use it, and what is
missing is measured once."""

import pytest
from conftest import make_home, replace_in
from towerlab import plan
from twotowers import catalogue
from twotowers.paths import HOME
from twotowers.settings import Settings

CHAPTERS = plan.Plan(Settings(), has_chosen_model=False)
READ_ALL = {name for name in CHAPTERS.notebooks if CHAPTERS.reads_evidence(name)}
MEASURED = {name for name, about in CHAPTERS.notebooks.items() if "measurements" in about}


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Changes a text in a table, and returns the notebooks that run again."""

    def change(table, before, after):
        home = make_home(tmp_path / "home", table)
        monkeypatch.setenv(HOME, str(home))
        was = {name: CHAPTERS.tables(name) for name in CHAPTERS.notebooks}
        replace_in(home / "data" / table, before, after)
        return {name for name in was if CHAPTERS.tables(name) != was[name]}

    return change


@pytest.mark.parametrize(
    "table, before, after, chapters",
    [
        ("claims.csv", "\nproduct,", "\nproduct-2,", {"11-two-towers-moved"}),
        ("claims.csv", "\nlearned,", "\nlearned-2,", set(CHAPTERS.notebooks)),
        ("figures.csv", "\nfigure 6,", "\nfigure 6b,", {"04-attention-weights"}),
        ("figures.csv", "\nword prompts,", "\nword prompt,", set(CHAPTERS.notebooks)),
        ("figures.csv", "\ntable 2,", "\na row of none,\ntable 2,", set()),
        ("solved.csv", "\nfigure 6,", "\nfigure 6b,", set(CHAPTERS.notebooks)),
        ("known_heads.csv", "\n", "\n\n", {"12-what-every-head-does"}),
        ("rules.csv", "\n", "\n\n", set()),
        ("versions.csv", "templates,answers,1", "templates,answers,2", None),
    ],
)
def test_a_row_runs_the_chapters_that_use_it(table, before, after, chapters, changed):
    """F6; the pages that read all evidence run with every row."""
    ran = changed(table, before, after)
    assert ran == (set() if chapters is None else chapters | READ_ALL)


def test_a_variable_runs_the_chapters_that_read_its_measurement(changed):
    readers = {
        name for name in MEASURED if "query_key_vectors" in CHAPTERS.notebooks[name]["measurements"]
    }
    row = "query_key_vectors,key_vector,"
    assert changed("variables.csv", row, "query_key_vectors,key,") == readers | READ_ALL


def test_all_that_chapters_read_is_missing_at_first_and_each_is_measured_once(tmp_path):
    fresh = plan.Plan(Settings(out=str(tmp_path)), has_chosen_model=False)
    (names,) = fresh.missing().values()
    read = {name for notebook in fresh.notebooks for _, name in fresh.to_measure(notebook)}
    assert read <= {*names} and "templates" in names
    for n in (1, 2, 3):
        first, rest = plan.shares(names, n)
        dealt = [name for share in first + rest for name in share]
        assert sorted(dealt) == sorted(names) and len(first) == 1 and len(rest) == n
        needs = {need for share in rest for name in share for need in catalogue.row_of(name).needs}
        assert needs <= {*first[0]}
    assert plan.shares(["heads"], 2) == [[], [["heads"]]]


def test_a_precomputed_model_is_not_measured(tmp_path):
    settings = Settings(model="smollm2-135m", out=str(tmp_path))
    own, of_another_seed = (
        {*plan.Plan(some, has_chosen_model=True).to_measure("12-what-every-head-does")}
        for some in (settings, settings.model_copy(update={"seed": 1}))
    )
    assert ("words", "head_effects") in of_another_seed - own
