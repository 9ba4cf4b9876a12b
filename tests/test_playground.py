"""Effects of zeroed heads against measurements and slow references, and the playground notebook."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_blocks
from conftest import refused, sources
from reference import Reference
from tolerances import near
from towerlab.effects import SCENES, SWITCH_OFF, zeroing_effect
from towerlab.model import unembed
from towerlab.prompts.paper_sets import CASE
from towerlab_experiments.ablations import ablations
from towerlab_experiments.head_values import heads as measure_heads
from twotowers import theme
from twotowers.heads import Head

ZEROED = (Head(0, 1), Head(1, 1))


@pytest.fixture
def model(tiny_model, float64):
    """A tiny model with a tokenizer that has the words of the paper's example."""
    return replace(tiny_model, tokenizer=tiny_blocks.tokenizer())


def test_numbers_equal_those_of_the_measurements(model):
    effect, encoded = zeroing_effect(model, CASE, ZEROED), model.encode([CASE])
    plain = measure_heads(model, encoded)
    answers = ablations(model, encoded, {"these": ZEROED}).isel(prompt=0)
    table = effect.answer.set_index("token")
    for when, which in (("before", "none"), ("after", "these")):
        for label, name in (("foo", "log_prob_true"), ("bar", "log_prob_other")):
            near(np.log(table.loc[label, when]), answers[name].sel(head_set=which))
    weights = np.mean([plain["attention"].values[0, layer, head] for layer, head in ZEROED], 0)
    # kept in float32
    near(effect.attention["before"].to_numpy(), weights, atol=1e-6)


def test_a_heads_logit_difference_is_the_effect_of_its_vector_under_a_frozen_norm(model):
    effect, encoded = zeroing_effect(model, CASE, ZEROED), *model.encode([CASE])
    slow = Reference(model, encoded.ids)
    for row in effect.heads.itertuples():
        bs = unembed.bs_values(slow.head(row.layer, row.head), model.unembedding, slow.scale)
        difference = bs[encoded.label_ids["foo"]] - bs[encoded.label_ids["bar"]]
        near(row.before, difference)
        assert row.after == 0 or (row.layer, row.head) not in ZEROED


def test_nothing_changes_without_heads_and_unknown_ones_are_refused(model):
    effect = zeroing_effect(model, CASE)
    near(effect.heads["before"], effect.heads["after"])
    refused("unknown head '9-9'", zeroing_effect, model, CASE, [Head(9, 9)])
    refused("one label 'foo': expected two", zeroing_effect, model, replace(CASE, labels=["foo"]))


@pytest.fixture(scope="module")
def notebook():
    """The names of book/playground.ipynb after all its cells ran."""
    names = {}
    for source in sources("playground"):
        exec(source, names)
    return names


@pytest.fixture
def fields(notebook):
    """Its fields by name, as they are at first."""
    notebook["fill"](CASE, [])
    return {field.description: field for field in notebook["fields"]}


def test_fields_change_the_result_and_the_true_label_follows_the_query(notebook, fields):
    read, first = notebook["read"], notebook["picture"].value
    assert (read()[0].text, read()[1]) == (CASE.text, [])
    fields["heads"].value = "3-1, 3-2"
    assert notebook["picture"].value != first
    assert "with 3-1, 3-2 zeroed it says" in notebook["sentence"].value
    fields["query"].value = "hate"
    assert read()[0].true_label == "bar"
    for name, value in (("query", ""), ("heads", "x<b>"), ("demonstrations", "love")):
        good = fields[name].value
        fields[name].value = value
        shown = notebook["sentence"].value
        assert "role='alert'" in shown and "<b>" not in shown
        fields[name].value = good
        assert notebook["sentence"].value.startswith("<b>The model says")


@pytest.mark.parametrize("scene", [*SCENES, SWITCH_OFF])
def test_every_scene_changes_the_result(notebook, fields, scene):
    before = notebook["picture"].value
    next(button for button in notebook["buttons"] if button.description == scene).click()
    prompt, heads = notebook["read"]()
    assert notebook["picture"].value != before
    assert (len(heads) > 1) == (scene == SWITCH_OFF)
    assert (prompt.true_label == "bar") == (scene == "Swap the labels")


@pytest.mark.parametrize("sign", ["\0", "\ufffe", "\ud800", "\\u0000 \\", '"<b>', "\n"])
def test_no_text_ends_python_where_a_chart_becomes_a_picture(sign):
    """Words of a vocabulary hold anything, and vl_convert aborts at what XML cannot hold."""
    spec = {
        "data": {"values": [{"word": f"a{sign}z"}]},
        "mark": "text",
        "encoding": {"text": {"field": "word"}},
    }
    assert ("\ufffd" in theme.svg(spec)) == (sign in "\0\ufffe\ud800")
