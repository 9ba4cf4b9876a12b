"""Chapter 5 as a reader sees it: charts and claims of `studies.variants`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, about_learning, code, finding, judge, plural
from twotowers.exhibits.claim import together as together_of
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

IN, RANDOM, OVER, ALL = "in-context heads", "random heads", "in-context less random", "mean of all"
REST = "in-context less softmax alone"


def accuracy_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="dataset", y="accuracy", group="form", y_title="accuracy", title="Accuracy of the three forms",
    )  # fmt: skip


def accuracy(t: pd.DataFrame) -> Claim:
    def fall(form: str) -> str:
        own = t[t["form"] == form]
        return f"falls in {int((own['margin_high'] < 0).sum())} and rises in {int((own['margin_low'] > 0).sum())}"

    return finding(
        f"Of {plural(t['dataset'].nunique(), 'set')}, the margin of the true label {fall('last true one removed')} when the last "
        f"true demonstration goes; it {fall('true ones first')} when the true ones stand first (paired 95% intervals)."
    )


def _changes_chart(t: pd.DataFrame, form: str) -> alt.TopLevelMixin:
    own = t[(t["head"] != ALL) & t["kind"].isin([IN, RANDOM])]
    return charts.bars(
        own, x="head", y="change", group="label", facet="kind",
        sort=list(dict.fromkeys(own["head"])), x_title="head (layer-head)", y_title="change of the summed attention",
        title=f"Change of attention: {form}",
        note="Random heads are of the same layers.",
    )  # fmt: skip


def removed_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return _changes_chart(t, "last true one removed")


def reordering_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return _changes_chart(t, "true ones first")


def _heads_that(t: pd.DataFrame, side: str, sign: int) -> tuple[int, int]:
    own = t[(t["kind"] == IN) & (t["head"] != ALL) & (t["label"] == f"{side} labels")]
    clear = own["high"] < 0 if sign < 0 else own["low"] > 0
    return int(clear.sum()), len(own)


def removed(t: pd.DataFrame) -> Claim:
    true, false = (estimate(t, "change", kind=IN, head=ALL, label=f"{side} labels") for side in ("true", "false"))
    falls, of = _heads_that(t, "true", -1)
    rises, _ = _heads_that(t, "false", 1)
    return finding(
        f"The sum on true labels changes by {true:+.2f}, that on false labels by {false:+.2f}; the first falls in {falls} and the "
        f"second rises in {rises} of {plural(of, 'in-context head')}. Whether this says anything of the class, the next figure "
        "judges."
    )


def softmax_alone_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[t["kind"].isin([IN, RANDOM])], x="kind", y="change", group="source", x_title="heads",
        y_title="change of the sum on true labels",
        title="One true demonstration fewer: measured, and by the softmax alone",
        note="Random heads are of the same layers.",
    )  # fmt: skip


@about_learning
def softmax_alone(t: pd.DataFrame) -> Claim:
    """Section 5.1. The fall counts only beyond what a softmax over unchanged scores does, and beyond random heads."""
    measured, alone, rest = (estimate(t, "change", kind=IN, source=s) for s in ("measured", "softmax alone", "rest"))
    over = estimate(t, "change", kind=OVER, source="rest")
    verdict = judge(measured, rest, sign=-1)
    if verdict is Verdict.HOLDS:
        verdict = judge(rest, over, sign=-1)
    said = {
        Verdict.HOLDS: "More attention leaves the true labels than the softmax alone would take, and more than in random heads",
        Verdict.CONTROL: "Attention leaves the true labels, but no more than the softmax alone, or random heads, would make it",
        Verdict.FAILS: "Attention does not leave the true labels",
    }.get(verdict, "The change of attention on true labels cannot be told from zero")
    return Claim(
        verdict,
        f"{said}: measured {measured:+.3f}, softmax alone {alone:+.3f}, the rest {rest:+.3f}; the rest less that of random heads "
        f"is {over:+.3f} (n = {plural(measured.n, 'query word')})."
        + (" Any shorter prompt may do the same: the opposite test asks." if verdict is Verdict.HOLDS else ""),
    )


def which_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[t["heads"].isin([IN, RANDOM])], x="removed", y="change", group="heads",
        x_title="which demonstration is removed", y_title="change of attention, true less false",
        title="Removing each demonstration in turn",
    )  # fmt: skip


@about_learning
def which(t: pd.DataFrame) -> Claim:
    """Removing a false demonstration leans attention the other way, more than in random heads.

    Shortcut: a softmax over unchanged scores leans that way too, whatever the heads know of classes.
    """
    nearest = t[(t["kind"] == "false one") & t["removed"].str.endswith("nearest")]
    effect, over, rest = (estimate(nearest, "change", heads=heads) for heads in (IN, OVER, REST))
    row = nearest[nearest["heads"] == IN].iloc[0]
    margin = Interval(row["margin_change"], row["margin_low"], row["margin_high"], effect.n)
    verdicts = judge(effect, over), judge(effect, rest)
    verdict = together_of(verdicts)
    no_more = "in random heads" if verdicts[0] is Verdict.CONTROL else "a softmax over unchanged scores would"
    said = {
        Verdict.HOLDS: "leans attention towards the true labels, more than in random heads and than the softmax alone would",
        Verdict.CONTROL: f"leans attention towards the true labels, no more than {no_more}",
        Verdict.FAILS: "does not lean attention towards the true labels",
    }.get(verdict, "does not clearly lean attention either way")
    return Claim(
        verdict,
        f"The opposite test: removing the nearest *false* demonstration {said}: {effect:+.2f} (in-context less random heads "
        f"{over:+.2f}, less what the softmax alone makes {rest:+.2f}), while the margin moves by {margin:+.2f} nats.",
    )


@about_learning
def reordering(t: pd.DataFrame) -> Claim:
    """Section 5.2: farther labels get less attention. A softmax over unchanged scores would change nothing here."""
    effect, over = (estimate(t, "change", kind=kind, head=ALL, label="true labels") for kind in (IN, OVER))
    verdict = judge(effect, over, sign=-1)
    falls, of = _heads_that(t, "true", -1)
    said = {
        Verdict.HOLDS: "lose attention, more than in random heads of the same layers",
        Verdict.CONTROL: "lose attention, but no more than in random heads of the same layers",
        Verdict.FAILS: "lose no attention",
    }.get(verdict, "do not clearly lose attention")
    return Claim(
        verdict,
        f"With the true demonstrations first, true labels {said}: {effect:+.2f} (in-context less random heads {over:+.2f}); the "
        f"sum falls in {falls} of {plural(of, 'in-context head')}. It shows that nearness counts; the class may count as well.",
    )


def orders_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t,
        x="order", y="difference", group="heads", x_title="order of the demonstrations, the query at the right end",
        y_title="attention on true less false labels", title="Attention over orders of the demonstrations",
    )  # fmt: skip


def orders(t: pd.DataFrame) -> Claim:
    own = t[t["heads"] == IN].set_index("order")
    low, high = own["accuracy"].idxmin(), own["accuracy"].idxmax()
    attention = (own["difference"].idxmin(), own["difference"].idxmax())
    return finding(
        f"Accuracy goes from {own['accuracy'][low]:.0%} ({code(low)}) to {own['accuracy'][high]:.0%} ({code(high)}); attention on "
        f"true less false labels from {own['difference'].min():+.2f} ({code(attention[0])}) to {own['difference'].max():+.2f} "
        f"({code(attention[1])})."
    )


def together_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t,
        x="dataset", y="correlation", group="heads", facet="form", x_title="set", y_title="correlation over prompts",
        title="How far the margin moves with attention",
    )  # fmt: skip


def together(t: pd.DataFrame) -> Claim:
    rows = t.pivot(index=["form", "dataset"], columns="heads", values=["low", "high", "share"])
    if not {IN, RANDOM} <= set(t["heads"]):
        return finding("In one kind of heads nothing varies from prompt to prompt, so there is no comparison.")
    above = int((rows["low"][IN] > rows["high"][RANDOM]).sum())
    return finding(
        f"In {above} of {len(rows)} pairs of form and set the correlation lies above that in random heads. The median share of "
        f"the margin's spread that goes with attention is {rows['share'][IN].median():.0%}, with that of random heads "
        f"{rows['share'][RANDOM].median():.0%}. It is a correlation; chapters 6 and 11 intervene."
    )


def flips(t: pd.DataFrame) -> Claim:
    said = []
    for form, own in t.groupby("form", sort=False):
        wrong = own[own["answer"] == "turns wrong"]
        if wrong.empty or "stays" not in set(own["answer"]):
            total = int(own["total"].iloc[0])
            turned = int(wrong["prompts"].sum()) if len(wrong) else 0
            said.append(
                f"{form}: {'nearly all' if turned > total / 2 else 'hardly any'} answers turn wrong: nothing to compare"
            )
        else:
            a, b = (estimate(own, "change", answer=answer) for answer in ("turns wrong", "stays"))
            said.append(
                f"{form}: attention changes by {a:+.2f} where the answer turns wrong and by {b:+.2f} where it stays"
            )
    return finding("; ".join(said) + ".")
