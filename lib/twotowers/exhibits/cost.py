"""The page on cost: charts and sentences of the recorded benchmarks (benchmarks/results)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import altair as alt
import numpy as np
import pandas as pd

from twotowers.exhibits.claim import code, listed, plural
from twotowers.exhibits.scorecard import Model
from twotowers.paper import costs
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
            f"{least['ratio']:.2f} ({least['by']}) to {most['ratio']:.2f} ({most['by']}) times. Counted in operations of matrix "
            f"products, on any machine, it is {own['counted_ratio']:.2f} here and {rest['counted_ratio'].min():.2f} or more there."
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


ON = {"cpu": "on a CPU", "cuda": "on a GPU"}
MANY = 64  # prompts from which on a GPU is not mostly waiting to be told the next step


def on_gpu(t: pd.DataFrame) -> pd.DataFrame:
    """Of `costs.held` what was measured of many prompts on a GPU; all of it where nothing was."""
    own = t[(t["device"] == "cuda") & (t["prompts"] >= MANY)]
    return own if len(own) else t


def held_rows(t: pd.DataFrame) -> pd.DataFrame:
    """How far measured times are from predicted ones (`costs.held`): one row per work and shape, with what was varied."""

    def between(values: pd.Series, form: str = "{:,}") -> str:
        least, most = form.format(values.min()), form.format(values.max())
        return least if least == most else f"{least} to {most}"

    rows = []
    for (work, shape, dtype, device), part in t.groupby(["work", "shape", "dtype", "device"], sort=False):
        varied = {shown: between(part[name]) for name, shown in VARIED.items()}
        over = between(part["over"], "{:.2f}")
        rows.append(
            {
                "work": work,
                "shape": f"{shape}, {dtype}, {ON[device]}",
                "n": len(part),
                **varied,
                "measured over predicted": over,
            }
        )
    return pd.DataFrame(rows).set_index("work")


def _times(over: pd.Series) -> str:
    """From the least to the most, or one number where these look alike."""
    return " to ".join(dict.fromkeys(f"{value:.2f}" for value in (over.min(), over.max())))


def held_said(t: pd.DataFrame) -> str:
    """How far the measured times are from the predicted, at the least and at the most, of each work; CPU and GPU apart."""
    said = []
    for device, own in t.groupby("device"):
        each = [f"{_times(part['over'])} ({work})" for work, part in own.groupby("work", sort=False)]
        said.append(
            f"Over {len(own)} measurements {ON[device]} in {plural(own['shape'].nunique(), 'shape')}, the measured time is "
            f"**{_times(own['over'])} times** the predicted: {'; '.join(each)}."
        )
    few = t[(t["device"] == "cuda") & (t["prompts"] < MANY)]
    if len(few):
        said.append(
            f"On a GPU the formula is too low, most where prompts are few: with fewer than {MANY}, "
            f"{_times(few['over'])} times; it does not count what starting each step costs."
        )
    return " ".join(said)


def memory_rows(t: pd.DataFrame) -> pd.DataFrame:
    """How far measured peaks of memory are from counted ones (`costs.held_memory`): one row per work and shape."""
    rows = []
    for (work, shape, dtype), part in t.groupby(["work", "shape", "dtype"], sort=False):
        least, most = part["over"].min(), part["over"].max()
        rows.append(
            {"work": work, "shape": f"{shape}, {dtype}", "n": len(part), "most MB": f"{part['measured_mb'].max():,.0f}",
             "measured over predicted": f"{least:.2f}" + (f" to {most:.2f}" if most > least else ""),
             "forward pass, measured over counted": f"{part['forward_over'].min():.2f} to {part['forward_over'].max():.2f}"}
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("work")


def memory_said(t: pd.DataFrame) -> str:
    """How far measured peaks are from the predicted; how far apart two recordings of one thing are; which forward passes
    by themselves take what no count holds."""
    same = t.groupby(["work", "shape", "dtype", "prompts", "tokens", "vocabulary"])["measured_mb"]
    apart = (same.max() / same.min())[same.size() > 1]
    plain = {dtype: part["forward_over"] for dtype, part in t.groupby("dtype", sort=False)}
    passes = "; ".join(f"in {dtype} {over.min():.2f} to {over.max():.2f} times" for dtype, over in plain.items())
    twice = f" Two recordings of the same differ by up to {apart.max():.2f} times." if len(apart) else ""
    return (
        f"Over {len(t)} measurements in {plural(t['shape'].nunique(), 'shape')}, the peak beside the weights is "
        f"**{t['over'].min():.2f} to {t['over'].max():.2f} times** the predicted.{twice} A plain forward pass by itself takes "
        f"what is counted for it {passes}."
    )


def reached(t: pd.DataFrame) -> str:
    """Which share of a machine's rate of large products forward passes reach; "" where rates were not measured."""
    t = t[t["torch_gflop_s"].notna() & (t["dtype"] == "float32")]
    t = t.assign(share=t["forward_gflop"] / t["forward_ms"] * 1000 / t["torch_gflop_s"])
    each = [f"{ON[device]} {own['share'].min():.0%} to {own['share'].max():.0%}" for device, own in t.groupby("device")]
    said = "Of the rate at which torch makes large products, recorded forward passes in float32 reached"
    return f"{said} {' and '.join(each)}." if each else ""


def assumed(found: Iterable[costs.Device]) -> str:
    """What the prediction takes from data sheets and price lists, and what it only assumes."""
    said = [
        f"- {one.device}: {one.bfloat16_tflops:,g} TFLOP/s in bfloat16, {one.float32_tflops:,g} in float32, "
        f"{one.bandwidth_gb_s:,g} GB/s, {one.memory_gb:,g} GB ({one.rates_from}); {one.dollars_low:.2f} to {one.dollars_high:.2f} "
        f"dollars an hour ({one.prices_from}). Assumed to reach {one.utilisation_low:.0%} to {one.utilisation_high:.0%} of "
        "these rates."
        for one in found
    ]
    return "\n".join(said)


def span(low: float, high: float) -> str:
    """Two times in the unit that fits the longer one; "does not fit" when they are missing."""
    if pd.isna(low):
        return "does not fit"
    unit, name = next(((u, n) for u, n in ((3600, "h"), (60, "min")) if high >= 2 * u), (1, "s"))
    return (
        f"{low / unit:,.2g} to {high / unit:,.2g} {name}"
        if high < 100 * unit
        else f"{low / unit:,.0f} to {high / unit:,.0f} {name}"
    )


def _gpus(n: int) -> str:
    return "one GPU" if n == 1 else f"{n} GPUs"


def _together(t: pd.DataFrame) -> pd.DataFrame:
    """All works of each model, device and number of GPUs: seconds and dollars; missing where the model does not fit."""
    sums = ["seconds_low", "seconds_high", "dollars_low", "dollars_high"]
    by = t.groupby(["model", "device", "gpus"], sort=False)
    return by[sums].sum(min_count=1).join(by["memory_gb"].first()).reset_index()


def whole_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Times of each work of the whole paper and of all, and the price of all, on the last device (`costs.whole_paper`)."""
    t = t[t["device"] == t["device"].iloc[-1]]
    each = t.assign(time=[span(*row) for row in t[["seconds_low", "seconds_high"]].to_numpy()])
    wide = each.pivot(index=["model", "gpus"], columns="work", values="time")[list(dict.fromkeys(t["work"]))]
    all_ = _together(t).set_index(["model", "gpus"])
    wide = wide.loc[all_.index]
    wide["together"] = [span(*row) for row in all_[["seconds_low", "seconds_high"]].to_numpy()]
    wide["dollars"] = [
        "" if pd.isna(low) else f"{low:,.2f} to {high:,.2f}"
        for low, high in all_[["dollars_low", "dollars_high"]].to_numpy()
    ]
    named = zip(all_.index, all_["memory_gb"], strict=True)
    wide.index = [f"{model} ({gb:,.0f} GB), {_gpus(gpus)}" for (model, gpus), gb in named]
    return wide.rename_axis(columns=None)


def whole_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    """Hours of all works together, a bar a device: the middle of the range, and the range."""
    found = _together(t).dropna()
    found = found.assign(
        low=found["seconds_low"] / 3600, high=found["seconds_high"] / 3600,
        hours=np.sqrt(found["seconds_low"] * found["seconds_high"]) / 3600,
        where=found["gpus"].map(_gpus),
    )  # fmt: skip
    return charts.bars(
        found, x="model", y="hours", group="device", facet="where", x_title="model", y_title="hours",
        title="The whole paper, predicted",
        description="Bars: predicted hours of all works together, by model and device, on one GPU and on several; the middle "
        "(geometric mean) of the range that the lines show. Where a model does not fit there is no bar.",
    )  # fmt: skip


def whole_said(t: pd.DataFrame) -> str:
    """What all models together take where most fit, and fastest, on one GPU; what zeroing takes of it; what does not fit."""
    by_device = t[t["gpus"] == 1].groupby("device")["seconds_low"].agg(["count", "sum"])
    device = by_device.sort_values(["count", "sum"], ascending=[False, True]).index[0]
    said = [
        f"Predicted for {costs.SETS} sets of {costs.PROMPTS:,} prompts of {t['tokens'].iloc[0]} tokens, weights in bfloat16, on "
        f"{device}:"
    ]
    for gpus, own in t[t["device"] == device].groupby("gpus"):
        fits = own[own["copies"] > 0]
        low, high, least, most = fits[["seconds_low", "seconds_high", "dollars_low", "dollars_high"]].sum()
        dear = fits[fits["work"] == costs.DEAREST]["seconds_low"].sum() / low
        said.append(
            f"- on {_gpus(gpus)}, {fits['model'].nunique()} of {own['model'].nunique()} models fit, and all works "
            f"take **{span(low, high)}** for {least:,.2f} to {most:,.2f} dollars; {dear:.0%} of it is {costs.DEAREST}."
        )
    lost = t[t["copies"] == 0].drop_duplicates(["model", "device", "gpus"])
    if len(lost):
        each = (f"{row.model} ({row.memory_gb:,.0f} GB, {_gpus(row.gpus)}, {row.device})" for row in lost.itertuples())
        said.append(f"- What does not fit: {'; '.join(each)}.")
    return "\n".join(said)


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
