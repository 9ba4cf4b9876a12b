"""The playground without a browser: a state in, tables out; and the widgets around it, driven from Python."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import tiny
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast
from twotowers.analysis import mitigate
from twotowers.analysis.edit_heads import Edit, edited
from twotowers.analysis.locate import head_increases
from twotowers.chapters import playground
from twotowers.chapters.explore import ACTIONS, State, exchanged, figures, heads_from_text, results
from twotowers.chapters.playground import Playground
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.model import proof
from twotowers.model.capture import capture, predict
from twotowers.prompts.datasets import imbalanced, paper_example, swapped_labels
from twotowers.prompts.prompt import encode
from twotowers.stats import charts

PROMPT = paper_example()


def with_words(model):
    """The tiny model with a tokenizer of words: those of the paper's example, and numbers for the rest."""
    words = ["?", ":", "foo", "bar", "love", "like", "eight", "two", "one", "qux"]
    words += [str(i) for i in range(model.unembedding.vocabulary - len(words))]
    backend = Tokenizer(tokenizer_models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
    return model


@pytest.fixture(params=["gpt2", "llama"])
def model(request):
    return with_words(tiny(request.param))


def encoded(model, prompt=PROMPT):
    return encode(prompt, model.tokenizer, model.context)


def test_without_heads_nothing_changes_and_the_tables_are_the_models_own(model):
    found = results(model, State(PROMPT))
    seen = capture(model, [encoded(model)], {"weights"})
    p = seen.logits[0].softmax(-1)
    assert (found.words.before == found.words.after).all() and (found.labels.change == 0).all()
    assert found.words.after.tolist() == pytest.approx(p.topk(6).values.tolist())
    assert found.labels.set_index("label").after["foo"] == pytest.approx(float(p[2]))
    np.testing.assert_allclose(found.heads.after, head_increases(seen, model)[0].ravel(), rtol=1e-6)
    shown = found.heads.sort_values("before", ascending=False).head(3)
    assert list(found.shown) == list(zip(shown.layer, shown["head"], strict=True))
    weights = torch.stack([seen.weights[layer, 0, head] for layer, head in found.shown]).mean(0)
    assert found.attention.after.tolist() == pytest.approx(weights[[2, 5, 8, 11]].tolist())
    assert found.attention.demonstration.tolist() == ["1. love", "2. like", "3. eight", "4. two"]
    assert "Pick heads" in found.sentence


HEADS = (Head(0, 1), Head(1, 2))


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_shows_what_its_edit_does(model, action):
    prompt = imbalanced(PROMPT)
    found = results(model, State(prompt, HEADS, action, amount=0.25))
    one = encoded(model, prompt)
    if action in ("zero", "scale"):
        with edited(model, [Edit(HEADS, scale={"zero": 0.0, "scale": 0.25}[action])]):
            logits = capture(model, [one]).logits
    elif action == "patch":
        source = capture(model, [encoded(model, swapped_labels(prompt))])
        instead = torch.stack([source.attention_out_input[layer, 0, head] for layer, head in HEADS])
        with edited(model, [Edit(HEADS, positions="last", replacement=instead)]):
            logits = capture(model, [one]).logits
    elif action == "mend recency":
        with mitigate.position_free(model, HEADS, "mean"):
            logits = capture(model, [one]).logits
    else:
        seen = capture(model, [one], {"weights", "values"})
        a_c = 0.25 if action == "mend majority" else 0.0
        logits = proof.finished(model, seen.resid_final + a_c * mitigate.minority_shortcut(seen, model, HEADS))
    after = found.labels.set_index("label").after
    assert after["foo"] == pytest.approx(float(logits[0].softmax(-1)[2]))
    changed = not np.allclose(found.labels.before, found.labels.after)
    assert changed == (action != "leave")
    assert found.shown == HEADS and ("0-1, 1-2" in found.sentence) == (action != "leave")
    said = found.says.set_index("head").words
    assert (said["0-1"] == "nothing") == (action == "zero")


def test_a_patch_exchanges_every_label_for_the_next_as_the_page_does():
    two = exchanged(PROMPT)
    assert [d.label for d in two.demonstrations] == ["foo", "foo", "bar", "bar"] and two.true_label == "foo"
    rows = tuple(
        replace(d, label=label) for d, label in zip(PROMPT.demonstrations, ["bar", "foo", "qux", "bar"], strict=True)
    )
    three = exchanged(replace(PROMPT, demonstrations=rows, labels=("bar", "foo", "qux")))
    assert [d.label for d in three.demonstrations] == ["qux", "bar", "foo", "qux"]


def test_mending_recency_shows_the_weights_that_act(model):
    found = results(model, State(PROMPT, HEADS[:1], "mend recency"))
    with mitigate.position_free(model, HEADS[:1], "mean"):
        seen = capture(model, [encoded(model)], {"weights", "streams"})
    free = mitigate.free_weights(seen, model, HEADS[:1])[0, 0]
    acting = (seen.weights[0, 0, 1] + free) / 2
    assert found.attention.after.tolist() == pytest.approx(acting[[2, 5, 8, 11]].tolist())
    assert found.attention.before.tolist() == pytest.approx(seen.weights[0, 0, 1][[2, 5, 8, 11]].tolist())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"heads": (Head(9, 9),)}, "is not in"),
        ({"action": "explode"}, "choose one of leave"),
        ({"heads": HEADS, "action": "scale", "amount": float("nan")}, "finite number"),
        ({"heads": HEADS, "action": "mend majority"}, "equal counts"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line_and_the_model_restored(model, change, says):
    before = predict(model, [encoded(model)])[1]
    with pytest.raises(TwoTowersError, match=says) as refusal:
        results(model, replace(State(PROMPT), **change))
    assert "\n" not in str(refusal.value)
    assert torch.equal(predict(model, [encoded(model)])[1], before)


def test_heads_are_read_from_text():
    assert heads_from_text("3-1, 2-5 3-1") == ((3, 1), (2, 5)) and heads_from_text("  ") == ()
    with pytest.raises(TwoTowersError, match="'3:1' is no head"):
        heads_from_text("3:1")


def test_the_static_figures_hold_the_tables(model):
    found = results(model, State(PROMPT, HEADS, "zero"))
    specs = [chart.to_dict() for chart in figures(found)]
    data = [pd.DataFrame(next(iter(spec["datasets"].values()))) for spec in specs]
    assert data[0].probability.tolist() == pytest.approx([*found.words.before, *found.words.after])
    assert data[1].weight.tolist() == pytest.approx([*found.attention.before, *found.attention.after])
    assert data[2].after.tolist() == pytest.approx(found.heads.after.tolist())
    assert all(spec["description"] and spec["title"]["text"] for spec in specs)


# --- widgets


@pytest.fixture
def play(model):
    return Playground(model, PROMPT)


def test_the_widgets_start_with_the_prompt_and_show_its_results(play, model):
    assert play.state() == State(replace(PROMPT, demonstrations=tuple(
        replace(d, cls="") for d in PROMPT.demonstrations), cls="", dataset="", labels=("bar", "foo")))  # fmt: skip
    assert play.error.value == "" and "The model says" in play.sentence.value
    assert len(play.buttons) == model.n_layers * model.n_heads
    assert "attention on each label" in play.panels[1].value and "2. like : bar" in play.panels[1].value


def test_a_head_on_the_map_acts_and_shows(play):
    before = play.found
    play.buttons[1, 2].click()
    assert play.heads.value == "1-2" and play.state().heads == ((1, 2),)
    assert play.found is not before and "1-2 zeroed" in play.sentence.value
    assert "heads 1-2" in play.panels[1].value and play.buttons[1, 2].description == "●"
    play.buttons[0, 0].click()
    assert play.heads.value == "1-2, 0-0"
    play.buttons[1, 2].click()
    assert play.heads.value == "0-0" and "with 0-0 zeroed" in play.sentence.value
    play.heads.value = "2-3"
    assert [head for head, button in play.buttons.items() if button.description] == [(2, 3)]
    play.action.value = "mend recency"
    assert "2-3 used to mend recency" in play.sentence.value


def test_the_map_is_blue_where_the_true_label_rises_and_orange_where_it_falls(play):
    limit = play.found.heads.after.abs().max()
    for row in play.found.heads.itertuples():
        button = play.buttons[row.layer, row.head]
        assert "button_color" in button.style.trait_names()  # a style without it would take the colour and not show it
        red, _, blue = (int(button.style.button_color[i : i + 2], 16) for i in (1, 3, 5))
        assert (blue >= red) == (row.after >= 0) or red == blue
        assert button.tooltip == f"head {row.layer}-{row.head}: {row.after:+.3f} nats"
        if abs(row.after) == limit:
            assert button.style.button_color == (charts.BLUE if row.after > 0 else charts.ORANGE)


def test_demonstrations_can_be_changed_moved_taken_away_and_added(play):
    def texts():
        return [d.text for d in play.state().prompt.demonstrations]

    rows = play.rows.children
    rows[0].children[0].value = "eight"
    assert texts() == ["eight", "like", "eight", "two"] and "1. eight : bar" in play.panels[1].value
    rows[3].children[2].click()
    assert texts() == ["eight", "like", "two", "eight"] and "3. two : foo" in play.panels[1].value
    rows[0].children[2].click()  # the first cannot go up
    assert texts() == ["eight", "like", "two", "eight"]
    play.rows.children[1].children[3].click()
    assert texts() == ["eight", "two", "eight"] and "2. two : foo" in play.panels[1].value
    found = play.found
    play.add.click()
    assert play.found is found and len(texts()) == 3  # an empty line counts for nothing
    play.rows.children[3].children[0].value = "love"
    assert texts()[3] == "love" and play.state().prompt.demonstrations[3].label == "foo"
    play.rows.children[3].children[1].value = "qux"
    assert play.state().prompt.labels == ("bar", "foo", "qux") and "label qux" in play.panels[0].value
    play.query.value = "two"
    assert play.state().prompt.query == "two" and play.error.value == ""


def test_undo_takes_back_one_change_and_reset_all_of_them(play, model):
    start, seen = play.state(), play.found
    assert play.undo.disabled
    play.query.value = "two"
    play.buttons[1, 2].click()
    play.separator.value = "\n"
    play.rows.children[0].children[3].click()
    assert play.state().prompt.separator == "\n" and len(play.state().prompt.demonstrations) == 3
    play.undo.click()
    assert len(play.state().prompt.demonstrations) == 4
    play.undo.click()
    assert play.state() == replace(start, prompt=replace(start.prompt, query="two"), heads=(Head(1, 2),))
    assert "1-2 zeroed" in play.sentence.value and play.buttons[1, 2].description == "●"
    play.reset.click()
    assert play.state() == start and play.found.words.equals(seen.words) and not play.buttons[1, 2].description
    play.undo.click()  # a reset can be undone as well
    assert play.state().prompt.query == "two" and play.state().heads == ((1, 2),)
    play.undo.click()
    play.undo.click()
    assert play.state() == start and play.undo.disabled and play.error.value == ""
    play.rows.children[0].children[0].value = "eight"  # rows that were brought back are as good as new ones
    assert "1. eight" in play.panels[1].value and not play.undo.disabled


def test_an_error_is_one_line_and_leaves_the_last_results(play):
    found, shown = play.found, play.panels[0].value
    for widget, value, says in (
        (play.query, "", "is empty"), (play.heads, "9-9", "is not in"), (play.heads, "x<b>", "no head"),
        (play.model, "/no/such/folder", "there is no folder"), (play.true, "", "is empty"),
    ):  # fmt: skip
        good = widget.value
        widget.value = value
        assert says in play.error.value and "role='alert'" in play.error.value and "\n" not in play.error.value
        assert "<b>" not in play.error.value  # what the reader wrote is text, not markup
        assert play.found is found and play.panels[0].value == shown
        widget.value = good
        assert play.error.value == ""
        found, shown = play.found, play.panels[0].value


def test_an_error_of_another_kind_is_named_in_one_line_too(play, monkeypatch):
    def fails(*_):
        raise RuntimeError("out of memory\nat line 3")

    monkeypatch.setattr(playground, "results", fails)
    play.query.value = "two"
    assert "RuntimeError: out of memory<" in play.error.value


def test_another_model_gets_another_map_and_a_large_one_its_strongest_layers(play, monkeypatch, model):
    other = with_words(tiny("llama wide heads", torch.float32))
    monkeypatch.setattr(playground.loading, "load", lambda name, **_: other)
    play.model.value = "another"
    assert play.error.value == "" and len(play.buttons) == other.n_layers * other.n_heads
    monkeypatch.setattr(playground, "MOST_BUTTONS", 6)
    small = Playground(other, PROMPT)
    best = small.found.heads.sort_values("before").layer.iloc[-1]
    assert set(small.buttons) == {(best, h) for h in range(6)}
