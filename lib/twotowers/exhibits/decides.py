"""Chapter 10 as a reader sees it: charts and claims of `studies.decides`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, about_learning, finding, listed, plural
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

POOLED, SCORE, MARGIN = "all sets together", "attention score", "margin"
PLACES, REST = "label at each place", "texts and the rest"
SHOWN = {
    "prior": "prior for a label word", "last": "the last label", "alternation": "alternation of labels",
    "place": "nearness of labels", "count": "number of demonstrations", "match": "match (the metric)",
    PLACES: PLACES, REST: REST,
}  # fmt: skip


def _pooled(t: pd.DataFrame) -> pd.DataFrame:
    return t[t["dataset"] == POOLED].set_index("term", drop=False)


def terms_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    t = _pooled(t)
    kinds = t["term"].map({"match": "a metric would do this", REST: "no rule named here"})
    t = t.assign(shown=t["term"].map(SHOWN), low=t["share_low"], high=t["share_high"])
    return charts.bars(
        t.assign(kind=kinds.fillna("needs no text")), x="shown", y="share", group="kind", sort=list(t["shown"]),
        x_title="what the margin goes with", y_title="share of the margin", title="What decides the answer?",
        description="Bars with 95% intervals: the share of the squared margin between the two labels that each rule explains.",
    )  # fmt: skip


def terms_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Nats and share of each term, with intervals, for all sets together and for each."""

    def shown(value: float, low: float, high: float, spec: str) -> str:
        return "" if pd.isna(value) else f"{Interval(value, low, high, 0):{spec}}"

    rows = {
        "nats": [shown(r.nats, r.low, r.high, "+.2f") for r in t.itertuples()],
        "share": [shown(r.share, r.share_low, r.share_high, ".0%") for r in t.itertuples()],
    }
    return (
        t[["dataset", "term", "n", "prompts"]].assign(**rows, term=t["term"].map(SHOWN)).set_index(["dataset", "term"])
    )


@about_learning
def terms(t: pd.DataFrame) -> Claim:
    """Whether texts are of one class decides the answer: match is clearly above zero, and its share clearly above that of
    every rule without a text."""
    t = _pooled(t)
    match, share = estimate(t, "nats", term="match"), t.loc["match"]
    rivals = t.drop(index=["match", REST])
    rival = rivals.loc[rivals["share"].idxmax()]
    least, most = (Interval(r["share"], r["share_low"], r["share_high"], match.n) for r in (share, rival))
    if match.high <= 0:
        verdict = Verdict.FAILS
    elif match.low <= 0:
        verdict = Verdict.UNDECIDED
    elif least.estimate <= most.estimate:
        verdict = Verdict.CONTROL
    else:
        verdict = Verdict.HOLDS if least.low > most.high else Verdict.UNDECIDED
    said = {
        Verdict.HOLDS: "The comparison of the query with the demonstrations decides more than any rule that reads no text",
        Verdict.CONTROL: f"The comparison counts, but {SHOWN[rival['term']]} decides at least as much",
        Verdict.FAILS: f"The comparison does not speak for the true label; most goes with {SHOWN[rival['term']]}",
        Verdict.UNDECIDED: "The comparison cannot be told from nothing, or from the strongest rule that reads no text",
    }[verdict]
    return Claim(
        verdict,
        f"{said}: match moves the margin by {match:+.2f} nats either way and has {least:.0%} of it, {SHOWN[rival['term']]} "
        f"{most:.0%}; {REST} leave {t.loc[REST, 'share']:.0%} (n = {plural(match.n, 'cluster')}).",
    )


def accuracy_rows(t: pd.DataFrame) -> pd.DataFrame:
    shown = [f"{estimate(t, 'accuracy', rule=r):.0%}" if r == "the model" else f"{a:.0%}"
             for r, a in zip(t["rule"], t["accuracy"], strict=True)]  # fmt: skip
    return t[["rule"]].assign(accuracy=shown).set_index("rule")


def accuracy(t: pd.DataFrame) -> Claim:
    model, rules = estimate(t, "accuracy", rule="the model"), t[t["rule"] != "the model"]
    best = rules.loc[rules["accuracy"].idxmax()]
    more = "clearly more often than" if model.low > best["accuracy"] else "not clearly more often than"
    return finding(
        f"Of the two labels the true one is the likelier in {model:.0%} of these prompts, {more} by the best rule that reads "
        f"no text (“{best['rule']}”: {best['accuracy']:.0%})."
    )


def _match(t: pd.DataFrame, of: str) -> pd.DataFrame:
    return t[(t["of"] == of) & (t["term"] == "match")].sort_values("nats", ascending=False)


def heads_chart(t: pd.DataFrame, of: str) -> alt.TopLevelMixin:
    what = {
        SCORE: "attention score on labels of the query's class",
        MARGIN: "margin for the label of the query's class",
    }
    return charts.head_map(
        _match(t, of), value="nats", value_title=f"match in the {of} (nats)", title=f"Where the classes match: {what[of]}",
        description=f"A grid with one cell for each head; colour is the effect of match on its {of}, in nats.",
    )  # fmt: skip


def scores_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return heads_chart(t, SCORE)


def margins_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return heads_chart(t, MARGIN)


def heads(t: pd.DataFrame) -> Claim:
    """Which heads compare (match in the score), which write (match in the margin), and which do both."""
    score, margin = _match(t, SCORE), _match(t, MARGIN)
    looks, adds = (list(one.loc[one["counts"] & (one["nats"] > 0), "name"]) for one in (score, margin))
    both = [name for name in looks if name in set(adds)]
    located = int(score.loc[score["name"].isin(both), "located"].sum())
    size = f"{t['size'].iloc[0]:g} nats"
    if not looks and not adds:
        return finding(
            f"In no head of {len(score)} is match a discovery of at least {size}, in its score or its margin."
        )
    who = f": {listed(both)}; {located} of them are among the located heads" if both else ""
    return finding(
        f"Match is a discovery of at least {size} in the attention score of {len(looks)} of {plural(len(score), 'head')} and "
        f"in what {len(adds)} add to the margin. {len(both)} do both{who}."
    )


def deciders_rows(t: pd.DataFrame) -> pd.DataFrame:
    """For every term and quantity: how many heads count, and the strongest of them."""
    rows = []
    for (term, of), mine in t.groupby(["term", "of"], sort=False):
        found = mine[mine["counts"]]
        top = found.loc[found["nats"].abs().sort_values(ascending=False).index[:3]]
        rows.append(
            {"term": SHOWN[term], "of": of, "heads that count": len(found),
             "strongest (nats)": ", ".join(f"{r.name_} {r.nats:+.2f}" for r in top.rename(columns={"name": "name_"}).itertuples())}
        )  # fmt: skip
    return pd.DataFrame(rows).set_index(["term", "of"])


def deciders(t: pd.DataFrame) -> Claim:
    added = t[(t["of"] == MARGIN) & t["counts"]]
    if added.empty:
        return finding(f"No head adds at least {t['size'].iloc[0]:g} nats to the margin by any of these rules.")
    counts = added["term"].value_counts()
    return finding(
        f"The rule by which most heads add to the margin is {SHOWN[counts.index[0]]}: {plural(int(counts.iloc[0]), 'head')}, "
        f"against {counts.get('match', 0)} for match. One head can follow several rules."
    )
