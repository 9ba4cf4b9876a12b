"""The rule of evidence on hand-made observations: every branch, by numbers that can be checked by
hand; and what is refused."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from conftest import refused
from tolerances import near
from twotowers import claims, evidence
from twotowers.claims import Claim
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.evidence import judge_claim
from twotowers.heads import Head
from twotowers.judged_model import JudgedModel

LINE = {
    "id": "c", "chapter": "4", "statement": "Heads look.", "measure": "attention",
    "null_value": 0.0, "smallest_effect": 0.1,
    "unit": "share", "heads": "", "control": "none", "source": "v1",
    "rule": "2026-11-23", "seen": "nothing",
}  # fmt: skip


def claim(**cells):
    return Claim(**LINE | cells)


def prompts(of_pairs, each=4):
    """Observations of class pairs with these values, `each` prompts a pair, all with one label
    pair."""
    values = np.repeat(np.asarray(of_pairs, float), each)
    coords = {
        "class_pair": ("prompt", np.repeat([*"abcdefgh"][: len(of_pairs)], each)),
        "label_pair": ("prompt", np.full(len(values), "foo/bar")),
    }
    return xr.DataArray(values, coords, "prompt")


def random_sets(of_pairs, n_sets=20, high=0):
    """`n_sets` sets with these means, `high` of them one higher, no two the same."""
    sets = [prompts(np.array(of_pairs) + (i < high) + 1e-9 * i) for i in range(n_sets)]
    return xr.concat(sets, "random_set")


UP = [0.5, 0.6, 0.55, 0.5]
NEAR_ZERO = [0.01, -0.01, 0.02, 0.0]
DOWN = [-0.5, -0.6, -0.4, -0.5]
WIDE = [1.5, -0.6, 0.9, -0.4]
LITTLE, USUAL = [0.06, 0.1, 0.08, 0.12], [0.1, 0.1, 0.0, 0.1]


NATS, HALF = {"unit": "nats", "smallest_effect": None}, {"null_value": 0.5, "smallest_effect": 0.0}


@pytest.mark.parametrize(
    "effect, others, verdict, cells",
    [
        (UP, {}, claims.HOLDS, {}),
        (DOWN, {}, claims.FAILS, {}),
        ([-0.06, -0.1, -0.08, -0.12], {}, claims.FAILS, {}),  # clear of zero, however little
        (NEAR_ZERO, {}, claims.ABSENT, {}),
        ([0.08, -0.04, -0.08, 0.04], {}, claims.ABSENT, {}),  # by its 90% interval, not its 95%
        (WIDE, {}, claims.UNDECIDED, {}),
        (LITTLE, {}, claims.SMALL, {}),  # clear of zero, 0.09 where 0.1 would matter
        ([0.56, 0.6, 0.58, 0.62], {}, claims.SMALL, {"null_value": 0.5}),  # as far above its null
        ([0.5] * 8, {}, claims.HOLDS, {"smallest_effect": 0.5}),  # just as much as would matter
        ([0.5] * 5, {}, claims.UNDECIDED, {}),  # too few class pairs, all alike (F12)
        (LITTLE, {"control": random_sets(UP)}, claims.SMALL, {}),
        (UP, {"control": random_sets(USUAL, high=1)}, claims.HOLDS, {}),  # one of twenty is allowed
        (UP, {"control": random_sets(USUAL, high=2)}, claims.NOT_SPECIFIC, {}),
        # no difference from their mean
        (UP, {"control": random_sets([0.6, 0.4, 0.6, 0.5])}, claims.NOT_SPECIFIC, {}),
        (UP, {"control": random_sets(USUAL, n_sets=19)}, claims.HOLDS_TOO_FEW, {}),
        ([0.5], {}, claims.UNDECIDED, {}),  # one pair has no interval
        ([], {}, claims.NOT_TESTABLE, {}),
        # a share of what may be zero
        (UP, {"denominator": prompts(WIDE)}, claims.NOT_TESTABLE, {}),
        # a twentieth of the model's choice is more than 0.5375
        (UP, {"logit_difference": 11.0}, claims.SMALL, NATS),
        (UP, {"logit_difference": 10.0}, claims.HOLDS, NATS),
        (UP, {"logit_difference": 11.0}, claims.HOLDS, {}),
        ([0.501, 0.5, 0.499, 0.5], {}, claims.UNDECIDED, HALF),  # a threshold has no absent
        ([0.505, 0.505, 0.504, 0.506], {}, claims.HOLDS, HALF),
    ],
)
def test_rule(effect, others, verdict, cells):
    row = judge_claim(claim(**cells), "m", prompts(effect), **others)
    assert row.verdict == verdict and row.words
    assert np.isnan(row.effect) == (verdict == claims.NOT_TESTABLE)


def test_a_share_is_judged_as_a_ratio_beside_that_of_random_sets():
    whole = prompts([1.0, 2.0, 3.0, 2.0])
    part = whole * 0.6 + prompts([0.1, -0.1, 0.1, -0.1])
    usual = random_sets([0.1, 0.2, 0.1, 0.0], high=1)
    row = judge_claim(claim(control="random sets"), "m", part, denominator=whole, control=usual)
    assert row.effect == pytest.approx(0.6) and row.control == pytest.approx((0.1 + 1 / 20) / 2)
    assert row.difference == pytest.approx(row.effect - row.control) and row.verdict == claims.HOLDS
    assert row.exceedance == 0  # one reaches 1.1 / 2 = 0.55
    half = judge_claim(claim(null_value=0.5, smallest_effect=0.0), "m", part, denominator=whole)
    assert half.p == pytest.approx(judge_claim(claim(), "m", part - whole / 2).p)


def test_a_row_tells_effect_control_and_share():
    usual = random_sets([0.1] * 4, high=2)
    row = judge_claim(
        claim(control="random sets"), "m", prompts(UP), control=usual, template="k = 2, space"
    )
    numbers = [row.effect, row.control, row.difference]
    assert numbers == pytest.approx([np.mean(UP), 0.2, np.mean(UP) - 0.2])
    assert (row.exceedance, row.n_random_sets, row.template) == (0.1, 20, "k = 2, space")
    assert 0 < row.p < 0.001 and (row.prompts, row.n, row.label_pairs) == (16, 4, 1)
    words = "; control +20.0%, 2 of 20 different random sets reach it (p = 0.14)"
    assert row.words.startswith("+53.8% [") and row.words.endswith(words)


def names(values):
    """The same prompts, those of class pair "a" with names of classes as labels."""
    class_pair = values["class_pair"]
    return values.assign_coords(label_pair=class_pair.where(class_pair == "a", "foo/bar"))


@pytest.mark.parametrize(
    "values, others, message",
    [
        (
            prompts(UP).expand_dims(layer=2),
            {},
            r"of values: expected \(prompt\), got \(layer, prompt\); take means",
        ),
        (prompts(UP).drop_vars("label_pair"), {}, "missing coordinate 'label_pair'"),
        (prompts(UP), {"denominator": prompts(UP[:3])}, "denominator differ in their prompts"),
        (prompts(UP), {"denominator": prompts([1.0, np.nan, 1.0, 1.0])}, "expected finite numbers"),
        (
            prompts(UP),
            {"control": prompts(UP)},
            r"of control: expected \(random_set, prompt\), got \(prompt\)",
        ),
        (
            prompts(UP),
            {"control": random_sets(USUAL).isel(prompt=slice(None, None, -1))},
            "in the same order",
        ),
        (prompts(UP), {"control": random_sets([0.1, np.nan, 0.1, 0.1])}, "expected finite numbers"),
        (names(prompts(UP)), {}, "two kinds of labels"),
    ],
)
def test_what_would_be_judged_wrongly_is_refused(values, others, message):
    refused(message, judge_claim, claim(), "m", values, **others)


def test_names_of_classes_alone_are_judged():
    alone = prompts(UP).assign_coords(label_pair=prompts(UP)["class_pair"])
    assert judge_claim(claim(), "m", alone).verdict == claims.HOLDS


SETS = {"by attention": [Head(0, 1)], "by written logit difference": []}
SINGLE = prompts(UP).expand_dims(layer=2, head=3)
NAMED = xr.concat([prompts(UP), prompts(DOWN)], pd.Index(["by attention", "none"], name="head_set"))
RANDOM = random_sets(USUAL).expand_dims(head_set=["by attention"])
RANDOM = RANDOM.assign_coords(control="random sets")
BY_ATTENTION = {"heads": "by attention", "control": "random sets"}


ALL_ALIKE = {pair: [(0, 1)] for pair in "abcd"}


def two_sets(heads):
    return [[Head(1, head) for _, head in heads], [Head(1, 2)] * len(heads)]


def model_of(attending):
    """A model in whose selection blocks these heads attend, one block for each class pair."""
    attention = np.zeros((len(attending), 2, 3, 1))
    for i, heads in enumerate(attending.values()):
        for head in heads:
            attention[i][head] = 0.9
    of_heads = ("prompt", "layer", "head")
    variables = {
        "attention": ((*of_heads, "demonstration"), attention),
        "written_logit_difference": (of_heads, attention[..., 0] * 0),
        "is_true_label": (("prompt", "demonstration"), np.ones((len(attending), 1), bool)),
    }
    pairs = {"class_pair": ("prompt", [*attending]), "label_pair": ("prompt", ["foo/bar"] * 4)}
    selection = xr.Dataset(variables, pairs, {"identity": '{"top_k": 1}'})
    chapter = SimpleNamespace(sets={"m": SETS}, measured=lambda name, labels: {"m": selection})
    model = JudgedModel.__new__(JudgedModel)
    model.measurements, model.name, model.draw_random_sets = chapter, "m", two_sets
    return model


def of_claim(cells, values, control=None, attending=ALL_ALIKE):
    return model_of(attending).select(claim(**cells), values, control)


def test_each_prompt_is_judged_by_the_heads_of_its_turn_and_keeps_its_place():
    # a head's number stands in its tens
    values = SINGLE + xr.DataArray(10 * np.arange(3), dims="head")
    # the heads of a and c are judged on b and d
    attending = {pair: [(0, 2 if pair in "ac" else 1)] for pair in "abcd"}
    effect, control = of_claim(BY_ATTENTION, values, attending=attending)
    near(effect, prompts(UP) + np.where(np.isin(effect["class_pair"], ["b", "d"]), 20, 10))
    near(control[0], effect)  # each has its own partner in its turn
    assert control.dims == ("random_set", "prompt")
    assert {*effect.coords} == {"class_pair", "label_pair"}
    assert judge_claim(claim(control="random sets"), "m", effect, control=control).prompts == 16


def test_a_claim_about_a_set_takes_its_entry_and_its_control():
    effect, control = of_claim(BY_ATTENTION, NAMED, RANDOM)
    assert effect.identical(NAMED.sel(head_set="by attention"))
    assert {*control.dims} == {"random_set", "prompt"}
    effect, control = of_claim(BY_ATTENTION | {"control": "none"}, NAMED)
    assert control is None
    effect, control = of_claim(BY_ATTENTION, SINGLE)  # random sets are drawn
    assert effect.dims == ("prompt",) and control.shape == (2, 16)
    effect, control = of_claim({}, prompts(UP))
    assert control is None and effect.identical(prompts(UP))


@pytest.mark.parametrize(
    "cells, values, control, message",
    [
        ({}, SINGLE, None, r"of values: expected \(prompt\), got .* first, or name the"),
        (
            BY_ATTENTION,
            NAMED,
            None,
            "wrong control 'none': expected 'random sets'; change control=",
        ),
        (BY_ATTENTION, SINGLE, RANDOM, "wrong control 'random sets': expected 'none'"),
        ({"control": "random sets"}, prompts(UP), None, "wrong control 'none'"),
        ({}, prompts(UP), random_sets(USUAL), "wrong control 'random sets': expected 'none'"),
        (
            BY_ATTENTION | {"control": "random sets and directions"},
            NAMED,
            RANDOM,
            "wrong control 'random sets'",
        ),
        (BY_ATTENTION, NAMED.sel(head_set=["none"]), RANDOM, "missing set of heads 'by attention'"),
        (
            BY_ATTENTION,
            NAMED,
            RANDOM.assign_coords(head_set=["by written logit difference"]),
            "missing set of heads 'by attention'",
        ),
    ],
)
def test_what_a_claim_does_not_want_is_refused(cells, values, control, message):
    with pytest.raises(TwoTowersError, match=message) as caught:
        effect, against = of_claim(cells, values, control)
        judge_claim(claim(**cells), "m", effect, control=against)
    assert not isinstance(caught.value, NotTestable)


@pytest.mark.parametrize("values", [SINGLE, NAMED])
def test_a_set_that_is_empty_in_this_model_is_not_testable(values):
    with pytest.raises(
        NotTestable, match="the rule selects no heads for the set 'by written logit difference'"
    ):
        of_claim({"heads": "by written logit difference", "control": "random sets"}, values)


def test_evidence_is_read_with_p_corrected_model_by_model(tmp_path):
    chapters = {"more-beyond-softmax": "5", "located-prefer": "4", "learned": "1"}
    for name, chapter in chapters.items():
        judged = claim(id=name, chapter=chapter)
        rows = [judge_claim(judged, model, prompts(UP)) for model in "ab"]
        pd.DataFrame(rows).to_csv(tmp_path / f"{chapter}.csv", index=False)
    rows = evidence.read(tmp_path)
    assert [*rows["claim"]] == [name for name in reversed(chapters) for _ in range(2)]
    near(rows["p_holm"], 3 * rows["p"])
