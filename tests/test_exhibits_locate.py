"""Chapter 1: every claim on hand-made rows."""

import numpy as np
import pandas as pd
import pytest
from conftest import DOWN, UP, WIDE, ZERO, interval, sayable
from twotowers.exhibits import locate as shown
from twotowers.exhibits.claim import Verdict
from twotowers.exhibits.locate import BALANCED, BASELINES, IN, PAPER, RANDOM
from twotowers.studies.locate import left_out

BIG = (2.0, 1.8, 2.2)


def answers(passing=(True, True), paper=0.9, chosen=True):
    rows = [
        {"k": 2, "separator": "space", "dataset": f"set {i}", "order": order, "true_label": label, "passes": passes,
         "chosen": chosen, "prompts": 40, "two_label": 0.9, "names_label": 1.0, **dict.fromkeys(BASELINES, 0.5),
         **interval("accuracy", (value, value - 0.1, min(1, value + 0.1)))}
        for i, passed in enumerate(passing)
        for order, label, value, passes in (
            (PAPER, "foo", paper, False), (BALANCED, "both", 0.9 if passed else 0.5, passed)
        )
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "given, verdict",
    [
        ({}, Verdict.HOLDS),
        ({"passing": (True, False)}, Verdict.UNDECIDED),
        ({"passing": (False, False)}, Verdict.CONTROL),  # right in the paper's order only: it repeats the last label
        ({"passing": (False, False), "paper": 0.3}, Verdict.FAILS),
        ({"passing": (False,), "paper": 0.3}, Verdict.FAILS),
    ],
)
def test_learning_is_judged_counterbalanced(given, verdict):
    t = answers(**given)
    assert sayable(shown.accuracy(t)).verdict is verdict
    assert len(shown.accuracy_rows(t)) == len(t) and (given or shown.accuracy_chart(t).to_dict())


@pytest.mark.parametrize("chosen, verdict", [(True, None), (False, Verdict.UNTESTABLE)])
def test_a_form_is_chosen_or_none_passes(chosen, verdict):
    t = answers(chosen=chosen)
    assert sayable(shown.forms(t)).verdict is verdict
    assert shown.forms_chart(t).to_dict() and len(shown.forms_rows(t)) == 2


def blocks(attention=(BIG, UP, UP), ffn=(ZERO, ZERO, ZERO), more=(BIG, UP, UP), learned=True, n=20):
    """Increase, margin and the other label's increase of attention, of FFN, and of the first less the second."""
    rows = [
        {"order": order, "part": part, "quantity": quantity, **interval("value", value, n)}
        for order in (BALANCED, PAPER)
        for part, values in (("attention", attention), ("FFN", ffn), ("attention less FFN", more))
        for quantity, value in zip(
            ("increase", "margin", "other label"), values if order == BALANCED else [DOWN] * 3, strict=True
        )
    ]
    return pd.DataFrame(rows).assign(learned=learned)


@pytest.mark.parametrize(
    "given, verdict, words",
    [
        ({}, Verdict.HOLDS, "FFN blocks do not clearly raise it; attention blocks raise the other label too"),
        ({"attention": (BIG, BIG, ZERO)}, Verdict.HOLDS, "what attention blocks add is this label"),
        ({"ffn": (UP, ZERO, UP)}, Verdict.HOLDS, "what FFN blocks add is some label, not this label"),
        ({"ffn": (UP, WIDE, UP)}, Verdict.HOLDS, "what FFN blocks add is some label, not this label"),
        ({"ffn": (BIG, UP, UP)}, Verdict.HOLDS, "most of what they add is some label"),
        ({"attention": (BIG, ZERO, BIG), "more": (BIG, ZERO, BIG)}, Verdict.CONTROL, "not clearly this label"),
        ({"more": (BIG, WIDE, UP)}, Verdict.CONTROL, "not clearly this label"),
        ({"more": (DOWN, UP, DOWN)}, Verdict.FAILS, "do not raise the true label more"),
        ({"attention": (DOWN, UP, DOWN)}, Verdict.FAILS, "attention blocks do not clearly raise it"),
        ({"more": (WIDE, UP, UP)}, Verdict.UNDECIDED, "cannot be told"),
        ({"n": 1}, Verdict.UNDECIDED, "cannot be told"),
        ({"learned": False}, Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_figure_2_is_judged_counterbalanced_and_against_the_other_label(given, verdict, words):
    t = blocks(**given)
    claim = sayable(shown.blocks(t))
    assert claim.verdict is verdict and words in claim.sentence
    assert len(shown.blocks_rows(t)) == 6 and (given or shown.blocks_chart(t).to_dict())


def pair(p, learned=True, compared="sets", least=0.001):
    return {"compared": compared, "ranking": "label", "first": "a", "second": "b", "shared": 3, "k": 5, "expected": 1.0,
            "p": p, "least": least, "rank_correlation": 0.5, "both": "1-0", "learned": learned}  # fmt: skip


@pytest.mark.parametrize(
    "pairs, verdict",
    [
        ([pair(0.001), pair(0.002)], Verdict.HOLDS),
        ([pair(0.001), pair(0.9)], Verdict.UNDECIDED),
        ([pair(0.9), pair(0.5)], Verdict.CONTROL),
        ([pair(0.9), pair(0.001, learned=False)], Verdict.CONTROL),
        ([pair(0.001), pair(1.0, least=0.2)], Verdict.HOLDS),  # the second could not be told from chance by any overlap
        ([pair(1.0, least=0.2)], Verdict.UNTESTABLE),
        ([pair(0.04, least=0.04), pair(1.0, least=0.9)], Verdict.UNTESTABLE),  # of two tests, neither could stand
        ([pair(0.001, learned=False)], Verdict.UNTESTABLE),
        ([], Verdict.UNTESTABLE),
    ],
)
def test_shared_heads_are_counted_on_learned_sets_against_chance_within_layers(pairs, verdict):
    t = pd.DataFrame([*pairs, pair(0.5, compared="rankings")])
    assert sayable(shown.overlaps(t)).verdict is verdict and len(shown.overlaps_rows(t)) == len(t)


def test_heads_in_the_lists_of_all_learned_sets_are_named():
    def said(*lists):
        rows = [pair(0.001) | {"both": both} for both in lists]
        return sayable(shown.overlaps(pd.DataFrame([*rows, pair(0.5, compared="rankings")]))).sentence

    assert "(`1-0`, `2-3` stand in the lists of all of them)" in said("1-0, 2-3", "2-3, 1-0, 3-1")
    assert "(`2-3` stands in" in said("1-0, 2-3", "2-3, 12-3")
    assert "(no head stands in all lists)" in said("1-0, 2-3", None)


def right(kept=30, p=0.9, learned=True, shared=4.0, n=40):
    return {"ranking": "label", "dataset": "a", "kept": kept, "n": n, "k": 5, "shared": shared, "p": p, "by_chance": 4.6,
            "rank_correlation": 0.8, "correlation_by_chance": 0.9, "learned": learned}  # fmt: skip


NONE = {"kept": 5, "shared": None, "p": None}


@pytest.mark.parametrize(
    "rows, verdict, words",
    [
        (
            [right(), right(p=0.4)],
            None,
            "no sign that keeping right answers only changes which heads are found: the lists share 4 of their top 5",
        ),
        ([right(), right(p=0.001)], None, "clearly fewer in 1 of 2 lists"),
        ([right(), right(p=0.04)], None, "cannot be told"),
        ([right(p=0.001, learned=False), right()], None, "0 of 1 list"),
        ([right(**NONE), right()], None, "0 of 1 list"),
        ([right(**NONE)], None, "At most 5 of 40 prompts"),
        ([right(kept=40, shared=5.0)], Verdict.UNTESTABLE, "leaves none out"),
        ([right(learned=False)], Verdict.UNTESTABLE, "No set is learned"),
    ],
)
def test_right_answers_only(rows, verdict, words):
    t = pd.DataFrame(rows).astype({"shared": float, "p": float})
    claim = sayable(shown.right_only(t))
    assert claim.verdict is verdict and words in claim.sentence
    assert len(shown.right_only_rows(t)) == len(t)


def test_lists_of_some_prompts_beside_as_many_by_chance():
    queries = [f"word {i % 10}" for i in range(40)]
    keep = np.array([i % 10 < 5 for i in range(40)])
    values = np.where(keep[:, None], [1.0, 0.0, 0.2], [0.0, 2.0, 0.1])  # the right ones have another head on top
    found = left_out(values, keep, queries, 1, 0)
    assert found["shared"] == 0 and found["by_chance"] > 0.8 and found["p"] < 0.2 and found["rank_correlation"] < 0
    alike = left_out(np.tile([1.0, 0.0, 0.2], (40, 1)), keep, queries, 1, 0)
    assert alike == {"k": 1, "shared": 1, "rank_correlation": 1, "by_chance": 1, "correlation_by_chance": 1, "p": 1}
    assert np.isnan(left_out(values, np.arange(40) < 9, queries, 1, 0)["shared"])


@pytest.mark.parametrize(
    "alone, after, verdict",
    [
        ([1.0, 0.5], [1.0, 0.48], Verdict.HOLDS),
        ([1.0, 0.5], [0.1, 0.5], Verdict.FAILS),
        ([1.0], [2.0], Verdict.FAILS),
        ([-1.0, 0.0], [0.0, 0.0], Verdict.UNTESTABLE),
    ],
)
def test_the_order_of_adding(alone, after, verdict):
    t = pd.DataFrame({"name": [f"0-{i}" for i in range(len(alone))], "alone": alone, "after": after})
    assert sayable(shown.order(t)).verdict is verdict and (len(t) > 1 or shown.order_chart(t).to_dict())


def test_findings_without_a_verdict():
    heads = pd.DataFrame(
        {"dataset": "a", "kind": kind, "head": name, "layer": 1, "increase": 0.5, "low": 0.4, "high": 0.6, "n": 9,
         "rank_label": 1, "rank_paper": rank, "depth": 1.0, "share": 0.5, "heads_from": "the top 2, located on", "total": 8}
        for kind, name, rank in ((IN, "1-0", 1), (IN, "1-1", 7), (RANDOM, "1-2", 4))
    )  # fmt: skip
    assert "1 of them also lead" in sayable(shown.top_heads(heads)).sentence and shown.top_heads_chart(heads).to_dict()
    one = pd.DataFrame({"part": ["attention", "FFN"], "layer": 0, "increase": [1.0, 0.2], "text": "a : foo b :",
                        "true_label": "foo", "said": "another word"})  # fmt: skip
    assert "does not predict" in sayable(shown.case(one)).sentence and shown.case_chart(one).to_dict()
    roles = pd.DataFrame([{"head": "1-0", "role": role, **interval("increase", UP)}
                          for role in ("true label", "false label", "query")])  # fmt: skip
    assert sayable(shown.positions(roles)).verdict is None and shown.positions_chart(roles).to_dict()
    assert "12 parts" in sayable(shown.parts(pd.DataFrame([{"parts": 12, "relative_error": 1e-7}]))).sentence
    norms = pd.DataFrame([pair(0.1) | {"n": 9}])
    assert sayable(shown.norms(norms)).verdict is None and len(shown.norms_rows(norms)) == 1
    toy = pd.DataFrame({"coefficient": ["0"], "word": ["foo"], "probability": [1.0]})
    grid = pd.DataFrame(
        {"dataset": "a", "layer": [0], "head": [0], "name": "0-0", "increase": 0.1, "label_margin": [0.0]}
    )
    assert shown.toy_chart(toy).to_dict() and shown.map_chart(grid).to_dict()
