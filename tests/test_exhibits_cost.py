"""What it costs: sentences and charts of recorded rows, made by hand."""

import numpy as np
import pandas as pd
import pytest
from twotowers.exhibits import cost as shown
from twotowers.exhibits.cost import ALL

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
                 "vocabulary": 100, "difference_nats": 1e-6, "extra_mb": 10.0, "forward_mb": 20.0}
        for by, method, ratio in rows
    )  # fmt: skip


def test_the_other_ways_are_told_from_the_least_to_the_most_and_what_did_not_run_is_left_out():
    t = shown.ran(ways())
    said = shown.in_short(t)
    assert "**1.50 times**" in said and "4.00 (another) to 6.00 (plain hooks)" in said and "1.0e-06" in said
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
