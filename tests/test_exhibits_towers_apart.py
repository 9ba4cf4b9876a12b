"""Chapter 11: every claim on hand-made rows, charts from the same rows, and the studies once on the miniature."""

import numpy as np
import pandas as pd
import pytest
from conftest import sayable
from twotowers.exhibits import towers_apart as shown
from twotowers.exhibits.claim import Verdict
from twotowers.parameters import Parameters
from twotowers.studies import towers_apart as towers
from twotowers.studies.run import Run

MOVES, STAYS, UNSURE, BACK = (1.0, 0.8, 1.2), (0.0, 0.0, 0.0), (0.1, -0.1, 0.3), (-1.0, -1.2, -0.8)
NONE = (np.nan, np.nan, np.nan)


def said(claim):
    return sayable(claim).verdict, claim.sentence


def exchanges(query=MOVES, keys=MOVES, over=MOVES, less=MOVES, plus=MOVES, values=MOVES, learned=True):
    rows = []
    for pairs, moving in (("query pairs", "query"), ("key pairs", "keys"), ("value pairs", "values")):
        own = {"query": query, "keys": keys, "values": values}[moving]
        for heads, value in ((shown.OURS, own), (shown.RANDOM, STAYS), (shown.ALL, MOVES), (shown.OVER, over)):
            rows += [(pairs, heads, what, *(value if what in (moving, "all") else STAYS)) for what in shown.WHAT]
    rows.append(("key pairs", shown.OURS, "keys less twice values", *less))
    rows.append(("key pairs", shown.OURS, "keys plus twice values", *plus))
    t = pd.DataFrame(rows, columns=["pairs", "heads", "what", "moved", "low", "high"])
    return t.assign(n=20, share_of_source=np.where(t["heads"] == shown.OURS, 0.5, np.nan), learned=learned)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "and values stay"),
        ({"over": UNSURE}, Verdict.CONTROL, "no more than in random heads"),
        ({"query": STAYS}, Verdict.FAILS, "query does not move it"),
        ({"query": BACK}, Verdict.FAILS, "query does not move it"),
        ({"keys": UNSURE}, Verdict.UNDECIDED, "their keys cannot be told from nothing"),
        ({"less": BACK}, Verdict.FAILS, "values do not stay"),
        ({"plus": BACK}, Verdict.FAILS, "values do not stay"),
        ({"less": UNSURE}, Verdict.UNDECIDED, "values may stay or not"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_queries_and_keys_must_move_the_answer_beyond_random_heads_and_values_stay(given, verdict, words):
    t = exchanges(**given)
    found, sentence = said(shown.exchanged(t))
    assert found is verdict and words in sentence
    assert shown.exchanged_chart(t).to_dict() and len(shown.exchanged_rows(t)) == 12


def test_kinds_of_pairs_that_are_missing():
    t = exchanges()
    assert said(shown.exchanged(t[t["pairs"] != "query pairs"]))[0] is Verdict.UNTESTABLE
    assert "cannot be aligned" in said(shown.value_pairs(t[t["pairs"] != "value pairs"]))[1]
    assert "seen where they should" in said(shown.value_pairs(t))[1]
    assert "count for little even here" in said(shown.value_pairs(exchanges(values=STAYS)))[1]


def blocks(lower=MOVES, control=MOVES, middle=MOVES, upper=MOVES, learned=True):
    rows = []
    for edges in (shown.TEXTS, shown.QUERY):
        rows += [
            ("lost", edges, third, *value) for third, value in zip(shown.THIRDS, (lower, STAYS, STAYS), strict=True)
        ]
        rows += [("less control", edges, "lower", *control), ("lower less middle", edges, "lower", *middle)]
        rows.append(("lower less upper", edges, "lower", *upper))
    t = pd.DataFrame(rows, columns=["kind", "edges", "layers", "lost", "low", "high"])
    return t.assign(plain=np.where(t["kind"] == "lost", 0.9, np.nan), n=20, learned=learned)


@pytest.mark.parametrize(
    "given, verdict",
    [
        ({}, Verdict.HOLDS),
        ({"control": UNSURE}, Verdict.CONTROL),
        ({"lower": STAYS}, Verdict.FAILS),
        ({"lower": UNSURE}, Verdict.UNDECIDED),
        ({"middle": BACK}, Verdict.FAILS),
        ({"upper": BACK}, Verdict.FAILS),
        ({"middle": UNSURE}, Verdict.UNDECIDED),
        ({"learned": False}, Verdict.UNTESTABLE),
    ],
)
def test_the_lower_third_must_cost_more_than_its_control_and_than_deeper_ones(given, verdict):
    t = blocks(**given)
    assert said(shown.blocked(t))[0] is verdict and said(shown.keys(t))[0] is verdict
    assert shown.blocked_chart(t).to_dict() and shown.keys_chart(t).to_dict()


def orders(effect=MOVES, shrinks=MOVES, more=MOVES, share=MOVES, texts=MOVES, texts_share=MOVES, learned=True):
    rows = [
        (kind, edges, third, *value)
        for edges in ("last to demonstrations", shown.NEIGHBOURS) for third in shown.THIRDS
        for kind, value in (("order effect", effect), ("order effect, silent texts", effect), ("shrinks", shrinks),
                            ("shrinks, less margin lost", more), ("shrinks, less margin's share", share),
                            ("shrinks, less silent texts", texts), ("shrinks, less silent texts' share", texts_share))
    ]  # fmt: skip
    t = pd.DataFrame(rows, columns=["kind", "edges", "layers", "nats", "low", "high"])
    t.loc[t["edges"] == shown.NEIGHBOURS, ["nats", "low", "high"]] += 9  # never judged: it hides labels too
    t = pd.concat([t[t["edges"] != shown.NEIGHBOURS], t[t["edges"] == shown.NEIGHBOURS]], ignore_index=True)
    return t.assign(n=20, learned=learned)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "more than the margin loses and than labels alone lose"),
        ({"more": UNSURE}, Verdict.CONTROL, "the margin itself falls as much"),
        ({"texts": UNSURE}, Verdict.CONTROL, "the effect of the order of labels alone does as much"),
        ({"texts": STAYS}, Verdict.CONTROL, "the effect of the order of labels alone does as much"),
        ({"share": STAYS}, Verdict.CONTROL, "by no larger share of itself than the margin falls"),
        ({"share": NONE}, Verdict.UNDECIDED, "cannot be told"),  # no mean margin: no share to compare with
        (
            {"texts_share": UNSURE},
            Verdict.CONTROL,
            "by no larger share of itself than the effect of the order of labels",
        ),
        ({"texts_share": NONE}, Verdict.HOLDS, "than labels alone lose"),  # order of labels alone does nothing
        ({"shrinks": STAYS}, Verdict.FAILS, "does not make it smaller"),
        ({"shrinks": (0.3, 0.05, 0.5)}, Verdict.UNDECIDED, "cannot be told"),  # clear alone, not as the best of nine
        ({"effect": STAYS}, Verdict.FAILS, "no clear effect of order"),
        ({"effect": UNSURE}, Verdict.UNDECIDED, "no clear effect of order"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_the_effect_of_order_must_shrink_by_more_than_the_margin(given, verdict, words):
    t = orders(**given)
    found, sentence = said(shown.mixing(t))
    assert found is verdict and words in sentence and "last to demonstrations" in sentence
    assert shown.mixing_chart(t).to_dict() and len(shown.mixing_rows(t)) == 6


def test_a_block_that_only_scales_the_answer_shrinks_nothing_beyond_its_share():
    rng = np.random.default_rng(0)
    effect, other = rng.normal(3, 1, 40), rng.normal(2, 1, 40)
    both = [pd.DataFrame({"plain": one, "blocked": 0.6 * one}) for one in (effect, other)]
    scaled = towers._beyond_share(*both, seed=0)
    assert abs(scaled.estimate) < 1e-12 and scaled.low <= 0 <= scaled.high
    both[0]["blocked"] -= 1  # and one nat of the effect itself
    assert towers._beyond_share(*both, seed=0).estimate == pytest.approx(1)
    nothing = pd.DataFrame({"plain": other - other.mean(), "blocked": other})
    assert np.isnan(towers._beyond_share(both[0], nothing, seed=0).low)


@pytest.mark.slow
def test_the_studies_on_the_miniature(tmp_path):
    given = {"model": "mini-gpt2", "n_prompts": 20, "n_locate": 40, "k": 2, "separator": "space", "recorded": "never"}
    run = Run(Parameters.of(given | {"out": str(tmp_path)}))
    t = run.table(towers.exchanged)
    own = t[(t["heads"] == shown.OURS) & (t["pairs"] == "query pairs")].set_index("what")["moved"]
    assert own["query"] == pytest.approx(own["all"]) and abs(own[["keys", "values"]]).max() < 1e-4  # by construction
    assert said(shown.exchanged(t)) and said(shown.value_pairs(t))
    blocked = run.table(towers.blocked)
    lost = blocked[blocked["kind"] == "lost"]
    np.testing.assert_allclose(lost["plain"] - lost["blocked"], lost["lost"], atol=1e-6)
    assert said(shown.blocked(blocked)) and said(shown.keys(run.table(towers.keys)))
    assert said(shown.mixing(run.table(towers.mixing)))
