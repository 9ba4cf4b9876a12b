"""Cells of a study: sets of prompts that are read in one pass over the model, and what is said of each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from twotowers.prompts.prompt import Encoded
from twotowers.stats.intervals import rate

Key = TypeVar("Key", bound=Hashable)
BASELINES = ("repeat the last label", "continue the alternation", "always the preferred label")


def places(cells: Mapping[Key, Sized]) -> dict[Key, slice]:
    """Where each cell lies when all stand one after the other."""
    ends = np.cumsum([0, *map(len, cells.values())]).tolist()
    return {key: slice(a, b) for key, a, b in zip(cells, ends, ends[1:], strict=False)}


def queries(encoded: Sequence[Encoded]) -> np.ndarray:
    """What prompts of several sets are resampled by: the set and the query."""
    return np.array([f"{e.prompt.dataset} {e.prompt.query}" for e in encoded])


def answered(table: pd.DataFrame, encoded: Sequence[Encoded]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Of `Answers.table` of some prompts: accuracy, low, high, n; two_label, names_label; the baselines' accuracies.

    The baselines are three rules that never read a text; the preferred label is the one the model more often prefers.
    """
    prompts = [e.prompt for e in encoded]
    other = [next(label for label in q.labels if label != q.true_label) for q in prompts]
    said = np.where(table["two_label"], table["true_label"], other).tolist()
    preferred = max(prompts[0].labels, key=said.count)
    last = float(np.mean([p.demonstrations[-1].label == p.true_label for p in prompts]))
    always = float(np.mean([p.true_label == preferred for p in prompts]))
    return (
        rate(table["correct"], clusters=table["query"]).as_row("accuracy"),
        {"two_label": table["two_label"].mean(), "names_label": (table["said"] != "another word").mean()},
        dict(zip(BASELINES, (last, 1 - last, always), strict=True)),
    )
