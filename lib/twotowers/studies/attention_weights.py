"""Chapter 4: do in-context heads look at the labels of the query's class? (v1 section 4.4, fig 6 and 7)

Counterbalanced here means: every order in turn, and each prompt with both assignments of the labels, whose mean is one
value. So a place or a label word cannot tell the class, and a preference for a label word cancels exactly.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, named
from twotowers.prompts.datasets import both_assignments, counterbalanced
from twotowers.stats.intervals import (
    bootstrap,
    bootstrap_correlation,
    bootstrap_difference,
    bootstrap_of_means,
    discoveries,
    p_value,
)
from twotowers.studies.cells import places
from twotowers.studies.context import chapter_studies
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("04-attention-weights")
IN, RANDOM, OVER = "in-context heads", "random heads", "in-context less random"
PAPER, BALANCED = "paper's order", "counterbalanced"
POOLED = "all sets that are learned"
MOST = 200  # prompts a set for what costs a walk over the vocabulary, or keeps queries and keys
SHOWN = 100  # prompts in a figure of points
DRAWS = 1000  # sets of random heads: every head is read anyway, and twenty cannot tell a share of 5% from one of 15%


def balanced(run: Run, dataset: str) -> list:
    """Two prompts for each of the set: its order in turn with either assignment of the labels, one after the other."""
    turned = counterbalanced(run.prompts(dataset))
    return run.keep(("pairs", dataset), lambda: run.encode(both_assignments(turned)))


def _read(run: Run) -> dict:
    """Attention of every head on the labels of all prompts, in one call: (dataset, form) -> AtLabels."""
    from twotowers.analysis.at_labels import read_labels

    def make() -> dict:
        sets = {(d, PAPER): run.encoded(d) for d in run.parameters.datasets}
        sets |= {(d, BALANCED): balanced(run, d) for d in run.parameters.datasets}
        found = in_parts(
            run, read_labels, [e for encoded in sets.values() for e in encoded], progress="attention on labels"
        )
        return {key: found[at] for key, at in places(sets).items()}

    return run.keep("attention on labels", make)


def _values(run: Run, dataset: str, form: str, quantity: str) -> np.ndarray:
    """(prompt, layer, head) of a set; counterbalanced, the mean of the two assignments of the labels."""

    def make() -> np.ndarray:
        found = _read(run)[dataset, form]
        made = {
            "difference": found.difference, "auc": found.separation,
            "true labels": lambda: found.total(True), "false labels": lambda: found.total(False),
        }[quantity]()  # fmt: skip
        return made.reshape(-1, 2, *made.shape[1:]).mean(1) if form == BALANCED else made

    return run.keep(("values", dataset, form, quantity), make)


def _over(run: Run, datasets: list[str], form: str, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of several sets below each other, and the query of each row."""
    values = np.concatenate([_values(run, d, form, quantity) for d in datasets])
    return values, np.array([p.query for d in datasets for p in run.prompts(d)])


def kinds(run: Run) -> dict[str, list[Head]]:
    return {IN: run.heads(), RANDOM: [Head(*pair) for pair in dict.fromkeys(run.controls())]}


def _of(values: np.ndarray, heads) -> np.ndarray:
    """Mean over heads, prompt by prompt."""
    return np.mean([values[:, layer, head] for layer, head in heads], 0)


def _against_random(run: Run, quantity: str, forms: tuple[str, ...]) -> pd.DataFrame:
    """Mean over the in-context heads, over random sets of heads at the same depths, and the paired difference."""
    rows, p, random = [], run.parameters, run.control_sets(draws=DRAWS)
    sets = {d: [d] for d in p.datasets} | ({POOLED: run.passing} if run.passing else {})
    for name, datasets in sets.items():
        for form in forms:
            values, queries = _over(run, datasets, form, quantity)
            ours, theirs = _of(values, run.heads()), np.array([_of(values, some) for some in random])
            outdone = int((theirs.mean(1) >= ours.mean()).sum())
            for kind, interval in (
                (IN, bootstrap(ours, clusters=queries, seed=p.seed)),
                (RANDOM, bootstrap(theirs.mean(0), clusters=queries, seed=p.seed)),
                (OVER, bootstrap_difference(ours, theirs.mean(0), clusters=queries, seed=p.seed)),
            ):
                rows.append(
                    {"dataset": name, "form": form, "heads": kind, **interval.as_row(quantity), "prompts": len(ours),
                     "outdone": outdone, "draws": len(theirs), "passes": set(datasets) <= set(run.passing)}
                )  # fmt: skip
    return pd.DataFrame(rows).assign(names=", ".join(named(run.heads())), heads_from=run.heads_from)


@study(version=2)
def leaning(run: Run) -> pd.DataFrame:
    """Attention on true less false labels: dataset (each, and all that are learned), form, heads, difference, low, high,
    n (query words), prompts; outdone of DRAWS random sets of heads reach the in-context heads; passes, names."""
    return _against_random(run, "difference", (PAPER, BALANCED))


@study(version=2)
def similarity(run: Run) -> pd.DataFrame:
    """AUC within counterbalanced prompts, as the model compares: columns as `leaning`, `auc` in place of difference."""
    return _against_random(run, "auc", (BALANCED,))


@study
def true_false(run: Run) -> pd.DataFrame:
    """Attention on true and on false labels, head by head on the first set: form, kind, head, label, weight, low, high,
    n (query words)."""
    p, rows = run.parameters, []
    for form in (PAPER, BALANCED):
        for kind, heads in kinds(run).items():
            for label in ("true labels", "false labels"):
                values, queries = _over(run, [p.datasets[0]], form, label)
                for (layer, head), name in zip(heads, named(heads), strict=True):
                    found = bootstrap(values[:, layer, head], clusters=queries, seed=p.seed)
                    rows.append({"form": form, "kind": kind, "head": name, "label": label, **found.as_row("weight")})
    return pd.DataFrame(rows).assign(dataset=p.datasets[0])


def by_head(run: Run, quantity: str, null: float, datasets: list[str], form: str) -> pd.DataFrame:
    """One row a head of both kinds; `stands`: its p leaves `null` when all heads of its kind are tested together."""
    rows = []
    values, queries = _over(run, datasets, form, quantity)
    for kind, heads in kinds(run).items():
        p_values = [p_value(values[:, layer, head] - null, queries) for layer, head in heads]
        for (layer, head), name, p, stands in zip(heads, named(heads), p_values, discoveries(p_values), strict=True):
            found = bootstrap(values[:, layer, head], clusters=queries, seed=run.parameters.seed)
            rows.append({"form": form, "kind": kind, "head": name, **found.as_row(quantity), "p": p, "stands": stands})
    return pd.DataFrame(rows)


@study
def differences(run: Run) -> pd.DataFrame:
    """Attention on true less false labels on the first set, head by head: form, kind, head, difference, low, high, n, p,
    stands (after Benjamini and Hochberg, over the heads of a kind)."""
    first = run.parameters.datasets[:1]
    found = pd.concat([by_head(run, "difference", 0.0, first, form) for form in (PAPER, BALANCED)], ignore_index=True)
    return found.assign(dataset=first[0])


@study
def every_head(run: Run) -> pd.DataFrame:
    """Every head of the model, counterbalanced: layer, head, name, located, difference, p, stands, auc, auc_p,
    auc_stands (Benjamini and Hochberg over all heads), label_margin (nats, first MOST prompts), place (by difference).

    `correlation` (low, high): rank correlation of difference and label_margin over heads; `within` the same after each
    layer's means are taken away. Judged on the first set that is learned; `learned` says whether there is one.
    """
    from twotowers.analysis.rankings import label_margin

    p, dataset, layers = run.parameters, run.judged[0], run.about["layers"]
    some = balanced(run, dataset)[: 2 * MOST]
    margins = in_parts(run, label_margin, some, norm=p.norm, progress="label margin").mean(0)
    difference, queries = _over(run, [dataset], BALANCED, "difference")
    auc, _ = _over(run, [dataset], BALANCED, "auc")
    layer, head = (axis.ravel() for axis in np.indices(margins.shape))
    ours = set(run.heads())
    table = pd.DataFrame({"layer": layer, "head": head, "name": named(zip(layer, head, strict=True))})
    table["located"] = [pair in ours for pair in zip(layer.tolist(), head.tolist(), strict=True)]
    table["difference"], table["auc"] = difference.mean(0).ravel(), auc.mean(0).ravel()
    table["label_margin"] = margins.ravel()
    for values, null, prefix in ((difference, 0.0, ""), (auc, 0.5, "auc_")):
        tested = np.array([p_value(values[:, a, b] - null, queries) for a, b in zip(layer, head, strict=True)])
        table[f"{prefix}p"], table[f"{prefix}stands"] = tested, discoveries(tested)
    table["place"] = table["difference"].rank(ascending=False, method="first").astype(int)
    pair = table[["label_margin", "difference"]]
    over = bootstrap_correlation(*pair.to_numpy().T, seed=p.seed)
    apart = (pair - pair.groupby(table["layer"]).transform("mean")).to_numpy().T
    inside = bootstrap_correlation(*(apart if layers > 1 else pair.to_numpy().T), seed=p.seed)
    return table.assign(
        correlation=over.estimate, correlation_low=over.low, correlation_high=over.high, within=inside.estimate,
        within_low=inside.low, within_high=inside.high, dataset=dataset, learned=bool(run.passing),
    )  # fmt: skip


def _points(run: Run):
    """Weight and increase at every label position of the first set in the paper's order, in both kinds of heads."""
    from twotowers.analysis import attention

    p = run.parameters
    every = list(dict.fromkeys(head for heads in kinds(run).values() for head in heads))
    return run.keep(
        "points",
        lambda: in_parts(
            run, attention.read, run.encoded(p.datasets[0])[:MOST], every, outer="head", increases=True, norm=p.norm,
            progress="increase at labels",
        ),
    )  # fmt: skip


@study
def points(run: Run) -> pd.DataFrame:
    """Points of fig 7: head, label, weight, increase (nats) in the top three in-context heads, SHOWN prompts at most."""
    rows = _points(run).labels
    names = named(run.heads()[:3])
    rows = rows[rows["head"].isin(names) & (rows["prompt"] < SHOWN)]
    rows = rows.assign(label=np.where(rows["true"], "true label", "false label"))
    return rows.set_index("head").loc[names].reset_index()[["head", "label", "weight", "increase"]].round(5)


@study
def correlations(run: Run) -> pd.DataFrame:
    """Correlation of weight and increase over label positions, prompts resampled whole: kind, head, measure ("spearman",
    "pearson"), correlation, low, high, n (prompts). A head in which one never varies has no row."""
    reading, rows = _points(run), []
    for kind, heads in kinds(run).items():
        for pair, name in zip(heads, named(heads), strict=True):
            x, y = reading.matrix(pair), reading.matrix(pair, "increase")
            for measure in ("spearman", "pearson") if np.ptp(x) and np.ptp(y) else ():
                found = bootstrap_correlation(x, y, measure, draws=300, seed=run.parameters.seed)
                rows.append({"kind": kind, "head": name, "measure": measure, **found.as_row("correlation")})
    if not rows:
        raise TwoTowersError("neither attention nor increase varies over label positions: nothing can go together")
    return pd.DataFrame(rows)


@study
def right_wrong(run: Run) -> pd.DataFrame:
    """Attention on true less false labels where the true label is the likelier one, less where it is not.

    All counterbalanced prompts. One row a head: kind, head, gap, low, high, n (query words), among prompts that agree in
    set, true label and whether the nearest label is true; raw, without that; correlation (of difference and margin, in
    the same groups); right, wrong (prompts). So a preference for a word, or for the nearest label, is no gap.
    """
    rows, p = [], run.parameters
    found = {d: _read(run)[d, BALANCED] for d in p.datasets}
    prompts = [e.prompt for d in p.datasets for e in balanced(run, d)]
    group = pd.Series([f"{q.dataset}|{q.true_label}|{q.is_true[-1]}" for q in prompts])
    queries, margin = [q.query for q in prompts], pd.Series(np.concatenate([one.margin for one in found.values()]))
    right = (margin > 0).astype(float)
    if right.nunique() < 2:
        said = "every prompt" if right.all() else "no prompt"
        raise TwoTowersError(f"the true label is the likelier one in {said}: nothing to compare")
    y, m = (column - column.groupby(group).transform("mean") for column in (right, margin))
    if not y.any():
        raise TwoTowersError(
            "whether an answer is right follows from the label word and the nearest label alone: the text changes no "
            "answer, so attention cannot be compared between right and wrong answers"
        )
    differences = np.concatenate([one.difference() for one in found.values()])
    for kind, heads in kinds(run).items():
        for layer, head, name in ((*pair, str(Head(*pair))) for pair in heads):
            x = pd.Series(differences[:, layer, head].astype(float))
            d = x - x.groupby(group).transform("mean")
            gap = bootstrap_of_means(
                np.c_[d * y, y * y], lambda s: s[..., 0] / s[..., 1], clusters=queries, seed=p.seed
            )
            spread = float(np.sqrt((d * d).sum() * (m * m).sum()))
            rows.append(
                {"kind": kind, "head": name, **gap.as_row("gap"), "raw": x[right == 1].mean() - x[right == 0].mean(),
                 "correlation": float((d * m).sum()) / spread if spread else 0.0,
                 "right": int(right.sum()), "wrong": int((1 - right).sum())}
            )  # fmt: skip
    return pd.DataFrame(rows)
