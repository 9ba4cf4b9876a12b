"""Chapter 1: where the right label's probability comes from (v1 sections 3.1, 4.1, 4.2; appendix E)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from twotowers.heads import named, random_heads
from twotowers.prompts.datasets import both_assignments, counterbalanced, paper_example
from twotowers.stats.agreement import top
from twotowers.stats.intervals import bootstrap, grouped, overlap_within_layers, spearman
from twotowers.studies.cells import answered, places
from twotowers.studies.context import chapter_studies
from twotowers.studies.decides import sets_of
from twotowers.studies.example import apart
from twotowers.studies.forms import forms
from twotowers.studies.located import COLUMN, heads, shared
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("01-locate")
__all__ = [
    "accuracy", "apart", "blocks", "case", "forms", "heads", "norms", "order", "overlaps", "parts", "positions",
    "right_only", "top_heads", "toy",
]  # fmt: skip
FEWEST, DRAWS = 10, 400  # prompts to locate heads on; samples by chance
SAMPLE = 200  # prompts for exhibits that cost more than one walk over the vocabulary a set
NORMS = ("frozen", "recomputed", "raw")
PAPER, BALANCED = "paper's order", "counterbalanced"
QUANTITIES = ("increase", "margin", "other label", "logit_change", "lse_change")


def _increases(run: Run):
    """Increases of all blocks and heads in one walk: (found, where each set is in it).

    Every set in the paper's order, the first label true; under BALANCED, SAMPLE prompts of the judged sets in which
    either class is asked about, counterbalanced.
    """
    from twotowers.analysis import locate

    def make():
        sets = {dataset: run.encoded(dataset) for dataset in run.parameters.datasets} | {BALANCED: _balanced(run)}
        pooled = [one for encoded in sets.values() for one in encoded]
        found = in_parts(run, locate.increases, pooled, norm=run.parameters.norm, progress="increases")
        log_prob = zip(found.log_prob.to_dict("records"), pooled, strict=True)
        run.saw(pooled, found.predicted, [[row[label] for label in e.label_ids] for row, e in log_prob])
        return found, places(sets)

    return run.keep("increases", make)


def _pairs(run: Run):
    """What heads add from label positions (nats), prompts counterbalanced and each with both assignments of the labels: of
    SAMPLE prompts a set, by dataset (pairs, (2 prompts, layer, head))."""
    from twotowers.analysis import rankings

    def make():
        cells = {
            d: run.encode(both_assignments(counterbalanced(run.prompts(d)[:SAMPLE]))) for d in run.parameters.datasets
        }
        pooled = [one for pairs in cells.values() for one in pairs]
        margin, *said = in_parts(run, rankings.margins_and_answers, pooled, progress="label positions")
        run.saw(pooled, *said)
        return {d: (cells[d], margin[at]) for d, at in places(cells).items()}

    return run.keep("pairs", make)


def _balanced(run: Run) -> list:
    some = sets_of(run)
    return [e for dataset in some for e in run.either_class(dataset, SAMPLE // len(some))]


def _sample(run: Run) -> list:
    return run.encoded(run.parameters.datasets[0])[:SAMPLE]


@study
def accuracy(run: Run) -> pd.DataFrame:
    """Accuracy on every set, either label true, in the paper's order and counterbalanced, beside the baselines.

    One row per (dataset, order, true_label; "both" when counterbalanced): accuracy, low, high, n (query words), prompts,
    two_label, names_label, the three baselines, passes (the set passes the rule of `forms`).
    """
    p, rows = run.parameters, []
    cells = {(d, "paper's order", label): run.encoded(d, label) for d in p.datasets for label in p.labels}
    cells |= {(d, "counterbalanced", "both"): run.balanced(d) for d in p.datasets}
    for other in (_increases, _pairs):  # most of these prompts are run for them too
        other(run)
    found = run.answers([e for encoded in cells.values() for e in encoded], progress="answers").table()
    for key, at in places(cells).items():
        accuracy, shares, baselines = answered(found.iloc[at], cells[key])
        row = dict(zip(("dataset", "order", "true_label"), key, strict=True)) | accuracy
        rows.append(row | {"prompts": len(cells[key])} | shares | {"passes": key[0] in run.passing} | baselines)
    return pd.DataFrame(rows)


@study
def case(run: Run) -> pd.DataFrame:
    """The paper's example prompt, block by block: layer, part, increase, logit_change, lse_change, margin (nats); the
    prompt's text, the true label and the model's answer stand in every row."""
    from twotowers.analysis import locate
    from twotowers.model.answers import answers

    p = run.parameters
    one = run.encode([paper_example(p.labels)])
    table = locate.increase_parts(locate.increases(run.lm, one, norm=p.norm)).drop(columns="prompt")
    said = answers(run.lm, one).said[0]
    return table.assign(text=one[0].prompt.text, true_label=p.labels[0], said=said)


@study(version=2)
def blocks(run: Run) -> pd.DataFrame:
    """Summed increases of all attention blocks and of all FFN blocks, split, and their difference.

    Judged where either class is asked about, counterbalanced, on sets that are learned (any, where none is: `learned`);
    the paper's order, on the first set with the first label true, stands beside it. One row per (order, part, quantity):
    part is "attention", "FFN" or "attention less FFN"; quantity is increase, margin (of the true label over the other),
    other label (its increase: increase less margin), logit_change or lse_change; value, low, high (nats), n (query
    words), prompts, dataset.
    """
    from twotowers.analysis import locate

    found, at = _increases(run)
    table, first = locate.increase_parts(found), run.parameters.datasets[0]
    table["other label"] = table["increase"] - table["margin"]
    rows = []
    for order, name, encoded in ((BALANCED, BALANCED, _balanced(run)), (PAPER, first, run.encoded(first))):
        mine = table[table["prompt"].between(at[name].start, at[name].stop - 1)]
        sums, queries = mine.groupby(["part", "prompt"])[list(QUANTITIES)].sum(), [e.prompt.query for e in encoded]
        sets = ", ".join(dict.fromkeys(e.prompt.dataset for e in encoded))
        for quantity in QUANTITIES:
            a, f = (sums.loc[part, quantity].to_numpy() for part in ("attention", "FFN"))
            for part, values in (("attention", a), ("FFN", f), ("attention less FFN", a - f)):
                interval = bootstrap(values, clusters=queries).as_row("value")
                row = {"order": order, "part": part, "quantity": quantity, **interval}
                rows.append(row | {"prompts": len(encoded), "dataset": sets})
    return pd.DataFrame(rows).assign(learned=bool(run.passing))


@study
def top_heads(run: Run) -> pd.DataFrame:
    """The in-context heads on judged prompts, beside one random head of the same layer each.

    One row per (dataset, kind, head): increase, low, high (nats), n; rank_label and rank_paper are the head's places in
    the two rankings; depth is its layer over the last one; share is of all positive increases, of all heads of its kind.
    """
    found, at = _increases(run)
    ours, p, located = run.heads(), run.parameters, run.table(heads)
    located = located[located["dataset"] == p.datasets[0]]
    places = {r: located.set_index("name")[c].rank(ascending=False, method="first") for r, c in COLUMN.items()}
    kinds = {"in-context heads": ours, "random heads": random_heads(ours, run.about["heads"], p.seed)}
    rows = []
    for dataset in p.datasets:
        mine = at[dataset]
        values, queries = found.heads[mine], [e.prompt.query for e in run.encoded(dataset)]
        positive = np.clip(values, 0, None).sum((1, 2)).mean()
        for kind, some in kinds.items():
            carried = sum(np.clip(values[:, a, b], 0, None).mean() for a, b in dict.fromkeys(some))
            for (a, b), name in zip(some, named(some), strict=True):
                rows.append(
                    {"dataset": dataset, "kind": kind, "head": name, "layer": a,
                     **bootstrap(values[:, a, b], clusters=queries).as_row("increase"),
                     "rank_label": int(places["label"][name]), "rank_paper": int(places["paper"][name]),
                     "depth": a / max(1, run.about["layers"] - 1), "share": carried / positive if positive else 0.0}
                )  # fmt: skip
    return pd.DataFrame(rows).assign(ranking=p.ranking, heads_from=run.heads_from, total=found.heads[0].size)


@study(version=3, uses=("datasets", "labels", "k", "separator", "long", "norm", "n_locate", "seed", "dtype", "top_k"))
def overlaps(run: Run) -> pd.DataFrame:
    """Top heads shared by two sets, and by the two rankings of one set, with chance given the layers of both lists.

    Columns: compared ("sets" or "rankings"), ranking, first, second, those of `located.shared`, learned (both sets are).
    """
    p, table, per_layer, rows = run.parameters, run.table(heads), run.about["heads"], []

    def add(compared: str, a: tuple[str, str], b: tuple[str, str]) -> None:
        names = (a[0], b[0]) if compared == "sets" else (a[1], b[1])
        rows.append(
            {"compared": compared, "ranking": a[1] if compared == "sets" else "", "first": names[0], "second": names[1],
             **shared((table, *a), (table, *b), p.top_k, per_layer), "learned": {a[0], b[0]} <= set(run.passing)}
        )  # fmt: skip

    for ranking in COLUMN:
        for i, a in enumerate(p.datasets):
            for b in p.datasets[i + 1 :]:
                add("sets", (a, ranking), (b, ranking))
    add("rankings", (p.datasets[0], "label"), (p.datasets[0], "paper"))
    return pd.DataFrame(rows)


@study
def right_only(run: Run) -> pd.DataFrame:
    """Heads located on prompts that are answered right, as the paper does on sentences (v1 appendix A), against all
    prompts.

    One row per (ranking, dataset): kept, n (prompts; for "label" prompts of which both assignments must be right),
    k, shared (of the top k heads), rank_correlation over all heads; by_chance, correlation_by_chance (means where as many
    prompts are kept by chance, whole query words at a time), p (of sharing as few by chance), learned. Below FEWEST
    prompts kept there is no list, and these are missing.
    """
    (found, at), p, cells = _increases(run), run.parameters, {}
    for dataset, (pairs, margin) in _pairs(run).items():
        right = run.answers(pairs).correct.reshape(-1, 2).all(1)
        cells["label", dataset] = margin.reshape(len(right), 2, *margin.shape[1:]).mean(1), right
        cells["paper", dataset] = found.heads[at[dataset]], found.correct[at[dataset]]
    rows = []
    for (ranking, dataset), (values, right) in cells.items():
        queries = [prompt.query for prompt in run.prompts(dataset)[: len(values)]]
        row = {"ranking": ranking, "dataset": dataset, "kept": int(right.sum()), "n": len(right)}
        rows.append(row | left_out(values.reshape(len(values), -1), right, queries, p.top_k, p.seed))
    return pd.DataFrame(rows).assign(learned=[row["dataset"] in run.passing for row in rows])


def left_out(values: np.ndarray, keep: np.ndarray, queries: Sequence[str], k: int, seed: int) -> dict[str, float]:
    """What becomes of the top k heads by their mean over prompts where only some are kept; see `right_only`.

    `values` (prompt, head), `keep` and `queries` (prompt,). Whole query words are left out by chance, as prompts that
    share one are not independent; the last of them in part, so that as many prompts are kept.
    """

    def compared(some: np.ndarray) -> tuple[int, float]:
        mean = values[some].mean(0)
        return len(whole & set(np.argsort(-mean, kind="stable")[:k].tolist())), spearman(values.mean(0), mean)

    whole = set(np.argsort(-values.mean(0), kind="stable")[:k].tolist())
    kept, names = int(keep.sum()), ("shared", "rank_correlation", "by_chance", "correlation_by_chance", "p")
    if kept < FEWEST:
        return {"k": k} | dict.fromkeys(names, float("nan"))
    words, rng = np.unique(queries, return_inverse=True)[1], np.random.default_rng([seed, 46])
    draws = [np.argsort(rng.permutation(words.max() + 1)[words], kind="stable")[:kept] for _ in range(DRAWS)]
    shared, correlation = compared(keep)
    by_chance, correlations = np.array([compared(one) for one in draws]).T
    p = (1 + (by_chance <= shared).sum()) / (1 + DRAWS)
    found = (float(shared), correlation, by_chance.mean(), correlations.mean(), p)
    return {"k": k} | dict(zip(names, found, strict=True))


@study
def positions(run: Run) -> pd.DataFrame:
    """Increase of the in-context heads by what stands at a position: head, role, increase, low, high, n (nats)."""
    from twotowers.analysis import locate

    sample, ours = _sample(run), run.heads()
    table = in_parts(run, locate.increases_by_role, sample, ours, batched=True, norm=run.parameters.norm)
    table["query"] = [sample[i].prompt.query for i in table["prompt"]]
    return grouped(table, ["head", "role"], "increase", clusters="query", seed=run.parameters.seed)


@study
def parts(run: Run) -> pd.DataFrame:
    """The final vector of the paper's example as a sum: parts, and the largest relative error (appendix E)."""
    from twotowers.analysis import locate
    from twotowers.model.capture import capture

    seen = capture(run.lm, run.encode([paper_example(run.parameters.labels)]), {"weights", "values", "neurons"})
    error = float((locate.sum_of_parts(seen, run.lm) - seen.resid_final).abs().max() / seen.resid_final.abs().max())
    count = run.lm.n_layers * run.lm.n_heads * seen.weights.shape[-1] + seen.neurons.shape[0] * seen.neurons.shape[-1]
    return pd.DataFrame([{"parts": count, "relative_error": error, "dtype": run.parameters.dtype}])


@study(uses=())
def toy(run: Run) -> pd.DataFrame:
    """The paper's toy of three words: coefficient, word, probability (v1 appendix E)."""
    x, v = np.array([1.0, 2.0, 3.0]), np.array([5.0, 1.0, 2.0])
    rows = [
        {"coefficient": str(m), "word": word, "probability": p}
        for m in (0, 1, 2)
        for word, p in zip(("foo", "bar", "unknown"), np.exp(x + m * v) / np.exp(x + m * v).sum(), strict=True)
    ]
    return pd.DataFrame(rows)


@study
def order(run: Run) -> pd.DataFrame:
    """Mean increase of every head alone, and after the heads before it in its layer: layer, head, name, alone, after."""
    from twotowers.analysis import locate
    from twotowers.model.capture import read_all

    sample, norm = _sample(run), run.parameters.norm
    found, at = _increases(run)
    after = read_all(
        run.lm, sample, (), lambda seen: locate.cumulative_head_increases(seen, run.lm, norm=norm).double()
    )
    first = at[run.parameters.datasets[0]].start
    alone = found.heads[first : first + len(sample)].mean(0)
    total = np.concatenate([part.cpu().numpy() for part in after]).mean(0)
    layer, head = (axis.ravel() for axis in np.indices(alone.shape))
    table = pd.DataFrame({"layer": layer, "head": head, "alone": alone.ravel(), "after": total.ravel()})
    return table.assign(name=named(zip(layer, head, strict=True)), n=len(sample))


@study
def norms(run: Run) -> pd.DataFrame:
    """The top heads by the paper's ranking under two readings of the norm: first, second, shared, k, expected, p,
    rank_correlation, n."""
    from twotowers.analysis import locate

    (found, at), p, sample = _increases(run), run.parameters, _sample(run)[:60]
    by_norm, k = {p.norm: found.heads[at[p.datasets[0]]][: len(sample)].mean(0)}, p.top_k
    for norm in (one for one in NORMS if one not in by_norm):
        by_norm[norm] = in_parts(run, locate.increases, sample, norm=norm, progress=f"norm {norm}").heads.mean(0)
    rows = []
    for i, a in enumerate(NORMS):
        for b in NORMS[i + 1 :]:
            shared = overlap_within_layers(top(by_norm[a], k), top(by_norm[b], k), run.about["heads"])
            rho = spearman(by_norm[a].ravel(), by_norm[b].ravel())
            rows.append(
                {"first": a, "second": b, "shared": shared.count, "k": k, "expected": shared.expected,
                 "p": shared.probability, "rank_correlation": rho, "n": len(sample)}
            )  # fmt: skip
    return pd.DataFrame(rows)
