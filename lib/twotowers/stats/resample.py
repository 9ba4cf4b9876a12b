"""How samples are drawn anew: values one by one, or in whole clusters. `stats.intervals` has what is asked of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import stats

from twotowers.errors import TwoTowersError

_BLOCK = 1 << 20  # entries of a block of resamples: some tens of megabytes, whatever n and draws are


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return values[0] + weights @ (values - values[0]) / weights.sum(-1)  # exact when all values are equal


def _median(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    order = np.argsort(values)
    twice = 2 * weights[:, order].cumsum(-1)
    n = weights.sum(-1, keepdims=True)
    return (values[order][(twice >= n).argmax(-1)] + values[order][(twice > n).argmax(-1)]) / 2


def _std(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    squares = weights * (values - _mean(values, weights)[:, None]) ** 2
    return np.sqrt(squares.sum(-1) / (weights.sum(-1) - 1))


STATISTICS = {"mean": _mean, "median": _median, "std": _std}  # of values (n,), each drawn weights (row, n) times


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


def statistic_named(name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """One of STATISTICS. Raises TwoTowersError on another name."""
    if name not in STATISTICS:
        raise TwoTowersError(f"unknown statistic '{name}': choose one of {', '.join(STATISTICS)}")
    return STATISTICS[name]


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


def bca(
    of: Callable[..., np.ndarray], codes: list[np.ndarray], level: float, draws: int, seed: int, width: int = 1
) -> tuple[float, float, float, int]:
    """Estimate, bounds and number of clusters of `of`, which maps weights (row, n), of each sample, to (row,).

    A weight says how often a value was drawn, `codes` holds the cluster of each value, for each sample, and `width` how
    many floats `of` needs for each. Bounds are NaN for one cluster and where `of` is not finite. Raises TwoTowersError
    on a `level` outside (0, 1) and no draws.
    """
    if draws < 1:
        raise TwoTowersError(f"draws={draws}: give at least 1, better 1000 or more")
    tail = (1 - inside(level)) / 2
    sizes = [int(code.max()) + 1 for code in codes]

    def statistic(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        weights = []
        for at, code, size in zip(drawn, codes, sizes, strict=True):
            at = at.reshape(-1, at.shape[-1])
            flat = (at + size * np.arange(len(at))[:, None]).ravel()
            counts = np.bincount(flat, minlength=len(at) * size).reshape(-1, size)
            weights.append(counts if size == len(code) else counts[:, code])
        with np.errstate(all="ignore"):
            found = np.array(of(*weights), dtype=float)
        found[~np.isfinite(found)] = np.nan
        # BCa counts resamples below the estimate: how a sum was rounded must not decide on which side one lies.
        found[np.abs(found - estimate) <= 1e-12 * np.nanmax(np.abs(found), initial=0)] = estimate
        return found.reshape(drawn[0].shape[:-1])

    clusters, n, estimate = [np.arange(size) for size in sizes], min(sizes), math.nan
    estimate = float(statistic(*clusters))
    if n < 2 or math.isnan(estimate):
        return estimate, math.nan, math.nan, n
    batch = max(1, _BLOCK // (width * max(len(code) for code in codes)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, where BCa has no answer
        found = stats.bootstrap(
            clusters, statistic, n_resamples=draws, batch=batch, confidence_level=level, vectorized=True, method="BCa",
            rng=np.random.default_rng(seed),
        )  # fmt: skip
    low, high = found.confidence_interval
    finite = found.bootstrap_distribution[~np.isnan(found.bootstrap_distribution)]
    if not low <= estimate <= high and len(finite):
        low, high = np.quantile(finite, [tail, 1 - tail])
    return estimate, float(low), float(high), n
