"""Chapter 5: every claim on hand-made rows."""

import pandas as pd
import pytest
from conftest import DOWN, UP, WIDE, ZERO, interval, sayable
from twotowers.exhibits import variants as shown
from twotowers.exhibits.claim import Verdict
from twotowers.exhibits.variants import ALL, IN, OVER, RANDOM


def fewer(measured=DOWN, rest=DOWN, over=DOWN, learned=True, n=20):
    rows = [(IN, "measured", measured), (IN, "softmax alone", ZERO), (IN, "rest", rest), (RANDOM, "measured", ZERO)]
    rows = [{"kind": k, "source": s, **interval("change", v, n)} for k, s, v in [*rows, (OVER, "rest", over)]]
    return pd.DataFrame(rows).assign(learned=learned)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "and more than in random heads"),
        ({"rest": ZERO}, Verdict.CONTROL, "no more than the softmax alone"),
        ({"rest": UP}, Verdict.CONTROL, "no more than the softmax alone"),
        ({"over": WIDE}, Verdict.CONTROL, "no more than the softmax alone, or random heads"),
        ({"measured": UP}, Verdict.FAILS, "does not leave"),
        ({"measured": WIDE}, Verdict.UNDECIDED, "cannot be told"),
        ({"n": 1}, Verdict.UNDECIDED, "cannot be told"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_the_fall_must_exceed_the_softmax_and_random_heads(given, verdict, words):
    t = fewer(**given)
    claim = sayable(shown.softmax_alone(t))
    assert claim.verdict is verdict and words in claim.sentence
    assert given or shown.softmax_alone_chart(t).to_dict()


def changes(effect=DOWN, over=DOWN, heads=("1-0", "1-1"), learned=True):
    rows = [
        {"kind": kind, "head": head, "label": f"{side} labels", **interval("change", value)}
        for side in ("true", "false")
        for kind, named, value in ((IN, [*heads, ALL], effect), (RANDOM, [*heads, ALL], ZERO), (OVER, [ALL], over))
        for head in named
    ]
    return pd.DataFrame(rows).assign(learned=learned)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "falls in 2 of 2 in-context heads"),
        ({"heads": ("1-0",)}, Verdict.HOLDS, "falls in 1 of 1 in-context head."),
        ({"over": WIDE}, Verdict.CONTROL, "no more than in random heads"),
        ({"effect": UP}, Verdict.FAILS, "lose no attention"),
        ({"effect": WIDE}, Verdict.UNDECIDED, "do not clearly lose attention"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_true_labels_placed_first_must_lose_more_than_in_random_heads(given, verdict, words):
    t = changes(**given)
    claim = sayable(shown.reordering(t))
    assert claim.verdict is verdict and words in claim.sentence
    assert sayable(shown.removed(t)).verdict is None
    assert given or (shown.removed_chart(t).to_dict() and shown.reordering_chart(t).to_dict())


def each(effect=UP, over=UP, rest=UP, learned=True):
    rows = [
        {"removed": f"{kind}, {place}", "kind": f"{kind} one", "heads": heads, **interval("change", value),
         "margin_change": 0.5, "margin_low": 0.4, "margin_high": 0.6}
        for kind in ("true", "false") for place in ("farthest", "nearest")
        for heads, value in ((IN, effect), (RANDOM, ZERO), (OVER, over), (shown.REST, rest))
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(learned=learned)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "more than in random heads and than the softmax alone would"),
        ({"rest": ZERO}, Verdict.CONTROL, "no more than a softmax over unchanged scores would"),
        ({"rest": DOWN}, Verdict.CONTROL, "no more than a softmax over unchanged scores would"),
        ({"over": ZERO}, Verdict.CONTROL, "no more than in random heads"),
        ({"effect": DOWN}, Verdict.FAILS, "does not lean attention towards"),
        ({"effect": WIDE}, Verdict.UNDECIDED, "does not clearly lean"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_the_opposite_test(given, verdict, words):
    claim = sayable(shown.which(each(**given)))
    assert claim.verdict is verdict and words in claim.sentence
    assert given or shown.which_chart(each()).to_dict()


def test_accuracy_and_orders():
    rows = [
        {"dataset": "a/b", "form": form, **interval("accuracy", (0.8, 0.7, 0.9)), "margin_change": v[0],
         "margin_low": v[1], "margin_high": v[2]}
        for form, v in (("original", ZERO), ("last true one removed", DOWN), ("true ones first", WIDE))
    ]  # fmt: skip
    t = pd.DataFrame(rows)
    claim = sayable(shown.accuracy(t)).sentence
    assert "falls in 1 and rises in 0 when" in claim and "falls in 0 and rises in 0 when" in claim
    assert shown.accuracy_chart(t).to_dict()
    orders = pd.DataFrame(
        {"order": order, "heads": heads, **interval("difference", value), "accuracy": share}
        for order, value, share in (("TTFF", DOWN, 0.4), ("FFTT", UP, 0.9)) for heads in (IN, RANDOM)
    )  # fmt: skip
    assert "40% (`TTFF`) to 90% (`FFTT`)" in sayable(shown.orders(orders)).sentence
    assert "40% (`TTFF`) to 40%" in sayable(shown.orders(orders[:2])).sentence
    assert shown.orders_chart(orders).to_dict()


def test_what_goes_together_and_what_never_varies():
    t = pd.DataFrame(
        {"form": "true ones first", "dataset": d, "heads": heads, **interval("correlation", value), "share": value[0] ** 2}
        for d in "ab" for heads, value in ((IN, (0.8, 0.7, 0.9)), (RANDOM, (0.1, 0.0, 0.2)))
    )  # fmt: skip
    assert "In 2 of 2 pairs" in sayable(shown.together(t)).sentence and shown.together_chart(t).to_dict()
    assert "In 1 of 2 pairs" in sayable(shown.together(t[:3])).sentence  # b has no random heads that vary
    assert "no comparison" in sayable(shown.together(t[t["heads"] == IN])).sentence


@pytest.mark.parametrize(
    "answers, words",
    [
        ({"turns wrong": 10, "stays": 10}, "where the answer turns wrong"),
        ({"stays": 20}, "hardly any answers turn wrong"),
        ({"turns wrong": 20}, "nearly all answers turn wrong"),
        ({"turns right": 20}, "hardly any answers turn wrong"),
    ],
)
def test_answers_that_turn_or_not(answers, words):
    rows = [{"form": "true ones first", "answer": a, "prompts": n, "total": 20, **interval("change", DOWN, n)}
            for a, n in answers.items()]  # fmt: skip
    assert words in sayable(shown.flips(pd.DataFrame(rows))).sentence
