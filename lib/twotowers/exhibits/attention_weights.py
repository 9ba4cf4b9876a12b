"""Chapter 4 as a reader sees it: charts and claims of `studies.attention_weights` and `studies.two_towers`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import (
    Claim,
    Verdict,
    among_others,
    code,
    either_way,
    finding,
    judge,
    listed,
    plural,
    untestable,
)
from twotowers.stats import charts, linked
from twotowers.stats.intervals import Interval, estimate

IN, RANDOM, OVER = "in-context heads", "random heads", "in-context less random"
PAPER, BALANCED = "paper's order", "counterbalanced"
POOLED = "all sets that are learned"
COMPARED, CONTENT = "as the model compares", "content alone"
LIKED = {
    Verdict.CONTROL: "prefer the query's class when one class of a pair is asked about, not clearly when the other is",
    Verdict.UNDECIDED: "may only prefer the labels of one class, since no other is asked about",
}
ON_AVERAGE = "and more than random heads on average, but too many random sets of heads reach as much"
UNLEARNED = "The model is not shown to learn any of these sets, so this cannot be judged"


def _judged(t: pd.DataFrame, column: str, null: float) -> tuple[Verdict, Interval, Interval, str, str]:
    """Verdict over the sets that are learned: beyond `null`, beyond random heads, and beyond nearly every draw of them.

    And not a liking for one class: see `either_way`, which HOLDS alone counts on.
    """
    own = t[(t["dataset"] == POOLED) & (t["form"] == BALANCED)]
    effect, over = (estimate(own, column, heads=kind) for kind in (IN, OVER))
    outdone, draws = (int(own[name].iloc[0]) for name in ("outdone", "draws"))
    verdict = among_others(judge(effect, over, null=null), outdone, draws)
    reached, liked = f"{outdone} of {plural(draws, 'random set')} of heads reach as much", ""
    if verdict is Verdict.HOLDS:
        rows = t[(t["form"] == BALANCED) & (t["heads"] == IN) & (t["dataset"] != POOLED)].set_index("dataset")
        verdict = either_way(rows["low"], rows.index[rows["passes"].astype(bool)], null)
        liked = LIKED.get(verdict, "")
    return verdict, effect, over, reached, liked


def leaning(t: pd.DataFrame) -> Claim:
    """Section 4.4, judged where neither a place nor a label word tells the class."""
    if POOLED not in set(t["dataset"]):
        found = estimate(t, "difference", dataset=t["dataset"].iloc[0], form=BALANCED, heads=IN)
        return untestable(
            f"{UNLEARNED}. On {code(t['dataset'].iloc[0])}, counterbalanced, the heads {listed(t['names'].iloc[0].split(', '))} "
            f"give true labels {found:+.3f} more attention than false ones."
        )
    verdict, effect, over, reached, liked = _judged(t, "difference", 0.0)
    printed = estimate(t, "difference", dataset=POOLED, form=PAPER, heads=IN)
    but = ON_AVERAGE if over.low > 0 else "but no more than random heads at the same depths"
    said = liked or {
        Verdict.HOLDS: "look more at labels of the query's class than at the others, and more so than random heads",
        Verdict.CONTROL: f"look more at labels of the query's class, {but}",
        Verdict.FAILS: "do not look more at labels of the query's class than at the others",
    }.get(verdict, "cannot be told from heads that look at both kinds of labels alike")
    return Claim(
        verdict,
        f"Counterbalanced, the heads {listed(t['names'].iloc[0].split(', '))} {said}: a difference of {effect:+.3f} (in-context "
        f"less random {over:+.3f}; n = {plural(effect.n, 'query word')}). In the paper's order it is {printed:+.3f}. {reached}.",
    )


def leaning_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[t["heads"] != OVER], x="dataset", y="difference", group="heads", facet="form",
        y_title="attention on true less false labels", title="Attention on true less false labels, mean over heads",
        note="Random heads stand at the same depths.",
    )  # fmt: skip


def true_false_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[t["kind"] == IN], x="head", y="weight", group="label", facet="form",
        y_title="attention, summed over labels", title="Attention of the last position on true and on false labels",
    )  # fmt: skip


def differences_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="head", y="difference", group="form", facet="kind", y_title="attention on true less false labels",
        title="What is left when place and label word say nothing",
        note="Random heads are of the same layers.",
    )  # fmt: skip


def differences(t: pd.DataFrame) -> Claim:
    def counts(form: str, kind: str) -> tuple[int, int]:
        own = t[(t["form"] == form) & (t["kind"] == kind)]
        return int((own["stands"] & (own["difference"] > 0)).sum()), len(own)

    (paper, of), (balanced, _) = counts(PAPER, IN), counts(BALANCED, IN)
    (random, others) = counts(BALANCED, RANDOM)
    return finding(
        f"On {code(t['dataset'].iloc[0])}, of {plural(of, 'in-context head')}, {paper} look more at true labels in the paper's "
        f"order and {balanced} counterbalanced; so do {random} of {plural(others, 'random head')}, counterbalanced. What a head "
        "loses between the two forms came from places or label words, not from the texts."
    )


def every_head_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    """A head at a time, picked on the map: its attention, its scores, and what it adds."""
    lines = []
    for said, column, spec, stands in (
        ("attention, true less false", "difference", "+z.3f", t["stands"]),
        ("score: AUC", "auc", ".2f", t["auc_stands"]),
        ("lead of the true label", "label_margin", "+z.3f", False),
    ):
        rank = t[column].rank(ascending=False, method="first").astype(int)
        told = zip(rank, t[column], strict=True)
        unit = " nats" if column == "label_margin" else ""
        lines.append(
            t.assign(
                line=[f"{said}: {place} of {len(t)}, {value:{spec}}{unit}" for place, value in told],
                share=linked.below(rank, len(t)), strong=stands,
            )
        )  # fmt: skip
    return linked.head_explorer(
        pd.concat(lines), value="difference", value_title="attention, true less false",
        title="Difference of attention, every head, counterbalanced", share_title="heads of the model that stand below it",
        description="A grid with one cell for each head, coloured by attention on true less false labels. The head that is picked "
        "there is told below, with its place among all heads, as a bar that is longer the more heads stand below it. Attention and "
        "scores are blue where they are discoveries, on either side.",
    )  # fmt: skip


def every_head_scatter(t: pd.DataFrame) -> alt.TopLevelMixin:
    shown = t.assign(heads=t["located"].map({True: "in-context heads", False: "all other heads"}))
    return charts.scatter(
        shown[["name", "label_margin", "difference", "heads"]].round(5), x="label_margin", y="difference", group="heads",
        x_title="lead of the true label from label positions (nats)", y_title="attention on true less false labels",
        title="Do heads that look at true labels raise the true label?",
        description="One point a head; points to the right raise the true label more from label positions.",
    )  # fmt: skip


def every_head(t: pd.DataFrame) -> Claim:
    towards, away = (int((t["stands"] & (sign * t["difference"] > 0)).sum()) for sign in (1, -1))
    separate = int((t["auc_stands"] & (t["auc"] > 0.5)).sum())
    over, within = (
        Interval(*t[[name, f"{name}_low", f"{name}_high"]].iloc[0], len(t)) for name in ("correlation", "within")
    )
    out = (
        f"On {code(t['dataset'].iloc[0])}, of {plural(len(t), 'head')}, {towards} look more at true labels and {away} more at "
        f"false ones, and {separate} score true labels higher more often than not. Over heads, the rank correlation of this "
        f"difference with the lead that a head gives the true label is {over:.2f}, and {within:.2f} within layers."
    )
    return finding(out)


def places(t: pd.DataFrame) -> pd.DataFrame:
    """The in-context heads and where they stand among all heads by their difference."""
    own = t[t["located"]].sort_values("place")
    return own[["name", "place", "difference", "auc", "label_margin"]].round(3).set_index("name")


def points_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.scatter(
        t, x="weight", y="increase", group="label", facet="head", opacity=0.4, height=200, x_title="attention weight",
        y_title="log-probability increase (nats)", title="Attention and increase at label positions, top heads",
        description="One panel for each of the top heads, one point for each label position; points rise to the right where "
        "more attention brings more increase of the label's own word.",
    )  # fmt: skip


def correlations_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[t["measure"] == "spearman"], x="head", y="correlation", group="kind", facet="kind",
        y_title="rank correlation", title="Rank correlation of attention and increase",
    )  # fmt: skip


def correlations(t: pd.DataFrame) -> Claim:
    """Fig 7. Part of it is built in, so this is a finding and no verdict."""
    rank = t[t["measure"] == "spearman"]
    ours, theirs = (rank[rank["kind"] == kind] for kind in (IN, RANDOM))
    if ours.empty or theirs.empty:
        return finding("In one kind of heads attention or increase never varies, so there is nothing to compare.")
    line = t[(t["measure"] == "pearson") & (t["kind"] == IN)]["correlation"].median()
    return finding(
        f"The rank correlation is clearly above zero in {int((ours['low'] > 0).sum())} of {plural(len(ours), 'in-context head')} "
        f"(median {ours['correlation'].median():.2f}; the linear one {line:.2f}) and in {int((theirs['low'] > 0).sum())} of "
        f"{plural(len(theirs), 'random head')}. The weight multiplies the vector, so more attention to a vector that carries "
        "the label's word must bring more increase: that part says nothing of why a head looks there."
    )


def right_wrong_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="head", y="gap", group="kind", facet="kind", y_title="difference when right less when wrong",
        title="Attention in prompts answered right, less answered wrong",
        note="Among prompts with the same label word and the same nearest label.",
    )  # fmt: skip


def right_wrong(t: pd.DataFrame) -> Claim:
    def lean(kind: str) -> str:
        own = t[t["kind"] == kind]
        return f"{int((own['low'] > 0).sum())} of {plural(len(own), kind.removesuffix('s'))}"

    row, medians = t.iloc[0], t.groupby("kind")["correlation"].median()
    return finding(
        f"The true label is the less likely one in {row['wrong'] / (row['right'] + row['wrong']):.0%} of prompts. Where it is "
        f"the likelier one, attention leans more to true labels in {lean(IN)} and in {lean(RANDOM)}. With the margin, this "
        f"difference has a correlation of {medians[IN]:.2f} in the median in-context head."
    )


def similarity(t: pd.DataFrame) -> Claim:
    """Claim 4 of the paper, "attention is class similarity": a query scores higher with keys of its class."""
    if POOLED not in set(t["dataset"]):
        found = estimate(t, "auc", dataset=t["dataset"].iloc[0], form=BALANCED, heads=IN)
        return untestable(
            f"{UNLEARNED}. On {code(t['dataset'].iloc[0])} the AUC within prompts is {found:.3f} (a half is chance)."
        )
    verdict, effect, over, reached, liked = _judged(t, "auc", 0.5)
    but = ON_AVERAGE if over.low > 0 else "but no more than random heads do"
    said = liked or {
        Verdict.HOLDS: "score labels of the query's class higher more often than not, and more often than random heads do",
        Verdict.CONTROL: f"score labels of the query's class higher more often than not, {but}",
        Verdict.FAILS: "do not score labels of the query's class higher than the others",
    }.get(verdict, "cannot be told from heads whose scores do not depend on the class")
    return Claim(
        verdict,
        f"Is attention a similarity of classes? The in-context heads {said}: AUC {effect:.3f}, in-context less random "
        f"{over:+.3f} (n = {plural(effect.n, 'query word')}). {reached}.",
    )


def _above_half(t: pd.DataFrame) -> pd.DataFrame:
    return t.assign(above=t["auc"] - 0.5, low=t["low"] - 0.5, high=t["high"] - 0.5)


def similarity_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        _above_half(t[t["heads"] != OVER]), x="dataset", y="above", group="heads", y_title="AUC less one half",
        title="How often a query scores higher with labels of its own class",
        note="Zero is chance.",
    )  # fmt: skip


def separation_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        _above_half(t), x="head", y="above", group="reading", facet="kind", y_title="AUC less one half",
        title="Class separation, head by head",
        note="Zero is chance.",
    )  # fmt: skip


def separation(t: pd.DataFrame) -> Claim:
    def count(kind: str, reading: str) -> tuple[int, str]:
        own = t[(t["kind"] == kind) & (t["reading"] == reading)]
        return int((own["stands"] & (own["auc"] > 0.5)).sum()), plural(len(own), kind.removesuffix("s"))

    own = t[(t["kind"] == IN) & (t["reading"] == COMPARED)]
    best = own.loc[own["auc"].idxmax()]
    (ours, of), (theirs, others) = count(IN, COMPARED), count(RANDOM, COMPARED)
    rest = (
        f"With content alone, before the rotation by position, {count(IN, CONTENT)[0]} of the in-context heads do."
        if CONTENT in set(t["reading"])
        else "This model does not rotate by position: its keys hold learned positions, and there is no reading without them."
    )
    return finding(
        f"{ours} of {of} and {theirs} of {others} separate the classes better than chance; the best in-context head is "
        f"{code(best['head'])} with {estimate(own, 'auc', head=best['head']):.3f}. {rest}"
    )


def plane_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.scatter(
        t[["head", "tower", "class", "x", "y"]], x="x", y="y", group="class", shape="tower", facet="head", height=290,
        x_title="first component", y_title="second component", opacity=0.6, title="Queries and keys of one head, in a plane",
        description="Points coloured by class, circles for queries and triangles for keys; left an in-context head, right a "
        "random head of its layer.",
    )  # fmt: skip


def plane(t: pd.DataFrame) -> Claim:
    said = [f"{head} {own['share'].iloc[0]:.0%}" for head, own in t.groupby("head", sort=False)]
    how = "before the rotation by position" if t["rotary"].iloc[0] else "with learned positions in them"
    return finding(
        f"The plane shows this share of the variance: {', '.join(said)} ({int(t['fitted'].iloc[0]):,} queries fitted, {how}). "
        "The in-context head shown is the one that separates best: the others separate less."
    )


def class_scores_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.matrix(
        t, x="key_class", y="query_class", value="relative", facet="head", x_title="class of the key",
        y_title="class of the query", value_title="score, less the row's mean (nats)",
        title="Query-key scores, class against class",
        description="A grid for each head; a strong diagonal means that queries score highest with keys of their own class.",
    )  # fmt: skip


def class_scores(t: pd.DataFrame) -> Claim:
    said = []
    for head, own in t.groupby("head", sort=False):
        highest = own.loc[own.groupby("query_class")["score"].idxmax()]
        same = own["query_class"] == own["key_class"]
        if same.all() or not same.any():
            return finding("There is only one class, or none that queries and keys share: nothing to compare.")
        gap = own[same]["relative"].mean() - own[~same]["relative"].mean()
        hits = int((highest["query_class"] == highest["key_class"]).sum())
        said.append(
            f"in the {head}, {hits} of {len(highest)} classes of queries score highest with their own ({gap:+.2f} nats)"
        )
    return finding(f"Own class first: {'; '.join(said)}.")


def dissociation(t: pd.DataFrame) -> Claim:
    """Reading labels and leaning right is not yet telling classes apart."""
    reads, separates = t["reads"] == "yes", t["separates"] == "yes"
    text = (
        f"Of {plural(len(t), 'in-context head')}, {int(reads.sum())} read the label's word better than the random head of their "
        f"layer and than the other label's, and {int(separates.sum())} separate the classes. "
    )
    if (t["leans"] == "unknown").any():
        return finding(text + "Right and wrong answers cannot be compared here, so whether they lean is not known.")
    leans = t["leans"] == "yes"
    alone = int((reads & leans & ~separates).sum())
    rest = ": what such a head looks at gets written, but it does not look there by class" if alone else ""
    return finding(
        f"{text}{int(leans.sum())} look more at true labels where the answer is right. {alone} read labels and lean so without "
        f"separating the classes{rest}."
    )


def dissociation_rows(t: pd.DataFrame) -> pd.DataFrame:
    names = {"mrr": "MRR of the label", "control": "MRR, random head", "advantage": "less the other label's",
             "reads": "reads the label",
             "leans": "leans when right", "auc": "AUC", "separates": "separates classes"}  # fmt: skip
    return t.set_index("head")[list(names)].rename(columns=names).round(3)
