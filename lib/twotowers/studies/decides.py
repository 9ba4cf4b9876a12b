"""Chapter 10: what decides the answer? The margin, and every head, split by the rules that could decide.

Prompts are a full factorial: orders x true label x query class, with and without one demonstration (`analysis.factorial`).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.prompts import sentences
from twotowers.stats.intervals import rate
from twotowers.studies.context import chapter_studies
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("10-what-decides")
SOURCES = 20  # drawn prompts a set, of different queries
ORDERS = 2  # drawn for each of them, one the mirror of the other
SETS = 2  # of different classes; the same classes the other way round would add nothing: both classes are asked for
SIZE = 0.1  # nats below which an effect of a head counts as none, however sure
POOLED = "all sets together"
SCORE, MARGIN = "attention score", "margin"


def sets_of(run: Run) -> list[str]:
    """At most SETS sets of different classes: those that are learned; where none is, any, for description only."""
    found: dict[frozenset, str] = {}
    for dataset in run.judged:
        found.setdefault(frozenset(dataset.replace(":", "/").split("/")), dataset)
    return list(found.values())[:SETS]


def of_different_queries(run: Run, dataset: str, most: int) -> list:
    """The first prompts of a set whose queries differ."""
    return list({p.query: p for p in reversed(run.prompts(dataset))}.values())[::-1][:most]


def _read(run: Run) -> tuple:
    """The factorial's prompts, its design and the parts of their margins, in one pass over the model."""
    from twotowers.analysis.factorial import factorial
    from twotowers.analysis.margin_parts import margin_parts

    def make() -> tuple:
        drawn = [p for d in sets_of(run) for p in of_different_queries(run, d, SOURCES)]
        prompts, design = factorial(drawn, ORDERS, run.parameters.seed, imbalanced=run.form.k > 1)
        design["dataset"] = [p.dataset for p in prompts]
        lengths = np.array(sentences.lengths([p.text for p in prompts], run.lm.tokenizer))
        keep = ~design["source"].isin(design["source"][lengths > run.lm.context])
        if not keep.any():
            raise TwoTowersError(
                f"no prompt fits the {run.lm.context} tokens that this model reads in all of its forms: take a smaller k"
            )
        prompts, design = (
            [p for p, kept in zip(prompts, keep, strict=True) if kept],
            design[keep].reset_index(drop=True),
        )
        return prompts, design, in_parts(run, margin_parts, run.encode(prompts), progress="parts of the margin")

    return run.keep("factorial", make)


def _terms(run: Run) -> list[str] | None:
    """All terms, but with one demonstration of each class: its last label, its place and its count are one thing."""
    return None if run.form.k > 1 else ["prior", "last", "match"]


@study
def terms(run: Run) -> pd.DataFrame:
    """The margin split by term, of all sets together and of each: dataset, term, nats, low, high, share, share_low,
    share_high, n (clusters of prompts that share query words), prompts, learned. See `analysis.decide.split`."""
    from twotowers.analysis.decide import split

    _, design, parts = _read(run)
    names, rows = list(dict.fromkeys(design["dataset"])), []
    for name in [POOLED, *(names if len(names) > 1 else [])]:
        mine = (design["dataset"] == name).to_numpy() | (name == POOLED)
        found = split(
            parts.margin[mine], design[mine].reset_index(drop=True), terms=_terms(run), seed=run.parameters.seed
        )
        rows.append(found.assign(dataset=name, prompts=int(mine.sum())))
    return pd.concat(rows, ignore_index=True).assign(learned=bool(run.passing), sets=", ".join(names))


@study
def accuracy(run: Run) -> pd.DataFrame:
    """How often the model's likelier label is the true one, and what rules that read no text reach on the same prompts:
    rule ("the model" first), accuracy, low, high, n (clusters; for a rule, as large as it is by construction)."""
    from twotowers.analysis.factorial import baselines

    prompts, design, parts = _read(run)
    right = np.where(parts.margin == 0, False, np.sign(parts.margin) == design["match"])
    model = pd.DataFrame([{"rule": "the model", **rate(right, clusters=design["cluster"]).as_row("accuracy")}])
    rules = baselines(prompts).drop(columns="n")
    rules = rules.assign(low=rules["accuracy"], high=rules["accuracy"], n=model["n"].iloc[0])
    return pd.concat([model, rules], ignore_index=True).assign(learned=bool(run.passing))


@study
def heads(run: Run) -> pd.DataFrame:
    """Every head by every term: of ("attention score" on labels a less b, before the softmax; "margin", what the head
    adds to it directly), layer, head, name, located, term, nats, p, discovery (Benjamini and Hochberg over all heads,
    within the term), counts (a discovery of at least `size` nats either way), n (clusters)."""
    from twotowers.analysis.decide import split_heads

    _, design, parts = _read(run)
    ours, tables = set(run.heads()), []
    for of, values in ((SCORE, parts.scores), (MARGIN, parts.heads)):
        found = split_heads(values, design, terms=_terms(run)).dropna(subset=["nats"]).drop(columns="share")
        tables.append(found.assign(of=of))
    table = pd.concat(tables, ignore_index=True)
    pairs = list(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))
    table["name"], table["located"] = named(pairs), [pair in ours for pair in pairs]
    table["counts"] = table["discovery"] & (table["nats"].abs() >= SIZE)
    return table.assign(size=SIZE, learned=bool(run.passing))
