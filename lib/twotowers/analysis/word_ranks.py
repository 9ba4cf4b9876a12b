"""Where a label's own word ranks in what a head reads off it, and what follows from ranks (v1 section 4.3, fig 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from twotowers.analysis.project import at_places, per_prompt
from twotowers.heads import Heads
from twotowers.model import unembed
from twotowers.model.capture import Capture, read_all
from twotowers.model.model import Model
from twotowers.prompts.prompt import Encoded
from twotowers.stats import intervals


def label_ranks(
    model: Model, encoded: Sequence[Encoded], heads: Heads, norm: str = "frozen", progress: str | None = None
) -> pd.DataFrame:
    """Rank of each label position's own word in its own value (v1 section 4.3), 1 = top word of the vocabulary.

    One row per (prompt, head, demonstration): prompt, head ("22-0"), demonstration, label, true (does it carry the
    query's label?), rank, other_rank (of the other label's word in the same value: as good where a head writes one word,
    or any label, whatever stands there).

    Memory: the values of all prompts and heads at label positions, d_head numbers each; they are read through
    `E gamma W_O^h`, made once for each head.
    """
    heads = list(dict.fromkeys(map(tuple, heads)))

    def read(seen: Capture) -> tuple[Tensor, list[Tensor], pd.DataFrame]:
        places = seen.label_positions
        own = torch.tensor([e.ids for e in seen.prompts], device=places.device).gather(1, places)
        others = [[e.label_ids[_other(e, d.label)] for d in e.prompt.demonstrations] for e in seen.prompts]
        words = torch.stack([own, torch.tensor(others, device=places.device)], -1).flatten(0, 1)
        values = [
            at_places(seen.values[layer][:, model.value_head(head)], places).flatten(0, 1) for layer, head in heads
        ]
        batch, k = places.shape
        shown = {
            "prompt": np.repeat(seen.index, k),
            "demonstration": np.tile(np.arange(k), batch),
            "label": [d.label for e in seen.prompts for d in e.prompt.demonstrations],
            "true": [true for e in seen.prompts for true in e.prompt.is_true],
        }
        return words, values, pd.DataFrame(shown)

    words, values, parts = zip(*read_all(model, encoded, {"values"}, read, progress=progress), strict=True)
    common, tables = pd.concat(parts, ignore_index=True), []
    for (layer, head), rows in zip(heads, zip(*values, strict=True), strict=True):
        weight = model.output_weight(layer)[head]
        found = unembed.rank(torch.cat(rows), torch.cat(words), model.unembedding, norm, weight).cpu().numpy()
        tables.append(common.assign(head=f"{layer}-{head}", rank=found[:, 0], other_rank=found[:, 1]))
    columns = ["prompt", "head", "demonstration", "label", "true", "rank", "other_rank"]
    return pd.concat(tables, ignore_index=True)[columns]


def _other(encoded: Encoded, label: str) -> str:
    return next(one for one in encoded.prompt.labels if one != label)


def reciprocal_ranks(ranks: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean reciprocal rank of a prompt: 1/rank averaged over its rows, one row per prompt and value of `by`."""
    return per_prompt(ranks.assign(reciprocal=1 / ranks["rank"]), by, ["reciprocal"])


def advantages(ranks: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Reciprocal rank of the own label less that of the other one at the same positions: one row as above, `advantage`."""
    return per_prompt(ranks.assign(advantage=1 / ranks["rank"] - 1 / ranks["other_rank"]), by, ["advantage"])


def mrr(ranks: pd.DataFrame, by: Sequence[str], seed: int = 0) -> pd.DataFrame:
    """MRR with its interval per value of `by`: mrr, low, high, n (prompts, or `query` words), median_rank, at_rank_1."""
    rows = []
    for key, table in ranks.groupby(list(by), sort=False):
        prompts = reciprocal_ranks(table, by)
        rows.append(
            dict(zip(by, key, strict=True))
            | intervals.bootstrap(prompts["reciprocal"], clusters=prompts.get("query"), seed=seed).as_row("mrr")
            | {"median_rank": float(table["rank"].median()), "at_rank_1": float((table["rank"] == 1).mean())}
        )
    return pd.DataFrame(rows)


def preferences(ranks: pd.DataFrame, labels: Sequence[str], seed: int = 0) -> pd.DataFrame:
    """Which of two labels each head reads better: MRR of the first less MRR of the second, paired by prompt.

    One row per head: head, one column per label, difference, low, high, n, reads (a label when the 95% interval leaves
    out 0, otherwise "neither").
    """
    first, second = labels
    rows = []
    for head, table in reciprocal_ranks(ranks, ["head", "label"]).groupby("head", sort=False):
        unit = [c for c in ("dataset", "true_label", "prompt", "query") if c in table]
        both = table.pivot_table(index=unit, columns="label", values="reciprocal").dropna()
        queries = both.index.get_level_values("query") if "query" in unit else None
        found = intervals.bootstrap_difference(both[first], both[second], clusters=queries, seed=seed)
        reads = first if found.low > 0 else second if found.high < 0 else "neither"
        means = {label: both[label].mean() for label in labels}
        rows.append({"head": head, **means, **found.as_row("difference"), "reads": reads})
    return pd.DataFrame(rows)


def rank_shares(ranks: pd.DataFrame, by: Sequence[str], vocabulary_size: int) -> pd.DataFrame:
    """Share of rows with at most each rank, at about 60 ranks from 1 to the size of the vocabulary, per value of `by`.

    Columns: `by`, rank, share.
    """
    grid = np.unique(np.geomspace(1, vocabulary_size, 60).round().astype(int))
    rows = []
    for key, table in ranks.groupby(list(by), sort=False):
        share = np.searchsorted(np.sort(table["rank"].to_numpy()), grid, side="right") / len(table)
        rows.append(pd.DataFrame(dict(zip(by, key, strict=True)) | {"rank": grid, "share": share}))
    return pd.concat(rows, ignore_index=True)
