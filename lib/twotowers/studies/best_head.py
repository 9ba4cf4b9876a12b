"""Chapter 8: the best head of a model on sentences, located on some prompts and judged on others (v1 appendix D)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, named, nearest_heads, others_of_layer
from twotowers.prompts.datasets import WORD_SETS, alternated, counterbalanced
from twotowers.stats.intervals import bootstrap, bootstrap_difference, grouped, rate
from twotowers.studies.context import chapter_studies
from twotowers.studies.located import COLUMN, heads, shared
from twotowers.studies.parts import in_parts
from twotowers.studies.run import Run

study = chapter_studies("08-llama")
BEST, RIVAL, RANDOM, NEAR, EVERY = "best head", "rival", "random heads", "near heads", "all sets"
OWN = "MRR, own less other label"
PAPER, BALANCED = "paper's order", "counterbalanced"
N_RANDOM = 5  # random other heads of the best head's layer
ERROR = {"label": "label_error", "paper": "standard_error"}
MOST_RIVALS = 2  # of the heads that cannot be told from the best one
LEAST_NEAR = 20  # other heads about its depth that the best head is ranked among: fewer cannot tell 5% from chance


def available(run: Run) -> Run:
    """The same run on the sets that can be had and read here; what is left out is noted with its reason.

    Raises TwoTowersError, with the last reason, when there is none.
    """

    def make() -> Run:
        had, last = [], ""
        for dataset in run.parameters.datasets:
            try:
                alone = run.on([dataset])
                alone.prompts(dataset, n=8)
                had.append(dataset)
            except TwoTowersError as error:
                last = str(error)
                run.notes.append(f"{dataset} is left out: {error}")
        if not had:
            raise TwoTowersError(f"none of the sets can be had and read here: {last}")
        return run.on(had)

    return run.keep("available", make)


def best(run: Run) -> tuple[Head, list[Head]]:
    """The head with the highest mean over the sets, each counting alike, and random others of its layer.

    The parameter `heads` names another. Raises TwoTowersError when no head is above zero.
    """
    p = run.parameters
    if p.heads:
        head = run.heads()[0]
    else:
        table = run.table(heads).groupby(["layer", "head"])[COLUMN[p.ranking]].mean()
        if table.max() <= 0:
            raise TwoTowersError("no head raises the true label on these sets: choose another dataset or model")
        head = Head(*map(int, table.idxmax()))
    return head, [Head(*one) for one in others_of_layer(head, run.about["heads"], N_RANDOM, p.seed)]


def rivals(run: Run) -> list[Head]:
    """Heads that the prompts they are located on do not tell from the best one, highest first, MOST_RIVALS at most.

    The two means differ by less than 1.96 standard errors, taken as if they were independent: heads agree on which prompts
    are easy, so this calls too many heads rivals rather than too few. None where the parameter `heads` names the head.
    """
    if run.parameters.heads:
        return []
    column, error = COLUMN[run.parameters.ranking], ERROR[run.parameters.ranking]
    by_head = run.table(heads).groupby(["layer", "head"])
    found = pd.DataFrame(
        {"mean": by_head[column].mean(), "error": by_head[error].agg(lambda e: np.sqrt((e**2).mean() / len(e)))}
    )
    found = found.sort_values("mean", ascending=False, kind="stable")
    gap, error = found["mean"].iloc[0] - found["mean"], np.hypot(found["error"].iloc[0], found["error"])
    return [
        Head(*map(int, pair)) for pair in found.index[(gap < 1.96 * error) & (found["mean"] > 0)][1 : 1 + MOST_RIVALS]
    ]


def sources(run: Run, head: Head) -> dict[str, str]:
    """What a head is held against: BEST for itself, RANDOM heads of its layer, NEAR for all others about its depth."""
    about, others = run.about, others_of_layer(head, run.about["heads"], N_RANDOM, run.parameters.seed)
    near = nearest_heads(head, about["layers"], about["heads"], LEAST_NEAR)
    return {str(head): BEST} | dict.fromkeys(named(near), NEAR) | dict.fromkeys(named(others), RANDOM)


def _judged(run: Run):
    """Ranks of label words and attention on labels, on all sets: (ranks, sums), a row a head.

    Of the best head, its rivals, and all that these are held against.
    """
    from twotowers.analysis import attention, word_ranks

    def make():
        here = available(run)
        every = dict.fromkeys(name for head in (best(here)[0], *rivals(here)) for name in sources(run, head))
        read_here, ranks, sums = [Head.parse(name) for name in every], [], []
        for dataset in here.parameters.datasets:
            prompts = here.prompts(dataset)
            judged = here.encode(alternated(prompts))
            queries = np.array([prompt.query for prompt in prompts])
            found = word_ranks.label_ranks(here.lm, judged, read_here, here.parameters.norm, progress=dataset)
            ranks.append(found.assign(dataset=dataset, query=queries[found["prompt"]]))
            for form, encoded in ((PAPER, judged), (BALANCED, here.encode(counterbalanced(prompts)))):
                told = f"{dataset}, {form}"
                read = in_parts(here, attention.read, encoded, read_here, outer="head", progress=told).sums()
                sums.append(read.assign(dataset=dataset, form=form, query=queries[read["prompt"]]))
        return [pd.concat(parts, ignore_index=True) for parts in (ranks, sums)]

    return run.keep("judged", make)


def _against(run: Run, head: Head, near: bool = False) -> list[pd.DataFrame]:
    """The same of one head and its random heads, as `source` says; with `near` also of all others about its depth."""
    kinds = {name: kind for name, kind in sources(run, head).items() if near or kind != NEAR}
    return [t[t["head"].isin(kinds)].assign(source=lambda some: some["head"].map(kinds)) for t in _judged(run)]


def _compared(run: Run) -> list[pd.DataFrame]:
    return _against(run, best(available(run))[0])


@study(version=2)
def chosen(run: Run) -> pd.DataFrame:
    """The best head, its rivals and random heads: head, source, label_margin, increase (nats, mean over the sets), sets,
    best_on."""
    here = available(run)
    head, others = best(here)
    table = here.table(heads)
    means = table.groupby("name")[["label_margin", "increase"]].mean()
    top = table.loc[table.groupby("dataset")[COLUMN[run.parameters.ranking]].idxmax()]
    kinds = dict.fromkeys(named(others), RANDOM) | dict.fromkeys(named(rivals(here)), RIVAL)
    rows = [
        {"head": name, "source": kind, **means.loc[name].to_dict()}
        for name, kind in ({str(head): BEST} | kinds).items()
    ]
    return pd.DataFrame(rows).assign(
        sets=", ".join(here.parameters.datasets), n_sets=len(here.parameters.datasets),
        best_on=int((top["name"] == str(head)).sum()), total=len(means), n_locate=run.parameters.n_locate,
    )  # fmt: skip


@study
def accuracy(run: Run) -> pd.DataFrame:
    """Accuracy on every set, in the paper's order and counterbalanced: dataset, form, accuracy, low, high, n, passes."""
    _, sums = _compared(run)
    here, rows = available(run), []
    for (dataset, form), table in sums.drop_duplicates(["dataset", "form", "prompt"]).groupby(
        ["dataset", "form"], sort=False
    ):
        found = rate(table["correct"], clusters=table["query"])
        rows.append({"dataset": dataset, "form": form, **found.as_row("accuracy"), "passes": dataset in here.passing})
    return pd.DataFrame(rows)


@study
def mrr(run: Run) -> pd.DataFrame:
    """MRR of the label words per (dataset, source): mrr, low, high, n, median_rank, at_rank_1; chance."""
    from twotowers.analysis.word_ranks import mrr as of

    ranks, _ = _compared(run)
    size = run.about["vocabulary"]
    table = of(ranks, ["dataset", "source"], run.parameters.seed)
    return table.assign(chance=float((1 / np.arange(1, size + 1)).sum() / size), vocabulary=size)


@study
def mrr_by_label(run: Run) -> pd.DataFrame:
    """The same, each label apart: dataset, label, source, mrr, low, high, n."""
    from twotowers.analysis.word_ranks import mrr as of

    return of(_compared(run)[0], ["dataset", "label", "source"], run.parameters.seed).drop(
        columns=["median_rank", "at_rank_1"]
    )


@study
def looks(run: Run) -> pd.DataFrame:
    """Attention on true labels, on false labels and their difference, per (dataset, form, source, side)."""
    _, sums = _compared(run)
    means = sums.groupby(["dataset", "form", "source", "prompt", "query"], sort=False, as_index=False)[
        ["true", "false", "difference"]
    ].mean()
    parts = []
    for side in ("true", "false", "difference"):
        found = grouped(means, ["dataset", "form", "source"], side, clusters="query", seed=run.parameters.seed)
        parts.append(
            found.rename(columns={side: "weight"}).assign(side=side if side == "difference" else f"{side} labels")
        )
    return pd.concat(parts, ignore_index=True)


@study(version=4)
def gaps(run: Run) -> pd.DataFrame:
    """Best head less random heads of its layer, paired by prompt, and the same of each rival: head (the best one first), of ("MRR",
    OWN: less that of the other label's word at the same positions, or the form of attention's difference), dataset ("all
    sets" pools those that pass), gap, low, high, n; effect, effect_low, effect_high are the head's own; outdone of `near`
    other heads about its depth have as high a mean."""
    here = available(run)
    parts = [_gaps(run, here.passing, head).assign(head=str(head)) for head in (best(here)[0], *rivals(here))]
    return pd.concat(parts, ignore_index=True).assign(passing=", ".join(here.passing), n_passing=len(here.passing))


def _gaps(run: Run, passing: list[str], head: Head) -> pd.DataFrame:
    from twotowers.analysis.word_ranks import advantages, reciprocal_ranks

    (ranks, sums), rows, seed = _against(run, head, near=True), [], run.parameters.seed
    unit, by = ["dataset", "prompt", "query"], ["source", "head"]
    tables = {
        "MRR": reciprocal_ranks(ranks, by).pivot(index=unit, columns=by, values="reciprocal"),
        OWN: advantages(ranks, by).pivot(index=unit, columns=by, values="advantage"),
    }
    for form in (PAPER, BALANCED):
        tables[form] = sums[sums["form"] == form].pivot(index=unit, columns=by, values="difference")
    for what, table in tables.items():
        dataset = table.index.get_level_values("dataset")
        for name in [EVERY, *dict.fromkeys(dataset)]:
            part = table[dataset.isin(passing)] if name == EVERY else table[dataset == name]
            if len(part) > 1:
                queries, ours = part.index.get_level_values("query"), part[BEST].iloc[:, 0]
                own = bootstrap(ours, clusters=queries, seed=seed)
                gap = bootstrap_difference(ours, part[RANDOM].mean(axis=1), clusters=queries, seed=seed)
                others = part.drop(columns=BEST, level=0).mean()
                rows.append(
                    {"of": what, "dataset": name, **gap.as_row("gap"), "effect": own.estimate, "effect_low": own.low,
                     "effect_high": own.high, "outdone": int((others >= ours.mean()).sum()), "near": len(others)}
                )  # fmt: skip
    return pd.DataFrame(rows)


@study
def overlaps(run: Run) -> pd.DataFrame:
    """Top heads of every set here that are top heads of a set of words too (v1 appendix A), by both rankings.

    One row per (ranking, first: the set here, second: the set of words) and the columns of `located.shared`; learned:
    both sets are. Each list is located on prompts of its own set, in the form that is chosen for its kind of sets.
    """
    here, rows = available(run), []
    if not (others := [name for name in WORD_SETS if name not in here.parameters.datasets]):
        raise TwoTowersError("all sets of words are judged here, so none is left to compare with: name other datasets")
    words = run.on(others)
    learned, tables = {*here.passing, *words.passing}, (here.table(heads), words.table(heads))
    for ranking in COLUMN:
        for a in here.parameters.datasets:
            for b in words.parameters.datasets:
                lists = (tables[0], a, ranking), (tables[1], b, ranking)
                found = shared(*lists, run.parameters.top_k, run.about["heads"])
                rows.append({"ranking": ranking, "first": a, "second": b, **found, "learned": {a, b} <= learned})
    return pd.DataFrame(rows).assign(forms=f"{here.form} and {words.form}")
