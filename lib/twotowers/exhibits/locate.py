"""Chapter 1 as a reader sees it: charts and claims of `studies.locate`, `studies.forms` and `studies.located`."""

from __future__ import annotations

from dataclasses import replace

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import (
    Claim,
    Verdict,
    about_learning,
    code,
    counted,
    finding,
    judge,
    listed,
    plural,
    together,
    untestable,
)
from twotowers.stats import charts, linked
from twotowers.stats.intervals import Interval, discoveries, estimate

BASELINES = ("repeat the last label", "continue the alternation", "always the preferred label")
IN, RANDOM = "in-context heads", "random heads"
PAPER, BALANCED = "paper's order", "counterbalanced"
MOST_SETS = 4  # of which a picked head is told: more would not be seen together with the map


def forms_rows(t: pd.DataFrame) -> pd.DataFrame:
    """One row per form and order: mean accuracy over the sets, how many pass, and the baselines."""
    t = t.assign(form=[f"k = {k}, {s}" for k, s in zip(t["k"], t["separator"], strict=True)])
    columns = ["accuracy", "two_label", "names_label", *BASELINES]
    table = t.groupby(["form", "order"], sort=False)[columns].mean().round(2)
    table["sets that pass"] = t.groupby(["form", "order"], sort=False)["passes"].sum()
    table["chosen"] = t.groupby(["form", "order"], sort=False)["chosen"].first().map({True: "yes", False: ""})
    return table


def forms_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    t = t.assign(form=[f"k = {k}, {s}" for k, s in zip(t["k"], t["separator"], strict=True)])
    return charts.bars(
        t[t["order"] == BALANCED], x="form", y="accuracy", group="dataset", x_title="form of the prompt",
        y_title="accuracy, counterbalanced", title="Which form of prompt does the model learn from?",
    )  # fmt: skip


def forms(t: pd.DataFrame) -> Claim:
    """In some form of prompt the model learns the task."""
    chosen, balanced = t[t["chosen"] & (t["order"] == BALANCED)], t[t["order"] == BALANCED]
    sets = t["dataset"].nunique()
    if chosen.empty:
        best = balanced.groupby(["k", "separator"])["passes"].sum().max()
        return untestable(
            f"No form that was tried passes: at best {best} of {plural(sets, 'set')} have a counterbalanced accuracy clearly "
            "above one half. The paper's own form is used, and no claim about learning is judged on this model."
        )
    row = chosen.iloc[0]
    return finding(
        f"The form used from here on has {plural(row['k'], 'demonstration')} of each class and a {row['separator']} between "
        f"them: {chosen['passes'].sum()} of {plural(sets, 'set')} pass in it."
    )


def accuracy_rows(t: pd.DataFrame) -> pd.DataFrame:
    columns = ["dataset", "order", "true_label", "accuracy", "low", "high", "two_label", *BASELINES, "n", "prompts"]
    return t[columns].round(2).set_index(["dataset", "order", "true_label"])


def accuracy_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t.assign(asked=t["order"] + ", " + t["true_label"].replace("both", "either label") + " true"),
        x="dataset", y="accuracy", group="asked", y_title="accuracy",
        title="Accuracy in the paper's order, and counterbalanced",
        description="Grouped bars with 95% Wilson intervals; in the paper's order the nearest label is always the true one.",
    )  # fmt: skip


def accuracy(t: pd.DataFrame) -> Claim:
    """Is the task learned? Judged where repeating the last label, or preferring one, gives one half."""
    balanced, paper = t[t["order"] == BALANCED], t[t["order"] == PAPER]
    passing = int(balanced["passes"].sum())
    verdict = Verdict.HOLDS if passing > len(balanced) / 2 else Verdict.FAILS if passing == 0 else Verdict.UNDECIDED
    if verdict is Verdict.FAILS and (paper["low"] > 0.5).any():
        verdict = Verdict.CONTROL
    return Claim(
        verdict,
        f"Counterbalanced, the model is right in {balanced['accuracy'].min():.0%} to {balanced['accuracy'].max():.0%} of "
        f"prompts, clearly above one half on {passing} of {plural(len(balanced), 'set')}. In the paper's order it is right "
        f"in {paper['accuracy'].min():.0%} to {paper['accuracy'].max():.0%}, where repeating the last label is always right.",
    )


def case_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.by_layer(
        t.rename(columns={"part": "kind"}), title="Which blocks raise the true label in one prompt",
        y_title="log-probability increase (nats)",
        description="Bars for the attention and FFN block of each layer: log-probability increase of the true label.",
    )  # fmt: skip


def case(t: pd.DataFrame) -> Claim:
    sums = t.groupby("part")["increase"].sum()
    said = "predicts" if t["said"].iloc[0] == "true label" else "does not predict"
    return finding(
        f"The prompt {code(t['text'].iloc[0])}: the model {said} {code(t['true_label'].iloc[0])}. Attention blocks add "
        f"{sums['attention']:+.2f} nats, FFN blocks {sums['FFN']:+.2f}. One prompt has no interval."
    )


def blocks_rows(t: pd.DataFrame) -> pd.DataFrame:
    shown = t.assign(shown=[f"{r.value:+.2f} [{r.low:+.2f}, {r.high:+.2f}]" for r in t.itertuples()])
    wide = shown.pivot(index=["order", "quantity"], columns="part", values="shown")
    return wide.reindex(list(t[["order", "quantity"]].drop_duplicates().itertuples(index=False, name=None)))


def blocks_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[t["quantity"].isin(["increase", "other label", "margin"]) & (t["part"] != "attention less FFN")]
    names = {"increase": "true label", "margin": "true less other"}
    return charts.bars(
        own.assign(quantity=own["quantity"].replace(names)), x="quantity", y="value", group="part", facet="order",
        x_title="followed label", y_title="sum over blocks (nats)",
        sort=["true label", "other label", "true less other"], title="Some label, or this label: attention and FFN blocks",
    )  # fmt: skip


def _label(blocks: str, increase: Interval, margin: Interval, other: Interval) -> str:
    """Some label, or this label? An increase is the mean of both labels' and half of the lead: the first is the larger
    part as soon as the other label rises too."""
    if increase.low <= 0:
        return f"{blocks} blocks do not clearly raise it"
    if margin.low <= 0:
        return f"what {blocks} blocks add is some label, not this label"
    if other.low > 0:
        return f"{blocks} blocks raise the other label too, so most of what they add is some label"
    return f"what {blocks} blocks add is this label"


@about_learning
def blocks(t: pd.DataFrame) -> Claim:
    """Figure 2: attention raises the label, and its lead, more than FFN does. Raising the other label as much is the control."""
    t = t[t["order"] == BALANCED]
    attention, ffn, more = (
        [estimate(t, "value", part=part, quantity=quantity) for quantity in ("increase", "margin", "other label")]
        for part in ("attention", "FFN", "attention less FFN")
    )
    verdict = together([judge(*attention[:2]), judge(*more[:2])])
    said = {
        Verdict.HOLDS: "Attention blocks raise the true label, and its lead over the other label, more than FFN blocks do",
        Verdict.CONTROL: "Attention blocks raise a label more than FFN blocks do, but not clearly this label over the other",
        Verdict.FAILS: "Attention blocks do not raise the true label more than FFN blocks do",
    }.get(verdict, "Attention blocks cannot be told from FFN blocks, or from blocks that raise nothing")
    return Claim(
        verdict,
        f"{said}: {attention[0]:+.2f} against {ffn[0]:+.2f} nats, of the lead {attention[1]:+.2f} against {ffn[1]:+.2f} "
        f"(counterbalanced, either class asked; n = {plural(more[0].n, 'query word')}): "
        f"{_label('FFN', *ffn)}; {_label('attention', *attention)}.",
    )


def map_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    """A head at a time, picked on the map of the first set: its place in both rankings, on the first MOST_SETS sets."""
    sets = list(t["dataset"].unique())[:MOST_SETS]
    t, first = t[t["dataset"].isin(sets)], t[t["dataset"] == sets[0]].set_index("name")["label_margin"]
    ours, papers = t.assign(nats=t["label_margin"], ranking="ours"), t.assign(nats=t["increase"], ranking="paper's")
    lines, count = pd.concat([ours, papers], ignore_index=True), len(first)
    rank = lines.groupby(["ranking", "dataset"])["nats"].rank(ascending=False, method="first").astype(int)
    told = zip(lines["dataset"], lines["ranking"], rank, lines["nats"], strict=True)
    lines["line"] = [f"{of}, {name}: {place} of {count}, {nats:+z.3f}" for of, name, place, nats in told]
    lines["share"], lines["strong"] = linked.below(rank, count), lines["ranking"].eq("ours")
    return linked.head_explorer(
        lines.assign(first=lines["name"].map(first)), value="first", value_title="label margin (nats)",
        title="What every head adds from label positions", share_title="heads of the model that the ranking puts below it",
        description=f"A grid with one cell for each head, coloured by label margin on {sets[0]}. The head that is picked there is "
        "told below: its place on each set and what it adds (nats). A bar is longer the more heads stand below it, blue in our "
        "ranking and grey in the paper's.",
    )  # fmt: skip


def top_heads_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="head", y="increase", group="dataset", facet="kind", y_title="mean increase (nats)",
        title="The in-context heads on every set, and random heads of their layers",
    )  # fmt: skip


def top_heads(t: pd.DataFrame) -> Claim:
    first = t[t["dataset"] == t["dataset"].iloc[0]]
    ours, random = first[first["kind"] == IN], first[first["kind"] == RANDOM]
    also = int((ours["rank_paper"] <= len(ours)).sum())
    return finding(
        f"The in-context heads are {listed(ours['head'])} ({ours['heads_from'].iloc[0].split(',')[0]}), at a mean depth of "
        f"{ours['depth'].mean():.2f} (zero is the first layer, one the last); {also} of them also lead the paper's ranking. Their "
        f"share of all positive increases is {ours['share'].iloc[0]:.0%}, that of random heads of the same layers "
        f"{random['share'].iloc[0]:.0%}."
    )


def overlaps_rows(t: pd.DataFrame) -> pd.DataFrame:
    columns = ["compared", "ranking", "first", "second", "shared", "k", "expected", "p", "rank_correlation", "both"]
    unbroken = t["both"].fillna("").str.replace(" ", "\u00a0")  # or each head would get a line of its own
    return t.assign(both=unbroken)[columns].round(3).set_index("compared")


def shared_heads(ours: pd.DataFrame, none: str) -> Claim:
    """Whether pairs of learned sets share more top heads than chance, which keeps the layers of both lists.

    `none`: what is said when there is no such pair. Pairs in whose layers no overlap could be told from chance are left out.
    """
    if ours.empty:
        return untestable(f"{none}, so no two tasks can share heads.")
    able = ours[discoveries(ours["least"])]
    if able.empty:
        return untestable(
            f"Pairs of learned sets share {counted(ours['shared'])} of their top {ours['k'].iloc[0]} heads, but even two equal "
            f"lists could not be told from chance within these layers (p {ours['least'].min():.2f} at the least)."
        )
    ours = able
    found = discoveries(ours["p"])
    verdict = Verdict.HOLDS if found.all() else Verdict.UNDECIDED if found.any() else Verdict.CONTROL
    lists = [str(both).split(", ") for both in ours["both"].fillna("")]
    every = [head for head in lists[0] if head and all(head in one for one in lists)]
    named = (
        f"{listed(every)} {'stands' if len(every) == 1 else 'stand'} in the lists of all of them"
        if every
        else "no head stands in all lists"
    )
    return Claim(
        verdict,
        f"Pairs of learned sets share {counted(ours['shared'])} of their top {ours['k'].iloc[0]} heads ({named}); more "
        f"than chance within the layers in {int(found.sum())} of {len(ours)} pairs (false discovery rate 5%).",
    )


def overlaps(t: pd.DataFrame) -> Claim:
    """Section 4.2: other tasks have the same top heads. Of sets that are learned."""
    found = shared_heads(
        t[(t["compared"] == "sets") & (t["ranking"] == "label") & t["learned"]], "No two sets are learned"
    )
    if found.verdict is Verdict.UNTESTABLE:
        return found
    both = t.loc[t["compared"] == "rankings", "shared"].iloc[0]
    return replace(found, sentence=f"{found.sentence} Our ranking and the paper's share {both} heads.")


def right_only_rows(t: pd.DataFrame) -> pd.DataFrame:
    counts, others = ["ranking", "dataset", "kept", "n", "shared"], ["rank_correlation", "correlation_by_chance", "k"]
    columns = [*counts, "by_chance", "p", *others]
    return t[columns].round(3).astype(object).fillna("too few").set_index("ranking")


def right_only(t: pd.DataFrame) -> Claim:
    """Keeping right answers only, as appendix A does, changes the list of heads: more than leaving as many out by chance?

    A finding without verdict: that no difference is seen proves no sameness, least of all where few are left out.
    """
    own = t[t["learned"]]
    if own.empty:
        return untestable("No set is learned, so right answers are no sign of learning.")
    enough = own[own["shared"].notna()]
    if enough.empty:
        return finding(
            f"At most {own['kept'].max()} of {own['n'].max()} prompts of a set are answered right: too few to locate heads on."
        )
    some = enough[enough["kept"] < enough["n"]]
    if some.empty:
        return untestable("Every prompt is answered right, so keeping right answers only leaves none out.")
    fewer, k = discoveries(some["p"]), some["k"].iloc[0]
    said = "There is no sign that keeping right answers only changes which heads are found"
    if fewer.any():
        said = "Keeping right answers only changes which heads are found"
    elif (some["p"] <= 0.05).any():
        said = "Whether keeping right answers only changes which heads are found cannot be told"
    return finding(
        f"{said}: the lists share {counted(some['shared'])} of their top {k} heads with those of all prompts (by chance "
        f"{some['by_chance'].mean():.1f} on average), clearly fewer in {int(fewer.sum())} of {plural(len(some), 'list')}."
    )


def positions_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="head", y="increase", group="role", y_title="summed increase of the role (nats)",
        title="Where in the prompt the in-context heads read",
    )  # fmt: skip


def positions(t: pd.DataFrame) -> Claim:
    first = t["head"].iloc[0]
    true, false = (estimate(t, "increase", head=first, role=role) for role in ("true label", "false label"))
    return finding(
        f"In {code(first)}, positions of the true label add {true:+.2f} nats and those of the false label {false:+.2f} (the "
        "paper's order, the true label followed)."
    )


def parts(t: pd.DataFrame) -> Claim:
    row = t.iloc[0]
    return finding(
        f"{int(row['parts']):,} parts add up to the final vector; the largest relative error is {row['relative_error']:.0e}."
    )


def toy_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="coefficient", y="probability", group="word", x_title="coefficient of the added vector", height=220,
        y_title="probability", title="Adding a vector whose top word is foo",
    )  # fmt: skip


def order_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.scatter(
        t, x="alone", y="after", diagonal=True, x_title="increase at the layer's input (nats)",
        y_title="increase after the layer's earlier heads (nats)",
        title="Each head measured alone, and after the heads before it",
        description="One point a head; points on the dashed line do not depend on the order of adding.",
    )  # fmt: skip


def order(t: pd.DataFrame) -> Claim:
    """Appendix E: the order of adding hardly matters. Judged on the heads that matter: those with the top increases."""
    k = min(5, len(t))
    leading = t.nlargest(k, "alone")
    lost = 1 - leading["after"].sum() / leading["alone"].sum() if leading["alone"].sum() > 0 else float("inf")
    worst = leading.loc[(leading["alone"] - leading["after"]).abs().idxmax()]
    if lost == float("inf"):
        return untestable("No head raises the true label, so there is no order to speak of.")
    return Claim(
        Verdict.HOLDS if abs(lost) < 0.1 else Verdict.FAILS,
        f"Measured after the other heads of their layer, the {k} heads with the largest increases keep {1 - lost:.0%} of it; "
        f"{code(worst['name'])} goes from {worst['alone']:+.2f} to {worst['after']:+.2f} nats. The increases of heads are not "
        "shares of a whole.",
    )


def norms_rows(t: pd.DataFrame) -> pd.DataFrame:
    return t[["first", "second", "shared", "k", "expected", "p", "rank_correlation", "n"]].round(3).set_index("first")


def norms(t: pd.DataFrame) -> Claim:
    most, least = t.loc[t["shared"].idxmax()], t.loc[t["shared"].idxmin()]
    return finding(
        f"Of the top {t['k'].iloc[0]} heads, {most['first']} and {most['second']} share {most['shared']}, {least['first']} and "
        f"{least['second']} share {least['shared']}. A list of heads should name its norm."
    )
