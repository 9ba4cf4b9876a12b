"""Chapter 6 as a reader sees it, second half: charts and claims of `studies.flips`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import (
    Claim,
    Verdict,
    about_learning,
    apart,
    between,
    code,
    finding,
    judge,
    listed,
    together,
    untestable,
)
from twotowers.stats import charts
from twotowers.stats.intervals import estimate
from twotowers.studies.flips import DEMONSTRATION, OVER, OWN, RANDOM
from twotowers.studies.interventions import MARGIN

CHANGE = "relative change of attention"
WHEN = ("attention before", "attention after")


def label_heads_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return charts.bars(
        t, x="head", y="lean", group="kind", sort=list(t["head"]), x_title="in-context head (layer-head)",
        y_title="increase of the first label less that of the second (nats)", title="Which label each in-context head serves",
        description="Bars with 95% intervals, one a head: mean increase of the first label where it is true less that of the "
        "second on the same texts with the labels exchanged.",
    )  # fmt: skip


def label_heads(t: pd.DataFrame) -> Claim:
    kinds = [
        f"{code(kind)}: {listed(own['head'])} ({int(own['clear'].sum())} clearly)"
        for kind, own in t.groupby("kind", sort=False)
    ]
    alone = " No head serves the other label." if len(kinds) == 1 else ""
    return finding(f"{'; '.join(kinds)}.{alone} The largest lean is {t['lean'].abs().max():.2f} nats.")


def _beside(t: pd.DataFrame, heads: pd.Series) -> pd.Series:
    """Names of heads, and of the random heads that stand beside them."""
    return heads.where(t["source"] == OWN, "random beside " + heads)


def zeroed_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[(t["measure"] == MARGIN) & t["source"].isin([OWN, RANDOM])]
    own = own.assign(zeroed=_beside(own, own["zeroed"])).rename(columns={"true_label": "true label"})
    return charts.bars(
        own, x="zeroed", y="value", group="true label", x_title="heads zeroed at the last position",
        y_title="change of the margin (nats)",
        title="Zeroing the heads that serve one label",
    )  # fmt: skip


def zeroed(t: pd.DataFrame) -> Claim:
    """EMNLP table 3: zeroing a label's heads hurts prompts with this label true and helps those with the other true.

    Shortcut: heads that like one word, whatever stands in the prompt, do both to the same amount. So over both labels
    together the margin must fall, beyond random heads.
    """
    kinds, verdicts, overall, said = list(dict.fromkeys(t["zeroed"])), [], [], []
    for kind in kinds:
        cells = {}
        for serves, sign in (("own label", -1), ("other label", 1)):
            cells[serves] = own, over = [
                estimate(t, "value", zeroed=kind, source=s, serves=serves, measure=MARGIN) for s in (OWN, OVER)
            ]
            verdicts.append(judge(own, over, sign=sign))
        overall.append(judge(*(between(*pair) for pair in zip(*cells.values(), strict=True)), sign=-1))
        said.append(
            f"zeroing {code(kind)} changes the margin by {cells['own label'][0]:+.2f} nats where their label is true and by "
            f"{cells['other label'][0]:+.2f} where the other is"
        )
    verdict = together(verdicts)
    liking = "Over both labels together the margin falls, which heads that like one word would not do"
    if (beyond := together(overall)) is not Verdict.HOLDS:
        verdict = Verdict.CONTROL if verdict is Verdict.HOLDS else verdict
        how = "does not fall" if beyond is Verdict.FAILS else "does not clearly fall beyond random heads"
        liking = f"Over both labels together the margin {how}: heads that like one word would do the same"
    held = f"{sum(v is Verdict.HOLDS for v in verdicts)} of {len(verdicts)} expected changes go beyond random heads"
    learns = "" if t["passes"].all() else " The model is not shown to learn this set."
    return Claim(verdict if t["passes"].all() else Verdict.UNTESTABLE, f"{held}: {'; '.join(said)}. {liking}.{learns}")


def zeroed_rows(t: pd.DataFrame) -> pd.DataFrame:
    shown = t.assign(shown=[f"{r.value:+.2f} [{r.low:+.2f}, {r.high:+.2f}]" for r in t.itertuples()])
    return shown.pivot(index=["zeroed", "true_label", "measure"], columns="source", values="shown")[[OWN, RANDOM, OVER]]


def minus_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[(t["quantity"] == "logit minus") & t["source"].isin([OWN, RANDOM])]
    own = own.assign(shown=_beside(own, own["heads"])).rename(columns={"at": "position of"})
    return charts.bars(
        own, x="shown", y="value", group="position of", x_title="heads", y_title="logit minus (nats)",
        title="Which label the heads write at each label position",
    )  # fmt: skip


def minus_rows(t: pd.DataFrame) -> pd.DataFrame:
    shown = t.assign(shown=[f"{r.value:+.3f} [{r.low:+.3f}, {r.high:+.3f}]" for r in t.itertuples()])
    return shown.pivot(index=["quantity", "heads", "at"], columns="source", values="shown")[[OWN, RANDOM, OVER]]


@about_learning
def minus(t: pd.DataFrame) -> Claim:
    """EMNLP table 4: fooheads write foo at foo positions, barheads write bar at bar positions.

    Shortcut: a head that likes one word writes it wherever it looks, so it must write it there more than at the positions
    of the other label too.
    """
    labels, verdicts, said = str(t["labels"].iloc[0]).split(","), [], []
    for kind in dict.fromkeys(t["heads"]):
        place = int(t[t["heads"] == kind]["stands_for"].iloc[0])
        where = {"heads": kind, "quantity": "logit minus"}
        own, over = (estimate(t, "value", source=source, at=labels[place], **where) for source in (OWN, OVER))
        elsewhere = apart(own, estimate(t, "value", source=OWN, at=labels[1 - place], **where))
        verdicts += [judge(own, over, sign=-1 if place else 1), judge(own, elsewhere, sign=-1 if place else 1)]
        said.append(
            f"{code(kind)} {own:+.3f} nats at {code(labels[place])} positions ({over:+.3f} more than random heads, "
            f"{elsewhere:+.3f} more than at {code(labels[1 - place])} positions)"
        )
    verdict = together(verdicts)
    no_more = "random heads do" if Verdict.CONTROL in verdicts[::2] else "heads that like one word would"
    lead = {
        Verdict.HOLDS: "They write the label they serve, beyond random heads, and where it stands",
        Verdict.CONTROL: f"They write the label they serve no more than {no_more}",
        Verdict.FAILS: "Not all of them write the label they serve",
    }.get(verdict, "It cannot be told whether they write the label they serve")
    return Claim(verdict, f"{lead}: {'; '.join(said)} (above zero stands for {code(labels[0])}).")


def flip_rates(t: pd.DataFrame) -> Claim:
    row = t.iloc[0]
    parts = [f"in {estimate(t, 'value', move=move):.0%} with a {move.split()[0]} moved" for move in t["move"]]
    return finding(
        f"Of the prompts that are answered with {code(row['first'])} ({row['answered']:.0%} of them all), the answer goes to "
        f"{code(row['second'])} {' and '.join(parts)}."
    )


def flips_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[(t["outcome"] == "flips") & t["quantity"].isin(WHEN)]
    own = own.assign(when=own["quantity"].str.removeprefix("attention "))
    own["where"] = _beside(own, own["heads"]) + " at " + own["at"].astype(str)
    title = f"Attention when the prediction flips from {t['first'].iloc[0]} to {t['second'].iloc[0]}"
    return charts.bars(
        own, x="where", y="value", group="when", facet="move", x_title="heads and positions", y_title="attention weight",
        title=title,
        note="Over pairs of prompts whose prediction flips when one text is exchanged.",
    )  # fmt: skip


def _decisive(t: pd.DataFrame, heads: str, at: str) -> int:
    """-1 where attention should leave on a flip, 1 where it should gather, 0 for cells that decide nothing."""
    return (int(at == t["second"].iloc[0]) * 2 - 1) * int(heads == f"{at}heads")


def flips_rows(t: pd.DataFrame) -> pd.DataFrame:
    """EMNLP tables 5 and 6: attention before and after a flip, and its relative change; which cells decide, and how."""
    before = t["quantity"].isin(WHEN) & (t["outcome"] == "flips") & (t["source"] == OWN)
    own = t[before | ((t["quantity"] == CHANGE) & (t["source"] != RANDOM))]
    named = [
        f"{r.outcome}, {r.source}" if r.quantity == CHANGE else r.quantity
        for r in own[["outcome", "source", "quantity"]].itertuples()
    ]
    forms = ["+.0%" if quantity == CHANGE else ".3f" for quantity in own["quantity"]]
    shown = own.assign(
        column=named,
        shown=[f"{r.value:{f}} [{r.low:{f}}, {r.high:{f}}]" for r, f in zip(own.itertuples(), forms, strict=True)],
    )
    wide = shown.pivot(index=["move", "heads", "at"], columns="column", values="shown").fillna("too few")
    wide = wide[[column for column in dict.fromkeys([*WHEN, *named]) if column in wide]]
    expected = {-1: "falls", 1: "rises", 0: ""}
    wide["expected"] = [expected[_decisive(t, heads, at)] for _, heads, at in wide.index]
    return wide.rename_axis(columns=None)


def flips(t: pd.DataFrame) -> Claim:
    """EMNLP table 6: on a flip attention leaves foo positions in fooheads and gathers on bar positions in barheads."""
    cells = t[(t["outcome"] == "flips") & (t["quantity"] == CHANGE)]
    verdicts, said = [], []
    for (move, heads, at), mine in cells.groupby(["move", "heads", "at"], sort=False):
        sign = _decisive(t, heads, at)
        if sign and {OWN, OVER} <= set(mine["source"]):
            own, over = (estimate(mine, "value", source=source) for source in (OWN, OVER))
            verdicts.append(judge(own, over, sign=sign))
            said.append(f"{code(heads)} at {code(at)} positions {over:+.0%} ({move})")
    if not verdicts or not t["passes"].all():
        why = (
            "no heads of either label could be followed at their own label"
            if not verdicts
            else "the model is not shown to learn this set"
        )
        return untestable(f"The decisive cells cannot be judged: {why}.")
    held = sum(v is Verdict.HOLDS for v in verdicts)
    return Claim(
        together(verdicts),
        f"On a flip attention moves as the paper has it, and beyond random heads, in {held} of {len(verdicts)} decisive cells. Its "
        f"relative change less that in random heads: {'; '.join(said)}.",
    )


def values(t: pd.DataFrame) -> Claim:
    """EMNLP table 5 and the two towers: on a flip attention moves farther than what stands at the label to be read."""
    own = t[(t["outcome"] == "flips") & (t["move"] == DEMONSTRATION) & (t["quantity"] == "attention less values")]
    own = own[own["at"] + "heads" == own["heads"]]
    if own[own["source"] == OWN].empty:
        return untestable(
            "Too few predictions flip when a demonstration is moved: values cannot be held against attention."
        )
    verdicts, said = [], []
    for kind in dict.fromkeys(own["heads"]):
        found = {
            source: estimate(own, "value", heads=kind, source=source)
            for source in set(own[own["heads"] == kind]["source"])
        }
        verdict = judge(found[OWN], found[OWN])
        if verdict is Verdict.HOLDS and (RANDOM not in found or found[OWN].low <= found[RANDOM].high):
            verdict = Verdict.CONTROL
        verdicts.append(verdict)
        random = f" (random heads {found[RANDOM]:+.0%})" if RANDOM in found else ""
        said.append(f"{code(kind)} {found[OWN]:+.0%}{random}")
    return Claim(
        together(verdicts) if t["passes"].all() else Verdict.UNTESTABLE,
        f"Attention on labels behind a moved demonstration, less how far the values there move, as shares of themselves: "
        f"{'; '.join(said)}.",
    )
