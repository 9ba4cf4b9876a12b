"""Chapter 8 as a reader sees it: charts and claims of `studies.best_head`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, among_others, code, either_way, finding, judge, plural, together
from twotowers.exhibits.locate import shared_heads
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

BEST, RIVAL, RANDOM, EVERY = "best head", "rival", "random heads", "all sets"
OWN = "MRR, own less other label"
PAPER, BALANCED = "paper's order", "counterbalanced"
# Rules of 2026-11-22. Of all heads about its depth only few may do as well as the best head (`among_others`); written before
# any table that it judges. And a claim must hold for each head that might
# have been the best one on other prompts (`studies.best_head.rivals`); written when 100 prompts had named one head of a
# model and 200 another, by 0.0001 nats, and before the two stood beside each other in a table.


def chosen(t: pd.DataFrame) -> Claim:
    ours, near = t[t["source"] == BEST].iloc[0], t[t["source"] == RIVAL]
    rivals = [f"{code(head)} ({margin:+.2f})" for head, margin in zip(near["head"], near["label_margin"], strict=True)]
    tied = f" {', '.join(rivals)} cannot be told from it on those prompts." if rivals else ""
    return finding(
        f"Of {ours['total']} heads {code(ours['head'])} is read here: {ours['label_margin']:+.2f} nats from label positions "
        f"(mean over {plural(ours['n_sets'], 'set')}, {ours['n_locate']} prompts each that are in no figure). It is the best "
        f"head of {ours['best_on']} of these sets taken alone.{tied}"
    )


def accuracy_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="dataset", y="accuracy", group="form", x_title="set", y_title="accuracy", title="Accuracy on each set",
        description="Grouped bars with 95% Wilson intervals, in the paper's order and counterbalanced; guessing one of the two "
        "labels gives one half.",
    )  # fmt: skip


def accuracy(t: pd.DataFrame) -> Claim:
    """The model learns the task from sentences."""
    balanced = t[t["form"] == BALANCED]
    passing = int(balanced["passes"].sum())
    verdict = Verdict.HOLDS if passing > len(balanced) / 2 else Verdict.FAILS if passing == 0 else Verdict.UNDECIDED
    rest = "Claims below use these sets only" if passing else "So claims below judge nothing; they only describe"
    return Claim(
        verdict,
        f"The model learns the task from the texts on {passing} of {plural(len(balanced), 'set')}: counterbalanced, it is right in "
        f"{balanced['accuracy'].min():.0%} to {balanced['accuracy'].max():.0%} of prompts. {rest}.",
    )


def _gap(t: pd.DataFrame, what: str, null: float = 0.0) -> tuple[Verdict, Interval | None, str, str]:
    """Verdict over the sets that are learned, the gap, on how many sets it is clear, and how many heads reach as much."""
    own = t[t["of"] == what]
    whole, sets = own[own["dataset"] == EVERY], own[own["dataset"] != EVERY]
    clear = f"{int((sets['low'] > 0).sum())} of {len(sets)}"
    if whole.empty:
        return Verdict.UNTESTABLE, None, clear, ""
    row = whole.iloc[0]
    effect = Interval(row["effect"], row["effect_low"], row["effect_high"], int(row["n"]))
    gap = estimate(whole, "gap")
    verdict = among_others(judge(effect, gap, null=null), int(row["outdone"]), int(row["near"]))
    return verdict, gap, clear, f"{int(row['outdone'])} of {plural(int(row['near']), 'other head')}"


def _of_rivals_too(claim: Callable[[pd.DataFrame], Claim]) -> Callable[[pd.DataFrame], Claim]:
    """A claim about the best head that its rivals must bear out: the weakest verdict of them all counts."""

    @wraps(claim)
    def judged(t: pd.DataFrame) -> Claim:
        found = {head: claim(part) for head, part in t.groupby("head", sort=False)}
        (_, own), *others = found.items()
        if own.verdict is Verdict.UNTESTABLE:
            return own
        said = [f"for {code(head)}: {one.verdict}" for head, one in others]
        tied = f" On other prompts another head might be the best; {', '.join(said)}." if said else ""
        return Claim(together([one.verdict for one in found.values()]), own.sentence + tied)

    return judged


@_of_rivals_too
def reads(t: pd.DataFrame) -> Claim:
    """Appendix D, first half: label words rank higher in the best head than in random heads of its layer.

    Shortcut: a head that writes one word, or some label, wherever it reads ranks the other label as high there.
    """
    verdict, gap, clear, _ = _gap(t, "MRR", 0.01)
    of_own, own, _, reached = _gap(t, OWN)
    if gap is None:
        return Claim(
            verdict,
            f"The model learns none of the sets, so nothing is judged; the best head is higher in {clear} sets.",
        )
    return Claim(
        together([verdict, of_own]),
        f"On the sets that are learned, the MRR of label words in the best head less that in random heads of its layer is {gap:+.3f} "
        f"(n = {plural(gap.n, 'query text')}), with that of the other label's word taken away {own:+.3f}; in that "
        f"{reached} about its depth reach as much.",
    )


@_of_rivals_too
def looks(t: pd.DataFrame) -> Claim:
    """Appendix D, second half, judged where neither a place nor a label word tells the class.

    Shortcut: a liking for the labels of one class, where a set asks about one class only; see `either_way`.
    """
    verdict, gap, clear, reached = _gap(t, BALANCED)
    _, paper, _, _ = _gap(t, PAPER)
    if gap is None:
        return Claim(
            verdict,
            f"The model learns none of the sets, so nothing is judged; the best head leans more on {clear} sets.",
        )
    liked = ""
    if verdict is Verdict.HOLDS:
        low = t[(t["of"] == BALANCED) & (t["dataset"] != EVERY)].set_index("dataset")["effect_low"]
        verdict = either_way(low, t["passing"].iloc[0].split(", "), 0.0)
        liked = {
            Verdict.CONTROL: " But with the other class of a pair asked about, it does not clearly lean to the query's class.",
            Verdict.UNDECIDED: " With one class asked about, a liking for the labels of that class would look the same.",
        }.get(verdict, "")
    return Claim(
        verdict,
        f"Counterbalanced, attention on true less false labels in the best head less that in random heads of its layer is {gap:+.3f}, "
        f"clearly above on {clear} sets; {reached} about its depth reach as much as it. In the paper's order, where near "
        f"labels are the true ones, {paper:+.3f}.{liked}",
    )


def gaps_rows(t: pd.DataFrame) -> pd.DataFrame:
    """A row for each head and quantity on the sets that are learned together (each alone, where none is): its own mean,
    what it has beyond random heads, and how many heads about its depth have as much."""
    t = t[t["dataset"] == EVERY] if (t["dataset"] == EVERY).any() else t
    of = t["of"].replace({PAPER: f"attention, {PAPER}", BALANCED: f"attention, {BALANCED}"})
    rows = pd.DataFrame(
        {
            "head": t["head"], "of": of, "set": t["dataset"], "its own": t["effect"].map("{:+.3f}".format),
            "less random heads": [f"{r.gap:+.3f} [{r.low:+.3f}, {r.high:+.3f}]" for r in t.itertuples()],
            "heads that reach as much": [f"{r.outdone} of {r.near}" for r in t.itertuples()],
        }
    )  # fmt: skip
    return rows.set_index(["head", "of", "set"])


def mrr_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="dataset", y="mrr", group="source", x_title="set", y_title="MRR",
        title="The label's own word in what a head reads off it",
        description="Grouped bars with 95% intervals for each set: the best head and random other heads of its layer.",
    )  # fmt: skip


def by_label_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t.assign(shown=t["dataset"] + ", " + t["label"].astype(str)), x="shown", y="mrr", group="source",
        x_title="set and label read", y_title="MRR", title="MRR of each label",
        description="Grouped bars with 95% intervals for each set and label: the best head and random heads of its layer.",
    )  # fmt: skip


def looks_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[(t["source"] == BEST) & (t["side"] != "difference") & (t["form"] == PAPER)], x="dataset",
        y="weight", group="side", x_title="set", y_title="attention, summed over label positions",
        title="Attention of the best head on true and on false labels",
        description="Grouped bars with 95% intervals for each set: sum of attention on the true and on the false labels, in the "
        "paper's order.",
    )  # fmt: skip


def forms_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t[(t["source"] == BEST) & (t["side"] == "difference")], x="dataset", y="weight", group="form",
        x_title="set", y_title="attention on true less false labels",
        title="What is left when place and label word say nothing",
        description="Grouped bars with 95% intervals for each set: difference of attention in the paper's order and counterbalanced.",
    )  # fmt: skip


def overlaps_rows(t: pd.DataFrame) -> pd.DataFrame:
    """A row for each set here and ranking, a column for each set of words: heads in both lists, and how many by chance."""
    said = t["shared"].astype(str) + " (" + t["expected"].map("{:.1f}".format) + " by chance)"
    wide = t.assign(said=said).pivot(index=["first", "ranking"], columns="second", values="said")
    table = wide[list(dict.fromkeys(t["second"]))].rename_axis(columns=None).reset_index()
    return table.rename(columns={"first": "set"}).set_index("set")


def overlaps(t: pd.DataFrame) -> Claim:
    """Appendix A: sentences have the top heads of words. Of pairs in which both sets are learned."""
    return shared_heads(t[(t["ranking"] == "label") & t["learned"]], "No set here is learned and a set of words too")
