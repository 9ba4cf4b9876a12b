"""Chapter 4: the two towers, queries and keys of a head, and whether they tell classes apart (v1 sections 1 and 4.4)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, named
from twotowers.stats.intervals import bootstrap, discoveries, grouped, p_value
from twotowers.studies.attention_weights import BALANCED, IN, MOST, SHOWN, balanced, by_head, kinds, right_wrong, study
from twotowers.studies.run import Run

COMPARED, CONTENT = "as the model compares", "content alone"


def _towers(run: Run, rotated: bool) -> dict:
    """Queries and keys of both kinds of heads, over at most MOST counterbalanced prompts of each judged set."""
    from twotowers.analysis.attention import two_towers

    every = list(dict.fromkeys(head for heads in kinds(run).values() for head in heads))
    encoded = [e for d in run.judged for e in balanced(run, d)[:MOST]]
    return run.keep(
        ("towers", rotated), lambda: two_towers(run.lm, encoded, every, rotated=rotated, progress="the two towers")
    )


@study
def separation(run: Run) -> pd.DataFrame:
    """AUC within counterbalanced prompts, head by head, on the sets that are learned (all, where none is): kind, head,
    reading (COMPARED; in models that rotate by position also CONTENT, before that), auc, low, high, n, p, stands."""
    found = [by_head(run, "auc", 0.5, run.judged, BALANCED).assign(reading=COMPARED)]
    if run.lm.architecture.positions == "rotary":
        towers, queries = _towers(run, False), [e.prompt.query for d in run.judged for e in balanced(run, d)[:MOST]]
        for kind, heads in kinds(run).items():
            values = [towers[head].separation() for head in heads]
            tested = [p_value(one - 0.5, queries) for one in values]
            rows = [bootstrap(one, clusters=queries, seed=run.parameters.seed).as_row("auc") for one in values]
            rows = pd.DataFrame(rows).assign(head=named(heads), p=tested, stands=discoveries(tested))
            found.append(rows.assign(kind=kind, form=BALANCED, reading=CONTENT))
    return pd.concat(found, ignore_index=True).assign(learned=bool(run.passing))


def _pair(run: Run) -> dict[str, Head]:
    """The in-context head that separates best, and the random head of its layer."""
    table = run.table(separation)
    best = table[(table["kind"] == IN) & (table["reading"] == COMPARED)].sort_values("auc").iloc[-1]["head"]
    at = named(run.heads()).index(best)
    pair = (run.heads()[at], Head(*run.controls()[at]))
    return {f"{kind} head {Head(*head)}": head for kind, head in zip(("in-context", "random"), pair, strict=True)}


@study
def plane(run: Run) -> pd.DataFrame:
    """Queries and keys of two heads in a plane, before rotation where there is one: head, tower, class, x, y; share (of
    the variance that the plane shows), fitted (queries), rotary. Some of the prompts, evenly spread."""
    rotary, parts = run.lm.architecture.positions == "rotary", []
    for title, head in _pair(run).items():
        found = _towers(run, not rotary)[head]
        at, share = found.plane()
        step = max(1, len(found.queries) // SHOWN) | 1  # odd: both assignments of the labels are drawn
        kept = at[at["prompt"] % step == 0]
        parts.append(kept[["tower", "class", "x", "y"]].assign(head=title, share=share, fitted=len(found.queries)))
    return pd.concat(parts, ignore_index=True).round(4).assign(rotary=rotary)


@study
def class_scores(run: Run) -> pd.DataFrame:
    """Mean score (nats) of queries of one class with keys of each, over all pairs of prompts, in the two heads of
    `plane`: head, query_class, key_class, score, relative (less the row's mean), n_queries, n_keys."""
    rotary = run.lm.architecture.positions == "rotary"
    parts = [_towers(run, not rotary)[head].class_scores().assign(head=title) for title, head in _pair(run).items()]
    return pd.concat(parts, ignore_index=True)


@study(version=2)
def dissociation(run: Run) -> pd.DataFrame:
    """Three things an in-context head may do, head by head: read the label's word (mrr, mrr_low, mrr_high, control: that
    of its random head; advantage: less that of the other label's word there, with advantage_low), look more at true
    labels when the answer is right (gap), separate the classes (auc).

    reads, leans, separates: "yes", "no", or "unknown" where right and wrong answers cannot be compared.
    """
    from twotowers.analysis.word_ranks import advantages, label_ranks, mrr

    p, ours, theirs = run.parameters, run.heads(), [Head(*pair) for pair in run.controls()]
    encoded = balanced(run, run.judged[0])[:SHOWN]
    ranks = label_ranks(run.lm, encoded, list(dict.fromkeys([*ours, *theirs])), p.norm, progress="words of labels")
    ranks["query"] = np.array([e.prompt.query for e in encoded])[ranks["prompt"]]
    found = mrr(ranks, ["head"], p.seed).set_index("head")
    other = grouped(advantages(ranks, ["head", "query"]), ["head"], "advantage", clusters="query", seed=p.seed)
    other = other.set_index("head")
    apart = run.table(separation).query("kind == @IN and reading == @COMPARED").set_index("head")
    try:
        lean = run.table(right_wrong).query("kind == @IN").set_index("head")
    except TwoTowersError:
        lean = None
    rows = []
    for head, partner in zip(named(ours), named(theirs), strict=True):
        own, control, auc = found.loc[head], found.loc[partner], apart.loc[head]
        leans = "unknown" if lean is None else "yes" if lean["low"][head] > 0 else "no"
        rows.append(
            {"head": head, "mrr": own["mrr"], "mrr_low": own["low"], "mrr_high": own["high"], "control": control["mrr"],
             "advantage": other["advantage"][head], "advantage_low": other["low"][head], "leans": leans,
             "reads": "yes" if own["low"] > control["high"] and other["low"][head] > 0 else "no",
             "auc": auc["auc"], "low": auc["low"], "high": auc["high"], "n": auc["n"],
             "separates": "yes" if auc["stands"] and auc["auc"] > 0.5 else "no"}
        )  # fmt: skip
    return pd.DataFrame(rows)
