"""Chapter 11's analysis tells answers that follow the product of the two towers from those that
follow their sum."""

import itertools

import numpy as np
import pytest
import xarray as xr
from chapter_runs import functions_of
from twotowers import evidence
from twotowers.claims import claims

COEFFICIENTS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


@pytest.fixture(scope="module")
def chapter():
    return functions_of("11-two-towers-moved")


def planted(chapter, axis):
    """Prompts of eight class pairs and four label pairs whose answer is a saturating curve on one
    axis."""
    rng = np.random.default_rng(0)
    labels = "foo/bar", "x/y", "u/v", "s/t"
    both = [*itertools.product("ab", labels, range(8))] * 3
    coordinates = {
        "class_pair": ("prompt", [f"a{i}/b{i}" for *_, i in both]),
        "label_pair": ("prompt", [label_pair for _, label_pair, _ in both]),
        "query_class": ("prompt", [f"{side}{i}" for side, _, i in both]),
        "query_coefficient": [*COEFFICIENTS],
        "key_coefficient": [*COEFFICIENTS],
        "head_set": ["these"],
    }
    empty = chapter["with_is_first"](xr.Dataset(coords=coordinates))
    x = chapter["on_axis"](empty, axis).transpose("prompt", ...)
    own = rng.normal(size=(len(both), 1, 1))  # how well each prompt is answered is no matter here
    answers = np.tanh(0.6 * x) + own + 0.5 * rng.normal(size=x.shape)
    return empty.assign(logit_difference=answers.expand_dims("head_set"))


def verdict(chapter, y):
    """The verdict on the product, beside the best of the other axes."""
    errors = {axis: chapter["squared_error"](y, axis) for axis in chapter["AXES"]}
    product = errors.pop("product")
    best = min(errors.values(), key=lambda of: float(of.mean()))
    whole = chapter["squared_error"](y) - product
    row = evidence.judge_claim(claims()["product"], "planted", best - product, denominator=whole)
    return row.verdict


@pytest.mark.parametrize(
    ("axis", "verdicts"),
    [
        ("product", {"holds"}),
        ("sum", {"does not hold", "not testable"}),
        ("query alone", {"does not hold", "not testable"}),
    ],
)
def test_an_answer_is_told_by_the_axis_that_it_follows(chapter, axis, verdicts):
    y = chapter["centred"](planted(chapter, axis), "these")
    fits = {name: chapter["r_squared"](y, name) for name in chapter["AXES"]}
    assert max(fits, key=fits.get) == axis and fits[axis] > 0.9
    assert verdict(chapter, y) in verdicts


def test_an_answer_that_follows_nothing_is_no_evidence(chapter):
    rng = np.random.default_rng(1)
    noise = planted(chapter, "sum").map(lambda x: x * 0 + rng.normal(size=x.shape))
    assert verdict(chapter, chapter["centred"](noise, "these")) == "not testable"
