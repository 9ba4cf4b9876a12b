"""The playground for running notebooks: its numbers against measurements and slow references, and
its widgets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import refused, word_tokenizer
from plain_hooks import run
from towerlab.measure.ablations import ablations
from towerlab.measure.heads import heads as measure_heads
from towerlab.measure.tower_grid import BLOCKS, class_directions, tower_grid
from towerlab.model.capture import capture
from towerlab.model.edits import edited, steer
from towerlab.playground import SCENES, SWITCH_OFF, Playground, State, explore, push, true_label
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.paper_sets import CASE
from towerlab.prompts.prompt import encode, encode_all
from twotowers import figures
from twotowers.heads import Head
from twotowers.settings import Form

ABLATED = (Head(0, 1), Head(1, 1))


@pytest.fixture
def model(tiny_model, float64):
    """A tiny model with a tokenizer of words: those of the paper's example, and numbers for the
    rest."""
    words = ["?", ":", "foo", "bar", "love", "like", "eight", "two", "one", "river", "seven"]
    words += [str(i) for i in range(tiny_model.unembedding.vocabulary - len(words))]
    return replace(tiny_model, tokenizer=word_tokenizer(words))


def test_numbers_equal_those_of_the_measurements(model):
    effect, encoded = explore(model, State(CASE, ABLATED)), [encode(CASE, model.tokenizer)]
    plain = measure_heads(model, encoded)
    answers = ablations(model, encoded, {"these": ABLATED}).isel(prompt=0)
    table = effect.answer.set_index("token")
    for when, which in (("before", "none"), ("after", "these")):
        for label, name in (("foo", "log_prob_true"), ("bar", "log_prob_other")):
            assert np.log(table.loc[label, when]) == pytest.approx(
                float(answers[name].sel(heads=which)), abs=1e-9
            )
    weights = np.mean([plain["attention"].values[0, layer, head] for layer, head in ABLATED], 0)
    # kept in float32
    assert effect.attention["before"].to_numpy() == pytest.approx(weights, abs=1e-6)
    assert list(effect.attention["demonstration"]) == [
        "1. love : bar",
        "2. like : bar",
        "3. eight : foo",
        "4. two : foo",
    ]


def test_a_heads_logit_difference_is_the_effect_of_its_vector_under_a_frozen_norm(model):
    effect, encoded = explore(model, State(CASE, ABLATED)), encode(CASE, model.tokenizer)
    plain = capture(model, [encoded])
    ids = [encoded.label_ids[label] for label in ("foo", "bar")]

    def difference(vector):
        x, unembedding = plain.resid_final[0], model.unembedding
        centred = [v - v.mean() if unembedding.centred else v for v in (x, vector)]
        scale = (centred[0].square().mean() + unembedding.eps).sqrt()
        logits = (centred[1] / scale * unembedding.gamma) @ unembedding.weight[ids].T
        return float(logits[0] - logits[1])

    for row in effect.heads.itertuples():
        vector = plain.z[row.layer, 0, row.head] @ model.output_weight(row.layer)[row.head]
        assert row.before == pytest.approx(difference(vector), abs=1e-9)
        assert row.after == 0 or (row.layer, row.head) not in ABLATED


def test_nothing_changes_without_heads_and_unknown_ones_are_refused(model):
    effect = explore(model, State(CASE))
    for table in (effect.answer, effect.attention, effect.heads):
        assert (table["before"] == table["after"]).all()
    refused("is not in", explore, model, State(CASE, (Head(9, 9),)))


def test_the_true_label_follows_the_querys_class():
    rows = [("love", "bar"), ("eight", "foo"), ("qwx", "baz")]
    assert [true_label(rows, query) for query in ("one", "hate", "river", "qwx")] == [
        "foo",
        "bar",
        None,
        None,
    ]
    # demonstrations of its class do not agree
    assert true_label([*rows, ("two", "bar")], "one") is None


def test_a_push_is_a_row_of_the_grid_of_chapter_11(model):
    heads, query = push(model, CASE)
    blocks = draw_blocks(
        BLOCKS, Form(2, "space"), seed=[0, 1], pairs=["sentiment/number"], labels=["foo/bar"]
    )
    directions = class_directions(model, encode_all(blocks, model.tokenizer))
    encoded = encode(CASE, model.tokenizer)
    data = tower_grid(model, [encoded], {"these": (heads, directions)}, (0.0, 1.5))
    data = data.sel(query_coefficient=1.5, key_coefficient=0).squeeze()
    effect = explore(model, State(CASE, dose=1.5))
    table = effect.answer.set_index("token")["after"]
    for label, name in (("foo", "log_prob_true"), ("bar", "log_prob_other")):
        assert np.log(table[label]) == pytest.approx(float(data[name]), abs=1e-6)
    vectors = {layer: 1.5 * x for layer, x in query.items()}
    with edited(model, steer(heads, vectors, None, torch.tensor([encoded.label_positions]))):
        given = run(model, encoded)["attention"]
    scores = [
        given[layer].key[0, model.value_head(h)]
        @ (given[layer].query[0, h, -1] * given[layer].scaling + vectors[layer][0, h])
        for layer, h in heads
    ]
    weights = torch.stack(scores).softmax(-1).mean(0)[list(encoded.label_positions)]
    assert effect.attention["after"].to_numpy() == pytest.approx(weights.numpy(), abs=1e-6)
    refused(
        "two classes",
        explore,
        model,
        State(replace(CASE, demonstrations=CASE.demonstrations[2:] * 2, query="qwx"), dose=1.0),
    )


def test_widgets_change_the_numbers(model):
    play = Playground(model)
    assert play.state().prompt.text == CASE.text
    play.fields["heads"].value = "0-1, 1-1"
    assert play.effect.answer.equals(explore(model, replace(play.state(), heads=ABLATED)).answer)
    assert not play.effect.answer["before"].equals(play.effect.answer["after"])
    play.fields["demonstrations"].value = "love : foo\ntwo : bar"
    assert play.state().prompt.true_label == "bar" and len(play.effect.attention) == 2
    play.fields["true label"].value = "foo"  # what is typed stays, until a text changes
    assert play.state().prompt.true_label == "foo"
    last = play.effect
    for field, value in (
        ("query", ""),
        ("heads", "9-9"),
        ("heads", "x<b>"),
        ("demonstrations", "love"),
    ):
        good = play.fields[field].value
        play.fields[field].value = value
        assert (
            "role='alert'" in play.error.value
            and "<b>" not in play.error.value
            and play.effect is last
        )
        play.fields[field].value = good
        assert play.error.value == ""
        last = play.effect


@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_changes_the_numbers(model, scene):
    play = Playground(model)
    before = play.effect
    play.scenes[scene].click()
    assert play.error.value == "" and not play.effect.answer["after"].equals(before.answer["after"])
    assert (len(play.state().heads) > 1) == (scene == SWITCH_OFF)
    assert (play.state().prompt.true_label == "bar") == (scene == "Swap the labels")


@pytest.mark.parametrize(
    "sign", ["\0", "\x1b", "\b", "\ufffe", "\ud800", "\\u0000 \\", '"<b>', "\n"]
)
def test_no_text_ends_python_where_a_chart_becomes_a_picture(sign):
    """Words of a vocabulary hold anything, and vl_convert aborts at what XML cannot hold."""
    spec = {
        "data": {"values": [{"word": f"a{sign}z"}]},
        "mark": "text",
        "encoding": {"text": {"field": "word"}},
    }
    assert ("\ufffd" in figures.svg(spec)) == (sign in "\0\x1b\b\ufffe\ud800")
