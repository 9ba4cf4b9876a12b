"""What every chapter refuses before its model loads, in one line that names the remedy."""

import pytest
from twotowers.errors import TwoTowersError
from twotowers.report import Chapter, check_parameters, open_chapter

GOOD = {
    "model": "mini-gpt2", "datasets": ["animal/country"], "n_prompts": 20, "labels": ["foo", "bar"], "norm": "frozen",
    "top_k": 5, "seed": 0, "device": "cpu", "dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("n_prompts", 0, "at least 1"),
        ("n_prompts", -3, "at least 1"),
        ("n_prompts", "many", "at least 1"),
        ("n_promts", 20, "did you mean 'n_prompts'"),
        ("labels", ["foo", "foo"], "two different"),
        ("labels", "foo", "two different"),
        ("norm", "frosen", "choose one of frozen"),
        ("datasets", ["animal/nothing"], "unknown dataset"),
        ("seed", -1, "at least 0"),
        ("top_k", 0, "at least 1"),
        ("model", "", "give a word"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(tmp_path, name, value, says):
    with pytest.raises(TwoTowersError, match=says) as refusal:
        open_chapter("01-locate", GOOD | {"out": str(tmp_path), name: value})
    assert "\n" not in str(refusal.value)


def test_an_out_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TwoTowersError, match="give another folder"):
        open_chapter("01-locate", GOOD | {"out": str(tmp_path / "file" / "out")})


def test_lists_may_come_as_the_strings_that_papermill_passes():
    checked = check_parameters({"labels": "foo,bar", "datasets": "['animal/country', 'country/animal']"})
    assert checked == {"labels": ["foo", "bar"], "datasets": ["animal/country", "country/animal"]}


def test_only_plain_names_of_a_notebook_count_as_parameters(tmp_path):
    scope = GOOD | {"out": str(tmp_path), "_hidden": 1, "In": [], "pytest": pytest, "print": print}
    chapter = open_chapter("01-locate", scope)
    assert chapter.n_prompts == 20 and set(chapter.parameters) == set(GOOD) | {"out"}


def test_a_model_that_does_not_learn_is_named_and_one_that_does_is_not(monkeypatch):
    said = []
    monkeypatch.setattr("twotowers.report.Chapter.here", lambda self, text: said.append(text))
    chapter = Chapter("02-project", {})
    chapter.caution(0.5)
    assert not said
    chapter.caution(0.12)
    assert "12%, is below the 50%" in said[0]
