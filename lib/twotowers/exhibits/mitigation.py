"""Chapter 7 as a reader sees it: charts and claims of `studies.mitigation`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, code, finding, judge, listed, plural
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

AS_IS, IN, RANDOM, OVER, ALL = "as it is", "in-context heads", "random heads", "in-context less random", "all sets"
FEWER, MIRROR = "one true fewer", "one false fewer"


def _pick(t: pd.DataFrame, what: str, heads: str, dataset: str = ALL, **where: object) -> Interval | None:
    """A row of a mitigation's table; None where nothing could be computed, as the share of a bias of zero."""
    for column, value in ({"what": what, "heads": heads, "dataset": dataset} | where).items():
        t = t[t[column] == value]
    return estimate(t, "value") if len(t) else None


def _share(found: Interval | None) -> str:
    return "none of it, as there is none" if found is None else f"{found:.0%} of it"


def _judged(t: pd.DataFrame, what: str, bias: bool, **where: object) -> Verdict:
    """Whether a bias becomes smaller, and by more than with random heads treated the same; judged on sets that pass."""
    if not int(t["passing"].iloc[0]) or not bias:
        return Verdict.UNTESTABLE
    effect, over = (_pick(t, what, heads, **where) for heads in (IN, OVER))
    return Verdict.UNDECIDED if effect is None else judge(effect, over)


def _outcome(verdict: Verdict, t: pd.DataFrame, bias: str) -> str:
    """The first half of a sentence: what becomes of "the ... bias"."""
    begins = bias[0].upper() + bias[1:]
    if not int(t["passing"].iloc[0]):
        return f"The model learns no set clearly, so {bias} says nothing of in-context learning here"
    return {
        Verdict.HOLDS: f"{begins} becomes smaller, and by more than with random heads treated the same",
        Verdict.CONTROL: f"{begins} becomes smaller, but not clearly more than with random heads treated the same",
        Verdict.FAILS: f"{begins} does not become smaller",
        Verdict.UNDECIDED: f"Whether {bias} becomes smaller cannot be told with so few prompts",
        Verdict.UNTESTABLE: f"There is no clear sign of {bias}, so there is nothing to make smaller",
    }[verdict]


def _sets_gone(t: pd.DataFrame, what: str, **where: object) -> str:
    """In how many sets the bias becomes clearly smaller by itself, and clearly more than in random heads."""
    sets = [name for name in dict.fromkeys(t["dataset"]) if name != ALL]
    pairs = [[_pick(t, what, heads, name, **where) for heads in (IN, OVER)] for name in sets]
    holds = sum(None not in pair and judge(*pair) is Verdict.HOLDS for pair in pairs)
    return f"both hold in {holds} of {plural(len(sets), 'set')} alone"


# --- majority label ---


def majority(t: pd.DataFrame) -> Claim:
    """EMNLP table 7: the fall of accuracy with one true demonstration fewer becomes smaller."""
    where = {"kind": FEWER, "measure": "accuracy"}
    bias, left = (_pick(t, "size", heads, **where) for heads in (AS_IS, IN))
    verdict = _judged(t, "gone", bias.low > 0 or bias.high < 0, **where)
    heads = listed(t["names"].iloc[0].split())
    over, share = _pick(t, "gone", OVER, **where), _pick(t, "share", IN, **where)
    gone = (  # a share of what is not clearly there says nothing
        f"; gone is {_share(share)}. That is {over:+.1%} of prompts beyond random heads; {_sets_gone(t, 'gone', **where)}"
    )
    return Claim(
        verdict,
        f"{_outcome(verdict, t, 'the majority-label bias')} (heads {heads}): accuracy falls by {bias:.1%} as it is and by "
        f"{left:.1%} with the minority shortcut{'' if verdict is Verdict.UNTESTABLE else gone}.",
    )


def majority_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[(t["what"] == "size") & (t["measure"] == "accuracy")]
    return charts.bars(
        own, x="dataset", y="value", group="heads", facet="kind", y_title="fall of accuracy from balanced prompts",
        title=f"The majority-label bias with the minority shortcut (a_c = {t['a_c'].iloc[0]:g})",
    )  # fmt: skip


def set_rows(t: pd.DataFrame) -> pd.DataFrame:
    """EMNLP tables 7 and 8, set by set: size of the bias as it is, with the mitigation and with random heads, and the
    share that is gone; accuracy with one true demonstration fewer, or over orders."""
    own = t[t["measure"].isin(["accuracy", "weight"])]
    own = own[own["kind"] == FEWER] if "kind" in own else own
    own = own[own["what"].isin(["size", "share"]) & (own["heads"] != OVER)]
    own = own.assign(
        column=[b if a == "size" else f"share gone, {b}" for a, b in zip(own["what"], own["heads"], strict=True)]
    )
    order = [name for name in dict.fromkeys(own["column"])]
    table = own.pivot(index="dataset", columns="column", values="value").assign(n=own.groupby("dataset")["n"].max())
    order.append("n")  # query words
    return table.loc[list(dict.fromkeys(own["dataset"])), order].round(4).astype(object).fillna("no bias")


def mirror(t: pd.DataFrame) -> Claim:
    """A push towards the minority label must not do harm where the true label has the majority."""
    where = {"kind": MIRROR, "measure": "accuracy"}
    bias, left = (_pick(t, "size", heads, **where) for heads in (AS_IS, IN))
    margins = [
        _pick(t, "size", heads, kind=kind, measure="margin") for kind in (FEWER, MIRROR) for heads in (AS_IS, IN)
    ]
    return finding(
        f"The mirror image, one *false* demonstration fewer: accuracy falls by {bias:.1%} as it is and by {left:.1%} with the "
        f"same shortcut (negative: it rises). The margin, which has no ceiling, falls by {margins[0]:.2f} nats and with the "
        f"shortcut by {margins[1]:.2f} with one true one fewer, by {margins[2]:.2f} and {margins[3]:.2f} in the mirror image."
    )


def factors_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.lines(
        t.assign(line=t["kind"] + ", " + t["heads"]), x="factor", y="fall", group="line", log=True,
        x_title="factor a_c (symmetric log scale)", y_title="fall of accuracy",
        title="What is left of the bias for every factor of the minority shortcut",
    )  # fmt: skip


def factors(t: pd.DataFrame) -> Claim:
    best = float(t["chosen"].iloc[0])
    own = t[(t["heads"] == IN) & t["factor"].isin([0.0, best])]
    true, false = (estimate(own, "fall", kind=kind, factor=best) for kind in (FEWER, MIRROR))
    if best == 0:
        return finding(
            "On the prompts on which heads are located no factor does better than no shortcut at all, when both ways of "
            f"taking a demonstration away count: accuracy falls by {true:.1%} with one true one fewer, by {false:.1%} "
            "with one false one."
        )
    before = estimate(own, "fall", kind=FEWER, factor=0.0)
    return finding(
        f"On {int(t['tuned_on'].iloc[0]):,} prompts that judge nothing the mean fall over both kinds is smallest at `a_c` = "
        f"{best:g}. On the judged prompts accuracy then falls by {true:.1%} with one true demonstration fewer ({before:.1%} "
        f"without the shortcut) and by {false:.1%} with one false one fewer."
    )


# --- recency ---


def recency(t: pd.DataFrame) -> Claim:
    """EMNLP table 8. A spread is never below zero: it counts where it exceeds what chance leaves, and the judge is its
    reduction, paired over prompts."""
    bias, left = (_pick(t, "size", heads, measure="accuracy") for heads in (AS_IS, IN))
    chance = _pick(t, "chance", AS_IS, measure="accuracy")
    verdict = _judged(t, "gone", bias.estimate > chance.estimate, measure="accuracy")
    shares = [_pick(t, "share", heads, measure="accuracy") for heads in (IN, RANDOM)]
    return Claim(
        verdict,
        f"{_outcome(verdict, t, 'the recency bias')}: the standard deviation of accuracy over orders is {bias:.1%} "
        f"as it is and {left:.1%} with the position-free shortcut; "
        f"gone is {_share(shares[0])}, with random heads {_share(shares[1])}; {_sets_gone(t, 'gone', measure='accuracy')}.",
    )


def recency_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[t["what"].isin(["size", "chance"]) & (t["measure"] == "accuracy")]
    own = own.assign(heads=own["heads"].where(own["what"] == "size", "by chance"))
    return charts.bars(
        own, x="dataset", y="value", group="heads", y_title="standard deviation of accuracy over orders",
        title="The recency bias with the position-free shortcut",
        note="By chance: what chance exceeds once in twenty times.",
    )  # fmt: skip


def by_order_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="order", y="accuracy", group="heads", y_title="accuracy",
        x_title="order of the demonstrations, the query at the right end",
        title="Accuracy in every order, with the position-free shortcut",
    )  # fmt: skip


def by_order(t: pd.DataFrame) -> Claim:
    plain, ours = (t[t["heads"] == heads].set_index("order")["accuracy"] for heads in (AS_IS, IN))
    if plain.max() == plain.min():
        return finding(
            f"Accuracy is {plain.max():.0%} in each of {plural(len(plain), 'order')}: order does not matter here."
        )
    low, high = plain.idxmin(), plain.idxmax()
    return finding(
        f"As it is, accuracy goes from {plain[low]:.0%} ({code(low)}) to {plain[high]:.0%} ({code(high)}); in these two orders "
        f"it is {ours[low]:.0%} and {ours[high]:.0%} with the shortcut. The mean over orders goes from {plain.mean():.1%} to "
        f"{ours.mean():.1%}."
    )


def readings_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t.assign(heads=IN), x="reading", y="spread", group="heads",
        x_title="reading of “a shortcut beside the original”", y_title="standard deviation of accuracy over orders",
        title=f"Three readings of the shortcut ({t['dataset'].iloc[0]})",
    )  # fmt: skip


def readings(t: pd.DataFrame) -> Claim:
    own = t.set_index("reading")
    three = own.loc[["mean", "replace", "add"], "spread"]
    add, doubled = own.loc["add", "spread"], own.loc["doubled, with position", "spread"]
    equal = (
        "all three leave the same spread"
        if three.nunique() == 1
        else f"{code(three.idxmin())} leaves the smallest spread"
    )
    than = "less than" if add < doubled else "more than" if add > doubled else "as much as"
    return finding(
        f"Of the three readings {equal}, {three.min():.1%} against {own.loc[AS_IS, 'spread']:.1%} as it is. `add` makes "
        f"the heads louder as well: it leaves {than} doubling them with their position ({add:.1%} and {doubled:.1%})."
    )


def attention_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[(t["what"] == "share") & t["heads"].isin([IN, RANDOM]) & (t["dataset"] == ALL)]
    return charts.bars(
        own, x="measure", y="value", group="heads", x_title="standard deviation over orders of a label's weight",
        y_title="share that is gone", title="By which share attention varies less over the orders",
    )  # fmt: skip


def attention(t: pd.DataFrame) -> Claim:
    """EMNLP section 6: attention varies less over the orders; in any head, part of it does once position is averaged
    out."""
    verdict = _judged(t, "share", _pick(t, "share", IN, measure="weight") is not None, measure="weight")
    ours, random, over = (_pick(t, "share", heads, measure="weight") for heads in (IN, RANDOM, OVER))
    outcome = _outcome(verdict, t, "the spread of attention over orders")
    if ours is None or over is None:
        return Claim(verdict, f"{outcome}: in some heads a label's weight is the same in every order.")
    relative = _pick(t, "share", IN, measure="weight, relative")
    return Claim(
        verdict,
        f"{outcome}: the standard deviation of a label's weight becomes smaller by {ours:.1%}, in random heads by {random:.1%} "
        f"(difference {over:+.1%}); relative to the mean weight by {relative:.1%} (negative: larger).",
    )


def by_head_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="head", y="spread", group="weights", y_title="standard deviation over orders",
        title="How much the weight on a label varies over the orders",
    )  # fmt: skip


# --- known remedies ---


def remedies_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="remedy", y="size", group="bias", x_title="remedy", y_title="bias (share of prompts)",
        title=f"What is left of the two biases under each remedy ({t['dataset'].iloc[0]})",
    )  # fmt: skip


def remedies_rows(t: pd.DataFrame) -> pd.DataFrame:
    table = t.pivot(index=["remedy", "passes", "balanced"], columns="bias", values="size").round(4)
    return table.reset_index().set_index("remedy").loc[list(dict.fromkeys(t["remedy"]))].rename_axis(columns=None)


def remedies(t: pd.DataFrame) -> Claim:
    said = []
    for bias, own in t.groupby("bias", sort=False):
        own = own[own["remedy"] != "mean over orders"] if bias.startswith("spread") else own
        left = own.set_index("remedy")["size"].abs()
        if left.nunique() == 1:
            said.append(f"{bias}, {left.iloc[0]:.1%} under each of them")
        elif left[AS_IS] == left.min():
            said.append(f"{bias}, no remedy leaves less than the {left.min():.1%} of the model as it is")
        else:
            said.append(
                f"{bias}: {code(left.idxmin())} leaves least, {left.min():.1%} against {left[AS_IS]:.1%} as it is"
            )
    return finding(
        "; ".join(said)
        + f" (n = {plural(int(t['n'].max()), 'query word')}). The mean over orders has no spread by its making. "
        "The intervals in the figure say how far these differences can be told apart."
    )
