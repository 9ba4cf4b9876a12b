"""Chapter 6: heads taken away, one by one and together (v1 section 6.2; EMNLP 2024 abstract and table 3, as summarised).

Prompts are judged with their demonstrations in a random order and with both assignments of the labels, so that neither
a place nor a label word tells the answer. Tables 4 to 6 of the EMNLP version are in `studies.flips`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import control_heads, lacking, named
from twotowers.prompts.datasets import both_assignments
from twotowers.stats.intervals import (
    bootstrap,
    bootstrap_correlation,
    bootstrap_difference,
    overlap_within_layers,
    p_value,
    rate,
    spearman,
)  # fmt: skip
from twotowers.studies import located
from twotowers.studies.cells import queries as queries_of
from twotowers.studies.context import chapter_studies
from twotowers.studies.forms import shuffled
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("06-interventions")
IN, SAME, ANY = "in-context heads", "random heads, same layers", "random heads, all layers"
NOTHING, UNION = "nothing zeroed", "the paper's union"
CHANGE, OVER = "in-context less nothing", "in-context less random"
POOLED = "sets that pass"
ACCURACY, TWO_LABEL, NAMES, MARGIN, LOG_PROB = (
    "accuracy", "two-label accuracy", "names a label", "margin", "log-probability",
)  # fmt: skip
MEASURES = {ACCURACY: "correct", TWO_LABEL: "two_label", NAMES: "names_label", MARGIN: "margin"}
MOST = 20  # query texts a set, each with both assignments of the labels: 40 prompts
FEW_DRAWS = 5  # of random heads zeroed at all positions, which costs a run of the upper layers each
SMALL = 64  # a model with more heads than these has a sample of them zeroed in every way


def _judged(run: Run, dataset: str) -> list:
    """Prompts in a random order of their demonstrations, each once with either assignment of the labels."""
    make = lambda: run.encode(both_assignments(shuffled(run.prompts(dataset)[:MOST], run.parameters.seed)))  # noqa: E731
    return run.keep(("either label", dataset), make)


def _chosen_on(run: Run) -> list:
    """Prompts of the first set on which heads are located: they choose, and judge nothing."""
    p = run.parameters
    make = lambda: run.encode(both_assignments(shuffled(run.locating(p.datasets[0])[:MOST], p.seed)))  # noqa: E731
    return run.keep("either label, locating", make)


def _values(found: Any) -> dict[str, np.ndarray]:
    """Every measure of an Ablation, (1 + sets, prompt): the first row is that of nothing zeroed."""
    out = {
        name: np.concatenate([getattr(found.plain, of)[None], getattr(found.answers, of)]).astype(float)
        for name, of in MEASURES.items()
    }
    drop = found.log_prob_drop.numpy()
    return out | {LOG_PROB: np.concatenate([np.zeros_like(drop[:1]), -drop])}


def _zeroed(run: Run, dataset: str, sets: list, positions: str) -> dict[str, np.ndarray]:
    from twotowers.analysis.ablate import ablate_sets

    label = f"{dataset}: zeroing {len(sets)} sets at {positions}"
    return _values(in_parts(run, ablate_sets, _judged(run, dataset), sets, positions, progress=label))


def _compared(values: dict[str, np.ndarray], queries: np.ndarray, seed: int, random: str = SAME) -> list[dict]:
    """Rows of each measure: rows 0, 1 and 2... of `values` are nothing, the heads in question and random draws.

    `draws_as_low` counts draws that cost as much as the heads in question do.
    """
    rows = []
    for measure, one in values.items():
        plain, ours, draws = one[0], one[1], one[2:]
        of = rate if measure in (ACCURACY, TWO_LABEL, NAMES) else partial(bootstrap, seed=seed)
        control = draws.mean(0)
        found = {
            NOTHING: of(plain, clusters=queries), IN: of(ours, clusters=queries),
            random: bootstrap(control, clusters=queries, seed=seed),
            CHANGE: bootstrap_difference(ours, plain, clusters=queries, seed=seed),
            OVER: bootstrap_difference(ours, control, clusters=queries, seed=seed),
        }  # fmt: skip
        low = int((draws.mean(1) <= ours.mean()).sum())
        rows += [
            {"heads": heads, "measure": measure, **interval.as_row("value"), "draws": len(draws), "draws_as_low": low}
            for heads, interval in found.items()
        ]
    return rows


@study
def by_dataset(run: Run) -> pd.DataFrame:
    """All in-context heads zeroed, on every set and over the sets that pass, at all positions and at the last.

    One row per (positions, dataset, heads, measure): value, low, high, n (query texts). `heads` are nothing, the
    in-context heads, the mean of random draws, and two paired differences. Margin and log-probability in nats.
    """
    p, ours, passing, rows = run.parameters, run.heads(), run.passing, []
    for positions, most in (("all", FEW_DRAWS), ("last", p.draws)):
        sets = [ours, *run.control_sets()[:most]]
        found = {dataset: _zeroed(run, dataset, sets, positions) for dataset in p.datasets}
        clusters = {dataset: queries_of(_judged(run, dataset)) for dataset in p.datasets}
        if passing:
            found[POOLED] = {m: np.concatenate([found[d][m] for d in passing], 1) for m in found[passing[0]]}
            clusters[POOLED] = np.concatenate([clusters[d] for d in passing])
        for dataset, values in found.items():
            made = _compared(values, clusters[dataset], p.seed)
            rows += [
                {"positions": positions, "dataset": dataset, **row, "passes": dataset in passing or dataset == POOLED}
                for row in made
            ]
    about = {"k": len(ours), "total": run.about["layers"] * run.about["heads"], "named": ", ".join(named(ours))}
    about |= {
        "heads_from": run.heads_from,
        "from_elsewhere": lacking(ours, run.about["heads"]),
        "passing": len(passing),
    }
    return pd.DataFrame(rows).assign(**about)


@study
def single(run: Run) -> pd.DataFrame:
    """Every head zeroed at the last position on the first set: layer, head, name, kind, accuracy_drop, two_label_drop,
    margin_drop, log_prob_drop (nats), p (of the last being zero), n (query texts), plain, plain_two_label."""
    from twotowers.analysis.ablate import ablate_heads
    from twotowers.analysis.edit_heads import all_heads

    encoded, ours = _judged(run, run.parameters.datasets[0]), set(run.heads())
    queries = queries_of(encoded)
    values = _values(in_parts(run, ablate_heads, encoded, all_heads(run.lm), "last", progress="zeroing every head"))
    columns = {ACCURACY: "accuracy_drop", TWO_LABEL: "two_label_drop", MARGIN: "margin_drop", LOG_PROB: "log_prob_drop"}
    rows = []
    for i, head in enumerate(all_heads(run.lm), start=1):
        drops = {column: float((values[m][0] - values[m][i]).mean()) for m, column in columns.items()}
        p = p_value(values[LOG_PROB][0] - values[LOG_PROB][i], clusters=queries)
        kind = IN if head in ours else "other heads"
        rows.append({"layer": head[0], "head": head[1], "name": "{}-{}".format(*head), "kind": kind, **drops, "p": p})
    plain = {"plain": values[ACCURACY][0].mean(), "plain_two_label": values[TWO_LABEL][0].mean()}
    return pd.DataFrame(rows).assign(n=len(set(queries)), dataset=run.parameters.datasets[0], **plain)


@study
def redundancy(run: Run) -> pd.DataFrame:
    """Drop of the heads zeroed together against the sum of their single drops, first set, last position.

    One row per (heads, measure, drop): drop is "together", "sum of singles" or "together less sum"; value, low, high
    (nats lost), n (query texts). Random heads: means over draws.
    """
    p, ours, rows = run.parameters, run.heads(), []
    draws = run.control_sets()[:FEW_DRAWS]
    every = [ours, *draws]
    alone = sorted({head for some in every for head in some})
    values = _zeroed(run, p.datasets[0], [*every, *([head] for head in alone)], "last")
    queries, at = queries_of(_judged(run, p.datasets[0])), {head: 1 + len(every) + i for i, head in enumerate(alone)}
    for measure in (MARGIN, LOG_PROB):
        drop = values[measure][0] - values[measure]
        both = [(drop[1 + i], sum(drop[at[head]] for head in some)) for i, some in enumerate(every)]
        for kind, mine in ((IN, both[:1]), (SAME, both[1:])):
            joint, total = (np.mean([one[i] for one in mine], axis=0) for i in (0, 1))
            for name, one in (("together", joint), ("sum of singles", total), ("together less sum", joint - total)):
                found = bootstrap(one, clusters=queries, seed=p.seed).as_row("value")
                rows.append({"heads": kind, "measure": measure, "drop": name, **found})
    return pd.DataFrame(rows).assign(dataset=p.datasets[0], k=len(ours))


def _sampled(run: Run) -> list:
    """Every head of a small model; of a large one the in-context heads and random ones of their layers and of all."""
    from twotowers.analysis.edit_heads import all_heads

    every, ours = all_heads(run.lm), run.heads()
    if len(every) <= SMALL:
        return every
    n_layers, n_heads = run.about["layers"], run.about["heads"]
    anywhere = control_heads(ours, n_layers, n_heads, run.parameters.seed, False, beside=run.controls())
    return list(dict.fromkeys([*map(tuple, ours), *run.controls(), *anywhere]))


@study
def ways(run: Run) -> pd.DataFrame:
    """Single heads taken away in four ways: zero or mean, at all positions or at the last; on the first set.

    One row a way: in_context, low, high (mean drop of the log-probability of one in-context head, nats), n; others
    (mean of the other heads) and over, over_low, over_high (the paired difference); rank_correlation with zeroing at
    all positions over `heads` heads (missing where a drop never varies).
    """
    from twotowers.analysis.ablate import ablate_heads
    from twotowers.analysis.edit_heads import mean_fed

    p, heads, drops, rows = run.parameters, _sampled(run), {}, []
    encoded = _judged(run, p.datasets[0])
    encoded = encoded if run.about["layers"] * run.about["heads"] <= SMALL else encoded[:16]
    queries = queries_of(encoded)
    for positions in ("all", "last"):
        mean = mean_fed(run.lm, _chosen_on(run), positions)
        where = "all positions" if positions == "all" else "last position"
        for what, replacement in (("zero", None), ("mean", mean)):
            found = in_parts(run, ablate_heads, encoded, heads, positions, replacement, progress=f"{what}, {where}")
            drops[f"{what}, {where}"] = found.log_prob_drop.numpy()
    mine = np.array([head in set(run.heads()) for head in heads])
    reference = drops["zero, all positions"].mean(1)
    for way, drop in drops.items():
        inside, rest = drop[mine].mean(0), drop[~mine].mean(0)
        over = bootstrap_difference(inside, rest, clusters=queries, seed=p.seed)
        varies = np.ptp(drop.mean(1)) > 0 and np.ptp(reference) > 0
        rows.append(
            {"way": way, **bootstrap(inside, clusters=queries, seed=p.seed).as_row("in_context"),
             "others": rest.mean(), "over": over.estimate, "over_low": over.low, "over_high": over.high,
             "rank_correlation": spearman(drop.mean(1), reference) if varies else np.nan}
        )  # fmt: skip
    return pd.DataFrame(rows).assign(heads=len(heads), dataset=p.datasets[0])


def _union(run: Run) -> pd.DataFrame:
    """`ablate.ranked` on locating prompts of the first set, every head zeroed at the last position."""
    from twotowers.analysis.ablate import ablate_heads, ranked
    from twotowers.analysis.edit_heads import all_heads

    def make() -> pd.DataFrame:
        table, dataset = run.table(located.heads), run.parameters.datasets[0]
        found = in_parts(
            run, ablate_heads, _chosen_on(run), all_heads(run.lm), "last", progress="the paper's second ranking"
        )
        table = table[table["dataset"] == dataset]
        return ranked(table, found.table()).merge(table[["layer", "head", "label_margin"]], on=["layer", "head"])

    return run.keep("union", make)


@study
def union(run: Run) -> pd.DataFrame:
    """The EMNLP version's choice beside ours, on locating prompts of the first set; one row a head.

    Columns of `ablate.ranked`, label_margin, kind; shared, expected and p of the overlap of the two choices given the
    layers; rank correlations over heads of increase and log_prob_drop: rho, rho_low, rho_high, and deep_... over the
    deep half of the layers (missing where a ranking never varies); label_rho is that of our ranking.
    """
    from twotowers.analysis.ablate import in_context_heads

    p, table, ours = run.parameters, _union(run), [tuple(head) for head in run.heads()]
    theirs = in_context_heads(table, min(p.top_k, len(table)))
    names = set(named(theirs)), set(named(ours))
    kinds = {
        (True, True): "both",
        (True, False): f"{UNION} only",
        (False, True): f"{IN} only",
        (False, False): "neither",
    }
    table["kind"] = [kinds[name in names[0], name in names[1]] for name in table["name"]]
    shared = overlap_within_layers(ours, theirs, run.about["heads"])
    about: dict[str, Any] = {"shared": shared.count, "ours": len(ours), "theirs": len(theirs)}
    about |= {"expected": shared.expected, "p": shared.probability, "dataset": p.datasets[0], "top_k": p.top_k}
    deep = table[table["layer"] >= run.about["layers"] / 2]
    ranked_by = ("rho", table, "increase"), ("deep", deep, "increase"), ("label_rho", table, "label_margin")
    for name, rows, column in ranked_by:
        about |= dict.fromkeys((name, f"{name}_low", f"{name}_high", f"{name}_heads"), np.nan)
        if len(rows) > 2 and np.ptp(rows[column]) > 0 and np.ptp(rows["log_prob_drop"]) > 0:
            found = bootstrap_correlation(rows[column], rows["log_prob_drop"], seed=p.seed)
            about |= {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high}
            about[f"{name}_heads"] = found.n
    return table.assign(**about)


@study
def union_zeroed(run: Run) -> pd.DataFrame:
    """The paper's union zeroed together on the first set, at all positions; rows as in `by_dataset`."""
    from twotowers.analysis.ablate import in_context_heads

    p = run.parameters
    theirs = in_context_heads(_union(run), p.top_k)
    sets, dataset = [theirs, *run.control_sets(theirs)[:FEW_DRAWS]], p.datasets[0]
    rows = _compared(_zeroed(run, dataset, sets, "all"), queries_of(_judged(run, dataset)), p.seed)
    passes = dataset in run.passing
    return pd.DataFrame(rows).assign(dataset=dataset, k=len(theirs), named=", ".join(named(theirs)), passes=passes)


@study
def curve(run: Run) -> pd.DataFrame:
    """More and more heads zeroed together at the last position, first set: k, heads, measure, value, low, high, n, draws.

    Heads go as the ranking has them, named ones first. `heads` also has the paired differences from nothing and from
    random heads of the same layers; random heads are none of those that go at the largest k.
    """
    p, table = run.parameters, run.table(located.heads)
    total, ours = run.about["layers"] * run.about["heads"], [tuple(head) for head in run.heads()]
    ranked = [tuple(head) for head in located.top(table, p.datasets[0], p.ranking, total)]
    order = [*ours, *(head for head in ranked if head not in ours)]
    most = min(len(order), max(12, len(ours)), total // 2)
    ks = sorted({k for k in (1, 2, 4, 8, 12, len(ours), round(0.01 * total)) if 0 < k <= most})
    if not ks:
        raise TwoTowersError(f"{total} heads are too few to take some away and leave others for a control")
    sets = []
    for k in ks:
        sets.append(order[:k])
        for same in (True, False):
            sets += [
                control_heads(
                    order[:k], run.about["layers"], run.about["heads"], 1000 * p.seed + i, same, order[: ks[-1]]
                )
                for i in range(p.draws)
            ]
    values, rows = _zeroed(run, p.datasets[0], sets, "last"), []
    queries, step = queries_of(_judged(run, p.datasets[0])), 1 + 2 * p.draws
    for i, k in enumerate(ks):
        start = 1 + i * step
        for kind, first in ((SAME, start + 1), (ANY, start + 1 + p.draws)):
            at = [0, start, *range(first, first + p.draws)]
            made = _compared({m: one[at] for m, one in values.items()}, queries, p.seed, kind)
            rows += [{"k": k, **row} for row in made if kind == SAME or row["heads"] == ANY]
    return pd.DataFrame(rows).assign(dataset=p.datasets[0], total=total, chosen=len(ours))
