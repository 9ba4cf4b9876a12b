"""How samples are drawn anew: values one by one, or in whole clusters. `stats.intervals` has what is asked of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import scipy  # its `stats`, which takes most of a second to import, comes when it is used
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from twotowers.errors import TwoTowersError

_BLOCK = 1 << 20  # entries of a block of resamples: some tens of megabytes, whatever n and draws are


def mean(values: Float[np.ndarray, " n"], weights: Int[np.ndarray, "row n"]) -> Float[np.ndarray, " row"]:
    """Means of values, each drawn as often as its weight says; exact when all values are equal."""
    return values[0] + weights @ (values - values[0]) / weights.sum(-1)


def sample(values: ArrayLike) -> Float[np.ndarray, " n"]:
    """The values as floats. Raises TwoTowersError on none, NaN or infinite ones, and more than one axis."""
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or not len(values):
        raise TwoTowersError(f"values of shape {values.shape}: give a list of at least one number")
    if bad := int((~np.isfinite(values)).sum()):
        raise TwoTowersError(f"{bad} of {len(values)} values are NaN or infinite: leave them out, and say so")
    return values


def pairs(a: ArrayLike, b: ArrayLike) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Both as `sample`. Raises TwoTowersError as it, and on unequal lengths."""
    a, b = sample(a), sample(b)
    if len(a) != len(b):
        raise TwoTowersError(f"pairs of {len(a)} and {len(b)} values: give two lists of equal length")
    return a, b


def inside(share: float) -> float:
    """The share. Raises TwoTowersError when it is not between 0 and 1."""
    if not 0 < share < 1:
        raise TwoTowersError(f"a level or rate of {share}: give a share between 0 and 1, such as 0.95 or 0.05")
    return share


def cluster_codes(clusters: Iterable | None, n: int) -> Int[np.ndarray, " n"]:
    """The number of each value's cluster, in order of appearance; without clusters each value is its own.

    Raises TwoTowersError when they do not name each of n values.
    """
    if clusters is None:
        return np.arange(n)
    names = clusters.tolist() if hasattr(clusters, "tolist") else clusters  # a tensor's entries all hash differently
    try:
        codes, _ = pd.factorize(np.fromiter(names, dtype=object))
    except TypeError:
        codes = np.array([-1])
    if len(codes) != n or (codes < 0).any():
        raise TwoTowersError(f"clusters do not name each of {n} values: give a word or a number for each")
    return codes


def variance_of_mean(values: Float[np.ndarray, " n"], codes: Int[np.ndarray, " n"]) -> float:
    """Cluster-robust: G / (G - 1) sum of (deviations summed in a cluster)^2 / n^2 over G clusters; else s^2 / n."""
    sums = np.bincount(codes, values - values.mean())
    return len(sums) / (len(sums) - 1) * float(sums @ sums) / len(values) ** 2


def group_sums(
    rows: Float[np.ndarray, "row *columns"], group: Int[np.ndarray, "row"]
) -> Float[np.ndarray, "group *columns"]:
    """Sums over the rows of each group, numbered from 0."""
    out = np.zeros((group.max() + 1, *rows.shape[1:]))
    np.add.at(out, group, rows)
    return out


def bca(
    of: Callable[[np.ndarray], np.ndarray],
    codes: Int[np.ndarray, " n"],
    level: float,
    draws: int,
    seed: int,
    width: int = 1,
) -> tuple[float, float, float, int]:
    """Estimate, bounds and number of clusters of `of`, which maps weights (row, n) to (row,).

    A weight says how often a value was drawn, `codes` holds the cluster of each value, and `width` how many floats `of`
    needs for each. Bounds are NaN for one cluster and where `of` is not finite. Raises TwoTowersError on a `level`
    outside (0, 1) and no draws.
    """
    if draws < 1:
        raise TwoTowersError(f"draws={draws}: give at least 1, better 1000 or more")
    tail, n, estimate = (1 - inside(level)) / 2, int(codes.max()) + 1, math.nan

    def statistic(drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        at = drawn.reshape(-1, drawn.shape[-1])
        flat = (at + n * np.arange(len(at))[:, None]).ravel()
        counts = np.bincount(flat, minlength=len(at) * n).reshape(-1, n)
        with np.errstate(all="ignore"):
            found = np.array(of(counts if n == len(codes) else counts[:, codes]), dtype=float)
        found[~np.isfinite(found)] = np.nan
        # BCa counts resamples below the estimate: how a sum was rounded must not decide on which side one lies.
        found[np.abs(found - estimate) <= 1e-12 * np.nanmax(np.abs(found), initial=0)] = estimate
        return found.reshape(drawn.shape[:-1])

    estimate = float(statistic(np.arange(n)))
    if n < 2 or math.isnan(estimate):
        return estimate, math.nan, math.nan, n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, where BCa has no answer
        found = scipy.stats.bootstrap(
            [np.arange(n)], statistic, n_resamples=draws, batch=max(1, _BLOCK // (width * len(codes))),
            confidence_level=level, vectorized=True, method="BCa", rng=np.random.default_rng(seed),
        )  # fmt: skip
    low, high = found.confidence_interval
    finite = found.bootstrap_distribution[~np.isnan(found.bootstrap_distribution)]
    if not low <= estimate <= high and len(finite):
        low, high = np.quantile(finite, [tail, 1 - tail])
    return estimate, float(low), float(high), n
