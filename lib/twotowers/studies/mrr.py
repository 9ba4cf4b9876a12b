"""Chapter 3: do the located heads read the label? (v1 section 4.3, fig 5)"""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.heads import named, other_heads_of_layers, repeat_per_head
from twotowers.stats.intervals import bootstrap, bootstrap_difference, discoveries, grouped, p_value
from twotowers.studies.context import chapter_studies
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("03-mrr")
IN, RANDOM, ALL = "in-context heads", "random heads", "all other heads"
MOST_FOR_ALL = 100  # prompts a set on which all other heads of the layers are ranked, and all heads read with a sign

SIZE = 0.1  # nats below which a head writes a label neither up nor down, however sure


def _ranked(run: Run, prompts: list, heads: list, name: str) -> pd.DataFrame:
    from twotowers.analysis.word_ranks import label_ranks

    return in_parts(run, label_ranks, prompts, heads, run.parameters.norm, batched=True, outer="head", progress=name)


def _ranks(run: Run) -> pd.DataFrame:
    """Rank of the label's word at every label position: one row per (source, of, head, prompt, demonstration).

    `of` is the located head that a control stands for. Every set is drawn with either label true.
    """

    def make() -> pd.DataFrame:
        located, partners, p = run.heads(), run.controls(), run.parameters
        both = list(dict.fromkeys([*located, *partners]))
        beside = other_heads_of_layers(located, run.about["heads"])
        every = list(dict.fromkeys([*both, *beside]))
        parts = []
        for dataset in p.datasets:
            for label in p.labels:
                prompts, where = run.encoded(dataset, label), {"dataset": dataset, "true_label": label}
                queries = np.array([e.prompt.query for e in prompts])
                name, few = f"{dataset}, {label} true", prompts[:MOST_FOR_ALL]
                found = _ranked(run, few, every, name)
                rest = found[found["head"].isin(named(beside))]
                if len(prompts) > len(few):
                    more = _ranked(run, prompts[len(few) :], both, name)
                    found = pd.concat([found, more.assign(prompt=more["prompt"] + len(few))], ignore_index=True)
                found = found[found["head"].isin(named(both))]
                own = found[found["head"].isin(named(located))]
                for source, rows in (
                    (IN, own.assign(of=own["head"])),
                    (RANDOM, repeat_per_head(found, located, partners)),
                    (ALL, rest.assign(of="")),
                ):
                    parts.append(rows.assign(source=source, query=queries[rows["prompt"]], **where))
        return pd.concat(parts, ignore_index=True)

    return run.keep("label ranks", make)


@study(version=3)
def overall(run: Run) -> pd.DataFrame:
    """MRR, median rank and share at rank 1 of each kind of heads, and the paired difference from random heads.

    On the sets that are learned (all, where none is: `learned` says so).

    One row a source: mrr, low, high, n (queries), median_rank, at_rank_1, values; other_mrr of the other label's word at
    the same positions, and advantage of the own label's (paired, with _low and _high): none where a head prefers one word;
    for the located heads also difference, difference_low, difference_high; `chance`: of a random order.
    """
    from twotowers.analysis.word_ranks import advantages, mrr, reciprocal_ranks

    ranks, seed = _ranks(run), run.parameters.seed
    ranks = ranks[ranks["dataset"].isin(run.judged)]
    table = mrr(ranks, ["source"], seed)
    unit = ["dataset", "true_label", "prompt", "query"]
    per_prompt = reciprocal_ranks(ranks, ["source", "query"]).pivot(index=unit, columns="source", values="reciprocal")
    clusters = per_prompt.index.get_level_values("query")
    gain = bootstrap_difference(per_prompt[IN], per_prompt[RANDOM], clusters=clusters, seed=seed)
    own = grouped(advantages(ranks, ["source", "query"]), ["source"], "advantage", clusters="query", seed=seed)
    own = own.rename(columns={"low": "advantage_low", "high": "advantage_high"}).drop(columns="n")
    table = table.merge(own, on="source", validate="one_to_one")
    size = run.about["vocabulary"]
    chance = float((1 / np.arange(1, size + 1)).sum() / size)
    table = table.assign(
        other_mrr=table["mrr"] - table["advantage"], chance=chance, vocabulary=size,
        values=table["source"].map(ranks["source"].value_counts()),
        heads=", ".join(named(run.heads())), heads_from=run.heads_from, learned=bool(run.passing),
    )  # fmt: skip
    return table.assign(difference=gain.estimate, difference_low=gain.low, difference_high=gain.high)


@study
def by_head(run: Run) -> pd.DataFrame:
    """MRR of every located head and of the random head of its layer, over all sets: of, source, head, mrr, low, high,
    n, median_rank, at_rank_1; `outdone_by` counts the other heads of its layer that do at least as well."""
    from twotowers.analysis.word_ranks import mrr

    ranks, seed = _ranks(run), run.parameters.seed
    table = mrr(ranks[ranks["source"] != ALL], ["of", "source", "head"], seed)
    rest = ranks[ranks["source"] == ALL]
    every = mrr(rest, ["head"], seed).set_index("head")["mrr"]
    layer = every.index.str.split("-").str[0]
    table["outdone_by"] = [
        int((every[layer == head.split("-")[0]] >= value).sum())
        for head, value in zip(table["head"], table["mrr"], strict=True)
    ]
    return table


@study
def by_set(run: Run) -> pd.DataFrame:
    """MRR of each kind of heads per (dataset, label read): mrr, low, high, n, median_rank, at_rank_1; passes."""
    from twotowers.analysis.word_ranks import mrr

    ranks = _ranks(run)
    table = mrr(ranks[ranks["source"] != ALL], ["dataset", "source", "label"], run.parameters.seed)
    return table.assign(passes=table["dataset"].isin(run.passing), shown=table["dataset"] + ", " + table["label"])


@study
def by_role(run: Run) -> pd.DataFrame:
    """MRR of the located heads at labels of the query's class and at the others: true, mrr, low, high, n."""
    from twotowers.analysis.word_ranks import mrr

    ranks = _ranks(run)
    return mrr(ranks[ranks["source"] == IN], ["true"], run.parameters.seed)


@study
def rank_shares(run: Run) -> pd.DataFrame:
    """Share of label positions at or above each rank: label, source, rank, share."""
    from twotowers.analysis import word_ranks

    table = word_ranks.rank_shares(_ranks(run), ["label", "source"], run.about["vocabulary"])
    return table.sort_values("label", key=lambda c: c.map(run.parameters.labels.index), kind="stable")


@study(version=2)
def preferences(run: Run) -> pd.DataFrame:
    """Which label each head reads better, located and random heads: source, head, difference, low, high, n, reads.

    On the sets that are learned (all, where none is: `learned` says so).
    """
    from twotowers.analysis import word_ranks

    ranks, p = _ranks(run), run.parameters
    ranks = ranks[ranks["dataset"].isin(run.judged)]
    parts = [
        word_ranks.preferences(ranks[ranks["source"] == source], p.labels, p.seed).assign(source=source)
        for source in (IN, RANDOM)
    ]
    about = {"first": p.labels[0], "second": p.labels[1], "learned": bool(run.passing)}
    return pd.concat(parts, ignore_index=True).assign(**about)


@study
def signed(run: Run) -> pd.DataFrame:
    """Does a head write the label that stands at a position up, or down? Every head of the model, on learned sets.

    One row a head: layer, head, name, kind (IN, RANDOM: drawn for one of them, or "other heads"), reading, low, high, n
    (query words): own label less the other in its value-output vector, less its preference for one word, mean over label
    positions (nats); counts (a discovery over all heads, and at least SIZE); signed_rank of IN and RANDOM (1 the top word of
    the vocabulary, -1 the bottom word). In every row, of the mean over IN: effect; over (less depth-matched random
    heads, paired), each with _low and _high; outdone of `draws` random sets that reach as much; learned.
    """
    from twotowers.analysis import label_reading

    p, ours = run.parameters, run.heads()
    encoded = [e for dataset in run.judged for e in run.balanced(dataset)[:MOST_FOR_ALL]]
    found = in_parts(run, label_reading.label_readings, encoded, p.norm, progress="label readings")
    found = label_reading.centred_readings(found, encoded).mean(-1)  # (prompt, layer, head)
    queries = [e.prompt.query for e in encoded]
    ranks = _ranks(run)
    ranks = ranks.assign(signed=label_reading.signed_rank(ranks["rank"].to_numpy(), run.about["vocabulary"]))
    ranks = ranks[(ranks["source"] != ALL) & ranks["dataset"].isin(run.judged)].groupby("head")["signed"].mean()
    kinds = {name: RANDOM for name in named(run.controls())} | {name: IN for name in named(ours)}
    rows = []
    for layer, head in np.ndindex(found.shape[1:]):
        name, values = f"{layer}-{head}", found[:, layer, head]
        rows.append(
            {"layer": layer, "head": head, "name": name, "kind": kinds.get(name, "other heads"),
             **bootstrap(values, clusters=queries, seed=p.seed).as_row("reading"), "p": p_value(values, queries),
             "signed_rank": ranks.get(name, np.nan)}
        )  # fmt: skip
    table = pd.DataFrame(rows)

    def mean(heads: list) -> np.ndarray:
        return np.mean([found[:, layer, head] for layer, head in heads], 0)

    draws = np.array([mean(some) for some in run.control_sets()])
    about = {
        "outdone": int((draws.mean(1) >= mean(ours).mean()).sum()),
        "draws": len(draws),
        "learned": bool(run.passing),
    }
    for name, values in (("effect", mean(ours)), ("over", mean(ours) - draws.mean(0))):
        one = bootstrap(values, clusters=queries, seed=p.seed)
        about |= {name: one.estimate, f"{name}_low": one.low, f"{name}_high": one.high}
    return table.assign(counts=discoveries(table["p"]) & (table["reading"].abs() >= SIZE), **about)
