"""Chapter 3 as a reader sees it: charts and claims of `studies.mrr`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import (
    Claim,
    Verdict,
    about_learning,
    among_others,
    code,
    finding,
    judge,
    listed,
    plural,
    together,
)
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

IN, RANDOM, ALL = "in-context heads", "random heads", "all other heads"


@about_learning
def overall(t: pd.DataFrame) -> Claim:
    """The claim of section 4.3: in-context heads read the label's word, and more than random heads of their layers.

    Shortcut: a head that writes one word, or some label, wherever it reads ranks the other label as high there.
    """
    ours, chance = estimate(t, "mrr", source=IN), float(t["chance"].iloc[0])
    row = t[t["source"] == IN].iloc[0]
    gain, own = (
        Interval(row[name], row[f"{name}_low"], row[f"{name}_high"], ours.n) for name in ("difference", "advantage")
    )
    of_random, of_other = judge(ours, gain, null=chance), judge(ours, own, null=chance)
    verdict = together([of_random, of_other])
    no_more = (
        "random heads of their layers do" if of_random is Verdict.CONTROL else "the other label's: it is some label"
    )
    said = {
        Verdict.HOLDS: "read the label's own word off its position, more than random heads of their layers do",
        Verdict.CONTROL: f"read the label's own word off its position, but no more than {no_more}",
        Verdict.FAILS: "do not read the label's own word off its position",
        Verdict.UNDECIDED: "cannot be told from a random order of words, or from random heads, with so few prompts",
    }[verdict]
    return Claim(
        verdict,
        f"The heads {listed(str(row['heads']).split(', '))} {said}: mean reciprocal rank {ours:.3f} against "
        f"{estimate(t, 'mrr', source=RANDOM):.3f}, a difference of {gain:.3f}; less that of the other label's word at the "
        f"same positions {own:.3f}; a random order gives {chance:.4f} (n = {plural(ours.n, 'query word')} as clusters).",
    )


def overall_rows(t: pd.DataFrame) -> pd.DataFrame:
    columns = ["source", "mrr", "low", "high", "other_mrr", "advantage", "median_rank", "at_rank_1", "values", "n"]
    return t[columns].round(4).set_index("source")


def by_head_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="of", y="mrr", group="source", x_title="located head (layer-head)", y_title="MRR",
        title="The label's own word in what a head reads off it",
        note="Random heads are of the same layers.",
    )  # fmt: skip


def by_head(t: pd.DataFrame) -> Claim:
    ours, theirs = t[t["source"] == IN].set_index("of"), t[t["source"] == RANDOM].set_index("of")
    above = int((ours["low"] > theirs["high"].reindex(ours.index)).sum())
    best, worst = ours["mrr"].idxmax(), ours["mrr"].idxmin()
    unbeaten = int((ours["outdone_by"] == 0).sum())
    return finding(
        f"In {above} of {plural(len(ours), 'head')} the interval lies above that of the random head. MRR runs from "
        f"{ours['mrr'][worst]:.3f} ({code(worst)}) to {ours['mrr'][best]:.3f} ({code(best)}); {unbeaten} of them are "
        "outdone by no other head of their layer."
    )


def by_set_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="shown", y="mrr", group="source", y_title="MRR", x_title="set (false/true class) and label read",
        title="MRR by set and label",
    )  # fmt: skip


def by_set(t: pd.DataFrame) -> Claim:
    wide = t.pivot(index=["dataset", "label"], columns="source", values=["mrr", "low", "high"])
    higher = int((wide["low"][IN] > wide["high"][RANDOM]).sum())
    return finding(f"In {higher} of {len(wide)} pairs of set and label the located heads lie above the random ones.")


def by_role(t: pd.DataFrame) -> Claim:
    if len(t) < 2:
        return finding("All label positions carry the same kind of label, so there is nothing to compare.")
    true, false = (estimate(t, "mrr", true=kind) for kind in (True, False))
    return finding(
        f"MRR is {true:.3f} at labels of the query's class and {false:.3f} at the others. What is read there is "
        "settled before the query comes, so within a head only the attention weights can answer to the query."
    )


def rank_shares_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.rank_curves(
        t, group="source", facet="label", title="Ranks of the label's word in its own value",
        x_title="rank (1 = top word; logarithmic)",
        description="Cumulative curves, one panel a label: located heads, random heads and all other heads.",
    )  # fmt: skip


def preferences_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    first, second, ours = t["first"].iloc[0], t["second"].iloc[0], t[t["source"] == IN]
    return charts.bars(
        ours, x="head", y="difference", group="reads", sort=list(ours["head"]), x_title="located head (layer-head)",
        y_title=f"MRR of “{first}” less MRR of “{second}”", title="One label read better than the other",
        description=f"Bars with 95% intervals, one a head; above zero it reads {first} better, below zero {second}.",
    )  # fmt: skip


@about_learning
def preferences(t: pd.DataFrame) -> Claim:
    ours, theirs = t[t["source"] == IN], t[t["source"] == RANDOM]
    top = ours.loc[ours["difference"].abs().idxmax()]
    clear = int((ours["reads"] != "neither").sum())
    return finding(
        f"{clear} of {plural(len(ours), 'head')} read one label clearly better; the largest difference is "
        f"{estimate(ours, 'difference', head=top['head']):.3f} in {code(top['head'])}. The mean size is "
        f"{ours['difference'].abs().mean():.3f}, in random heads {theirs['difference'].abs().mean():.3f}."
    )


def signed_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.head_map(
        t, value="reading", value_title="own label less the other (nats)", title="Heads that write the label up, or down",
    )  # fmt: skip


def signed_rows(t: pd.DataFrame) -> pd.DataFrame:
    """In-context heads and the random heads of their layers."""
    own = t[t["kind"].isin([IN, RANDOM])].sort_values("reading", ascending=False)
    columns = ["name", "kind", "reading", "low", "high", "counts", "signed_rank"]
    return own[columns].rename(columns={"signed_rank": "signed rank"}).round(3).set_index("name")


@about_learning
def signed(t: pd.DataFrame) -> Claim:
    """In-context heads write the label up, more than random heads of their layers do: section 4.3 with a sign."""
    effect, over = (Interval(*t[[n, f"{n}_low", f"{n}_high"]].iloc[0], int(t["n"].iloc[0])) for n in ("effect", "over"))
    outdone, draws = int(t["outdone"].iloc[0]), int(t["draws"].iloc[0])
    on_average = judge(effect, over)
    verdict = among_others(on_average, outdone, draws)

    def counts(own: pd.DataFrame) -> str:
        up, down = (int((own["counts"] & (sign * own["reading"] > 0)).sum()) for sign in (1, -1))
        return f"{up} write it up and {down} down"

    said = {
        Verdict.HOLDS: "write the label that stands there up, more than random heads of their layers",
        Verdict.CONTROL: "write the label that stands there up, but no more than random heads of their layers",
        Verdict.FAILS: "do not write the label that stands there up",
    }.get(verdict, "cannot be told from heads that write neither label up")
    if on_average is Verdict.HOLDS and verdict is not Verdict.HOLDS:
        why = (
            "too many random sets of heads reach as much"
            if verdict is Verdict.CONTROL
            else "too few sets were drawn to tell"
        )
        said = f"write the label that stands there up, and more than random heads on average, but {why}"
    ours, rest = t[t["kind"] == IN], t[t["kind"] != IN]
    return Claim(
        verdict,
        f"With a sign, the in-context heads {said}: {effect:+.2f} nats over the other label (less random heads {over:+.2f}). Of "
        f"these, {counts(ours)}; of all other heads {counts(rest)}.",
    )
