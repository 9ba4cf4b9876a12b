"""A run asks the model for each prompt once, and what it notes is what asking again would give."""

import numpy as np
import pytest
from twotowers.analysis import rankings
from twotowers.model import capture
from twotowers.model.answers import answers
from twotowers.parameters import Parameters
from twotowers.studies import locate
from twotowers.studies.run import Run


@pytest.fixture
def run():
    return Run(
        Parameters.of({"datasets": ["sentiment/number"], "n_prompts": 10, "n_locate": 10, "k": 2, "separator": "space"})
    )


@pytest.fixture
def asked(monkeypatch):
    counts, plain = [], capture.predict

    def predict(model, encoded, *given, **more):
        counts.append(len(encoded))
        return plain(model, encoded, *given, **more)

    # `studies.parts` reads the annotations of what it is given.
    predict.__annotations__ = plain.__annotations__
    monkeypatch.setattr(capture, "predict", predict)
    return counts


def same(found, expected):
    assert found.encoded == expected.encoded
    for name in ("correct", "two_label", "names_label"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.margin, expected.margin, atol=1e-5)


def test_only_what_is_new_is_asked(run, asked):
    first, other = run.encoded("sentiment/number"), run.encoded("sentiment/number", "bar")
    found = run.answers([*first, *first[:3]])  # a prompt twice is one question
    assert asked == [10]
    same(found, answers(run.lm, [*first, *first[:3]]))
    asked.clear()
    same(run.answers([*other, *first]), answers(run.lm, [*other, *first]))
    assert asked[0] == 10


def test_what_other_studies_saw_is_not_asked_again(run, asked):
    pairs, margin = locate._pairs(run)["sentiment/number"]
    locate._increases(run)
    seen = [*pairs, *run.encoded("sentiment/number"), *locate._balanced(run)]
    found = run.answers(seen)
    assert asked == []
    same(found, answers(run.lm, seen))
    np.testing.assert_allclose(margin, rankings.label_margin(run.lm, pairs), atol=1e-5)


def test_one_set_of_tokens_with_other_labels_is_another_question(run, asked):
    first = run.encoded("sentiment/number")[:2]
    swapped = [type(e)(**{**vars(e), "label_ids": dict(reversed(e.label_ids.items()))}) for e in first]
    run.answers(first)
    same(run.answers(swapped), answers(run.lm, swapped))
