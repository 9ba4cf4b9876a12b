"""Chapter 2: every claim on hand-made rows."""

import pandas as pd
import pytest
from conftest import DOWN, UP, WIDE, interval, sayable
from twotowers.exhibits import project as shown
from twotowers.exhibits.claim import Verdict
from twotowers.exhibits.project import CENTRED, DIRECTION, IN, OVER, PROMPT, RANDOM, RAW

WANTED = {"value": "own label", "key": "own class", "query": "own class"}
CLAIMS = {"value": shown.values, "key": shown.keys, "query": shown.queries}


def gains(kind, effect=UP, direction=UP, heads=UP, reading=RAW, learned=True, n=20):
    pairs = {PROMPT: effect, DIRECTION: direction} | ({} if kind == "key" else {RANDOM: heads})
    rows = [
        {"reading": reading, "kind": kind, "against": against, "wanted": WANTED[kind], **interval("words", value, n)}
        for against, value in pairs.items()
        if value
    ]
    return pd.DataFrame(rows).assign(n_words=10, heads="1-0, 1-2", learned=learned)


@pytest.mark.parametrize(
    "given, verdict",
    [
        ({}, Verdict.HOLDS),
        ({"direction": WIDE}, Verdict.CONTROL),
        ({"effect": DOWN}, Verdict.FAILS),
        ({"effect": WIDE}, Verdict.UNDECIDED),
        ({"n": 1}, Verdict.UNDECIDED),
        ({"direction": None, "heads": None}, Verdict.UNDECIDED),  # no control to be had
        ({"learned": False}, Verdict.UNTESTABLE),
    ],
)
@pytest.mark.parametrize("kind", CLAIMS)
def test_what_belongs_to_the_place_must_stand_out_of_the_prompt_and_of_every_control(kind, given, verdict):
    t = gains(kind, **given)
    claim = sayable(CLAIMS[kind](t))
    assert claim.verdict is verdict and ("No set is learned" in claim.sentence) == (verdict is Verdict.UNTESTABLE)
    assert len(shown.gains_rows(t)) == 1


def test_random_heads_are_a_control_of_values_and_queries():
    for kind in ("value", "query"):
        assert sayable(CLAIMS[kind](gains(kind, heads=WIDE))).verdict is Verdict.CONTROL


def test_queries_and_keys_are_judged_with_the_mean_taken_out_and_values_as_they_are():
    for kind, verdict in (("value", Verdict.HOLDS), ("key", Verdict.FAILS), ("query", Verdict.FAILS)):
        both = pd.concat([gains(kind), gains(kind, DOWN, reading=CENTRED)])
        claim = sayable(CLAIMS[kind](both))
        assert claim.verdict is verdict and ("taken out first" in claim.sentence) == (kind != "value")


def test_sets_without_word_lists_have_no_classes_to_count():
    assert sayable(shown.keys(gains("value"))).verdict is Verdict.UNTESTABLE


@pytest.mark.parametrize("said, words", [("true label", "answers with"), ("another word", "does not answer with")])
def test_one_prompt_is_a_finding(said, words):
    t = pd.DataFrame(
        {"head": "1-0", "position": position, "kind": kind, "silent": "left out", "rank": 1, "word": "foo", "value": 1.0,
         "relation": relation, "vector": f"{position} {kind}", "text": "a : foo b :", "said": said, "true_word": "foo"}
        for position, kind, relation in ((2, "value", "own label"), (5, "value", None), (2, "key", "own text"))
    )  # fmt: skip
    claim = sayable(shown.words(t))
    assert claim.verdict is None and words in claim.sentence and "1 of 2 values" in claim.sentence
    assert len(shown.word_rows(t)) == 3 and shown.words_chart(t).to_dict()


def test_charts_of_counts():
    rows = [
        {"reading": RAW, "kind": kind, "head": "1-0", "source": source, "relation": relation, **interval("words", UP)}
        for kind in ("value", "key", "query")
        for source in (IN, RANDOM, DIRECTION)
        for relation in ("own label", "other label", "own text", "other text", "own class", "other class")
    ]
    t = pd.DataFrame(rows).assign(n_words=10)
    for chart in (shown.texts_chart, shown.classes_chart, shown.values_chart):
        assert chart(t).to_dict()
    assert CENTRED in str(shown.classes_chart(pd.concat([t, t.assign(reading=CENTRED)])).to_dict())


@pytest.mark.parametrize(
    "given, verdict",
    [
        ({}, Verdict.HOLDS),
        ({"over": WIDE}, Verdict.CONTROL),
        ({"ours": DOWN}, Verdict.FAILS),
        ({"ours": WIDE}, Verdict.UNDECIDED),
        ({"these": WIDE}, Verdict.UNTESTABLE),  # the neurons give no lead that could be explained
        ({"n": 1}, Verdict.UNTESTABLE),
        ({"learned": False}, Verdict.UNTESTABLE),
    ],
)
def test_what_heads_wrote_must_raise_coefficients_more_than_what_random_heads_wrote(given, verdict):
    given = {"these": UP, "ours": UP, "over": UP, "learned": True, "n": 20} | given
    values = {"these neurons": given["these"], IN: given["ours"], OVER: given["over"]}
    values |= dict.fromkeys(("all FFN blocks", RANDOM, "other heads", "FFN blocks"), DOWN)
    t = pd.DataFrame({"part": part, **interval("nats", value, given["n"])} for part, value in values.items())
    t = t.assign(k=20, neurons="1-5 1-7", learned=given["learned"])
    assert sayable(shown.neurons(t)).verdict is verdict and shown.neurons_chart(t).to_dict()
