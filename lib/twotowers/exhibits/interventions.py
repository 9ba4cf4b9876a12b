"""Chapter 6 as a reader sees it, first half: charts and claims of `studies.interventions`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, code, finding, judge, listed, plural, untestable
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, discoveries, estimate
from twotowers.studies.interventions import (
    ACCURACY,
    ANY,
    CHANGE,
    IN,
    LOG_PROB,
    MARGIN,
    NAMES,
    NOTHING,
    OVER,
    POOLED,
    SAME,
    TWO_LABEL,
    UNION,
)  # fmt: skip

RARE = 0.05  # share of random draws that may cost as much as the heads in question


def fell(t: pd.DataFrame, measure: str) -> Verdict:
    """Whether a measure falls without the heads, clearly, clearly more than with random ones, and than in most draws."""
    verdict = judge(*(estimate(t, "value", heads=heads, measure=measure) for heads in (CHANGE, OVER)), sign=-1)
    row = t[(t["measure"] == measure) & (t["heads"] == CHANGE)].iloc[0]
    as_low = row["draws_as_low"] > RARE * row["draws"]
    return Verdict.CONTROL if verdict is Verdict.HOLDS and as_low else verdict


def what_went(t: pd.DataFrame) -> str:
    """The choice between the labels, any label word, both or neither: what falls more than with random heads."""
    choice, word = (fell(t, measure) is Verdict.HOLDS for measure in (TWO_LABEL, NAMES))
    if choice and word:
        return "what went is the choice between the labels, and any label word with it"
    if choice:
        return "what went is the choice between the labels; the answers are still label words"
    if word:
        return "what went is any label word at all; the choice between the labels is not shown to go"
    if fell(t, MARGIN) is Verdict.HOLDS:
        return "the true label's lead becomes smaller, but neither the choice between the labels nor label words clearly go"
    return "neither the choice between the labels nor label words clearly go"


def _taken(t: pd.DataFrame) -> Claim:
    """The verdict on heads taken away, of the rows of one set of prompts at some positions."""
    accuracy = fell(t, ACCURACY)
    verdict = accuracy
    if accuracy is Verdict.HOLDS and fell(t, TWO_LABEL) is not Verdict.HOLDS:
        verdict = Verdict.UNDECIDED
    before, after = (estimate(t, "value", heads=heads, measure=ACCURACY) for heads in (NOTHING, IN))
    random, choice = (
        estimate(t, "value", heads=SAME, measure=ACCURACY),
        estimate(t, "value", heads=IN, measure=TWO_LABEL),
    )
    names = estimate(t, "value", heads=IN, measure=NAMES)
    margin = estimate(t, "value", heads=OVER, measure=MARGIN)
    said = {
        Verdict.HOLDS: f"Accuracy falls, more than without random heads, and {what_went(t)}",
        Verdict.UNDECIDED: f"Accuracy falls, but {what_went(t)}",
        Verdict.CONTROL: "Accuracy falls, but no more than without random heads of the same layers",
        Verdict.FAILS: "Accuracy does not fall",
    }[verdict]
    if accuracy is Verdict.UNDECIDED:
        said = f"It cannot be told whether accuracy falls; {what_went(t)}"
    return Claim(
        verdict,
        f"{said}. Accuracy over the vocabulary goes from {before:.0%} to {after:.0%} (random heads {random:.0%}); without the "
        f"heads two-label accuracy is {choice:.0%}, a label is the top word in {names:.0%}, and the margin is {margin:+.2f} nats "
        "from what random heads leave.",
    )


def headline(t: pd.DataFrame) -> Claim:
    """EMNLP abstract: accuracy falls without the in-context heads, on sets that pass, zeroed at all positions."""
    mine = t[(t["positions"] == "all") & (t["dataset"] == POOLED)]
    heads = f"Without {listed(str(t['named'].iloc[0]).split(', '))}, at all positions: "
    if mine.empty:
        first = t[(t["positions"] == "all") & (t["dataset"] == t["dataset"].iloc[0])]
        before, after = (estimate(first, "value", heads=one, measure=ACCURACY) for one in (NOTHING, IN))
        return untestable(
            f"{heads}no set passes, so there is no learning to take away. On {code(first['dataset'].iloc[0])} accuracy goes "
            f"from {before:.0%} to {after:.0%}; {what_went(first)}."
        )
    claim = _taken(mine)
    return Claim(claim.verdict, heads + claim.sentence[0].lower() + claim.sentence[1:])


def headline_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Every measure over the sets that pass (the first set where none does), at both positions, with intervals."""
    of = POOLED if POOLED in set(t["dataset"]) else t["dataset"].iloc[0]
    mine = t[t["dataset"] == of]
    shown = [f"{Interval(r.value, r.low, r.high, int(r.n)):.2f}" for r in mine.itertuples()]
    wide = mine.assign(shown=shown).pivot(index=["positions", "measure"], columns="heads", values="shown")
    return wide[[NOTHING, IN, SAME, OVER]].reset_index().set_index(["positions", "measure"])


def by_dataset_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    mine = t[
        (t["positions"] == "all")
        & t["heads"].isin([NOTHING, IN, SAME])
        & t["measure"].isin([ACCURACY, TWO_LABEL, NAMES])
    ]
    return charts.bars(
        mine[mine["dataset"] != POOLED], x="dataset", y="value", group="heads", facet="measure", x_title="set (false/true class)",
        y_title="share of prompts", title="Every set without the in-context heads, and without as many random ones",
    )  # fmt: skip


def by_dataset(t: pd.DataFrame) -> Claim:
    sets = [name for name in dict.fromkeys(t["dataset"]) if name != POOLED]

    def falls(measure: str, positions: str) -> int:
        own = t[t["positions"] == positions]
        return sum(fell(own[own["dataset"] == name], measure) is Verdict.HOLDS for name in sets)

    lead = (
        f" {plural(int(t['from_elsewhere'].iloc[0]), 'random head')} had to come from other layers."
        if t["from_elsewhere"].iloc[0]
        else ""
    )
    return finding(
        f"Of {plural(len(sets), 'set')}, accuracy falls more than without random heads in {falls(ACCURACY, 'all')}, "
        f"two-label accuracy in {falls(TWO_LABEL, 'all')} and the share of label words in {falls(NAMES, 'all')}; at the last "
        f"position only, accuracy in {falls(ACCURACY, 'last')}.{lead}"
    )


def single_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.head_map(
        t, value="log_prob_drop", value_title="log-probability drop (nats)",
        title="What the true label loses when one head is zeroed",
    )  # fmt: skip


def single(t: pd.DataFrame) -> Claim:
    clear = discoveries(t["p"]) & (t["log_prob_drop"] > 0)
    worst = t.loc[t["log_prob_drop"].idxmax()]
    ours = int((clear & (t["kind"] == IN)).sum())
    return finding(
        f"For {plural(int(clear.sum()), 'head')} of {len(t)} the true label clearly loses when it is zeroed (false "
        f"discovery rate held), {ours} of them in-context heads. It loses most without {code(worst['name'])}: "
        f"{worst['log_prob_drop']:.2f} nats, {worst['margin_drop']:.2f} nats of margin; accuracy then falls by "
        f"{worst['accuracy_drop']:.0%}."
    )


def redundancy_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[t["drop"] != "together less sum"], x="drop", y="value", group="heads", facet="measure", x_title="zeroed",
        y_title="nats lost", title="Zeroed together, against the sum of single drops",
    )  # fmt: skip


def redundancy(t: pd.DataFrame) -> Claim:
    together, alone, more = (
        estimate(t, "value", heads=IN, measure=LOG_PROB, drop=drop) 
        for drop in ("together", "sum of singles", "together less sum")
    )  # fmt: skip
    margin = estimate(t, "value", heads=IN, measure=MARGIN, drop="together less sum")
    said = "cannot be told from"
    if more.low > 0:
        said = "are redundant: together they take more than"
    elif more.high < 0:
        said = "overlap in what they take: together they take less than"
    return finding(
        f"The {plural(int(t['k'].iloc[0]), 'head')} {said} the sum of what each takes alone: {together:.2f} against "
        f"{alone:.2f} nats of the true label's log-probability, {more:+.2f} in all, and {margin:+.2f} of the margin."
    )


def ways_rows(t: pd.DataFrame) -> pd.DataFrame:
    columns = ["way", "in_context", "low", "high", "others", "over", "over_low", "over_high", "rank_correlation", "n"]
    return t[columns].round(3).set_index("way")


def ways(t: pd.DataFrame) -> Claim:
    clear = int((t["over_low"] > 0).sum())
    zero, mean = (estimate(t, "in_context", way=f"{way}, all positions") for way in ("zero", "mean"))
    known = t.loc[(t["way"] != "zero, all positions"), "rank_correlation"].dropna()
    ranks = (
        f" The other ways rank heads with a correlation of {known.min():.2f} to {known.max():.2f} with zeroing at all positions."
        if len(known) else ""
    )  # fmt: skip
    return finding(
        f"In {clear} of {len(t)} ways a single in-context head costs clearly more than another head: {zero:.2f} nats zeroed, "
        f"{mean:.2f} nats with its mean in its place (all positions).{ranks}"
    )


def union_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.scatter(
        t[["name", "kind", "increase", "log_prob_drop", "accuracy_drop"]], x="increase", y="log_prob_drop", group="kind",
        x_title="mean increase of the true label (nats)", y_title="log-probability drop when zeroed (nats)",
        title="What a head adds, and what is lost without it",
        description="One point a head: its mean log-probability increase, and the drop of the true label's log-probability when "
        "it is zeroed; colour says whether our choice, the paper's union, both or neither holds it.",
    )  # fmt: skip


def union(t: pd.DataFrame) -> Claim:
    """Overlap of the two choices beyond chance within their layers, and agreement of the rankings."""
    row = t.iloc[0]

    def agree(name: str, text: str) -> str:
        if pd.isna(row[name]):
            return ""
        return f"{Interval(row[name], row[f'{name}_low'], row[f'{name}_high'], int(row[f'{name}_heads'])):.2f} {text}"

    parts = [
        agree("rho", "over all heads"),
        agree("deep", "over the deep half"),
        agree("label_rho", "with our ranking in its place"),
    ]
    ranks = ", ".join(part for part in parts if part)
    more = (
        "more than chance within the layers gives"
        if row["p"] < 0.05
        else "no more than chance within the layers may give"
    )
    return finding(
        f"The paper's union of two top lists holds {plural(int(row['theirs']), 'head')}; {row['shared']} of our {row['ours']} "
        f"are among them, {more}. "
        + (
            f"Increase and drop go together with a rank correlation of {ranks}."
            if ranks
            else "One ranking never varies."
        )
    )


def union_zeroed(t: pd.DataFrame) -> Claim:
    """Accuracy falls without the heads that the EMNLP version chooses."""
    heads = f"{UNION.capitalize()}, {listed(str(t['named'].iloc[0]).split(', '))}, on {code(t['dataset'].iloc[0])}: "
    if not t["passes"].all():
        return untestable(f"{heads}the model is not shown to learn this set, so there is no learning to take away.")
    claim = _taken(t)
    return Claim(claim.verdict, heads + claim.sentence[0].lower() + claim.sentence[1:])


def _curve(t: pd.DataFrame, measure: str, y_title: str) -> alt.TopLevelMixin:
    own = t[(t["measure"] == measure) & t["heads"].isin([IN, SAME, ANY])]
    return charts.lines(
        own[["k", "heads", "value", "low", "high", "n"]], x="k", y="value", group="heads", zero=measure != MARGIN,
        x_title="heads zeroed together at the last position", y_title=y_title, title=f"More and more heads taken away: {measure}",
        description="Lines with 95% intervals over query texts: in-context heads in the order of their ranking, and the mean of "
        "random draws from the same layers and from all layers.",
    )  # fmt: skip


def curve_accuracy_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return _curve(t, ACCURACY, "accuracy over the vocabulary")


def curve_margin_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return _curve(t, MARGIN, "margin of the true label (nats)")


def curve(t: pd.DataFrame) -> Claim:
    clear = {
        m: [k for k, own in t.groupby("k") if fell(own, m) is Verdict.HOLDS] for m in (ACCURACY, TWO_LABEL, NAMES)
    }  # fmt: skip
    said = [
        f"{what} from {plural(int(clear[m][0]), 'head')} on" if clear[m] else f"{what} at no number of heads"
        for m, what in (
            (ACCURACY, "accuracy falls"),
            (TWO_LABEL, "two-label accuracy"),
            (NAMES, "the share of label words"),
        )
    ]
    last = t[t["k"] == t["k"].max()]
    ours, same, every = (estimate(last, "value", heads=heads, measure=MARGIN) for heads in (IN, SAME, ANY))
    return finding(
        f"More than without random heads of the same layers, {', '.join(said)}. With most heads gone the margin is "
        f"{ours:+.2f} nats, with random heads of the same layers gone {same:+.2f}, of all layers {every:+.2f}."
    )
