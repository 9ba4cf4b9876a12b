"""Rules of chapters 8 and 9, and values of heads at labels, against sums by hand."""

import numpy as np
import pytest
import xarray as xr
from tolerances import near
from twotowers import label_heads, label_values


def measured() -> xr.Dataset:
    """One set, one prompt, two heads; foo is at the first two of four labels."""
    dims = ("prompt", "demonstration", "selected_head")
    ranks = np.array([[[1, 50], [2, 50], [4, 100], [4, 100]]])
    nats = np.array([[[3.0, 1.0], [1.0, 1.0], [2.0, -1.0], [4.0, -1.0]]])
    is_true = np.array([[True, True, False, False]])
    coords = {"selected_head": ["1-0", "0-0"], "class_pair": ("prompt", ["SST-2"])}
    return xr.Dataset({"own_rank": (dims, ranks), "ov_logit_difference": (dims, nats),
                       "is_true_label": (dims[:2], is_true)}, coords)  # fmt: skip


def test_ranks_are_compared_with_those_of_other_heads():
    values = label_heads.at_labels(measured(), measured())
    of_head = values.isel(selected_head=0, class_pair=0, prompt=0)
    assert of_head.sel(quantity="rank").values == pytest.approx([0.75, 0.25])
    assert of_head.sel(quantity="nats").values == pytest.approx([2, 3])
    usual = label_heads.usual_rank(values, np.array(["0-0", "1-0"]))
    expected = np.sqrt([0.75 * 0.02, 0.25 * 0.01])
    assert usual.isel(class_pair=0).values == pytest.approx(expected)
    ratios = label_heads.relative_to(values, label_heads.usual_rank(values, np.array(["0-0"])))
    means = ratios.mean("prompt").sel(selected_head=["1-0"])
    assert label_heads.share_that_reads(means) == 1
    assert label_heads.share_that_reads(means * 0.1) == label_heads.share_that_reads(-means) == 0


def test_sums_by_word_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    is_true = np.array([[True, False, False], [False, True, True]])
    right = ["foo", "bar"]
    ds = xr.Dataset(
        {"is_true_label": (("prompt", "demonstration"), is_true), "true_label": ("prompt", right)}
    )
    values = xr.DataArray(rng.random((2, 4, 3)), dims=("prompt", "selected_head", "demonstration"))
    sums = label_values.sums_by_word(values, ds)
    for label in label_values.WORDS:
        for i in range(2):
            other = "bar" if right[i] == "foo" else "foo"
            places = [j for j in range(3) if (right[i] if is_true[i, j] else other) == label]
            near(sums.sel(label=label, prompt=i), values[i, :, places].sum("demonstration"))
