"""Do rankings of heads agree, beyond what the depth of heads alone would give? No torch here.

    agreement({"increase": a, "attention by class": b}, k=10)      # arrays (layer, head): one row per pair

Heads that matter lie in the deeper layers under almost any measure, so two unrelated rankings agree somewhat. Chance
here is therefore another draw of heads *within each layer*.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float

from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.stats.intervals import overlap_within_layers

Ranking = Float[np.ndarray, "layer head"]


def top(ranking: Ranking, k: int) -> list[Head]:
    """The k heads with the largest values, largest first. Raises TwoTowersError for a wrong k."""
    if not 0 < k <= ranking.size:
        raise TwoTowersError(f"k={k}: the model has {ranking.size} heads, ask for 1 to {ranking.size}")
    best = np.argsort(-ranking, axis=None, kind="stable")[:k]
    return [Head(int(layer), int(head)) for layer, head in zip(*np.unravel_index(best, ranking.shape), strict=True)]


def agreement(rankings: Mapping[str, Ranking], k: int, seed: int = 0, draws: int = 2000) -> pd.DataFrame:
    """Rank correlation and overlap of the top k of every pair of rankings, beside chance given the layers.

    One row per pair: a, b (names), heads, spearman, spearman_expected (exact) and spearman_p (share of `draws`
    permutations within layers that agree at least as much, one-sided), k, shared, shared_expected, shared_p (exact) and
    shared_least_p (if all that could be shared were).
    Many pairs are many tests: control for that. Raises TwoTowersError for fewer than two rankings, different shapes,
    values that are not finite or never vary, and a k that is too large.
    """
    if len(rankings) < 2:
        raise TwoTowersError("one ranking agrees with itself: give at least two")
    if len(shapes := {np.shape(r) for r in rankings.values()}) != 1:
        raise TwoTowersError(f"rankings of different models ({', '.join(map(str, sorted(shapes)))}): give one model's")
    ranks = {name: _ranks(name, np.asarray(values, dtype=float)) for name, values in rankings.items()}
    best = {name: top(np.asarray(values), k) for name, values in rankings.items()}
    rng = np.random.default_rng([seed, 12])
    rows = []
    for a, b in combinations(rankings, 2):
        x, y = ranks[a], ranks[b]
        drawn = rng.permuted(np.broadcast_to(y, (draws, *y.shape)), axis=2)
        found = float((x * y).sum())
        as_high = int((np.einsum("lh,dlh->d", x, drawn) >= found - 1e-12).sum())
        count, expected, p, least = overlap_within_layers(best[a], best[b], y.shape[1])
        rows.append(
            {"a": a, "b": b, "heads": y.size, "spearman": found,
             "spearman_expected": float((x.mean(1) * y.mean(1)).sum() * y.shape[1]),
             "spearman_p": (1 + as_high) / (1 + draws),
             "k": k, "shared": count, "shared_expected": expected, "shared_p": p,
             "shared_least_p": least}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _ranks(name: str, values: Ranking) -> Ranking:
    """Ranks with mean 0 and norm 1, ties sharing their average: the inner product of two is their correlation."""
    if not np.isfinite(values).all():
        raise TwoTowersError(f"the ranking '{name}' has values that are NaN or infinite: every head needs a value")
    if np.ptp(values) == 0:
        raise TwoTowersError(f"the ranking '{name}' gives every head the same value, so it ranks nothing: leave it out")
    ranks = pd.Series(values.ravel()).rank().to_numpy().reshape(values.shape)
    ranks = ranks - ranks.mean()
    return ranks / np.sqrt(np.square(ranks).sum())
