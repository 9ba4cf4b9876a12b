"""What it costs: sentences and charts of recorded rows, made by hand."""

import numpy as np
import pandas as pd
import pytest
from twotowers.exhibits import cost as shown
from twotowers.exhibits.cost import ALL
from twotowers.paper import costs

ABOUT = {"work": ALL, "date": "2026-01-01", "machine": "m", "cores": 2, "threads": 1, "torch": "2", "transformers": "5"}


def ways():
    rows = [
        ("this book", "ours", 1.5),
        ("plain hooks", "hooks", 6.0),
        ("another", "lens", 4.0),
        ("broken", "x", np.nan),
    ]
    return pd.DataFrame(
        ABOUT | {"by": by, "method": method, "ratio": ratio, "low": 1.0, "high": 7.0, "prompts": 8, "tokens": 16, "repeats": 3,
                 "vocabulary": 100, "difference_nats": 1e-6, "extra_mb": 10.0, "forward_mb": 20.0,
                 "counted_ratio": 2 * ratio}
        for by, method, ratio in rows
    )  # fmt: skip


def test_the_other_ways_are_told_from_the_least_to_the_most_and_what_did_not_run_is_left_out():
    t = shown.ran(ways())
    said = shown.in_short(t)
    assert "**1.50 times**" in said and "4.00 (another) to 6.00 (plain hooks)" in said and "1.0e-06" in said
    assert "it is 3.00 here and 8.00 or more there" in said
    assert "broken" not in said and "nan" not in said
    assert "this book 10 MB" in shown.memory(t) and "20 MB" in shown.memory(t)
    assert shown.machine(t).startswith("**Recorded** on `2026-01-01`: `m`, 2 cores")
    assert shown.ways_chart(t).to_dict()


@pytest.mark.parametrize("power", [1, 2])
def test_a_sweep_takes_the_rows_in_which_one_thing_varies_and_says_how_time_grows(power):
    sizes = (100, 200, 400)
    rows = [(8, 16, v) for v in sizes] + [(16, 16, 100), (8, 128, 100)]
    t = pd.DataFrame(
        ABOUT | {"prompts": p, "tokens": n, "vocabulary": v, "ratio": 2.0, "work_ms": (v / 100) ** power,
                 "predicted_ms": (v / 100) ** power / 2, "forward_ms": 1.0}
        for p, n, v in rows
    )  # fmt: skip
    assert tuple(shown.sweep(t, "vocabulary")["vocabulary"]) == sizes
    said = shown.sweep_said(t, "vocabulary")
    assert "From 100 to 400 words" in said and f"power {power:.2f}" in said and "2.00 to 2.00 times" in said
    assert shown.sweep_chart(t, "vocabulary").to_dict()


def test_the_least_and_the_most_of_measured_over_predicted_are_said_for_each_work():
    about = {"shape": "gpt2", "dtype": "float32", "device": "cpu", "prompts": 8, "tokens": 16, "vocabulary": 100,
             "predicted_ms": 10.0}  # fmt: skip
    rows = [("walk", 9.0), ("walk", 15.0), ("zeroing", 11.0)]
    t = pd.DataFrame(about | {"work": work, "measured_ms": ms, "over": ms / 10} for work, ms in rows)
    said = shown.held_said(t)
    assert "3 measurements on a CPU in 1 shape," in said and "**0.90 to 1.50 times**" in said
    assert "0.90 to 1.50 (walk); 1.10 (zeroing)" in said
    rows = shown.held_rows(t)
    assert rows["measured over predicted"].tolist() == ["0.90 to 1.50", "1.10"] and rows["n"].tolist() == [2, 1]
    assert rows["tokens a prompt"].tolist() == ["16", "16"]
    assert shown.on_gpu(t) is t and "GPU" not in said
    few, many = (t.head(1).assign(device="cuda", prompts=n, over=over) for n, over in ((8, 5.0), (64, 1.5)))
    both = pd.concat([t, few, many], ignore_index=True)
    said = shown.held_said(both)
    assert "**0.90 to 1.50 times** the predicted: 0.90 to 1.50 (walk); 1.10" in said, "a GPU's rows are not mixed in"
    assert "2 measurements on a GPU" in said and "with fewer than 64, 5.00 times" in said
    assert shown.on_gpu(both)["over"].tolist() == [1.5] and shown.held_rows(both)["n"].tolist() == [2, 1, 2]


def test_the_share_of_a_rate_is_said_only_where_the_rate_was_measured():
    row = {"dtype": "float32", "device": "cpu", "forward_gflop": 3.0, "forward_ms": 60.0, "torch_gflop_s": 100.0}
    t = pd.DataFrame(
        [
            row,
            row | {"forward_ms": 100.0},
            row | {"torch_gflop_s": np.nan},
            row | {"dtype": "bfloat16", "forward_ms": 1.0},
        ]
    )
    assert shown.reached(t).endswith("reached on a CPU 30% to 50%.")
    assert shown.reached(t.assign(device=["cpu", "cuda", "cpu", "cpu"])).endswith(
        "on a CPU 50% to 50% and on a GPU 30% to 30%."
    )
    assert shown.reached(t.tail(2)) == ""


@pytest.mark.parametrize(
    "low, high, said",
    [(0.5, 2, "0.5 to 2 s"), (30, 119, "30 to 119 s"), (30, 120, "0.5 to 2 min"), (1800, 9000, "0.5 to 2.5 h"),
     (3600, 3.6e6, "1 to 1,000 h"), (np.nan, np.nan, "does not fit")],
)  # fmt: skip
def test_two_times_are_told_in_one_unit(low, high, said):
    assert shown.span(low, high) == said


def whole(copies):
    """Two works of two models on two devices; of the second model so many copies fit."""
    rows = []
    for model, fits in (("Small", 1), ("Large", copies)):
        for device, slow in (("X", 2), ("Y", 1)):
            for gpus in (1, 8):
                for work, s in (("accuracy alone", 90), (costs.DEAREST, 810)):
                    low = slow * s / gpus if fits else np.nan
                    rows.append({"model": model, "device": device, "gpus": gpus, "work": work, "tokens": 19, "memory_gb": 90.0,
                                 "copies": fits, "seconds_low": low, "seconds_high": 4 * low, "dollars_low": low / 90,
                                 "dollars_high": low / 45})  # fmt: skip
    return pd.DataFrame(rows)


def test_the_whole_paper_is_told_on_the_fastest_device_with_what_does_not_fit():
    t = whole(copies=0)
    said = shown.whole_said(t)
    assert "5 sets of 1,000 prompts of 19 tokens" in said and "on Y:" in said
    assert (
        "- on one GPU, 1 of 2 models fit, and all works take **15 to 60 min** for 10.00 to 20.00 dollars; 90% of it is"
        in said
    )
    assert "Large (90 GB, one GPU, X)" in said
    rows = shown.whole_rows(t)
    assert rows.loc["Small (90 GB), one GPU", ["accuracy alone", "together", "dollars"]].tolist() == [
        "1.5 to 6 min", "15 to 60 min", "10.00 to 20.00",
    ]  # fmt: skip
    assert set(rows.loc[rows.index.str.startswith("Large"), "together"]) == {"does not fit"} and len(rows) == 4
    assert shown.whole_chart(t).to_dict()
    fits = shown.whole_said(whole(copies=1))
    assert "does not fit" not in fits and "2 of 2 models fit" in fits


def test_what_is_assumed_of_each_device_is_said():
    (one, *_) = costs.devices()
    said = shown.assumed([one])
    assert f"{one.utilisation_low:.0%} to {one.utilisation_high:.0%} of these rates" in said and one.rates_from in said


def test_how_far_peaks_are_from_the_counted_ones_is_said_and_how_far_two_recordings_differ():
    about = {"work": "walk", "shape": "gpt2", "dtype": "float32", "prompts": 8, "tokens": 16, "vocabulary": 100}
    rows = [(20.0, 1.0, 1.5), (50.0, 2.5, 2.0), (1200.0, 1.01, 130.0)]
    t = pd.DataFrame(about | {"measured_mb": mb, "over": over, "forward_over": by} for mb, over, by in rows)
    t.loc[2, ["shape", "dtype"]] = "gpt-j", "bfloat16"
    said = shown.memory_said(t)
    assert "3 measurements in 2 shapes" in said and "**1.00 to 2.50 times** the predicted" in said
    assert "differ by up to 2.50 times" in said
    assert "in float32 1.50 to 2.00 times; in bfloat16 130.00 to 130.00 times" in said
    assert "differ by" not in shown.memory_said(t[1:])
    found = shown.memory_rows(t)
    assert found["measured over predicted"].tolist() == ["1.00 to 2.50", "1.01"] and found["n"].tolist() == [2, 1]
    assert found["most MB"].tolist() == ["50", "1,200"]


def test_the_device_told_is_the_one_on_which_most_models_fit():
    t = whole(copies=1)
    t.loc[(t["device"] == "Y") & (t["model"] == "Large"), ["copies", "seconds_low"]] = 0, np.nan
    assert "on X:" in shown.whole_said(t), "Y is faster only because less fits there"
