"""Label reading with a sign: held against one value at a time, by hand, and on planted heads; means taken out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import random_prompts, tiny
from reference import Reference
from twotowers.analysis import label_reading, project
from twotowers.errors import TwoTowersError
from twotowers.model import unembed
from twotowers.model.capture import captures
from twotowers.prompts.prompt import Demonstration, Prompt


def of_classes(encoded):
    """The same tokens; places and queries take turns between two classes."""
    out, names = [], ["number", "animal"]
    for i, one in enumerate(encoded):
        demonstrations = tuple(replace(d, cls=names[(i + j) % 2]) for j, d in enumerate(one.prompt.demonstrations))
        out.append(replace(one, prompt=replace(one.prompt, demonstrations=demonstrations, cls=names[i % 2])))
    return out


@pytest.mark.parametrize("norm", unembed.NORMS)
def test_a_reading_is_the_own_labels_bs_value_less_the_others(any_model, norm):
    encoded = random_prompts(3, lengths=(14,))
    found = label_reading.label_readings(any_model, encoded, norm, max_tokens=30)
    assert found.shape == (3, any_model.n_layers, any_model.n_heads, 4)
    slow = Reference(any_model, encoded[2].ids)
    for layer, head, j in ((1, 0, 3), (0, 1, 2), (1, any_model.n_heads - 1, 0)):
        v = slow.value_output(layer, head, encoded[2].label_positions[j])
        bs = unembed.bs_values(v, any_model.unembedding, norm, slow.scale)
        own = encoded[2].label_ids[encoded[2].prompt.demonstrations[j].label]
        assert found[2, layer, head, j] == pytest.approx(float(bs[own] - bs[16 - own]), abs=1e-9)


def labelled(*rows):
    """Prompts whose demonstrations carry the labels named; only the labels matter."""
    (one,), out = random_prompts(1), []
    for row in rows:
        demonstrations = tuple(Demonstration(f"w{i}", label) for i, label in enumerate(row))
        prompt = Prompt(demonstrations, "q", "foo", ("foo", "bar"))
        out.append(replace(one, prompt=prompt, label_positions=tuple(range(len(row)))))
    return out


def test_centred_readings_by_hand():
    encoded = labelled(("foo", "bar"), ("bar", "foo"))
    # Head 0 writes the label that stands there by 1 and foo by 2 everywhere; head 1 suppresses by 3; head 2 always foo.
    readings = np.array([[[[3.0, -1.0], [-3.0, -3.0], [2.0, -2.0]]], [[[-1.0, 3.0], [-3.0, -3.0], [-2.0, 2.0]]]])
    found = label_reading.centred_readings(readings, encoded)
    assert (found[:, 0, 0] == 1).all() and (found[:, 0, 1] == -3).all() and (found[:, 0, 2] == 0).all()


def test_both_labels_have_the_same_mean_when_centred_also_when_unequally_many():
    encoded = labelled(("foo", "foo", "bar"), ("foo", "bar", "foo"))
    readings = np.random.default_rng(0).normal(size=(2, 2, 3, 3))
    found = np.moveaxis(label_reading.centred_readings(readings, encoded), -1, 1)
    first = np.array([[True, True, False], [True, False, True]])
    np.testing.assert_allclose(found[first].mean(0), found[~first].mean(0))


@pytest.mark.parametrize(
    ("encoded", "says"),
    [
        ([], "no prompts to read labels from"),
        (labelled(("foo", "bar"), ("foo",)), "prompts of 1 and 2 demonstrations"),
        ([replace(e, prompt=replace(e.prompt, labels=("foo", "bar", "baz"))) for e in labelled(("foo", "bar"))],
         "the same two labels"),
    ],
)  # fmt: skip
def test_sets_without_two_labels_to_compare_are_refused(encoded, says):
    with pytest.raises(TwoTowersError, match=says):
        label_reading.label_readings(tiny("gpt2"), encoded)


def test_one_label_everywhere_cannot_be_centred():
    with pytest.raises(TwoTowersError, match="one label stands at every"):
        label_reading.centred_readings(np.zeros((1, 1, 1, 2)), labelled(("foo", "foo")))


def test_signed_ranks_by_hand():
    found = label_reading.signed_rank(np.array([1, 2, 50, 99, 98]), 99)
    assert found[[0, 2, 3]].tolist() == [1, 0, -1]
    assert found[1] == pytest.approx(1 - np.log(2) / np.log(50)) and found[4] == pytest.approx(-found[1])
    assert label_reading.signed_rank(np.array([10]), 49_152)[0] == pytest.approx(0.77, abs=0.005)
    rising = label_reading.signed_rank(np.arange(1, 61), 60)
    assert (np.diff(rising) < 0).all() and rising.sum() == pytest.approx(0)
    for rank in (0, 61):
        with pytest.raises(TwoTowersError, match="1 to 60"):
            label_reading.signed_rank(np.array([rank]), 60)


def test_a_planted_head_that_suppresses_has_the_opposite_signs():
    """The value vector of a label token is its own unembedding row, or the negative of it."""
    model = tiny("llama")
    e = model.unembedding
    for sign in (1, -1):
        v = sign * e.weight[[7, 9]] / e.gamma
        rank = unembed.rank(v, torch.tensor([[7], [9]]), e)[:, 0].numpy()
        assert (np.sign(label_reading.signed_rank(rank, e.vocabulary)) == sign).all()


def test_means_are_those_of_all_readings_and_are_taken_out_first(any_model):
    encoded, heads = of_classes(random_prompts(4, lengths=(14,))), [(1, 0), (0, 1)]
    means = label_reading.mean_readings(any_model, encoded, heads, max_tokens=30)
    (seen,) = captures(any_model, encoded, project.WANT)
    for reading in project.readings(seen, any_model, heads):
        torch.testing.assert_close(means[reading.kind, reading.of], reading.vectors.mean(0))


def test_related_words_without_the_mean_are_those_of_vectors_less_their_mean(monkeypatch):
    from test_project import lexicon

    model, encoded, heads = tiny("llama"), of_classes(random_prompts(4, lengths=(14,))), [(1, 0)]
    means = label_reading.mean_readings(model, encoded, heads)
    found = project.related_words(model, encoded, heads, lexicon(), k=3, means={"raw": None, "centred": means})
    assert list(found["reading"].unique()) == ["raw", "centred"]
    raw, found = (
        found[found["reading"] == one].drop(columns="reading").reset_index(drop=True) for one in ("raw", "centred")
    )
    plain = project.related_words(model, encoded, heads, lexicon(), k=3).drop(columns="reading")
    pd.testing.assert_frame_equal(raw, plain)
    stock = project.readings

    def without(seen, *args):
        for reading in stock(seen, *args):
            yield replace(reading, vectors=reading.vectors - reading.vectors.mean(0))

    monkeypatch.setattr(project, "readings", without)
    again = project.related_words(model, encoded, heads, lexicon(), k=3).drop(columns="reading")
    pd.testing.assert_frame_equal(found, again)


def test_means_that_would_take_out_the_class_are_refused():
    encoded, model = random_prompts(4, lengths=(14,)), tiny("gpt2")
    with pytest.raises(TwoTowersError, match="the query is always of one class"):
        label_reading.mean_readings(model, encoded, [(0, 0)])
    asked = [replace(e, prompt=replace(e.prompt, cls=f"class{i % 2}")) for i, e in enumerate(encoded)]
    with pytest.raises(TwoTowersError, match="demonstration 1 is always of one class"):
        label_reading.mean_readings(model, asked, [(0, 0)])
