"""Values of heads at labels, against sums by hand, and means of results."""

import numpy as np
import xarray as xr
from tolerances import near
from twotowers import label_values
from twotowers.paper_results import Result, mean_of_results


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


def test_halves_of_a_list_have_their_own_labels():
    values = xr.DataArray([1.0, 3, 5, 7], dims="selected_head")
    assert label_values.by_half(values).to_series().to_dict() == {"foo-heads": 2, "bar-heads": 6}
    own, other = label_values.own_and_other(values)
    assert own.values.tolist() == ["foo", "foo", "bar", "bar"]
    assert other.values.tolist() == ["bar", "bar", "foo", "foo"]


def test_attention_is_that_on_a_label_where_it_is_the_answer():
    """Four prompts' versions: foo is right in the first two, bar in the last two."""
    on_true, on_other = ("change", [1.0, 3, 5, 7]), ("change", [10.0, 30, 50, 70])
    ds = xr.Dataset(
        {"attention_true": on_true, "attention_other": on_other}, {"change": list("abcd")}
    )
    attention = label_values.by_answer(ds, ["a", "b"], ["c", "d"])
    assert attention.sel(answer="foo", label=["foo", "bar"]).values.tolist() == [2, 20]
    assert attention.sel(answer="bar", label=["foo", "bar"]).values.tolist() == [60, 6]

    of_heads = attention.expand_dims(selected_head=["0-0", "0-1"])  # one foo-head, one bar-head
    where_answer, elsewhere = label_values.at_own_label(of_heads)
    assert where_answer.values.tolist() == [2, 6]
    assert elsewhere.values.tolist() == [60, 20]


def test_random_lists_are_of_heads_in_no_list():
    names = {"selected_head": ["0-0", "0-1"]}
    listed = xr.DataArray([[1.0, 2], [3, 4]], names, ("prompt", "selected_head"))
    more = xr.DataArray(
        [[9.0, 9, 5]], {"selected_head": ["0-0", "1-1", "2-2"]}, ("prompt", "selected_head")
    )
    means = label_values.with_others(listed, more, ["0-0", "0-1", "1-1", "3-3"])
    assert means.to_series().to_dict() == {"0-0": 2, "0-1": 3, "2-2": 5}


def test_a_mean_of_results_leaves_out_what_cannot_be_tested():
    results = {
        "a": Result(0.2, "x", [0.0, 0.4], [0.1, 0.3]),
        "b": Result(0.4, "y", [0.2, 0.6], [0.3, 0.5]),
        "c": Result(np.nan, "too few"),
    }
    found = mean_of_results(results, "none")
    near([found.value, *found.random, *found.resampled], [0.3, 0.1, 0.5, 0.2, 0.4])
    assert found.words == "a: x; b: y"
    nothing = mean_of_results({"c": results["c"]}, "none")
    assert np.isnan(nothing.value) and nothing.words == "none"
