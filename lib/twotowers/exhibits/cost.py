"""The page on cost: charts and sentences of the recorded benchmarks (benchmarks/results)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import altair as alt
import numpy as np
import pandas as pd

from twotowers.exhibits.claim import code, listed
from twotowers.exhibits.scorecard import Model
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


def execution(found: Iterable[Model]) -> pd.DataFrame:
    """What the saved tables say of how they were made: one row per chapter and model.

    chapter, model, tables, seconds (of all its tables together), date (of the latest), machine, prompts (a set; missing
    where a chapter draws none), failed (tables that could not be made).
    """
    rows = []
    for model in found:
        for name, table in model.tables.items():
            told = table.attrs["provenance"]
            if (begins := re.match(r"\d+-[a-z-]+?(?=-)", name)) and "seconds" in told:
                asked = told["identity"]["parameters"].get("n_prompts")
                rows.append((told["identity"]["study"], model.name, told["seconds"], told["date"], told["machine"],
                             asked, bool(told["unavailable"]), begins[0]))  # fmt: skip
    columns = ["study", "model", "seconds", "date", "machine", "prompts", "failed", "number"]
    t = pd.DataFrame(rows, columns=columns)
    t["chapter"] = t["number"].str.extract(r"^(\d+)", expand=False).astype(int)
    return t.groupby(["model", "chapter"], sort=True, as_index=False).agg(
        tables=("study", "size"), seconds=("seconds", "sum"), date=("date", "max"), machine=("machine", "first"),
        prompts=("prompts", "max"), failed=("failed", "sum"),
    )  # fmt: skip


def execution_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each chapter, a column a model; an empty place where nothing is saved."""
    wide = t.pivot(index="chapter", columns="model", values="seconds")
    return wide.rename_axis(columns=None).map(lambda s: "" if pd.isna(s) else f"{s:,.0f} s")


def execution_said(t: pd.DataFrame) -> str:
    """For each model: when, where, on how many prompts, and what could not be made."""
    said = []
    for model, own in t.groupby("model", sort=False):
        prompts = f", {own['prompts'].max():,.0f} prompts a set" if own["prompts"].notna().any() else ""
        lost = (
            f"; {own['failed'].sum()} of {own['tables'].sum()} tables could not be made" if own["failed"].any() else ""
        )
        said.append(
            f"{code(model)}: {own['seconds'].sum():,.0f} s in all, last on {own['date'].max()} "
            f"({listed(own['machine'].unique())}){prompts}{lost}."
        )
    return "\n\n".join(said)
