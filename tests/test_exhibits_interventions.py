"""Chapter 6: every claim on hand-made rows, charts from the same rows, and the studies once on the miniature."""

import pandas as pd
import pytest
from conftest import sayable
from twotowers.errors import TwoTowersError
from twotowers.exhibits import flips as shown_flips
from twotowers.exhibits import interventions as shown
from twotowers.exhibits.claim import Verdict
from twotowers.parameters import Parameters
from twotowers.studies import flips, interventions
from twotowers.studies.interventions import (
    ACCURACY,
    ANY,
    CHANGE,
    IN,
    LOG_PROB,
    MARGIN,
    NAMES,
    NOTHING,
    OVER,
    POOLED,
    SAME,
    TWO_LABEL,
)
from twotowers.studies.run import Run

FALLS, NONE, UNSURE = (-0.5, -0.6, -0.4), (0.0, 0.0, 0.0), (-0.1, -0.3, 0.1)


def said(claim):
    sayable(claim)
    return claim.verdict, claim.sentence


def cells(accuracy, two_label, names, margin=FALLS, over=None, as_low=0):
    """Rows of one set: the change of each measure, and (by default the same) the change less that of random heads."""
    rows = []
    for measure, change in zip((ACCURACY, TWO_LABEL, NAMES, MARGIN), (accuracy, two_label, names, margin), strict=True):
        more = change if over is None else over
        for heads, (value, low, high) in (
            (NOTHING, (0.9, 0.8, 1.0)), (IN, (0.9 + change[0], 0.3, 0.5)), (SAME, (0.9, 0.8, 1.0)), 
            (CHANGE, change), (OVER, more),
        ):  # fmt: skip
            rows.append({"heads": heads, "measure": measure, "value": value, "low": low, "high": high, "n": 20})
    return pd.DataFrame(rows).assign(draws=20, draws_as_low=as_low)


def table(*args, passing=1, **kwargs):
    own = cells(*args, **kwargs)
    sets = ["one/two", *([POOLED] if passing else [])]
    parts = [own.assign(dataset=name, positions=at) for name in sets for at in ("all", "last")]
    return pd.concat(parts, ignore_index=True).assign(named="3-1, 3-2", from_elsewhere=2, passes=bool(passing))


@pytest.mark.parametrize(
    "changes, verdict, words",
    [
        ((FALLS, FALLS, NONE), Verdict.HOLDS, "what went is the choice between the labels; the answers"),
        ((FALLS, FALLS, FALLS), Verdict.HOLDS, "and any label word with it"),
        ((FALLS, NONE, FALLS), Verdict.UNDECIDED, "any label word at all"),
        ((FALLS, NONE, NONE), Verdict.UNDECIDED, "the true label's lead becomes smaller"),
        ((FALLS, NONE, NONE, NONE), Verdict.UNDECIDED, "neither the choice"),
        ((NONE, NONE, NONE, NONE), Verdict.FAILS, "does not fall"),
        ((UNSURE, NONE, NONE, NONE), Verdict.UNDECIDED, "cannot be told"),
    ],
)
def test_the_headline_says_what_went(changes, verdict, words):
    found, sentence = said(shown.headline(table(*changes)))
    assert found is verdict and words in sentence
    assert said(shown.union_zeroed(cells(*changes).assign(named="3-1", dataset="one/two", passes=True)))[0] is verdict


def test_the_headline_does_not_hold_when_random_heads_do_as_much():
    assert said(shown.headline(table(FALLS, FALLS, FALLS, over=UNSURE)))[0] is Verdict.CONTROL
    assert said(shown.headline(table(FALLS, FALLS, FALLS, as_low=2)))[0] is Verdict.CONTROL  # 2 of 20 draws
    assert said(shown.headline(table(FALLS, FALLS, FALLS, as_low=1)))[0] is Verdict.HOLDS


def test_nothing_is_judged_where_no_set_passes():
    assert said(shown.headline(table(FALLS, FALLS, FALLS, passing=0)))[0] is Verdict.UNTESTABLE
    alone = cells(FALLS, FALLS, FALLS).assign(named="3-1", dataset="one/two", passes=False)
    assert said(shown.union_zeroed(alone))[0] is Verdict.UNTESTABLE


def test_sets_are_counted():
    t = table(FALLS, NONE, FALLS)
    _, sentence = said(shown.by_dataset(t))
    assert sentence.startswith("Of 1 set, accuracy falls more than without random heads in 1, two-label accuracy in 0")
    assert "2 random heads had to come" in sentence
    assert shown.by_dataset_chart(t).to_dict() and len(shown.headline_rows(t)) == 8


def test_single_heads():
    t = pd.DataFrame(
        {"layer": [0, 0], "head": [0, 1], "name": ["0-0", "0-1"], "kind": [IN, "other heads"], "accuracy_drop": [0.25, 0.0],
         "margin_drop": [0.5, 0.0], "log_prob_drop": [0.75, 0.0], "p": [0.001, 0.9]}
    )  # fmt: skip
    _, sentence = said(shown.single(t))
    assert (
        "For 1 head of 2" in sentence
        and "`0-0`: 0.75 nats, 0.50 nats of margin; accuracy then falls by 25%" in sentence
    )
    assert shown.single_chart(t).to_dict()
    assert "For 0 heads of 2" in said(shown.single(t.assign(log_prob_drop=0.0, p=1.0)))[1]


@pytest.mark.parametrize("more, words", [(2.0, "are redundant"), (-2.0, "overlap"), (0.0, "cannot be told")])
def test_redundancy(more, words):
    drops = {"together": 3.0 + more, "sum of singles": 3.0, "together less sum": more}
    t = pd.DataFrame(
        [
            {"heads": heads, "measure": m, "drop": drop, "value": v, "low": v - 1, "high": v + 1, "n": 20, "k": 1}
            for heads in (IN, SAME) for m in (MARGIN, LOG_PROB) for drop, v in drops.items()
        ]
    )  # fmt: skip
    assert words in said(shown.redundancy(t))[1] and shown.redundancy_chart(t).to_dict()


def test_ways_with_and_without_rank_correlations():
    names = [f"{a}, {b}" for a in ("zero", "mean") for b in ("all positions", "last position")]
    t = pd.DataFrame(
        {"way": names, "in_context": 0.2, "low": 0.1, "high": 0.3, "n": 9, "others": 0.0, "over": 0.2, "over_low": 0.1,
         "over_high": 0.3, "rank_correlation": [1.0, 0.5, 0.6, 0.7]}
    )  # fmt: skip
    assert "correlation of 0.50 to 0.70" in said(shown.ways(t))[1] and len(shown.ways_rows(t)) == 4
    assert "correlation" not in said(shown.ways(t.assign(rank_correlation=float("nan"))))[1]


def test_the_union_beside_our_choice():
    one = {"kind": "both", "name": "1-0", "increase": 1.0, "log_prob_drop": 1.0, "accuracy_drop": 0.1}
    one |= {"shared": 1, "ours": 1, "theirs": 2, "p": 0.01, "expected": 0.2}
    for name in ("rho", "deep", "label_rho"):
        one |= {name: 0.5, f"{name}_low": 0.4, f"{name}_high": 0.6, f"{name}_heads": 9}
    t = pd.DataFrame([one])
    assert "more than chance" in said(shown.union(t))[1] and shown.union_chart(t).to_dict()
    _, sentence = said(shown.union(t.assign(rho=float("nan"), deep=float("nan"), label_rho=float("nan"), p=0.5)))
    assert "never varies" in sentence and "no more than chance" in sentence


def test_the_curve():
    t = pd.concat([cells(NONE, NONE, NONE).assign(k=1), cells(FALLS, NONE, FALLS).assign(k=2)])
    t = pd.concat([t, t[t["heads"] == SAME].assign(heads=ANY)])
    _, sentence = said(shown.curve(t))
    assert "accuracy falls from 2 heads on, two-label accuracy at no number of heads" in sentence
    assert shown.curve_accuracy_chart(t).to_dict() and shown.curve_margin_chart(t).to_dict()


def test_label_heads_of_one_label_only():
    t = pd.DataFrame(
        {"head": ["1-0"], "kind": ["fooheads"], "lean": [0.5], "low": [0.4], "high": [0.6], "clear": [True]}
    )
    assert "No head serves the other label" in said(shown_flips.label_heads(t))[1]
    assert shown_flips.label_heads_chart(t).to_dict()


def sources(own, over, **where):
    rows = {flips.OWN: own, flips.RANDOM: own - over, flips.OVER: over}
    return [{**where, "source": s, "value": v, "low": v - 0.1, "high": v + 0.1, "n": 9} for s, v in rows.items()]


@pytest.mark.parametrize("own, other, over, passes, verdict", [
    (-2, 1, 1, True, Verdict.HOLDS), (-2, 1, 0, True, Verdict.CONTROL), (1, 1, 1, True, Verdict.FAILS),
    (-1, 1, 1, True, Verdict.CONTROL), (-1, 2, 1, True, Verdict.CONTROL),  # as heads that like one word
    (-1, 0, 1, True, Verdict.UNDECIDED), (-1, 1, 1, False, Verdict.UNTESTABLE),
])  # fmt: skip
def test_zeroing_the_heads_of_one_label(own, other, over, passes, verdict):
    rows = []
    for kind in ("fooheads", "barheads"):
        rows += sources(own, own * over, zeroed=kind, serves="own label", true_label=kind[:3], measure=MARGIN)
        rows += sources(other, other * over, zeroed=kind, serves="other label", true_label="other", measure=MARGIN)
    t = pd.DataFrame(rows).assign(passes=passes)
    found, sentence = said(shown_flips.zeroed(t))
    assert found is verdict
    assert ("heads that like one word would do the same" in sentence) == (own + other >= 0 or not over), sentence
    assert shown_flips.zeroed_chart(t).to_dict() and len(shown_flips.zeroed_rows(t)) == 4


@pytest.mark.parametrize("own, other, over, verdict, more", [
    (1, 0, 1, Verdict.HOLDS, "where it stands"), (1, -1, 1, Verdict.HOLDS, "where it stands"),
    (1, 0, 0, Verdict.CONTROL, "random heads do"), (1, 1, 1, Verdict.CONTROL, "like one word"),
    (1, 2, 1, Verdict.CONTROL, "like one word"), (-1, 0, 1, Verdict.FAILS, "Not all"), (0, 0, 0, Verdict.UNDECIDED, "cannot be told"),
])  # fmt: skip
def test_logit_minus(own, other, over, verdict, more):
    """Heads that like one word write it at the other label's positions too."""
    rows = []
    for place, (kind, at) in enumerate((("fooheads", "foo"), ("barheads", "bar"))):
        sign = -1 if place else 1
        about = {"heads": kind, "quantity": "logit minus", "stands_for": place}
        rows += sources(sign * own, sign * own * over, at=at, **about)
        rows += sources(sign * other, sign * other * over, at=("foo", "bar")[1 - place], **about)
    t = pd.DataFrame(rows).assign(labels="foo,bar", learned=True)
    assert said(shown_flips.minus(t))[0] is verdict and more in said(shown_flips.minus(t))[1]
    assert said(shown_flips.minus(t.assign(learned=False)))[0] is Verdict.UNTESTABLE
    assert said(shown_flips.minus(t[t["heads"] == "barheads"]))[0] is verdict  # no head serves foo
    assert shown_flips.minus_chart(t).to_dict() and len(shown_flips.minus_rows(t)) == 4


def flipped(foo, bar, over, passes=True, values=None):
    rows = []
    for move in (flips.QUERY, flips.DEMONSTRATION):
        for kind, at, value in (("fooheads", "foo", foo), ("barheads", "bar", bar)):
            where = {"move": move, "outcome": "flips", "heads": kind, "at": at}
            rows += sources(value, value * over, **where, quantity=shown_flips.CHANGE)
            rows += sources(0.5, 0.1, **where, quantity="attention before") + sources(
                0.4, 0.1, **where, quantity="attention after"
            )
            if values is not None and move == flips.DEMONSTRATION:
                rows += sources(values, values * over, **where, quantity="attention less values")
    return pd.DataFrame(rows).assign(first="foo", second="bar", passes=passes)


def test_flips():
    assert said(shown_flips.flips(flipped(-1, 1, 1)))[0] is Verdict.HOLDS
    assert said(shown_flips.flips(flipped(-1, 1, 0)))[0] is Verdict.CONTROL
    assert said(shown_flips.flips(flipped(1, 1, 1)))[0] is Verdict.FAILS
    assert said(shown_flips.flips(flipped(-1, 1, 1, passes=False)))[0] is Verdict.UNTESTABLE
    assert said(shown_flips.flips(flipped(-1, 1, 1).assign(at="none")))[0] is Verdict.UNTESTABLE
    half = flipped(-1, 1, 1)
    half.loc[half["move"] == flips.DEMONSTRATION, ["low", "high"]] = -3.0, 3.0
    verdict, sentence = said(shown_flips.flips(half))
    assert (
        verdict is Verdict.UNDECIDED and "in 2 of 4 decisive cells" in sentence and "(demonstration moved)" in sentence
    )
    crossed = flipped(-1, 1, 1).replace({"heads": {"fooheads": "barheads", "barheads": "fooheads"}})
    assert said(shown_flips.flips(crossed))[0] is Verdict.UNTESTABLE  # heads at the other label decide nothing
    assert set(shown_flips.flips_rows(crossed)["expected"]) == {""}
    rows = shown_flips.flips_rows(flipped(-1, 1, 1))
    assert rows["expected"].tolist() == ["rises", "falls"] * 2 and rows["attention before"].iloc[0].startswith("0.500")
    assert shown_flips.flips_chart(flipped(-1, 1, 1)).to_dict()


def test_values_against_attention():
    assert said(shown_flips.values(flipped(-1, 1, 1, values=1)))[0] is Verdict.HOLDS
    assert said(shown_flips.values(flipped(-1, 1, 0, values=1)))[0] is Verdict.CONTROL
    assert said(shown_flips.values(flipped(-1, 1, 1, values=-1)))[0] is Verdict.FAILS
    assert said(shown_flips.values(flipped(-1, 1, 1)))[0] is Verdict.UNTESTABLE


def test_flip_rates():
    t = pd.DataFrame([{"move": flips.QUERY, "value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "answered": 1.0}])
    assert "50% [40%, 60%] with a query moved" in said(shown_flips.flip_rates(t.assign(first="foo", second="bar")))[1]


SETS = ["sentiment/number", "animal/country"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    given = {"n_prompts": 20, "n_locate": 20, "datasets": SETS, "k": 2, "separator": "space", "draws": 4}
    return Run(Parameters.of(given | {"recorded": "never", "out": str(tmp_path_factory.mktemp("tables"))}))


@pytest.mark.slow
def test_the_studies_of_the_miniature_make_every_exhibit(run):
    for study, claims in {
        interventions.by_dataset: (shown.headline, shown.by_dataset), interventions.single: (shown.single,),
        interventions.redundancy: (shown.redundancy,), interventions.ways: (shown.ways,), interventions.union: (shown.union,),
        interventions.union_zeroed: (shown.union_zeroed,), interventions.curve: (shown.curve,),
        flips.label_heads: (shown_flips.label_heads,), flips.label_heads_zeroed: (shown_flips.zeroed,),
        flips.logit_minus: (shown_flips.minus,), flips.flip_rates: (shown_flips.flip_rates,),
        flips.flips: (shown_flips.flips, shown_flips.values),
    }.items():  # fmt: skip
        made = run.table(study)
        for claim in claims:
            said(claim(made))
    t = run.table(interventions.by_dataset)
    own = t[(t["dataset"] == SETS[0]) & (t["positions"] == "all") & (t["measure"] == ACCURACY)].set_index("heads")[
        "value"
    ]
    assert own[CHANGE] == pytest.approx(own[IN] - own[NOTHING]) and own[OVER] == pytest.approx(own[IN] - own[SAME])


@pytest.mark.slow
def test_a_set_without_another_text_says_so_and_the_rest_stands(run, monkeypatch, tmp_path):
    def none_left(*_):
        raise TwoTowersError("no other text of the class location is left: draw more prompts")

    monkeypatch.setattr(flips, "with_other_class_text", none_left)
    fresh = Run(run.parameters.model_copy(update={"out": str(tmp_path)}))
    for study in (flips.flip_rates, flips.flips):
        with pytest.raises(TwoTowersError, match="class location"):
            fresh.table(study)
    assert len(fresh.table(flips.label_heads))
