"""Chapter 11's analysis tells answers that follow the product of the two towers from those that
follow their sum."""

import json

import numpy as np
import pytest
import xarray as xr
from conftest import ROOT
from twotowers import evidence
from twotowers.claims import claims

COEFFICIENTS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


@pytest.fixture(scope="module")
def chapter():
    """The functions of the chapter's analysis, as its cells define them."""
    cells = json.loads((ROOT / "book/11-two-towers-moved.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = {"chapter": None}
    for source in sources:
        if "import xarray" in source:
            exec("\n".join(line for line in source.splitlines() if "import" in line), names)
        elif any(
            f"def {name}(" in source for name in ("on_axis", "rising", "predicted", "r_squared")
        ):
            exec(source, names)
    return names


def planted(chapter, axis, noise=0.5, n=160):
    """Prompts of eight class pairs and four label pairs whose answer is a saturating curve on one
    axis."""
    rng = np.random.default_rng(0)
    pairs = [f"a{i}/b{i}" for i in range(8)]
    at = np.arange(n)
    pair = np.array(pairs)[at % 8]
    coordinates = {
        "class_pair": ("prompt", pair), "label_pair": ("prompt", np.array(["foo/bar", "x/y", "u/v",
                                                                 "s/t"])[at // 8 % 4]),
        "query_class": ("prompt", np.where(at // 32 % 2 == 0, [p.split("/")[0] for p in pair],
                                   [p.split("/")[1] for p in pair])),
        "query_coefficient": list(COEFFICIENTS), "key_coefficient": list(COEFFICIENTS),
        "head_set": ["these"],
    }  # fmt: skip
    empty = xr.Dataset(coords=coordinates)
    x = chapter["on_axis"](empty, axis).transpose("prompt", ...)
    own = rng.normal(size=(n, 1, 1))  # how well each prompt is answered is no matter of towers
    return empty.assign(
        logit_difference=(np.tanh(0.6 * x) + own + noise * rng.normal(size=x.shape)).expand_dims(
            "head_set"
        )
    )


@pytest.mark.parametrize(
    ("axis", "verdict"),
    [("product", "holds"), ("sum", "does not hold"), ("query alone", "does not hold")],
)
def test_an_answer_is_told_by_the_axis_that_it_follows(chapter, axis, verdict):
    y = chapter["centred"](planted(chapter, axis), "these")
    fits = {name: chapter["r_squared"](y, name) for name in chapter["AXES"]}
    assert max(fits, key=fits.get) == axis and fits[axis] > 0.9
    errors = {name: chapter["squared_error"](y, name) for name in fits}
    best = min(
        (of for name, of in errors.items() if name != "product"), key=lambda of: float(of.mean())
    )
    whole = chapter["squared_error"](y) - errors["product"]
    row = evidence.judge_claim(
        claims()["product"], "planted", best - errors["product"], denominator=whole
    )
    assert row.verdict == verdict or (row.verdict == "not testable" and axis != "product")


def test_an_answer_that_follows_nothing_is_no_evidence(chapter):
    y = chapter["centred"](
        planted(chapter, "sum").map(
            lambda x: x * 0 + np.random.default_rng(1).normal(size=x.shape)
        ),
        "these",
    )
    errors = {name: chapter["squared_error"](y, name) for name in ("product", "sum")}
    whole = chapter["squared_error"](y) - errors["product"]
    row = evidence.judge_claim(
        claims()["product"], "planted", errors["sum"] - errors["product"], denominator=whole
    )
    assert row.verdict == "not testable"
