"""Chapter 3: every claim on hand-made rows."""

import numpy as np
import pandas as pd
import pytest
from conftest import DOWN, UP, WIDE, ZERO, interval, sayable
from twotowers.exhibits import mrr as shown
from twotowers.exhibits.claim import Verdict
from twotowers.exhibits.mrr import ALL, IN, RANDOM

HIGH, CHANCE, UNSURE = (0.5, 0.4, 0.6), (0.004, 0.001, 0.004), (0.005, 0.001, 0.01)


def overall(ours=HIGH, gain=UP, own=UP, learned=True, n=20):
    rows = [
        {"source": s, **interval("mrr", v, n)}
        for s, v in ((IN, ours), (RANDOM, (0.0005, 0.0004, 0.0006)), (ALL, (0.1, 0.05, 0.2)))
    ]
    more = dict(zip(("difference", "difference_low", "difference_high"), gain, strict=True))
    more |= dict(zip(("advantage", "advantage_low", "advantage_high"), own, strict=True))
    table = pd.DataFrame(rows).assign(chance=0.004, heads="1-0, 1-2", other_mrr=0.1, learned=learned, **more)
    return table.assign(median_rank=3.0, at_rank_1=0.2, values=80)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "more than random heads of their layers do"),
        ({"gain": WIDE}, Verdict.CONTROL, "no more than random heads"),
        ({"gain": DOWN}, Verdict.CONTROL, "no more than random heads"),
        ({"own": WIDE}, Verdict.CONTROL, "no more than the other label's: it is some label"),
        ({"own": DOWN}, Verdict.CONTROL, "no more than the other label's: it is some label"),
        ({"ours": CHANCE}, Verdict.FAILS, "do not read"),
        ({"ours": UNSURE}, Verdict.UNDECIDED, "cannot be told"),
        ({"n": 1}, Verdict.UNDECIDED, "cannot be told"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_label_words_must_rank_above_chance_and_above_random_heads(given, verdict, words):
    claim = sayable(shown.overall(overall(**given)))
    assert claim.verdict is verdict and words in claim.sentence
    assert len(shown.overall_rows(overall(**given))) == 3


def signed(effect=UP, over=UP, outdone=0, draws=20, learned=True, readings=(0.5, -0.3, 0.2)):
    kinds = (IN, RANDOM, "other heads")
    rows = [
        {"layer": i, "head": 0, "name": f"{i}-0", "kind": kind, "reading": value, "low": value - 0.1, "n": 20,
         "high": value + 0.1, "counts": abs(value) > 0.25, "signed_rank": 0.5 if i < 2 else np.nan}
        for i, (kind, value) in enumerate(zip(kinds, readings, strict=True))
    ]  # fmt: skip
    for name, value in (("effect", effect), ("over", over)):
        rows = [row | dict(zip((name, f"{name}_low", f"{name}_high"), value, strict=True)) for row in rows]
    return pd.DataFrame(rows).assign(outdone=outdone, draws=draws, learned=learned)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "more than random heads"),
        ({"outdone": 1}, Verdict.HOLDS, "more than random heads"),
        ({"outdone": 2}, Verdict.CONTROL, "too many random sets of heads reach as much"),
        ({"draws": 19}, Verdict.UNDECIDED, "too few sets were drawn to tell"),
        ({"over": WIDE}, Verdict.CONTROL, "no more than random heads"),
        ({"effect": DOWN}, Verdict.FAILS, "do not write"),
        ({"effect": WIDE}, Verdict.UNDECIDED, "cannot be told"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_signed_reading_sees_heads_that_write_a_label_down(given, verdict, words):
    t = signed(**given)
    claim = sayable(shown.signed(t))
    assert claim.verdict is verdict and words in claim.sentence
    assert "Of these, 1 write it up and 0 down; of all other heads 0 write it up and 1 down" in claim.sentence
    assert list(shown.signed_rows(t).index) == ["0-0", "1-0"] and (given or shown.signed_chart(t).to_dict())


def heads(values, source, column="mrr"):
    return [
        {"of": f"1-{i}", "head": f"1-{i}", "source": source, column: v, "low": v - 0.05, "high": v + 0.05, "n": 20,
         "outdone_by": i, "reads": "foo" if v > 0.1 else "neither", "first": "foo", "second": "bar", "learned": True}
        for i, v in enumerate(values)
    ]  # fmt: skip


def test_heads_are_counted_against_the_random_head_of_their_layer():
    t = pd.DataFrame(heads([0.5, 0.1], IN) + heads([0.05, 0.2], RANDOM))
    assert "In 1 of 2 heads" in sayable(shown.by_head(t)).sentence
    one = pd.DataFrame(heads([0.5], IN) + heads([0.05], RANDOM))
    assert "In 1 of 1 head " in sayable(shown.by_head(one)).sentence
    assert shown.by_head_chart(t).to_dict()


@pytest.mark.parametrize("learned, verdict", [(True, None), (False, Verdict.UNTESTABLE)])
def test_preferences_are_a_finding_where_something_is_learned(learned, verdict):
    t = pd.DataFrame(heads([0.5, -0.05], IN, "difference") + heads([0.0], RANDOM, "difference")).assign(learned=learned)
    claim = sayable(shown.preferences(t))
    assert claim.verdict is verdict and "1 of 2 heads read one label clearly better" in claim.sentence
    assert shown.preferences_chart(t).to_dict()


def test_sets_roles_and_ranks():
    rows = [{"dataset": d, "label": "foo", "source": s, "shown": f"{d}, foo", **interval("mrr", v)}
            for d in "ab" for s, v in ((IN, UP), (RANDOM, ZERO if d == "a" else UP))]  # fmt: skip
    t = pd.DataFrame(rows)
    assert "In 1 of 2 pairs" in sayable(shown.by_set(t)).sentence and shown.by_set_chart(t).to_dict()
    roles = pd.DataFrame([{"true": kind, **interval("mrr", UP)} for kind in (True, False)])
    assert "at labels of the query's class" in sayable(shown.by_role(roles)).sentence
    assert "nothing to compare" in sayable(shown.by_role(roles[:1])).sentence
    ranks = pd.DataFrame({"label": "foo", "source": IN, "rank": [1, 2], "share": [0.5, 1.0]})
    assert shown.rank_shares_chart(ranks).to_dict()
