"""What each parameter may be, and what is said of one that may not: one line that names the remedy."""

import pytest
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.parameters import Parameters


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("n_prompts", 0, "at least 1"), ("n_prompts", -3, "at least 1"), ("n_prompts", "many", "whole number"),
        ("n_prompts", True, "whole number"), ("n_prompts", 2.5, "whole number"), ("n_promts", 20, "did you mean 'n_prompts'"),
        ("labels", ["foo", "foo"], "give different ones"), ("labels", "foo", "two different"), ("labels", 5, "words"),
        ("labels", None, "two different"), ("labels", ["foo", " "], "plain word"), ("norm", "frosen", "'frozen'"),
        ("datasets", ["animal/nothing"], "unknown dataset"), ("datasets", [], "one or more"),
        ("datasets", "animal/country,animal/country", "different sets"), ("seed", -1, "at least 0"),
        ("top_k", 0, "at least 1"), ("k", 0, "at least 1"), ("k", True, "whole number"), ("k", "few", "or auto"),
        ("separator", "comma", "'space'"), ("long", "cut", "'drop'"), ("recorded", "maybe", "'use'"),
        ("ranking", "best", "'label'"), ("dtype", "float8", "'float32'"), ("heads", "22", "write layer-head"),
        ("heads", "3-7;2-5", "write layer-head"), ("model", "", "give a word"), ("model", None, "give a word"),
        ("out", 3, "give a word"), ("a_c", "x", "number"), ("a_c", float("inf"), "finite"),
    ],
)  # fmt: skip
def test_bad_values_are_refused_in_one_line_that_names_the_parameter(name, value, says):
    with pytest.raises(TwoTowersError, match=says) as refusal:
        Parameters.of({name: value})
    assert "\n" not in str(refusal.value) and name in str(refusal.value)


def test_values_may_come_as_the_strings_that_papermill_passes():
    found = Parameters.of(
        {"labels": "foo,bar", "datasets": "['animal/country', 'country/animal']", "n_prompts": "20", "k": "3",
         "heads": "3-7,2-5,3-7", "device_map": ""}
    )  # fmt: skip
    assert (found.labels, found.datasets) == (["foo", "bar"], ["animal/country", "country/animal"])
    assert (found.n_prompts, found.k, found.heads, found.device_map) == (20, 3, [Head(3, 7), Head(2, 5)], None)


def test_a_clean_set_of_parameters_is_clean_when_checked_again():
    once = Parameters.of({"heads": "3-7,2-5", "labels": "a,b", "device_map": "auto"})
    assert Parameters.of(once.model_dump()) == once
    assert Parameters.of({"heads": [[3, 7], [2, 5]]}).heads == once.heads


def test_a_device_map_and_a_device_are_not_given_together():
    with pytest.raises(TwoTowersError, match=r"device=cuda and device_map=auto: the map places the model"):
        Parameters.of({"device": "cuda", "device_map": "auto"})
