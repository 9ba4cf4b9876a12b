"""Rules that select templates and heads, and matched controls."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from conftest import ROOT
from tolerances import near
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.sets import draw_random_sets
from twotowers import head_selection
from twotowers.heads import Head
from twotowers.settings import Settings


def grid(accuracy):
    """Answers with these accuracies, {(k, separator): hits of 10}."""
    rows = [(k, s, 0 if i < hits else 1) for (k, s), hits in accuracy.items() for i in range(10)]
    k, separator, answer = zip(*rows, strict=True)
    return xr.Dataset(
        {"top_answer": ("prompt", np.array(answer))},
        {"k": ("prompt", list(k)), "separator": ("prompt", list(separator))},
    )


@pytest.mark.parametrize(
    "accuracies, best",
    [
        ({(2, "space"): 6, (4, "space"): 5, (4, "line break"): 8}, (4, "line break")),
        ({(2, "space"): 8, (4, "space"): 8}, (2, "space")),  # a tie: fewer demonstrations
        ({(4, "space"): 6, (8, "space"): 9}, (4, "space")),  # more than MAX_K cost too much
    ],
)
def test_the_best_learned_form_is_taken(accuracies, best):
    assert head_selection.select_template(grid(accuracies)) == best


def heads(attention, written):
    """One prompt, one layer: attention on a true and another label, and the written
    logit difference, of each head."""
    places = np.array(attention)[None, None]
    shape = ("prompt", "layer", "head")
    values = np.array(written)[None, None]
    return xr.Dataset(
        {"attention": ((*shape, "demonstration"), places), "increase": (shape, -values),
         "written_logit_difference": (shape, values), "attribution": (shape, values)},
        {"is_true_label": (("prompt", "demonstration"), np.array([[True, False]]))},
    )  # fmt: skip


def test_of_a_form_that_is_given_in_part_the_rest_is_chosen():
    run = Pipeline(Settings(k=4))
    run.__dict__["measured"] = lambda name: grid({(4, "space"): 5, (4, "line break"): 6})
    assert run.design.template == (4, "line break")


def test_heads_by_writing_write_and_those_by_attention_attend():
    four = heads([(0.9, 0.1), (0.5, 0.4), (0.3, 0.3), (0.4, 0.1)], [1.0, 0.2, 0.5, 0.05])
    sets = head_selection.head_sets(four, k=2)
    assert sets["by written logit difference"] == [(0, 0), (0, 2)]
    assert sets["by attention"] == [(0, 0), (0, 3)]
    near(head_selection.attention_difference(four)[0, 0], [0.8, 0.1, 0, 0.3])


def test_a_rule_may_name_no_heads():
    sets = head_selection.head_sets(heads([(0.2, 0.2)] * 3, [0.05, 0.0, 0.01]), k=5)
    assert sets["by written logit difference"] == sets["by attention"] == []


def test_random_sets_of_a_model_have_none_of_the_key_value_groups_of_a_set():
    model = SimpleNamespace(n_layers=3, n_heads=6, n_key_value_heads=3)
    run = Pipeline(Settings())
    run.__dict__["model"] = model
    one, two = [Head(1, 0)], [Head(1, 0), Head(1, 2)]
    drawn = draw_random_sets(run, {"one": one, "two": two}, n_sets=60)
    others = {Head(*head) for head in np.ndindex(3, 6)} - {Head(1, 0), Head(1, 1)}
    assert {head for of in drawn["one"] for head in of} == others
    # Of two heads there is one such set. A file has equally many sets of each.
    assert [set(of) for of in drawn["two"]] == [{Head(1, 4), Head(1, 5)}] * len(others)


def test_the_glossary_states_the_bounds_of_the_rule():
    text = (ROOT / "book/glossary.md").read_text("utf8")
    written, compared = (
        re.findall(rf"{words} ([\d.]*\d)", text)
        for words in ("for either label, above", "attention difference is at least")
    )
    assert [*map(float, written)] == [head_selection.MIN_WRITTEN]
    assert [*map(float, compared)] == [head_selection.MIN_ATTENTION_DIFFERENCE]


def of_names(pairs, labels):
    """A prompt of every class pair with every label pair."""
    both = [*itertools.product(pairs, labels)]
    class_pair, label_pair = zip(*both, strict=True)
    coordinates = {"class_pair": ("prompt", [*class_pair]), "label_pair": ("prompt", [*label_pair])}
    return xr.Dataset({"x": ("prompt", range(len(both)))}, coordinates)


@pytest.mark.parametrize("labels", ["vw", "v", "uvw"])
# class pairs that judge, of a measurement of its own
@pytest.mark.parametrize("others", [None, "bcd", "ad"])
def test_no_class_pair_and_no_label_pair_is_on_both_sides_and_every_prompt_judges_once(
    labels, others
):
    selection = of_names("abcde", labels)
    evaluation = None if others is None else of_names(others, labels)
    numbers = []
    for both in head_selection.cross_fit_splits(selection, evaluation):
        selecting, evaluating = both
        assert selecting.sizes["prompt"]
        of_pairs, of_labels = (
            set.intersection(*({*part[name].values} for part in both))
            for name in ("class_pair", "label_pair")
        )
        assert not of_pairs and (len(labels) == 1 or not of_labels)
        numbers += list(evaluating["x"].values)
    assert sorted(numbers) == [*range(len(others or "abcde") * len(labels))]


def test_heads_that_attend_to_labels_without_preference_are_found():
    four = heads([(0.6, 0.2), (0.25, 0.24), (0.3, 0.1), (0.1, 0.1)], [0.0] * 4)
    found = head_selection.label_heads_without_preference(four, [Head(0, 0)])
    assert found == [Head(0, 1)]  # 0-2 prefers a class, and 0-3 has less than half
