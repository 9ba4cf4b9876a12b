"""Chapter 7: sizes of biases by hand, every branch of its claims on hand-made rows, and all of it once on mini-gpt2."""

import numpy as np
import pandas as pd
import pytest
from conftest import sayable
from twotowers.errors import TwoTowersError
from twotowers.exhibits import mitigation as shown
from twotowers.exhibits.claim import Claim, Verdict
from twotowers.parameters import Parameters
from twotowers.prompts.datasets import alternated, draw
from twotowers.studies import mitigation
from twotowers.studies.run import Run

AS_IS, IN, RANDOM, OVER = mitigation.AS_IS, mitigation.IN, mitigation.RANDOM, mitigation.OVER
SETS = ["animal/country", "country/animal", mitigation.ALL]
CLEAR, LOWER, NOTHING, WIDE = (0.1, 0.05, 0.15), (-0.1, -0.15, -0.05), (0.0, 0.0, 0.0), (0.02, -0.05, 0.1)


def plain(claim: Claim, verdict: Verdict | None) -> str:
    assert claim.verdict is verdict, claim
    assert "nan" not in claim.sentence.lower()
    return sayable(claim).sentence


def rows(measure, size, gone, over, share=True, passing=2, chance=0.01, **columns):
    """A mitigation's table, the same for every set; `gone` and `over` are (value, low, high)."""
    values = {("size", AS_IS): size, ("size", IN): size, ("size", RANDOM): size, ("chance", AS_IS): (chance,) * 3}
    for what in ("gone", *(["share"] if share else [])):
        values |= {(what, IN): gone, (what, RANDOM): NOTHING, (what, OVER): over}
    return pd.DataFrame(
        [
            {"dataset": name, "what": what, "heads": heads, "value": v, "low": low, "high": high, "n": 20, "a_c": 0.03,
             "measure": measure, "passing": passing, "names": "3-1 3-2", **columns}
            for name in SETS
            for (what, heads), (v, low, high) in values.items()
        ]
    )  # fmt: skip


BRANCHES = [
    (CLEAR, CLEAR, Verdict.HOLDS),
    (CLEAR, WIDE, Verdict.CONTROL),
    (CLEAR, LOWER, Verdict.CONTROL),
    (NOTHING, CLEAR, Verdict.FAILS),
    (LOWER, CLEAR, Verdict.FAILS),
    (WIDE, CLEAR, Verdict.UNDECIDED),
]


@pytest.mark.parametrize(("gone", "over", "verdict"), BRANCHES)
def test_a_bias_counts_as_mitigated_only_beyond_zero_and_beyond_random_heads(gone, over, verdict):
    for claim, table in (
        (shown.majority, rows("accuracy", CLEAR, gone, over, kind="one true fewer")),
        (shown.recency, rows("accuracy", CLEAR, gone, over)),
        (shown.attention, pd.concat([rows(m, CLEAR, gone, over) for m in ("weight", "weight, relative")])),
    ):
        said = plain(claim(table), verdict)
        assert ("more than with random heads" in said) == (verdict in (Verdict.HOLDS, Verdict.CONTROL))
        learns_nothing = plain(claim(table.assign(passing=0)), Verdict.UNTESTABLE)
        assert "learns no set" in learns_nothing


def test_where_there_is_no_bias_nothing_can_become_smaller():
    flat = rows("accuracy", NOTHING, NOTHING, NOTHING, share=False, kind="one true fewer")
    assert "no clear sign" in plain(shown.majority(flat), Verdict.UNTESTABLE)
    # A spread within what chance leaves is no bias, however far its interval is from zero.
    within = rows("accuracy", CLEAR, CLEAR, CLEAR, chance=0.2)
    assert "no clear sign" in plain(shown.recency(within), Verdict.UNTESTABLE)
    still = pd.concat([rows(m, NOTHING, NOTHING, NOTHING, share=False) for m in ("weight", "weight, relative")])
    assert "the same in every order" in plain(shown.attention(still), Verdict.UNTESTABLE)


def test_sets_are_told_one_by_one():
    table = rows("accuracy", CLEAR, CLEAR, CLEAR, kind="one true fewer")
    table.loc[(table["dataset"] == SETS[0]) & (table["heads"] == OVER), "low"] = -0.1
    assert "both hold in 1 of 2 sets" in shown.majority(table).sentence
    listed = shown.set_rows(table)
    assert list(listed.index) == SETS and listed.loc[SETS[0], "n"] == 20
    assert shown.set_rows(rows("weight", CLEAR, CLEAR, CLEAR)).shape == (3, 6)
    without = table[~((table["dataset"] == SETS[1]) & (table["what"] == "share"))]  # a set without a bias
    assert shown.set_rows(without).loc[SETS[1], f"share gone, {IN}"] == "no bias"


def test_the_mirror_image_and_the_factor_are_told():
    both = [
        rows(measure, CLEAR, CLEAR, CLEAR, kind=kind) for measure in ("accuracy", "margin") for kind in mitigation.KINDS
    ]
    plain(shown.mirror(pd.concat(both)), None)
    curve = pd.DataFrame(
        [
            {"factor": f, "kind": kind, "heads": heads, "fall": 0.1, "low": 0.0, "high": 0.2, "n": 9, "tuned_on": 80}
            for f in (0.0, 0.03) for kind in mitigation.KINDS for heads in (IN, RANDOM)
        ]
    )  # fmt: skip
    assert "no factor does better" in plain(shown.factors(curve.assign(chosen=0.0)), None)
    assert "0.03" in plain(shown.factors(curve.assign(chosen=0.03)), None)
    assert shown.factors_chart(curve).to_dict()


@pytest.mark.parametrize("accuracies", [(0.5, 0.5), (0.2, 0.9)])
def test_orders_and_readings_are_told_whether_or_not_order_matters(accuracies):
    orders = pd.DataFrame(
        [
            {"order": order, "heads": heads, "accuracy": a, "low": a, "high": a, "n": 9}
            for order, a in zip(("TF", "FT"), accuracies, strict=True) for heads in (AS_IS, IN, RANDOM)
        ]
    )  # fmt: skip
    said = plain(shown.by_order(orders), None)
    assert ("order does not matter" in said) == (accuracies[0] == accuracies[1])
    names = [AS_IS, "mean", "replace", "add", "doubled, with position"]
    spreads = np.ptp(accuracies) * np.arange(5)
    found = pd.DataFrame({"reading": names, "spread": spreads, "low": 0.0, "high": 1.0, "n": 9, "dataset": "a/b"})
    said = plain(shown.readings(found), None)
    assert ("all three leave the same" in said) == (accuracies[0] == accuracies[1])
    assert shown.by_order_chart(orders).to_dict() and shown.readings_chart(found).to_dict()


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((0.2, 0.1, 0.3, 0.2, 0.0), "leaves least"),
        ((0.1,) * 5, "under each"),
        ((0.0, 0.1, 0.1, 0.1, 0.1), "no remedy leaves"),
    ],
)
def test_remedies_are_compared_with_the_model_as_it_is(sizes, says):
    names = [AS_IS, "minority shortcut", "position-free shortcut", "contextual calibration", "mean over orders"]
    table = pd.DataFrame(
        [
            {"remedy": name, "bias": bias, "size": size, "low": size, "high": size, "n": 9, "passes": 1, "balanced": 0.5,
             "dataset": "a/b"}
            for bias in ("fall of accuracy (majority label)", "spread of accuracy (recency)")
            for name, size in zip(names, sizes, strict=True)
        ]
    )  # fmt: skip
    assert says in plain(shown.remedies(table), None)
    assert list(shown.remedies_rows(table).index) == names
    assert shown.remedies_chart(table).to_dict()


def test_sizes_gone_and_shares_by_hand():
    # 100% balanced, 50% with one fewer, 75% mitigated; the one set of random heads makes it worse, 25%.
    table = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 0]], dtype=float)
    sizes = [lambda m, j=j: m[..., 0] - m[..., j] for j in (1, 2, 3)]
    made = mitigation.changed(table, sizes[0], sizes[1], [(sizes[0], sizes[2])], np.arange(4), 0)
    value = made.set_index(["what", "heads"])["value"]
    assert value["size"].to_dict() == {AS_IS: 0.5, IN: 0.25, RANDOM: 0.75}
    assert value["gone"].to_dict() == {IN: 0.25, RANDOM: -0.25, OVER: 0.5}
    assert value["share"].to_dict() == {IN: 0.5, RANDOM: -0.5, OVER: 1.0}
    # A bias turned round is as large a bias; and no bias has no share.
    turned = mitigation.changed(
        np.array([[0.5, 0.0, 1.0]] * 2), sizes[0], sizes[1], [(sizes[0], sizes[1])], np.arange(2), 0
    )
    assert turned.set_index(["what", "heads"])["value"]["gone", IN] == 0
    none = mitigation.changed(np.ones((2, 3)), sizes[0], sizes[1], [(sizes[0], sizes[1])], np.arange(2), 0)
    assert set(none["what"]) == {"size", "gone"}


@pytest.mark.parametrize(("k", "read"), [(1, 2), (2, 6), (3, 6), (4, 6)])
def test_orders_are_all_or_evenly_spread(k, read):
    made = mitigation.some_orders(draw("animal/country", 1, k=k)[0])
    assert len(made) == read == len({one.text for one in made})
    assert made[0].is_true[0] and made[-1].is_true[-1] and not made[-1].is_true[0]


@pytest.mark.parametrize("k", [1, 5])
def test_another_number_of_demonstrations_is_refused_with_its_reason(tmp_path, k):
    run = Run(Parameters.of({"n_prompts": 4, "n_locate": 4, "k": k, "separator": "space", "out": str(tmp_path), "heads": "3-1"}
                            | {"recorded": "never", "datasets": "animal/country"}))  # fmt: skip
    with pytest.raises(TwoTowersError, match=rf"k = {k}: this needs 2 to 4"):
        run.table(mitigation.majority)


@pytest.mark.slow
def test_all_of_it_on_the_miniature(tmp_path):
    run = Run(Parameters.of({"n_prompts": 20, "n_locate": 20, "out": str(tmp_path), "recorded": "never"}
                            | {"datasets": "sentiment/number,animal/country"}))  # fmt: skip
    made = {
        mitigation.majority: (shown.majority_chart, shown.majority, shown.mirror, shown.set_rows),
        mitigation.factors: (shown.factors_chart, shown.factors),
        mitigation.recency: (shown.recency_chart, shown.recency, shown.set_rows),
        mitigation.attention: (shown.attention_chart, shown.attention, shown.set_rows),
        mitigation.by_head: (shown.by_head_chart,),
        mitigation.by_order: (shown.by_order_chart, shown.by_order),
        mitigation.readings: (shown.readings_chart, shown.readings),
        mitigation.remedies: (shown.remedies_chart, shown.remedies, shown.remedies_rows),
    }
    for study, exhibits in made.items():
        table = run.table(study)
        for exhibit in exhibits:
            found = exhibit(table)
            if isinstance(found, Claim):
                sayable(found)
    # The same prompts and heads with a factor of zero leave everything as it is.
    still = run.table(mitigation.factors).query("factor == 0")
    assert (still.groupby("kind")["fall"].nunique() == 1).all()
    judged = {p.text for p in mitigation._judged(run, "animal/country", 20)}
    assert not judged & {p.text for p in alternated(run.locating("animal/country"))}
