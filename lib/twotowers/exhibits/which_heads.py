"""Chapter 12 as a reader sees it: charts and claims of `studies.which_heads`."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from twotowers.exhibits.claim import (
    UNLEARNED,
    Claim,
    Verdict,
    about_learning,
    finding,
    judge,
    listed,
    plural,
    untestable,
)
from twotowers.exhibits.interventions import RARE
from twotowers.stats import charts, linked
from twotowers.stats.intervals import Interval, estimate
from twotowers.studies.interventions import ACCURACY, MARGIN, NAMES, TWO_LABEL
from twotowers.studies.which_heads import (
    CHANGE,
    CLASS,
    INCREASE,
    INDUCTION,
    LABEL,
    NOTHING,
    OURS,
    OVER,
    RANDOM,
    UNITS,
    VECTOR,
    VERSUS,
)

CLEAR = 0.05
CHOICE, BOTH, WORDS = "the choice alone", "the choice and label words", "label words alone"
NOTHING_CLEAR = "nothing clear"
WENT = {
    CHOICE: "the choice between the labels goes, and answers are still label words",
    BOTH: "the choice between the labels goes, and label words with it",
    WORDS: "label words go, but not clearly the choice between them",
    NOTHING_CLEAR: "neither the choice between the labels nor label words clearly go",
}


def _names(t: pd.DataFrame) -> list[str]:
    """The rankings of a table, in the book's order."""
    return [name for name in UNITS if name in set(t["ranking"])]


def rankings_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    heads = np.where(t["chosen"], "top of the ranking", "others")
    return charts.scatter(
        t.assign(heads=heads, shown=t["ranking"] + " (" + t["unit"] + ")").sort_values("heads", kind="stable"),
        x="layer", y="score", group="heads", facet="shown", x_title="layer", y_title="score", height=170,
        title="Every head under every ranking",
        description="One panel a ranking, one point a head: its score against its layer; the top heads are marked.",
    )  # fmt: skip


def one_head_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    """A head at a time, picked on the map of the first ranking among ours and the paper's that is there."""
    shown = next((name for name in (LABEL, INCREASE) if name in set(t["ranking"])), _names(t)[0])
    count = t["name"].nunique()
    said = [f"{r.ranking}: {r.rank} of {count}, {r.score:z.4f} ({r.unit})" for r in t.itertuples()]
    score = t[t["ranking"] == shown].set_index("name")["score"]
    t = t.assign(line=said, share=linked.below(t["rank"], count), strong=t["chosen"], score=t["name"].map(score))
    return linked.head_explorer(
        t, value="score", value_title=f"{shown} ({UNITS[shown]})",
        title="One head under every ranking", share_title="heads of the model that the ranking puts below it",
        description=f"A grid with one cell for each head, coloured by {shown}. The head that is picked there is told below: its "
        "place in every ranking, as a bar that is longer the more heads stand below it, and blue at the top of the ranking.",
    )  # fmt: skip


def rankings_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Of each ranking: its top heads, highest first, and how many heads of all are discoveries above and below zero."""
    rows = []
    for name in _names(t):
        mine = t[t["ranking"] == name]
        found, tested = mine[mine["discovery"]], bool(mine["tested"].any())
        rows.append(
            {"ranking": name, "top heads": ", ".join(mine[mine["chosen"]].sort_values("rank")["name"]),
             "above zero": int((found["score"] > 0).sum()) if tested else "not tested",
             "below zero": int((found["score"] < 0).sum()) if tested else "not tested"}
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("ranking")


def rankings(t: pd.DataFrame) -> Claim:
    """Which heads do most rankings name?"""
    names, counts = _names(t), t[t["chosen"]].groupby("name", sort=False)["ranking"].nunique()
    most = list(counts[counts > len(names) / 2].sort_values(ascending=False, kind="stable").index)
    if not most:
        return finding(f"No head is at the top of more than half of the {plural(len(names), 'ranking')}.")
    return finding(
        f"{listed(most)} {'is' if len(most) == 1 else 'are'} at the top of more than half of the {plural(len(names), 'ranking')}; "
        f"{plural(len(counts), 'head')} of {t['name'].nunique()} are at the top of any."
    )


def agreement_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    t = t.assign(beyond=t["spearman"] - t["spearman_expected"])
    return charts.matrix(
        t[["a", "b", "beyond", "spearman", "shared"]], x="a", y="b", value="beyond", x_title="ranking", y_title="ranking",
        value_title="rank correlation less that of depth alone", title="Do the rankings agree beyond depth?",
        description="A grid with one cell for each pair of rankings: rank correlation over all heads, less what rankings with the "
        "same layers but random heads within them have.",
    )  # fmt: skip


def agreement_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Every pair: correlation and shared top heads, each beside what chance within layers gives, with p and discoveries."""

    def p(value: float, found: bool) -> str:
        return ("p < 0.001" if value < 0.001 else f"p = {value:.3f}") + (", a discovery" if found else "")

    rows = [
        {"pair": f"{r.a}, {r.b}", "rank correlation": f"{r.spearman:z.2f}", "of depth alone": f"{r.spearman_expected:z.2f}",
         "test": p(r.spearman_p, r.spearman_found), f"shared of {r.k}": int(r.shared), "by chance": f"{r.shared_expected:.1f}",
         "test of sharing": p(r.shared_p, r.shared_found)}
        for r in t.itertuples()
    ]  # fmt: skip
    return pd.DataFrame(rows).set_index("pair")


def _pair(t: pd.DataFrame, a: str, b: str) -> pd.Series | None:
    rows = t[((t["a"] == a) & (t["b"] == b)) | ((t["a"] == b) & (t["b"] == a))]
    return None if rows.empty else rows.iloc[0]


def shares(row: pd.Series) -> Verdict:
    """Do two rankings share more top heads than chance within layers gives? UNDECIDED where no overlap could show it.

    FAILS when they share none: chance within layers then says nothing of rankings that go to other layers.
    """
    if row["shared_found"]:
        return Verdict.HOLDS
    if row["shared"] == 0:
        return Verdict.FAILS
    if row["shared_least_p"] > CLEAR or row["shared"] > row["shared_expected"]:
        return Verdict.UNDECIDED
    return Verdict.CONTROL


@about_learning
def by_class(t: pd.DataFrame) -> Claim:
    """The paper's ranking finds the heads whose attention goes by class (v1 sections 4.2 and 4.4)."""
    row = _pair(t, INCREASE, CLASS)
    if row is None:
        return untestable("Attention by class, or the paper's increase, ranks no heads here.")
    if int(row["class_heads"]) == 0:
        return Claim(
            Verdict.UNDECIDED,
            "In no head is attention to labels of the query's class a discovery: there is none to find.",
        )
    found = shares(row)
    said = {
        Verdict.HOLDS: "more than as many random heads of the same layers would be",
        Verdict.CONTROL: "no more than as many random heads of the same layers would be",
        Verdict.FAILS: "so the paper's ranking finds other heads",
        Verdict.UNDECIDED: "which cannot be told from random heads of the same layers",
    }[found]  # fmt: skip
    return Claim(
        found,
        f"{int(row['shared'])} of the {plural(row['k'], 'head')} with the largest increase are among the first "
        f"{int(row['k'])} by attention by class, {said} ({row['shared_expected']:.1f} by chance).",
    )


def known(t: pd.DataFrame) -> Claim:
    """Are the in-context heads (by label margin) induction heads, or function-vector heads?"""
    parts = []
    for name, words in ((INDUCTION, "induction score"), (VECTOR, "function-vector score")):
        row = _pair(t, LABEL, name)
        if row is not None:
            how = {Verdict.HOLDS: "more than", Verdict.UNDECIDED: "not told from"}.get(shares(row), "no more than")
            parts.append(f"{int(row['shared'])} by {words} ({how} chance, {row['shared_expected']:.1f})")
    if not parts:
        return finding("Neither induction scores nor function-vector scores can be set beside the label margin here.")
    k = plural(t["k"].iloc[0], "head")
    return finding(f"Of the {k} with the largest label margin, at the top are also: {' and '.join(parts)}.")


def _of(t: pd.DataFrame, ranking: str, measure: str, heads: str) -> Interval:
    return estimate(t, "value", ranking=ranking, measure=measure, heads=heads)


def fell(t: pd.DataFrame, ranking: str, measure: str) -> Verdict:
    """Whether a measure falls without a ranking's heads, and by more than without random ones: by the interval, than in
    nearly all draws, and as a discovery among the rankings."""
    verdict = judge(_of(t, ranking, measure, CHANGE), _of(t, ranking, measure, OVER), sign=-1)
    row = t[(t["ranking"] == ranking) & (t["measure"] == measure) & (t["heads"] == OVER)].iloc[0]
    weak = row["draws_as_low"] > RARE * row["draws"] or not row["discovery"]
    return Verdict.CONTROL if verdict is Verdict.HOLDS and weak else verdict


def what_goes(t: pd.DataFrame, ranking: str) -> str:
    """What goes with a ranking's heads: a key of WENT."""
    choice, word = (fell(t, ranking, measure) is Verdict.HOLDS for measure in (MARGIN, NAMES))
    if choice:
        return BOTH if word else CHOICE
    return WORDS if word else NOTHING_CLEAR


def choice_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        _zeroed(t, [MARGIN]), x="zeroed", y="value", group="heads", x_title="heads zeroed: the top of the ranking by",
        y_title="margin of the true label (nats)", title="Which heads carry the choice between the labels?",
        sort=["nothing", *_names(t)],
        description="Grouped bars with 95% intervals: the margin with nothing zeroed, with the top heads of each ranking "
        "zeroed, and with as many random heads of the same layers.",
    )  # fmt: skip


def words_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        _zeroed(t, [TWO_LABEL, NAMES]), x="zeroed", y="value", group="heads", facet="measure", sort=["nothing", *_names(t)],
        x_title="heads zeroed: the top of the ranking by", y_title="share of prompts",
        title="The choice between the labels, and a label word at all",
        description="Grouped bars with 95% intervals, two panels: two-label accuracy, and how often the top word is a label.",
    )  # fmt: skip


def _zeroed(t: pd.DataFrame, measures: list[str]) -> pd.DataFrame:
    """Bars of these measures; nothing zeroed stands once, at the left."""
    t = t[t["measure"].isin(measures) & t["heads"].isin([NOTHING, OURS, RANDOM])]
    plain = t[(t["heads"] == NOTHING) & (t["ranking"] == t["ranking"].iloc[0])].assign(zeroed="nothing")
    rest = t[t["heads"] != NOTHING]
    return pd.concat([plain, rest.assign(zeroed=rest["ranking"])], ignore_index=True)


def zeroed_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Of each ranking: what goes, and every measure without its heads and without random ones."""
    rows: list[dict[str, object]] = [{"zeroed": NOTHING, "what goes": "", **_measured(t, _names(t)[0], NOTHING)}]
    for name in _names(t):
        first = t[t["ranking"] == name].iloc[0]
        away = f", {first['elsewhere']} of other layers" if first["elsewhere"] else ""
        rows.append({"zeroed": name, "what goes": what_goes(t, name), **_measured(t, name, OURS)})
        rows.append({"zeroed": f"random beside {name}{away}", "what goes": "", **_measured(t, name, RANDOM)})
    return pd.DataFrame(rows).set_index("zeroed")


def _measured(t: pd.DataFrame, name: str, heads: str) -> dict[str, str]:
    return {
        m: f"{_of(t, name, m, heads):{'.2f' if m == MARGIN else '.0%'}}" for m in (MARGIN, TWO_LABEL, NAMES, ACCURACY)
    }


@about_learning
def paper(t: pd.DataFrame) -> Claim:
    """The heads with the largest increase carry the choice of label: judged on the margin, beyond random heads."""
    if INCREASE not in set(t["ranking"]):
        return untestable("No head has a mean increase above zero, so the paper's ranking finds none.")
    found = fell(t, INCREASE, MARGIN)
    before, after, random = (_of(t, INCREASE, MARGIN, heads) for heads in (NOTHING, OURS, RANDOM))
    choice, names = (_of(t, INCREASE, measure, OURS) for measure in (TWO_LABEL, NAMES))
    said = WENT[what_goes(t, INCREASE)]
    if found is Verdict.CONTROL and what_goes(t, INCREASE) == NOTHING_CLEAR:
        said = "the choice goes no further than without random heads of the same layers"
    heads = listed(str(t.loc[t["ranking"] == INCREASE, "names"].iloc[0]).split(", "))
    return Claim(
        found,
        f"Without {heads}, the first by the paper's ranking, {said}. The margin goes from {before:.2f} nats to "
        f"{after:.2f} (random heads {random:.2f}), two-label accuracy to {choice:.0%}, and {names:.0%} of answers are a label.",
    )


@about_learning
def label_margin(t: pd.DataFrame) -> Claim:
    """The part of the increase from label positions finds the choice better than the whole increase does."""
    if not {INCREASE, LABEL} <= set(t["ranking"]):
        return untestable("One of the two rankings has no head above zero, so they cannot be compared.")
    over, more = _of(t, LABEL, MARGIN, OVER), _of(t, LABEL, MARGIN, VERSUS)
    found = judge(over, more, sign=-1) if fell(t, LABEL, MARGIN) is Verdict.HOLDS else fell(t, LABEL, MARGIN)
    names = {name: set(one.iloc[0].split(", ")) for name, one in t.groupby("ranking")["names"]}
    if names[INCREASE] == names[LABEL]:
        return Claim(
            found,
            f"Both rankings name the same {plural(len(names[LABEL]), 'head')}, so neither finds the choice better: "
            f"without them the margin is {over:+.2f} nats from what random heads leave.",
        )
    said = {
        Verdict.HOLDS: "costs margin, and more than the heads with the largest increase do",
        Verdict.CONTROL: "costs margin, but not clearly more than random heads, or than the heads with the largest increase",
        Verdict.FAILS: "costs no margin",
        Verdict.UNDECIDED: "has no clear effect on the margin",
    }[found]
    return Claim(
        found,
        f"Zeroing the heads with the largest label margin {said}: {over:+.2f} nats beyond random heads, {more:+.2f} from "
        f"what the paper's heads cost beyond theirs (n = {plural(over.n, 'query word')}).",
    )


def carriers(t: pd.DataFrame) -> Claim:
    """Which ranking finds the heads that carry the choice, and which those that carry a label at all."""
    groups: dict[str, list[str]] = {}
    for name in _names(t):
        groups.setdefault(what_goes(t, name), []).append(name)
    parts = [f"{kind} (by {listed(groups[kind])})" for kind in WENT if kind in groups]
    over = {name: _of(t, name, MARGIN, OVER) for name in _names(t) if what_goes(t, name) in (CHOICE, BOTH)}
    least = min(over, key=lambda name: over[name].estimate, default="")
    end = f" Beyond random heads, most margin goes with {listed([least])}: {over[least]:+.2f} nats." if over else ""
    start = "" if bool(t["learned"].iloc[0]) else UNLEARNED
    return finding(f"{start}What goes with the top heads of the rankings: {'; '.join(parts)}.{end}")
