"""The page on cost: charts and sentences of the recorded benchmarks (benchmarks/results)."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from twotowers.exhibits.claim import code
from twotowers.stats import charts

ALL, VARIED = "all heads and blocks", {"prompts": "prompts", "tokens": "tokens a prompt", "vocabulary": "words"}


def ran(t: pd.DataFrame) -> pd.DataFrame:
    """What could be run."""
    return t[t["ratio"].notna()]


def machine(t: pd.DataFrame) -> str:
    one = t.iloc[-1]
    return (
        f"**Recorded** on {code(one['date'])}: {code(one['machine'])}, {one['cores']} cores, {one['threads']} thread(s) used; "
        f"torch {one['torch']}, transformers {one['transformers']}."
    )


def in_short(t: pd.DataFrame) -> str:
    """One sentence for each length of prompt: this way's ratio, and the least and the largest of the others."""
    said = []
    for length, part in t[t["work"] == ALL].groupby("tokens"):
        own, rest = part[part["method"] == "ours"].iloc[0], part[part["method"] != "ours"].sort_values("ratio")
        least, most = rest.iloc[0], rest.iloc[-1]
        said.append(
            f"With {length} tokens, all heads and blocks of {own['prompts']} prompts take **{own['ratio']:.2f} times** the "
            f"forward pass here ({own['low']:.2f} to {own['high']:.2f} over {own['repeats']} repeats); the other ways take "
            f"{least['ratio']:.2f} ({least['by']}) to {most['ratio']:.2f} ({most['by']}) times."
        )
    agree = f"All ways give the same numbers: the largest difference is {t['difference_nats'].max():.1e} nats."
    return "\n\n".join([*said, agree])


def ways_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[t["work"] == ALL]
    return charts.bars(
        own.assign(length=own["tokens"].astype(str) + " tokens"), x="by", y="ratio", group="length",
        sort=list(dict.fromkeys(own["by"])), x_title="way", y_title="time over a forward pass",
        title="All heads and blocks",
        description="Bars: how many times a plain forward pass each way of scoring all heads takes, by prompt length; "
        "lines from the least to the most of the repeats.",
    )  # fmt: skip


def memory(t: pd.DataFrame) -> str:
    own = t[(t["work"] == ALL) & (t["tokens"] == t["tokens"].max())].sort_values("extra_mb")
    each = "; ".join(f"{row.by} {row.extra_mb:,.0f} MB" for row in own.itertuples())
    return (
        f"Peak memory beside the model, {own['prompts'].iloc[0]} prompts of {own['tokens'].iloc[0]} tokens: {each}. The "
        f"forward pass alone takes {own['forward_mb'].median():,.0f} MB."
    )


def sweep(t: pd.DataFrame, varied: str) -> pd.DataFrame:
    """The rows in which only this column varies."""
    groups = t.groupby([name for name in VARIED if name != varied])
    return max((part for _, part in groups), key=lambda part: part[varied].nunique()).sort_values(varied)


def sweep_chart(t: pd.DataFrame, varied: str) -> alt.TopLevelMixin:
    """Milliseconds a prompt: measured, predicted, and of the forward pass."""
    part = sweep(t, varied)
    lines = {"measured": "work_ms", "predicted": "predicted_ms", "a forward pass": "forward_ms"}
    long = pd.concat(
        [pd.DataFrame({varied: part[varied], "time": part[ms], "line": name}) for name, ms in lines.items()]
    )
    return charts.lines(
        long, x=varied, y="time", group="line", x_title=VARIED[varied], y_title="milliseconds a prompt", zero=True,
        title=f"All heads and blocks, by {VARIED[varied]}",
        description="Lines: the measured time, the time predicted from counted operations, and the forward pass.",
    )  # fmt: skip


def sweep_said(t: pd.DataFrame, varied: str) -> str:
    part = sweep(t, varied)
    first, last, off = part.iloc[0], part.iloc[-1], part["work_ms"] / part["predicted_ms"]
    growth = np.polyfit(np.log(part[varied]), np.log(part["work_ms"]), 1)[0]
    return (
        f"From {first[varied]:,} to {last[varied]:,} {VARIED[varied]}, the time over a forward pass goes from "
        f"{first['ratio']:.2f} to {last['ratio']:.2f}. The time a prompt grows as the power {growth:.2f}; the measured time is "
        f"{off.min():.2f} to {off.max():.2f} times the predicted."
    )
