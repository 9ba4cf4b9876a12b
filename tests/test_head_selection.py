"""Rules that select templates and heads, and matched controls."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from conftest import ROOT, refused
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


def test_the_best_learned_form_is_taken():
    assert head_selection.select_template(
        grid({(2, "space"): 6, (4, "space"): 5, (4, "line break"): 8})
    ) == (4, "line break")
    assert head_selection.select_template(grid({(2, "space"): 8, (4, "space"): 8})) == (
        2,
        "space",
    )  # a tie: fewer demonstrations
    assert head_selection.select_template(grid({(4, "space"): 6, (8, "space"): 9})) == (
        4,
        "space",
    )  # more than MAX_K cost too much


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
    assert sets["by written logit difference"] == [(0, 0), (0, 2)] and sets["by attention"] == [
        (0, 0),
        (0, 3),
    ]
    near(head_selection.attention_difference(four)[0, 0], [0.8, 0.1, 0, 0.3])


def test_the_increase_that_chooses_is_that_of_the_frozen_norm():
    by_norm = xr.Dataset({"increase": ("norm", [1.0, 2.0])}, {"norm": ["frozen", "recomputed"]})
    assert head_selection.with_increase(xr.Dataset(), by_norm)["increase"] == 1


def test_a_rule_may_name_no_heads():
    sets = head_selection.head_sets(heads([(0.2, 0.2)] * 3, [0.05, 0.0, 0.01]))
    assert sets["by written logit difference"] == sets["by attention"] == []


@pytest.mark.parametrize("group", [1, 2, 3])
def test_controls_come_from_other_groups(group):
    heads = [Head(2, 0), Head(2, 1), Head(3, 5)]
    for control in head_selection.draw_matched_sets(
        heads, np.ones((6, 6), bool), 6 // group, n_sets=100
    ):
        assert len(set(control)) == len(heads)
        assert not {(a, b // group) for a, b in control} & {(a, b // group) for a, b in heads}
        assert [layer for layer, _ in control] == [2, 2, 3] or group == 3


def test_random_sets_of_a_model_have_none_of_the_key_value_groups_of_a_set():
    model = SimpleNamespace(n_layers=3, n_heads=6, n_key_value_heads=3)
    run = Pipeline(Settings())
    run.__dict__["model"] = model
    drawn = draw_random_sets(run, {"a": [Head(1, 0)]}, n_sets=60)["a"]
    assert {head for of in drawn for head in of} == {Head(1, h) for h in (2, 3, 4, 5)}


def test_controls_of_a_full_layer_come_from_the_next():
    controls = head_selection.draw_matched_sets(
        [Head(1, h) for h in range(4)], np.ones((3, 4), bool), 4, 3
    )
    assert all({layer for layer, _ in heads} == {2} for heads in controls)
    refused(
        "too few",
        head_selection.draw_matched_sets,
        [Head(0, h) for h in range(3)],
        np.ones((1, 4), bool),
        4,
        n_sets=1,
    )


def test_heads_by_effect_have_the_largest_of_either_sign():
    effect = np.array(
        [[[[0.1, -0.9], [0.4, 0.0]]], [[[5.0, 5.0], [5.0, 5.0]]]]
    )  # (contrast, prompt, layer, head)
    effects = xr.Dataset(
        {"effect": (("contrast", "prompt", "layer", "head"), effect)},
        {"contrast": ["attention swapped", "texts exchanged"]},
    )
    assert head_selection.by_effect(effects, 2) == [(0, 1), (1, 0)]


def test_pick_names_heads():
    values = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("layer", "head"))
    picked = head_selection.select_heads(values, [Head(1, 2), Head(0, 1)])
    assert picked.values.tolist() == [5.0, 1.0] and picked["selected_head"].values.tolist() == [
        "1-2",
        "0-1",
    ]
    assert picked["layer"].values.tolist() == [1, 0] and picked["head"].values.tolist() == [2, 1]


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
    both = [(pair, label) for pair in pairs for label in labels]
    coordinates = {
        "class_pair": ("prompt", [pair for pair, _ in both]),
        "label_pair": ("prompt", [label for _, label in both]),
    }
    return xr.Dataset({"x": ("prompt", range(len(both)))}, coordinates)


@pytest.mark.parametrize("labels", ["vw", "v", "uvw"])
@pytest.mark.parametrize(
    "others", [None, "bcd", "ad"]
)  # class pairs that judge, of a measurement of its own
def test_no_class_pair_and_no_label_pair_is_on_both_sides_and_every_prompt_judges_once(
    labels, others
):
    selection = of_names("abcde", labels)
    evaluation = selection if others is None else of_names(others, labels)
    numbers = []
    for selecting, evaluating in head_selection.cross_fit_splits(
        selection, *([] if others is None else [evaluation])
    ):
        assert selecting.sizes["prompt"]
        assert not set(selecting["class_pair"].values) & set(evaluating["class_pair"].values)
        assert len(labels) == 1 or not set(selecting["label_pair"].values) & set(
            evaluating["label_pair"].values
        )
        numbers += list(evaluating["x"].values)
    assert sorted(numbers) == list(range(evaluation.sizes["prompt"]))
