"""The in-context heads: located once a model, on prompts that judge nothing, and shared by all chapters.

Two rankings stand side by side. The paper's is the mean log-probability increase of the true label (v1 section 4.2),
in the paper's order. Ours, the default, is the part of it that comes from label positions: increase of the true label
less that of the other, over counterbalanced prompts, so that neither a place nor a label word can earn a place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.heads import Head, named
from twotowers.prompts.datasets import both_assignments, counterbalanced
from twotowers.stats.intervals import overlap_within_layers, spearman
from twotowers.studies.context import Context, chapter_studies
from twotowers.studies.parts import in_parts

study = chapter_studies("01-locate")
COLUMN = {"label": "label_margin", "paper": "increase"}
WORDS = {
    "label": "the part of the increase that comes from label positions",
    "paper": "the mean increase of the true label, as in the paper",
}


@study(uses=("datasets", "labels", "k", "separator", "long", "norm", "n_locate", "seed", "dtype"))
def heads(run: Context) -> pd.DataFrame:
    """Every head of the model on every set: both rankings, in nats.

    Columns: dataset, layer, head, name, increase, standard_error, label_margin, label_error, n.
    """
    from twotowers.analysis import locate, rankings

    p, n_sets = run.parameters, {}
    plain, balanced = [], []
    for dataset in p.datasets:
        prompts = run.locating(dataset)
        plain += run.encode(prompts)
        # Every order in turn, and each with both assignments of the labels: preferences for a word cancel exactly.
        balanced += run.encode(both_assignments(counterbalanced(prompts)))
        n_sets[dataset] = len(prompts)
    increase = in_parts(run, locate.increases, plain, norm=p.norm, progress="increase of every head").heads
    label = np.asarray(in_parts(run, rankings.label_margin, balanced, progress="increase from label positions"))
    layer, head = (axis.ravel() for axis in np.indices(increase.shape[1:]))
    parts, at = [], 0
    for dataset, n in n_sets.items():
        columns = {"dataset": dataset, "layer": layer, "head": head}
        columns["name"] = named(zip(layer, head, strict=True))
        pairs = label[2 * at : 2 * (at + n)].reshape(n, 2, *label.shape[1:]).mean(1)
        for name, error, mine in (
            ("increase", "standard_error", increase[at : at + n]), ("label_margin", "label_error", pairs),
        ):  # fmt: skip
            columns[name] = mine.mean(0).ravel()
            columns[error] = (mine.std(0, ddof=1) / np.sqrt(n)).ravel() if n > 1 else 0.0
        parts.append(pd.DataFrame(columns | {"n": n}))
        at += n
    return pd.concat(parts, ignore_index=True)


def top(table: pd.DataFrame, dataset: str, ranking: str, k: int) -> list[Head]:
    """The k heads of a set that stand highest in a ranking and above zero, highest first.

    Raises TwoTowersError when no head is above zero, and for a table that is none of heads.
    """
    if not {"dataset", "layer", "head", COLUMN[ranking]} <= set(table) or not all(
        pd.api.types.is_integer_dtype(table[axis]) for axis in ("layer", "head")
    ):
        raise TwoTowersError("the table of heads is damaged: delete it and run chapter 1 again")
    mine = table[table["dataset"] == dataset].sort_values(COLUMN[ranking], ascending=False, kind="stable")
    above = mine[mine[COLUMN[ranking]] > 0].head(k)
    if above.empty:
        raise TwoTowersError(f"no head raises the true label on {dataset} ({WORDS[ranking]}): name heads")
    return [Head(int(a), int(b)) for a, b in zip(above["layer"], above["head"], strict=True)]


def shared(
    a: tuple[pd.DataFrame, str, str], b: tuple[pd.DataFrame, str, str], k: int, per_layer: int
) -> dict[str, Any]:
    """The top k heads of two lists, each (table of `heads`, dataset, ranking), beside chance given the layers of both.

    shared, k, expected, p (of sharing as many by chance), least (the p of sharing as many as the layers allow), both (the
    shared heads), rank_correlation over all heads.
    Raises TwoTowersError as `top`.
    """
    lists = [top(*one, k) for one in (a, b)]
    values = [t.loc[t["dataset"] == dataset, COLUMN[ranking]].to_numpy() for t, dataset, ranking in (a, b)]
    found = overlap_within_layers(*lists, per_layer)
    return {
        "shared": found.count, "k": k, "expected": found.expected, "p": found.probability, "least": found.least,
        "both": ", ".join(named([head for head in lists[0] if head in lists[1]])), "rank_correlation": spearman(*values),
    }  # fmt: skip
