"""How far numbers in float32 may lie apart between processors, numbers of threads and vector
instructions.

Evidence is compared in units of a row's own interval: what is far smaller than that changes no
conclusion. P-values of null effects and orders of near ties are not compared at all. Seen between
AVX-512 with one thread and no vector instructions with two: at most 2e-5 in any effect.

A test compares floats exactly only where the same code runs twice on the same input in the same
batch shape, or where a value is copied, counted or assigned.
"""

import numpy as np
import pandas as pd

FLOAT64 = dict(rtol=0, atol=1e-9)
"""of a number in float64 that two routes reach"""
ROTATED = dict(rtol=2e-6, atol=2e-6)
"""the same, where stock modules rotate in float32"""
LOGITS = 1e-4
"""nats, of logits and log-probabilities that are added up in another order; the least that any
effect may differ"""
INTERVAL = 0.001
"""effects and bounds of a row of evidence, as a share of the width of its 95% interval"""
SETS = 0.005
"""the share of random sets that reach as much: sets that tie with the heads in question may change
sides"""
SHOWN = 0.02
"""numbers that a figure shows, as a share of themselves: one prompt of some hundred may change
sides"""
STORED = 1 / 1024
"""a value that judges a result of the paper, such as a share of two differences: numbers are stored
with nine bits, so the last bit of a float can move one by this step"""
HUNDREDTHS = 0.02
"""the same where a table has them rounded to hundredths"""
TIES = 0.01
"""the share of words, listed by their logits in float32, that may differ: near ties may fall
otherwise"""

NUMBERS = [
    f"{name}{end}" for name in ("effect", "control", "difference") for end in ("", "_low", "_high")
]
PINNED = [
    "chapter",
    "claim",
    "model",
    "verdict",
    "n",
    "label_pairs",
    "n_random_sets",
    "exceedance",
    *NUMBERS,
]


def near(one, other, rtol=FLOAT64["rtol"], atol=FLOAT64["atol"]) -> None:
    """Arrays or tensors hold the same finite numbers, within a tolerance."""
    one, other = np.asarray(one), np.asarray(other)
    assert one.shape == other.shape or 0 in (one.ndim, other.ndim)
    np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, equal_nan=False)


def differences(rows: pd.DataFrame, golden: pd.DataFrame) -> list[str]:
    """What differs between rows of evidence and those pinned, one line each: rows, verdicts, n, and
    numbers beyond tolerance."""
    rows, golden = (table.set_index(["claim", "model"]) for table in (rows, golden))
    lines = [
        f"{row}: only in one of the tables" for row in rows.index.symmetric_difference(golden.index)
    ]
    for row in rows.index.intersection(golden.index):
        new, old = rows.loc[row], golden.loc[row]
        lines += [
            f"{row}: {name} is {new[name]}, was {old[name]}"
            for name in ("n", "label_pairs", "n_random_sets")
            if new[name] != old[name]
        ]
        lines += [f"{row}: verdict is '{new.verdict}', was '{old.verdict}'"] * (
            new.verdict != old.verdict
        )
        for name in ("exceedance", *NUMBERS):
            allowed = SETS if name == "exceedance" else max(LOGITS, INTERVAL * width(old, name))
            if not np.isclose(new[name], old[name], rtol=0, atol=allowed, equal_nan=True):
                lines.append(
                    f"{row}: {name} is {new[name]:.6g}, was {old[name]:.6g}, "
                    f"and may differ by {allowed:.2g}"
                )
    return lines


def width(row: pd.Series, name: str) -> float:
    """The width of the interval that a number belongs to; of the effect's for what has no
    interval."""
    part = name.partition("_")[0]
    return float(row[f"{part}_high"] - row[f"{part}_low"])
