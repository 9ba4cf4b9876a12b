"""Chapter 5: one demonstration fewer, or the true ones first (v1 sections 5.1 and 5.2, fig 8 to 11)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import named
from twotowers.prompts.datasets import imbalanced, orders, reordered
from twotowers.stats.intervals import bootstrap, bootstrap_correlation, bootstrap_difference, grouped, rate
from twotowers.studies.context import chapter_studies
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("05-imbalanced-and-reorder")
IN, RANDOM, ALL = "in-context heads", "random heads", "mean of all"
ORIGINAL, IMBALANCED, REORDERED = "original", "last true one removed", "true ones first"
FORMS = {ORIGINAL: lambda prompt: prompt, IMBALANCED: imbalanced, REORDERED: reordered}
MOST = 200  # prompts for exhibits that read a set once for each order or each removed demonstration


def _read(run: Run, dataset: str, name: str, change, n: int | None = None):
    """Attention of the in-context heads and their controls on the prompts of a set, each changed by `change`."""
    from twotowers.analysis import attention

    def make():
        every = list(dict.fromkeys([*run.heads(), *run.controls()]))
        encoded = run.encode([change(prompt) for prompt in run.prompts(dataset)[:n]])
        return in_parts(run, attention.read, encoded, every, outer="head", progress=f"{dataset}, {name}")

    return run.keep(("read", dataset, name, n), make)


def _kinds(run: Run) -> dict[str, list[str]]:
    return {IN: named(run.heads()), RANDOM: named(dict.fromkeys(run.controls()))}


def _queries(run: Run, dataset: str, n: int | None = None) -> np.ndarray:
    return np.array([prompt.query for prompt in run.prompts(dataset)[:n]])


def _changes(run: Run, dataset: str, form: str) -> pd.DataFrame:
    """Paired changes of every head from the original prompts, with the query word as cluster."""
    from twotowers.analysis import attention

    table = attention.changes(_read(run, dataset, ORIGINAL, FORMS[ORIGINAL]), _read(run, dataset, form, FORMS[form]))
    return table.assign(query=_queries(run, dataset)[table["prompt"]])


def _mean(table: pd.DataFrame, heads: list[str], column: str) -> pd.Series:
    """Mean over heads, prompt by prompt; prompts are what is resampled."""
    return table[table["head"].isin(heads)].groupby("prompt")[column].mean()


@study
def accuracy(run: Run) -> pd.DataFrame:
    """Accuracy of the three forms on every set, and the paired change of the margin.

    One row per (dataset, form): accuracy, low, high, n (query words), two_label is left to chapter 1; margin_change,
    margin_low, margin_high (nats, 0 for the original); passes.
    """
    rows = []
    for dataset in run.parameters.datasets:
        queries = _queries(run, dataset)
        base = _read(run, dataset, ORIGINAL, FORMS[ORIGINAL]).answers
        for form, change in FORMS.items():
            found = _read(run, dataset, form, change).answers
            moved = bootstrap_difference(found["margin"], base["margin"], clusters=queries, seed=run.parameters.seed)
            rows.append(
                {"dataset": dataset, "form": form, **rate(found["correct"], clusters=queries).as_row("accuracy"),
                 "margin_change": moved.estimate, "margin_low": moved.low, "margin_high": moved.high,
                 "prompts": len(found), "passes": dataset in run.passing}
            )  # fmt: skip
    return pd.DataFrame(rows)


def _attention_changes(run: Run, form: str) -> pd.DataFrame:
    """Per (kind, head, label side): change of the summed attention on the first set that is learned; ALL is the mean over a kind, and
    `over` its paired difference from the random heads."""
    p, dataset, rows = run.parameters, run.judged[0], []
    table, kinds = _changes(run, dataset, form), _kinds(run)
    queries = _queries(run, dataset)
    for side in ("true", "false"):
        for kind, heads in kinds.items():
            for head in heads:
                own = table[table["head"] == head]
                found = bootstrap(own[side], clusters=own["query"], seed=p.seed)
                rows.append({"kind": kind, "head": head, "label": f"{side} labels", **found.as_row("change")})
            mean = _mean(table, heads, side)
            rows.append(
                {"kind": kind, "head": ALL, "label": f"{side} labels",
                 **bootstrap(mean, clusters=queries, seed=p.seed).as_row("change")}
            )  # fmt: skip
        ours, theirs = (_mean(table, kinds[kind], side) for kind in (IN, RANDOM))
        over = bootstrap_difference(ours, theirs, clusters=queries, seed=p.seed)
        rows.append({"kind": "in-context less random", "head": ALL, "label": f"{side} labels", **over.as_row("change")})
    about = {"dataset": dataset, "form": form, "prompts": len(queries), "learned": bool(run.passing)}
    return pd.DataFrame(rows).assign(**about)


@study(version=2)
def removed(run: Run) -> pd.DataFrame:
    """Change of attention on true and on false labels with the last true demonstration removed; see the columns of
    `reordering`."""
    return _attention_changes(run, IMBALANCED)


@study(version=2)
def reordering(run: Run) -> pd.DataFrame:
    """Change of attention with the true demonstrations first: kind, head ("mean of all" for the mean over the kind),
    label ("true labels"/"false labels"), change, low, high, n (query words); kind "in-context less random" is the paired control."""
    return _attention_changes(run, REORDERED)


def _beyond_softmax(before, changes: pd.DataFrame, side: str, drop: int = -1, kind: str = "true") -> pd.DataFrame:
    """prompt, head, and of the change of `side` ("true" or "difference"): measured, alone (what a softmax over unchanged
    scores makes of it), rest.

    Without heads that gave the removed demonstration everything. Raises TwoTowersError when none is left.
    """
    from twotowers.analysis import attention

    keys = ["prompt", "head"]
    alone = attention.renormalised(before, drop, kind)
    alone["difference"] = alone["true"] - alone["false"]
    both = before.sums()[[*keys, side]].merge(alone[[*keys, side]], on=keys, suffixes=("_before", ""))
    both["alone"] = both[side] - both[f"{side}_before"]
    found = changes[[*keys, side]].rename(columns={side: "measured"}).merge(both[[*keys, "alone"]], on=keys).dropna()
    if found.empty:
        raise TwoTowersError(
            "every head gave the removed demonstration all its attention: there is nothing to share out"
        )
    return found.assign(rest=found["measured"] - found["alone"])


@study(version=2)
def softmax_alone(run: Run) -> pd.DataFrame:
    """What the softmax alone makes of the sum on true labels when one demonstration goes, beside what is measured.

    One row per (kind, source): source "measured", "softmax alone" or "rest"; change, low, high, n (query words). Kind
    "in-context less random" holds the paired difference of the rests. Prompts in which a head gave the removed
    demonstration all its attention are left out: `left_out` counts rows.
    """
    p, dataset = run.parameters, run.judged[0]
    queries, changes = _queries(run, dataset), _changes(run, dataset, IMBALANCED)
    usable = _beyond_softmax(_read(run, dataset, ORIGINAL, FORMS[ORIGINAL]), changes, "true")
    rows, rests = [], {}
    for kind, heads in _kinds(run).items():
        for source, column in (("measured", "measured"), ("softmax alone", "alone"), ("rest", "rest")):
            mean = _mean(usable, heads, column)
            rests[kind] = mean
            found = bootstrap(mean, clusters=queries[mean.index], seed=p.seed)
            rows.append({"kind": kind, "source": source, **found.as_row("change")})
    ours, theirs = rests[IN].align(rests[RANDOM], join="inner")
    over = bootstrap_difference(ours, theirs, clusters=queries[ours.index], seed=p.seed)
    rows.append({"kind": "in-context less random", "source": "rest", **over.as_row("change")})
    return pd.DataFrame(rows).assign(dataset=dataset, left_out=len(changes) - len(usable), learned=bool(run.passing))


@study(version=3)
def which_removed(run: Run) -> pd.DataFrame:
    """Each demonstration removed in turn: removed, kind ("true one"/"false one"), heads, change (of attention, true less false,
    mean over the heads), low, high, n; margin_change, margin_low, margin_high (nats).

    Two kinds of rows are paired: "in-context less random", and "in-context less softmax alone", which is the change less
    that of a softmax over unchanged scores: with a false one gone it leans towards true labels whatever heads know.
    """
    from twotowers.analysis import attention

    p, rows, k = run.parameters, [], run.form.k
    dataset = run.judged[0]
    queries = _queries(run, dataset, MOST)
    base = _read(run, dataset, ORIGINAL, FORMS[ORIGINAL], MOST)
    for kind in ("true", "false"):
        for drop in range(k):
            place = "nearest" if drop == k - 1 else "farthest" if drop == 0 else f"number {drop + 1}"
            title = f"{kind}, {place}"
            found = _read(run, dataset, f"without {title}", lambda q, d=drop, w=kind: imbalanced(q, d, w), MOST)
            table = attention.changes(base, found)
            margin = table.drop_duplicates("prompt").set_index("prompt")["margin"]
            moved = bootstrap(margin, clusters=queries[margin.index], seed=p.seed)
            means = {heads: _mean(table, some, "difference") for heads, some in _kinds(run).items()}
            intervals = {heads: bootstrap(m, clusters=queries, seed=p.seed) for heads, m in means.items()}
            intervals["in-context less random"] = bootstrap_difference(
                means[IN], means[RANDOM], clusters=queries, seed=p.seed
            )
            rest = _mean(_beyond_softmax(base, table, "difference", drop, kind), _kinds(run)[IN], "rest")
            rest = bootstrap(rest, clusters=queries[rest.index], seed=p.seed)
            intervals["in-context less softmax alone"] = rest
            rows += [
                {"removed": title, "kind": f"{kind} one", "heads": heads, **one.as_row("change"), "margin_change": moved.estimate,
                 "margin_low": moved.low, "margin_high": moved.high}
                for heads, one in intervals.items()
            ]  # fmt: skip
    return pd.DataFrame(rows).assign(dataset=dataset, learned=bool(run.passing))


@study(version=2)
def every_order(run: Run) -> pd.DataFrame:
    """Attention on true less false labels, accuracy and margin in every order (T true, F false, the query last).

    One row per (order, heads): difference, low, high, n (query words); accuracy, accuracy_low, accuracy_high; margin.
    """
    p, rows = run.parameters, []
    dataset = run.judged[0]
    queries = _queries(run, dataset, MOST)
    patterns = ["".join("FT"[true] for true in one.is_true) for one in orders(run.prompts(dataset)[0])]
    step = max(1, len(patterns) // 6)  # with k = 4 there are 70 orders: every twelfth, the paper's two among them
    shown = sorted({*range(0, len(patterns), step), len(patterns) - 1})
    for i in shown:
        found = _read(run, dataset, f"order {patterns[i]}", lambda q, i=i: orders(q)[i], MOST)
        table, right = found.sums(), rate(found.answers["correct"], clusters=queries)
        for heads, some in _kinds(run).items():
            gap = bootstrap(_mean(table, some, "difference"), clusters=queries, seed=p.seed)
            rows.append(
                {"order": patterns[i], "heads": heads, **gap.as_row("difference"), "accuracy": right.estimate,
                 "accuracy_low": right.low, "accuracy_high": right.high, "margin": found.answers["margin"].mean()}
            )  # fmt: skip
    return pd.DataFrame(rows).assign(dataset=dataset, orders=len(patterns))


@study
def together(run: Run) -> pd.DataFrame:
    """Over prompts, how far the change of attention goes with the change of the margin: form, heads, dataset,
    correlation, low, high, n, share (its square). Where one never varies there is no row."""
    rows, p = [], run.parameters
    for dataset in p.datasets:
        for form in (IMBALANCED, REORDERED):
            table = _changes(run, dataset, form)
            margin = table.drop_duplicates("prompt").set_index("prompt")["margin"]
            for heads, some in _kinds(run).items():
                x = _mean(table, some, "difference")
                if len(x) > 2 and x.std() and margin.std():
                    found = bootstrap_correlation(x, margin[x.index], "pearson", seed=p.seed)
                    rows.append(
                        {"form": form, "heads": heads, "dataset": dataset, **found.as_row("correlation"),
                         "share": found.estimate**2}
                    )  # fmt: skip
    if not rows:
        raise TwoTowersError("neither attention nor the margin varies from prompt to prompt: nothing can go together")
    return pd.DataFrame(rows)


@study(version=2)
def flips(run: Run) -> pd.DataFrame:
    """Prompts whose answer turns wrong, beside those whose answer stays: form, answer, change (of attention, true less
    false, mean over the in-context heads), low, high, n (query words), prompts."""
    parts = []
    for form in (IMBALANCED, REORDERED):
        table = _changes(run, run.judged[0], form)
        own = table[table["head"].isin(named(run.heads()))]
        own = own.groupby(["prompt", "query"], as_index=False)[["difference", "correct"]].mean()
        own["answer"] = np.select([own["correct"] < 0, own["correct"] > 0], ["turns wrong", "turns right"], "stays")
        own = own.rename(columns={"difference": "change"})
        counts = own["answer"].value_counts()
        kept = own[own["answer"].map(counts) > 1]
        if len(kept):
            found = grouped(kept, ["answer"], "change", clusters="query", seed=run.parameters.seed)
            parts.append(found.assign(form=form, prompts=found["answer"].map(counts)))
    if not parts:
        raise TwoTowersError("too few prompts to compare answers that turn with answers that stay")
    return pd.concat(parts, ignore_index=True).assign(total=len(run.prompts(run.judged[0])))
