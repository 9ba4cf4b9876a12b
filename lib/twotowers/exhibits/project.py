"""Chapter 2 as a reader sees it: charts and claims of `studies.project`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, about_learning, code, finding, judge, listed, together, untestable
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

IN, RANDOM, DIRECTION = "in-context heads", "random heads", "random direction"
OVER = "in-context less random"
RAW, CENTRED = "as the paper", "mean taken out"
PROMPT = "other in the prompt"
SAID = {
    "value": "the values of label positions say their own label",
    "key": "the keys of label positions say the class of their demonstration",
    "query": "the last position's queries say the class of the query",
}


def _judged(t: pd.DataFrame, kind: str, reading: str) -> tuple[Verdict, Interval, list[Interval]]:
    """The verdict of one kind of vector: beyond the other word or class of the prompt, and beyond every control."""
    own = t[(t["kind"] == kind) & (t["reading"] == reading)]
    effect = estimate(own, "words", against=PROMPT)
    controls = [estimate(own, "words", against=name) for name in own["against"] if name != PROMPT]
    verdicts = [judge(effect, control) for control in controls] or [judge(effect, None)]
    return together(verdicts), effect, controls


def _claim(t: pd.DataFrame, kind: str) -> Claim:
    readings = [reading for reading in (CENTRED, RAW) if ((t["kind"] == kind) & (t["reading"] == reading)).any()]
    if not readings:
        return untestable(f"That {SAID[kind]} cannot be counted: the classes of these sets have no word lists.")
    reading = RAW if kind == "value" else readings[0]
    verdict, effect, controls = _judged(t, kind, reading)
    wanted = t.loc[t["kind"] == kind, "wanted"].iloc[0]
    tail = "" if kind == "value" or reading == RAW else "; the mean over prompts was taken out first"
    least = min(controls, key=lambda one: one.low) if controls else None
    against = f", {least:+.2f} against the closest control" if least else ""
    return Claim(
        verdict,
        f"That {SAID[kind]}: of the top {t['n_words'].iloc[0]} words, those of its {wanted} less those of the other one in the "
        f"prompt are {effect:+.2f}{against} (in-context heads {listed(t['heads'].iloc[0].split(', '), 5)}{tail}).",
    )


@about_learning
def values(t: pd.DataFrame) -> Claim:
    return _claim(t, "value")


@about_learning
def keys(t: pd.DataFrame) -> Claim:
    return _claim(t, "key")


@about_learning
def queries(t: pd.DataFrame) -> Claim:
    return _claim(t, "query")


def gains_rows(t: pd.DataFrame) -> pd.DataFrame:
    shown = t.assign(shown=[f"{r.words:+.2f} [{r.low:+.2f}, {r.high:+.2f}]" for r in t.itertuples()])
    return shown.pivot(index=["kind", "reading"], columns="against", values="shown").fillna("")


def word_rows(t: pd.DataFrame) -> pd.DataFrame:
    """Position and vector, and its top words, in the first head (v1 table 1)."""
    own = t[(t["head"] == t["head"].iloc[0]) & (t["silent"] == "left out")]
    return (
        own.groupby("vector", sort=False)["word"]
        .agg(lambda words: ", ".join(map(str, words)))
        .rename("top words")
        .to_frame()
    )


def words_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    first = t.loc[t["kind"] == "value", "vector"].iloc[0]
    t = t.assign(relation=t["relation"].fillna(""), word=t["word"].astype(str))
    return charts.word_explorer(
        t, title="Top words of one vector", height=28 * int(t["rank"].max()), start={"vector": first},
        description="Bars of bs-values, one a word, for the head and the vector chosen in the lists below.",
    )  # fmt: skip


def words(t: pd.DataFrame) -> Claim:
    top = t[(t["silent"] == "left out") & (t["kind"] == "value")]
    read = top.groupby(["head", "position"])["relation"].agg(lambda r: (r == "own label").any())
    said = "answers with" if t["said"].iloc[0] == "true label" else "does not answer with"
    return finding(
        f"The prompt {code(t['text'].iloc[0])}: the model {said} {code(t['true_word'].iloc[0])}. The own label is among the top "
        f"words of {int(read.sum())} of {len(read)} values of these heads. One prompt shows and proves nothing; counts follow."
    )


def _rates_chart(t: pd.DataFrame, of: str, reading: str, title: str) -> alt.TopLevelMixin:
    """Words of the own `of` ("text" or "class") and of the other one in keys and queries."""
    own = t[t["kind"].isin(KEYS_AND_QUERIES) & (t["reading"] == reading)]
    own = own[(own["relation"] == f"own {of}") | ((own["relation"] == f"other {of}") & (own["source"] == IN))]
    return charts.bars(
        own.assign(counted=own["relation"] + ", " + own["source"]), x="kind", y="words", group="counted",
        sort=KEYS_AND_QUERIES, x_title="what is read", title=title, y_title=f"words among the top {t['n_words'].iloc[0]}",
        description="Grouped bars with 95% intervals: what belongs to the place and what does not in located heads, and what "
        "belongs to it in the controls.",
    )  # fmt: skip


KEYS_AND_QUERIES = ["key", "key, attention only", "query", "query, turned"]


def texts_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    return _rates_chart(t, "text", RAW, "Words of the own text among the top words")


def classes_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    reading = CENTRED if (t["reading"] == CENTRED).any() else RAW
    return _rates_chart(t, "class", reading, f"Words of the class that the prompt does not contain ({reading})")


def values_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[(t["relation"] == "own label") | (t["source"] == IN)]
    return charts.bars(
        own.assign(counted=own["relation"] + ", " + own["source"]), x="head", y="words", group="counted",
        x_title="located head (layer-head)",
        y_title=f"words among the top {t['n_words'].iloc[0]} (a label position)", title="Label words among the top words of values",
    )  # fmt: skip


def neurons_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    own = t[~t["part"].isin(["all FFN blocks", "these neurons", OVER])]
    return charts.bars(
        own.assign(neurons="that choose the label"), x="part", y="nats", group="neurons",
        x_title="what their subkeys meet", y_title="lead of the true label (nats)",
        title="What made the neurons that choose the label do so",
        description="Bars with 95% intervals: what each part of the model contributes, through the neurons' coefficients, "
        "to the lead that these neurons give the true label; random heads are among the other heads.",
    )  # fmt: skip


@about_learning
def neurons(t: pd.DataFrame) -> Claim:
    """Appendix E: what heads wrote raises the coefficients of helpful neurons. Random heads of the layers are the control.

    Shortcuts: a neuron that always says one label gains nothing when labels are exchanged, and one that follows the last
    label gains nothing over counterbalanced orders.
    """
    these, ours, over, others, blocks = (
        estimate(t, "nats", part=part) for part in ("these neurons", IN, OVER, "other heads", "FFN blocks")
    )
    k = int(t["k"].iloc[0])
    if these.low <= 0 or these.n < 2:
        return untestable(
            f"The {k} neurons that added most to the true label's lead on other prompts add {these:+.3f} nats here: there is "
            "no lead to explain."
        )
    verdict = judge(ours, over)
    said = {
        Verdict.HOLDS: "What in-context heads wrote makes them do so, more than what random heads of the layers wrote",
        Verdict.CONTROL: "What in-context heads wrote makes them do so, but no more than what random heads of the layers wrote",
        Verdict.FAILS: "What in-context heads wrote does not make them do so",
    }.get(verdict, "Whether what in-context heads wrote makes them do so cannot be told")
    return Claim(
        verdict,
        f"{k} neurons add {these:+.3f} nats to the true label's lead. {said}: through their coefficients {ours:+.3f} comes from "
        f"in-context heads ({over:+.3f} more than from random ones), {others:+.3f} from all other heads and {blocks:+.3f} from "
        "earlier FFN blocks.",
    )
