"""Chapter 11 as a reader sees it: charts and claims of `studies.towers_apart`."""

from __future__ import annotations

from math import isnan

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, about_learning, finding, judge, plural, together, untestable
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

OURS, RANDOM, ALL, OVER = "in-context heads", "random heads", "all heads", "in-context less random"
WHAT = ("query", "keys", "values", "all")
QUERIES, KEYS, VALUES = "query pairs", "key pairs", "value pairs"
TEXTS, QUERY = "labels and colons to own text", "last to query"
NEIGHBOURS = "labels to earlier demonstrations"
THIRDS = ("lower", "middle", "upper")
MARGIN_SHARE = "margin's share"
CONTROLS = {
    "margin lost": "the margin itself falls as much",
    MARGIN_SHARE: "by no larger share of itself than the margin falls",
    "silent texts": "the effect of the order of labels alone does as much",
    "silent texts' share": "by no larger share of itself than the effect of the order of labels alone",
}
"""Of the mixing: kinds of its table, and what is said when the effect shrinks no more than one"""
WIDER = 1.41  # 2.77 / 1.96: normal quantiles of 95% over nine intervals, and of one


def exchanged_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[t["heads"].isin([OURS, RANDOM, ALL]) & t["what"].isin(WHAT)], x="what", y="moved", group="heads", facet="pairs",
        sort=list(WHAT), x_title="taken from the other prompt", y_title="margin moved to the other label (nats)",
        title="Only the query, only the keys, only the values",
    )  # fmt: skip


def exchanged_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Nats moved, and the share of what the other prompt itself differs by."""
    t = t[t["what"].isin(WHAT)]
    wide = t.assign(shown=[f"{Interval(r.moved, r.low, r.high, r.n):+.2f}" for r in t.itertuples()])
    wide = wide.pivot(index=["pairs", "heads"], columns="what", values="shown")
    whole = t[t["what"] == "all"].set_index(["pairs", "heads"])["share_of_source"]
    wide["all, share of the other prompt's"] = whole.map(lambda s: "" if pd.isna(s) else f"{s:.0%}")
    order = t[["pairs", "heads"]].drop_duplicates()
    return wide.loc[list(order.itertuples(index=False, name=None)), [*WHAT, wide.columns[-1]]]


def _moves(t: pd.DataFrame, pairs: str, what: str) -> Verdict:
    """Does this exchange move the margin, and further than in random heads?"""
    where = {"pairs": pairs, "what": what}
    return judge(estimate(t, "moved", heads=OURS, **where), estimate(t, "moved", heads=OVER, **where))


def _values_stay(t: pd.DataFrame) -> Verdict:
    """Do values move the margin clearly less than half as far as keys, either way?"""
    found = [estimate(t, "moved", what=f"keys {how} twice values", heads=OURS) for how in ("less", "plus")]
    if all(one.low > 0 for one in found):
        return Verdict.HOLDS
    return Verdict.FAILS if any(one.high <= 0 for one in found) else Verdict.UNDECIDED


@about_learning
def exchanged(t: pd.DataFrame) -> Claim:
    """Claim 4: queries and keys move the answer, values stay; on query pairs and on key pairs, beyond random heads."""
    if not {QUERIES, KEYS} <= set(t["pairs"]):
        return untestable(
            "Queries or keys cannot be exchanged here: too few prompts have tokens that line up with those of their pair."
        )
    query, keys, stay = _moves(t, QUERIES, "query"), _moves(t, KEYS, "keys"), _values_stay(t)
    moved = {
        name: estimate(t, "moved", pairs=pairs, heads=OURS, what=name)
        for pairs, name in ((QUERIES, "query"), (KEYS, "keys"), (KEYS, "values"))
    }
    over = [
        estimate(t, "moved", pairs=pairs, heads=OVER, what=what) for pairs, what in ((QUERIES, "query"), (KEYS, "keys"))
    ]
    does = {
        Verdict.HOLDS: "moves the answer beyond random heads", Verdict.CONTROL: "does no more than in random heads",
        Verdict.FAILS: "does not move it", Verdict.UNDECIDED: "cannot be told from nothing",
    }  # fmt: skip
    values = {
        Verdict.HOLDS: "values stay", Verdict.FAILS: "values do not stay", Verdict.UNDECIDED: "values may stay or not",
    }  # fmt: skip
    return Claim(
        together([query, keys, stay]),
        f"Exchanging the in-context heads' query {does[query]}, exchanging their keys {does[keys]}, "
        f"and {values[stay]}: {moved['query']:+.2f} "
        f"nats (beyond random heads {over[0]:+.2f}), {moved['keys']:+.2f} (beyond {over[1]:+.2f}) and {moved['values']:+.2f} "
        f"(n = {plural(moved['query'].n, 'query word')}).",
    )


def value_pairs(t: pd.DataFrame) -> Claim:
    """Does the method see values at all, where it should?"""
    if VALUES not in set(t["pairs"]):
        return finding("Prompts with their labels exchanged cannot be aligned in this model.")
    values, every = (estimate(t, "moved", pairs=VALUES, heads=heads, what="values") for heads in (OURS, ALL))
    sees = "so values are seen where they should count" if values.low > 0 else "so values count for little even here"
    return finding(
        f"With the labels exchanged, values alone move the margin by {values:+.2f} nats in the in-context heads, {sees}; in "
        f"all heads together by {every:+.2f}."
    )


def _blocked_chart(t: pd.DataFrame, y_title: str, title: str) -> alt.TopLevelMixin:
    t = t[t["kind"] == "lost"].assign(third=lambda rows: rows["layers"] + " third")
    return charts.bars(
        t, x="edges", y="lost", group="third", x_title="attention blocked from … to …", y_title=y_title, title=title,
        sort=list(dict.fromkeys(t["edges"])),
    )  # fmt: skip


def blocked_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return _blocked_chart(t, "margin of the true label lost (nats)", "Attention blocked, and the margin")


def keys_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return _blocked_chart(t, "AUC of the class in label keys, lost", "Attention blocked, and the class in label keys")


def _merged(t: pd.DataFrame, edges: str) -> tuple[Verdict, Interval, str]:
    """Is something lost in the lower third, beyond the control, and more than in each other third? And where is most lost?"""
    lower = estimate(t, "lost", kind="lost", edges=edges, layers="lower")
    verdict = judge(lower, estimate(t, "lost", kind="less control", edges=edges, layers="lower"))
    if verdict is Verdict.HOLDS:
        deeper = [estimate(t, "lost", kind=f"lower less {third}", edges=edges) for third in THIRDS[1:]]
        verdict = together([judge(one, one) for one in deeper])
    rows = t[(t["kind"] == "lost") & (t["edges"] == edges)].set_index("layers")
    return verdict, lower, str(rows["lost"].idxmax())


SAID = {
    Verdict.HOLDS: "cost margin: labels and the last position gather their texts in shallow layers",
    Verdict.CONTROL: "cost margin, but no more than the same edges to another text",
    Verdict.FAILS: "do not both cost more margin than the same blocks in deeper layers",
    Verdict.UNDECIDED: "cannot both be told from nothing, or from the same blocks in deeper layers",
}


@about_learning
def blocked(t: pd.DataFrame) -> Claim:
    """Claim 2: shallow layers merge each text into its label, and the query into the last position."""
    texts, query = _merged(t, TEXTS), _merged(t, QUERY)
    verdict = together([texts[0], query[0]])
    return Claim(
        verdict,
        f"Blocks in the lower third {SAID[verdict]}. With one of them the margin falls by {texts[1]:.2f} nats when labels may not "
        f"see their texts (it falls most when that is blocked in the {texts[2]} third), and by {query[1]:.2f} when the last "
        f"position may not see the query (most in the {query[2]} third), n = {plural(query[1].n, 'query word')}.",
    )


@about_learning
def keys(t: pd.DataFrame) -> Claim:
    """The same for the class in label keys."""
    verdict, lower, most = _merged(t, TEXTS)
    row = t[(t["kind"] == "lost") & (t["edges"] == TEXTS) & (t["layers"] == "lower")].iloc[0]
    said = {
        Verdict.HOLDS: "Label keys get the class of their text in the lower third",
        Verdict.CONTROL: "Label keys lose the class, but no more than when another text is hidden",
        Verdict.FAILS: "Label keys do not lose more of the class by a block in the lower third than by one in deeper layers",
        Verdict.UNDECIDED: "Whether label keys get the class in the lower third cannot be told",
    }[verdict]
    return Claim(
        verdict,
        f"{said}: the AUC is {row['plain']:.2f} with nothing blocked and falls by {lower:.2f} with a block in the lower third "
        f"(it falls most with one in the {most} third); one half is chance.",
    )


def mixing_rows(t: pd.DataFrame) -> pd.DataFrame:
    wide = t.assign(shown=[f"{Interval(r.nats, r.low, r.high, r.n):+.2f}" for r in t.itertuples()])
    wide = wide.pivot(index=["edges", "layers"], columns="kind", values="shown")
    order = t[["edges", "layers"]].drop_duplicates().itertuples(index=False, name=None)
    return wide.loc[list(order), list(dict.fromkeys(t["kind"]))]


def mixing_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    t = t[t["kind"] == "shrinks"].assign(third=lambda rows: rows["layers"] + " third")
    return charts.bars(
        t, x="edges", y="nats", group="third", x_title="attention blocked from … to …", y_title="effect of order, lost (nats)",
        title="How far the effect of order shrinks when neighbours cannot be seen", sort=list(dict.fromkeys(t["edges"])),
    )  # fmt: skip


@about_learning
def mixing(t: pd.DataFrame) -> Claim:
    """Section 5.2: order counts because the texts of neighbours mix in; judged on the block of texts (labels stay seen)
    after which the effect shrinks most.

    Shortcuts: repeating near labels has an effect of order without any text, and a block that weakens the whole answer
    weakens that too. So the effect must shrink by more nats and by a larger share than the margin, and than where texts
    are silent; without a mean margin there is no share to compare with, and nothing is decided.
    """
    effect = estimate(t[t["kind"] == "order effect"].head(1), "nats")
    shrinks = t[(t["kind"] == "shrinks") & (t["edges"] != NEIGHBOURS)]
    top = shrinks.loc[shrinks["nats"].idxmax()]
    where = {"edges": top["edges"], "layers": top["layers"]}
    level = estimate(t, "nats", kind="shrinks", **where)
    less = {name: estimate(t, "nats", kind=f"shrinks, less {name}", **where) for name in CONTROLS}
    there, silent = judge(effect, effect), estimate(t[t["kind"] == "order effect, silent texts"].head(1), "nats")
    verdicts = {name: judge(_widened(level), _widened(one)) for name, one in less.items() if not isnan(one.low)}
    verdict = there
    if there is Verdict.HOLDS:
        verdict = together([*verdicts.values(), *([] if MARGIN_SHARE in verdicts else [Verdict.UNDECIDED])])
    as_much = next((CONTROLS[name] for name, one in verdicts.items() if one is Verdict.CONTROL), "")
    if there is not Verdict.HOLDS:
        said = "there is no clear effect of order to explain"
    else:
        said = {
            Verdict.HOLDS: "hiding texts of neighbours takes a part of it, more than the margin loses and than labels alone lose",
            Verdict.CONTROL: f"hiding texts of neighbours makes it smaller, but {as_much}",
            Verdict.FAILS: "hiding texts of neighbours does not make it smaller",
            Verdict.UNDECIDED: "whether hiding texts of neighbours makes it smaller cannot be told",
        }[verdict]
    return Claim(
        verdict,
        f"True demonstrations near the query give {effect:+.2f} nats more margin than far ones, and labels in the same places "
        f"beside texts that do not tell them {silent:+.2f}; {said}. The effect "
        f"shrinks most, by {level:.2f}, with “{top['edges']}” blocked in the {top['layers']} third.",
    )


def _widened(i: Interval) -> Interval:
    """Nine such blocks are tried, so an interval of the best one alone is too narrow: widened as Bonferroni would."""
    return Interval(
        i.estimate, i.estimate - WIDER * (i.estimate - i.low), i.estimate + WIDER * (i.high - i.estimate), i.n
    )
