"""Chapter 9 as a reader sees it: charts and claims of `studies.sentence_case`."""

from __future__ import annotations

import altair as alt
import pandas as pd

from twotowers.exhibits.claim import Claim, Verdict, code, finding, judge, plural
from twotowers.stats import charts
from twotowers.stats.intervals import Interval, estimate

OWN, ANOTHER = "its own key", "another text's key"


def looks_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    shown = [f"{r.number}: {r.kind}" for r in t.itertuples()]
    t = pd.concat(
        [
            t.assign(demonstration=shown, heads="this head"),
            t.assign(demonstration=shown, heads="random heads", weight=t["random"]),
        ]
    )
    return charts.bars(
        t, x="demonstration", y="weight", group="heads", sort=shown, x_title="demonstration and kind of its label",
        y_title="attention weight", title="Attention of the last position on each label, one prompt",
    )  # fmt: skip


def looks(t: pd.DataFrame) -> Claim:
    row = t.iloc[0]
    usual = Interval(row["usual"], row["usual_low"], row["usual_high"], int(row["prompts"]))
    return finding(
        f"Head {code(row['head'])} on a prompt of {code(row['dataset'])} that the model answers {row['correct']} (the query is of "
        f"the class {code(row['query_class'])}): true less false labels get {row['difference']:+.2f} of its attention, more than in "
        f"{row['below']:.0%} of {row['prompts']} prompts, whose mean is {usual:+.2f}; in random heads of the layer it is "
        f"{row['random_usual']:+.2f}."
    )


def looks_rows(t: pd.DataFrame) -> pd.DataFrame:
    return t[["number", "class", "label", "kind", "weight", "random"]].round(3).set_index("number")


def word_rows(t: pd.DataFrame) -> pd.DataFrame:
    top = t[t["silent"] == "left out"].assign(word=t["word"].astype(str))
    by = ["number", "class", "label"]
    return top.groupby([*by, "kind"], sort=False)["word"].agg(", ".join).unstack("kind").fillna("")


def words_chart(t: pd.DataFrame) -> alt.TopLevelMixin:
    t = t.assign(relation=t["relation"].fillna(""), word=t["word"].astype(str))
    start = t.loc[t["kind"] == "key", "vector"]
    return charts.word_explorer(
        t, title="Top words of one vector", height=28 * int(t["rank"].max()),
        start={"vector": start.iloc[0]} if len(start) else None,
        description="Bars of bs-values, one a word, for the vector chosen in the list below.",
    )  # fmt: skip


def counted_rows(t: pd.DataFrame) -> pd.DataFrame:
    shown = t.assign(shown=[f"{r.words:+.2f} [{r.low:+.2f}, {r.high:+.2f}]" for r in t.itertuples()])
    return shown.pivot(index="kind", columns="against", values="shown")


def counted(t: pd.DataFrame) -> Claim:
    """The keys say words of their own text, more than of another text and more than random directions do."""
    key = t[t["kind"] == "key"]
    other, random = (estimate(key, "words", against=against) for against in ("another text", "random direction"))
    verdict = judge(other, random)
    said = {
        Verdict.HOLDS: "say words of their own text",
        Verdict.CONTROL: "say words of their own text, but no more than random directions",
        Verdict.FAILS: "do not say words of their own text rather than of another",
    }.get(verdict, "do not clearly say words of their own text")
    return Claim(
        verdict,
        f"The keys of {code(t['head'].iloc[0])} {said}: of the top {t['n_words'].iloc[0]} words, {other:+.2f} more are of it "
        f"than of another text of the prompt, {random:+.2f} more than in random directions (n = {plural(other.n, 'query word')}).",
    )


def chat_rows(t: pd.DataFrame) -> pd.DataFrame:
    return t[["number", "class", "words_of", "words", "answer", "verdict"]].set_index("number")


def chat(t: pd.DataFrame) -> Claim:
    """A chat model relates a key's words to their own text, and not to any text: appendix C with a control."""
    yes = {of: int((rows["verdict"] == "yes").sum()) for of, rows in t.groupby("words_of")}
    n, unclear = t["number"].nunique(), int((t["verdict"] == "unclear").sum())
    own, other = yes.get(OWN, 0), yes.get(ANOTHER, 0)
    verdict = Verdict.CONTROL if own and own <= other else Verdict.FAILS if not own else Verdict.UNDECIDED
    tail = (
        "So few questions cannot show more than that it leans the right way"
        if verdict is Verdict.UNDECIDED
        else "So it does not tell a text's own words from foreign ones, and its explanations are no evidence"
    )
    return Claim(
        verdict,
        f"{code(t['chat_model'].iloc[0])} finds a relation in {own} of {n} texts with words of their own key, and in {other} of {n} "
        f"with those of another text's key; {unclear} answers end in neither yes nor no. {tail}.",
    )
