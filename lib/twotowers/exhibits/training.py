"""Chapter 13 as a reader sees it: charts and claims of `studies.training`."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, code, counted, finding, listed, plural
from twotowers.stats import charts
from twotowers.studies.training import (
    ALL,
    COPIED,
    DRILLS,
    INDUCTION,
    INTERACTION,
    LAST,
    OURS,
    OVER,
    PARTS,
    READING,
    TWO_LABEL,
)

DATE = "2026-11-22"  # of the rule of `first`, before any table of a whole training was seen
LEAST = 6  # seeds: fewer agree by chance more than once in 20 times, 2 ** (1 - n). Raised on 2026-11-22, after three were seen
HALF = PARTS[1]
SHOWN = {
    TWO_LABEL: "two-label accuracy", COPIED: "repeated tokens copied", "increase": "increase (nats)",
    READING: "label reading (nats)", INTERACTION: "class interaction (nats)", INDUCTION: "induction (weight)",
}  # fmt: skip
DOTS = {
    READING: "label reading (values)", INTERACTION: "class interaction (towers)",
    "attention difference": "attention difference", "increase": "increase", TWO_LABEL: "two-label accuracy",
}  # fmt: skip
ONE = {1: "values", -1: "towers"}  # by the sign of a lead


def recorded(t: pd.DataFrame) -> Claim:
    """What was trained and measured."""
    seeds = t.groupby("seed")["checkpoints"].sum()
    return finding(
        f"{plural(len(seeds), 'training')}, alike but for the seed; {counted(seeds)} checkpoints of each were kept, and every one "
        f"was measured on {int(t['prompts'].iloc[0])} counterbalanced prompts of each word set. Recorded on "
        f"{code(t['recorded'].iloc[0])} ({code(t['machine'].iloc[0])})."
    )


def stages_rows(t: pd.DataFrame) -> pd.DataFrame:
    """What each stage leaves behind, seeds in their order."""
    shown = {"ends at update": ("end", ",.0f"), "two-label accuracy": (TWO_LABEL, ".2f"), "tokens copied": (COPIED, ".2f"),
             "label reading (nats)": (READING, "z.2f"), "class interaction (nats)": (INTERACTION, "z.2f")}  # fmt: skip
    by = t.sort_values("seed", kind="stable").groupby("stage", sort=False)
    joined = {name: by[column].agg(lambda values, how=how: " / ".join("none" if pd.isna(v) else f"{v:{how}}" for v in values))
              for name, (column, how) in shown.items()}  # fmt: skip
    return pd.DataFrame(joined)


def course_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    t = t[t["quantity"].isin(SHOWN)].assign(panel=t["quantity"].map(SHOWN))
    order = {name: i for i, name in enumerate(SHOWN.values())}
    return charts.lines(
        t.dropna(subset="value").sort_values(["panel", "seed", "step"], key=lambda c: c.map(order) if c.name == "panel" else c),
        x="step", y="value", group="heads", dash="seed", facet="panel", x_title="update", y_title="mean", height=150, zero=True,
        title="Along the training",
    )  # fmt: skip


def onsets_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    t = t[(t["since"] == DRILLS) & t["heads"].isin([OURS, ALL]) & t["quantity"].isin(DOTS)]
    t = t.assign(shown=t["quantity"].map(DOTS), seed="seed " + t["seed"].astype(str))
    wide = t.pivot(index=["shown", "seed"], columns="part", values="step").rename(
        columns=dict(zip(PARTS, "abc", strict=True))
    )
    rows = wide.reset_index().dropna()
    base = alt.Chart(rows).encode(
        y=alt.Y("shown:N", title=None, sort=list(DOTS.values()), axis=alt.Axis(labelLimit=200)),
        yOffset=alt.YOffset("seed:N"), color=charts.colour("seed", rows),
    )  # fmt: skip
    x = alt.X("b:Q", title="update", axis=alt.Axis(format=",d"), scale=alt.Scale(zero=True))
    tips = [
        "seed",
        "shown",
        *(alt.Tooltip(f"{name}:Q", title=f"{part:.0%} of its end") for name, part in zip("abc", PARTS, strict=True)),
    ]
    chart = base.mark_rule(strokeWidth=2).encode(x=alt.X("a:Q", title="update"), x2="c:Q") + base.mark_point(
        filled=True, size=70
    ).encode(x=x, tooltip=tips)
    return charts.finished(
        chart, "When each quantity comes",
        "One row a quantity, one point a seed: the update from which the quantity stays above half of what it ends at; lines from a "
        "quarter to three quarters.", height=260,
    )  # fmt: skip


def onsets_rows(t: pd.DataFrame) -> pd.DataFrame:
    """When half of the end is passed: of values and of towers, in-context heads beside their control."""
    t = t[(t["part"] == HALF) & t["quantity"].isin([READING, INTERACTION])]
    said = ["never" if pd.isna(r.step) else f"{r.step:,.0f} ({r.stage})" for r in t.itertuples()]
    t = t.assign(shown=said, column="seed " + t["seed"].astype(str))
    wide = t.pivot(index=["since", "quantity", "heads"], columns="column", values="shown").rename_axis(columns=None)
    return wide.loc[list(dict.fromkeys(zip(t["since"], t["quantity"], t["heads"], strict=True)))].sort_index(
        level="since", sort_remaining=False, ascending=False, kind="stable"
    )


def _leads(t: pd.DataFrame, heads: str, since: str) -> pd.Series:
    """Updates by which values come before towers, by seed and part; missing where one of them never comes."""
    rows = t[(t["heads"] == heads) & (t["since"] == since)]
    wide = rows.pivot(index=["seed", "part"], columns="quantity", values="step")
    return wide[INTERACTION] - wide[READING]


def _side(leads: pd.Series) -> int:
    """1 when values come first for every seed and part, -1 when towers do, 0 for all else."""
    return next((side for side in ONE if (np.sign(leads) == side).all()), 0)


def _which(t: pd.DataFrame, since: str) -> Claim:
    """Values or towers? Only where all seeds agree at all PARTS; and so must what the heads have over their control."""
    ours, n = _leads(t, OURS, since), t["seed"].nunique()
    half, side, beyond = ours.xs(HALF, level="part"), _side(ours), _side(_leads(t, OVER, since))
    few = f" Fewer than {LEAST} seeds decide nothing." if n < LEAST else ""
    if side == 0:
        lost = half.isna().sum()
        never = f"one of the two never comes in {lost}" if lost else "both come in every seed"
        return Claim(
            Verdict.UNDECIDED,
            f"Half of its end is passed first by label reading in {int((half > 0).sum())} of {plural(n, 'seed')}, and by class "
            f"interaction in {int((half < 0).sum())}; {never}. Over all seeds, at a quarter, half and three quarters, neither is "
            f"always first.{few}",
        )
    names, agree = (READING, INTERACTION)[::side], beyond == side
    verdict = (Verdict.HOLDS if side == 1 else Verdict.FAILS) if agree else Verdict.CONTROL
    return Claim(
        Verdict.UNDECIDED if few else verdict,
        f"{ONE[side].capitalize()} come first in each of {plural(n, 'seed')}: {names[0]} of the later in-context heads passes a "
        f"quarter, half and three quarters of its end before {names[1]} does (half of it {counted(abs(half))} updates before), "
        f"{'also' if agree else 'but not'} in what they have beyond the other heads of their layers.{few} By chance alone so many "
        f"seeds agree once in {2 ** (n - 1)} times.",
    )


def first(t: pd.DataFrame) -> Claim:
    """Values come before the towers. FAILS where the towers come first."""
    claim = _which(t, DRILLS)
    half = t[(t["since"] == DRILLS) & (t["heads"] == OURS) & (t["part"] == HALF)].dropna(subset="step")
    values, towers = (half[half["quantity"] == name] for name in (READING, INTERACTION))
    if values.empty or towers.empty:
        return claim
    asked = (
        " Before the last stage the text asks for copies and never for classes, so this order is the text's as much as the model's."
        if towers["late"].all() and not values["late"].any()
        else ""
    )
    return Claim(
        claim.verdict,
        f"{claim.sentence} Of the stages, label reading passes half in {listed(values['stage'].unique())}, class interaction in "
        f"{listed(towers['stage'].unique())}.{asked}",
    )


def again(t: pd.DataFrame) -> Claim:
    """Values come first in the last stage alone, too: of what is gained in it, the only one that asks for classes."""
    return _which(t, LAST)


def last_stage(t: pd.DataFrame) -> Claim:
    """What the in-context heads had when the last stage began, and what they end with."""
    began, ended = (t.groupby("seed").nth(at)[[READING, INTERACTION]].mean() for at in (-2, -1))
    if began.isna().any() or ended.isna().any():
        return finding("No seed has in-context heads at the end, or the training has one stage only.")
    seeds = plural(t["seed"].nunique(), "seed")
    return finding(
        f"In the last stage the in-context heads' label reading goes from {began[READING]:z.2f} to {ended[READING]:z.2f} nats, their "
        f"class interaction from {began[INTERACTION]:z.2f} to {ended[INTERACTION]:z.2f} (means over {seeds})."
    )


def answers(t: pd.DataFrame) -> Claim:
    """When is the model right, beside when values and towers come?"""
    half = t[(t["since"] == DRILLS) & t["heads"].isin([OURS, ALL]) & (t["part"] == HALF)]
    steps = half.pivot(index="seed", columns="quantity", values="step")[[TWO_LABEL, READING, INTERACTION]].dropna()
    if steps.empty:
        return finding("In no seed are accuracy, values and towers all above zero at the end.")
    right, both = steps[TWO_LABEL], steps[[READING, INTERACTION]].max(axis=1)
    return finding(
        f"Half of the way from a guess to its final two-label accuracy is passed at update {counted(right)}: "
        f"not before both values and towers have passed half of theirs in {int((right >= both).sum())} of "
        f"{plural(len(steps), 'seed')}."
    )


def inherited(t: pd.DataFrame) -> Claim:
    """Were the later in-context heads the induction heads of the drills?"""
    t = t[t["k"] > 0]
    if t.empty:
        return finding("No seed has in-context heads at the end.")
    return finding(
        f"When the last stage began, {int(t['shared'].sum())} of {plural(t['k'].sum(), 'later in-context head')} were among as many "
        f"heads with the largest induction score of their seed; by chance within layers {t['expected'].sum():.1f} would be. Their "
        f"mean score was {t['in_context'].mean():.2f}, that of all other heads {t['others'].mean():.2f}."
    )


def inherited_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Seed by seed, with the chance of sharing as many."""
    shown = {"in-context heads": t["k"], "shared": t["shared"], "by chance": t["expected"].map("{:.1f}".format),
             "p": t["p"].map("{:.3f}".format)}  # fmt: skip
    return pd.DataFrame(shown).set_axis("seed " + t["seed"].astype(str), axis=0)


def heads_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    """Every head's values and towers at the checkpoint that a slider chooses; a seed with fewer of them stays at its last."""
    t = t.assign(
        heads=np.where(t["in_context"].astype(bool), OURS, "other heads"), seed="seed " + t["seed"].astype(str)
    )
    names = {READING: "reading", INTERACTION: "interaction", "increase": "increase", INDUCTION: "induction"}
    t = t.rename(columns=names).sort_values(["seed", "checkpoint"], kind="stable")
    # One row a checkpoint, unfolded in the browser: the page stays small.
    columns = ["head", "heads", *names.values()]
    rows = t.groupby(["seed", "checkpoint", "step", "stage"], sort=False)[columns].agg(list).reset_index()
    rows["last"] = rows.groupby("seed")["checkpoint"].transform("max")
    most, seeds = int(rows["last"].max()), list(dict.fromkeys(rows["seed"]))
    slider = alt.binding_range(min=0, max=most, step=1, name="checkpoint ")
    at = alt.param("checkpoint", value=most, bind=slider)
    now = alt.Chart(rows).transform_filter("datum.checkpoint == min(checkpoint, datum.last)")

    def scale(column: str) -> alt.Scale:  # the frame stands still while points move
        return alt.Scale(domain=[float(t[column].min()), float(t[column].max())], nice=True)

    grey = alt.Legend(title=None, symbolFillColor=charts.GREY, symbolStrokeColor=charts.GREY)
    tips = ["seed", "head", "heads", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in names.values())]
    points = now.transform_flatten(columns).mark_point(filled=True, opacity=0.75).encode(
        x=alt.X("reading:Q", title="label reading (nats): what would be written", scale=scale("reading")),
        y=alt.Y("interaction:Q", title="class interaction (nats): whom it looks at", scale=scale("interaction")),
        color=charts.colour("heads", t.sort_values("heads")), shape=alt.Shape("seed:N", scale=alt.Scale(domain=seeds), legend=grey),
        size=alt.condition(alt.datum.heads == OURS, alt.value(90), alt.value(30)), tooltip=tips,
    )  # fmt: skip
    said = now.transform_calculate(
        said="datum.seed + ': update ' + format(datum.step, ',') + ', ' + datum.stage"
    ).mark_text(align="left", color=charts.GREY, fontSize=12)
    texts = [said.transform_filter(alt.datum.seed == seed).encode(text="said:N", x=alt.value(6), y=alt.value(10 + 16 * i))
             for i, seed in enumerate(seeds)]  # fmt: skip
    return charts.finished(
        alt.layer(points, *texts).add_params(at), "Every head, by checkpoint",
        "Points are heads of every seed: label reading against class interaction at the checkpoint that the slider below chooses; "
        "later in-context heads are marked.", height=340,
    )  # fmt: skip
