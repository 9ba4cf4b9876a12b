"""Intervals, tests of many heads, and overlap by chance.

    f"{rate(correct, clusters=query_words):.0%}"                # '93% [85%, 97%]'
    bootstrap([0.2, 0.9, 0.4], clusters=["one", "two", "one"])  # whole clusters are drawn: n = 2

Prompts that share a query word are not independent: give the words as `clusters`, and `Interval.n` counts clusters.
Rates get Wilson intervals, all else the BCa bootstrap (Efron 1987). Where that has no answer or leaves the estimate out
(no spread, resamples on which a statistic is not defined, strong bias), the percentile interval stands in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy  # its `stats`, which takes most of a second to import, comes when it is used
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from twotowers.errors import TwoTowersError
from twotowers.stats.resample import bca, cluster_codes, inside, mean, pairs, sample, variance_of_mean


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, from n observations or clusters. NaN bounds: no interval, as of one observation.

    Formats for prose: f"{i}" is '0.93 [0.91, 0.95]', f"{i:.0%}" is '93% [91%, 95%]'. No width is said with n.
    """

    estimate: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        if spec[-1] in "f%" and "z" not in spec:
            spec = f"{spec[0]}z{spec[1:]}" if spec[0] in "+- " else f"z{spec}"  # no "-0.00"
        if math.isnan(self.estimate):
            return f"undefined [n = {self.n}]"
        if math.isnan(self.low) or math.isnan(self.high):
            return f"{self.estimate:{spec}} [no interval, n = {self.n}]"
        size = f"; n = {self.n}" if self.low == self.high else ""
        return f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}{size}]"

    def __str__(self) -> str:
        return format(self)

    def as_row(self, name: str) -> dict[str, float]:
        """Columns of a tidy table: the estimate under `name`, then low, high and n."""
        return {name: self.estimate, "low": self.low, "high": self.high, "n": self.n}


class Overlap(NamedTuple):
    """How many heads two sets share; `probability`: of sharing at least `count` when both are drawn by chance.

    `least`: of sharing as many as they could. Where that is not small, no overlap can be told from chance.
    """

    count: int
    expected: float
    probability: float
    least: float


def bootstrap(
    values: ArrayLike, level: float = 0.95, draws: int = 2000, seed: int = 0, clusters: Iterable | None = None
) -> Interval:
    """Mean of values (n,) with its bootstrap interval.

    `clusters` (n,), of hashables: values of one cluster are drawn together. Raises TwoTowersError on no values, NaN or
    infinite values, more than one axis, or clusters that do not name every value.
    """
    values = sample(values)
    return Interval(*bca(partial(mean, values), cluster_codes(clusters, len(values)), level, draws, seed))


def bootstrap_difference(a: ArrayLike, b: ArrayLike, seed: int = 0, clusters: Iterable | None = None) -> Interval:
    """Mean of a less mean of b, both (n,), with its bootstrap interval: a[i] and b[i] belong to one prompt, and to
    clusters[i], and are drawn together. Raises TwoTowersError as `bootstrap`, and on pairs of unequal length."""
    return bootstrap(np.subtract(*pairs(a, b)), seed=seed, clusters=clusters)


def bootstrap_of_means(
    table: ArrayLike, of: Callable[[np.ndarray], np.ndarray], level: float = 0.95, draws: int = 2000, seed: int = 0,
    clusters: Iterable | None = None,
) -> Interval:  # fmt: skip
    """A function of column means with its bootstrap interval over rows (prompts): ratios, differences, spreads.

    `table` (n, m); `of` maps means (..., m) to (...), for example `lambda m: 1 - m[..., 1] / m[..., 0]`. Resamples on
    which it is NaN or infinite are left out; an estimate that is not finite has no interval. `clusters` (n,) as in
    `bootstrap`. Raises TwoTowersError on NaN or infinite values and on another number of axes.
    """
    table = np.asarray(table, dtype=float)
    if table.ndim != 2 or not table.size:
        raise TwoTowersError(f"a table of shape {table.shape}: give rows of prompts and at least one column")
    sample(table.ravel())
    codes = cluster_codes(clusters, len(table))
    return Interval(*bca(lambda w: of(w @ table / w.sum(-1, keepdims=True)), codes, level, draws, seed))


def bootstrap_correlation(
    x: ArrayLike, y: ArrayLike, kind: str = "spearman", level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Correlation of x (n,) and y (n,) with its bootstrap interval over pairs; ranks are taken anew.

    `kind`: "spearman" or "pearson". With x and y of shape (n, k) all n k pairs are correlated, the k pairs of a prompt
    are drawn together, and n counts prompts. Resamples in which x or y does not vary are left out: they have none.
    Raises TwoTowersError as `bootstrap`, on fewer than 3 pairs, or when x or y never varies.
    """
    if kind not in ("spearman", "pearson"):
        raise TwoTowersError(f"kind='{kind}': choose 'spearman' or 'pearson'")
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    grid = x.ndim == 2 and x.shape == y.shape
    n = len(x) if grid else x.size
    x, y = (a.reshape(n, -1) for a in _varying(x.ravel() if grid else x, y.ravel() if grid else y))
    if x.size < 3:
        raise TwoTowersError(f"a correlation of {x.size} pairs says nothing: give at least 3")
    prepare = partial(scipy.stats.rankdata, axis=-1) if kind == "spearman" else np.asarray

    def correlations(weights: np.ndarray) -> np.ndarray:
        at = np.repeat(np.tile(np.arange(n), len(weights)), weights.ravel()).reshape(len(weights), -1)
        return scipy.stats.pearsonr(*(prepare(a[at].reshape(len(at), -1)) for a in (x, y)), axis=-1).statistic

    return Interval(*bca(correlations, np.arange(n), level, draws, seed, width=x.shape[1]))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Rank correlation of x (n,) and y (n,); ties share their rank. Raises TwoTowersError when one never varies."""
    return float(scipy.stats.spearmanr(*_varying(x, y)).statistic)


def rate(successes: ArrayLike, clusters: Iterable | None = None, level: float = 0.95) -> Interval:
    """Share of `successes` (n,), each 0 or 1, with its Wilson interval, which has a width at 0% and 100% too.

    With `clusters` (n,), at the effective sample size n / deff (Korn and Graubard 1998): deff, at least 1, is the
    cluster-robust variance of the share over p (1 - p) / (n - 1). Where all are 0 or all are 1 clusters count instead.
    Raises TwoTowersError as `bootstrap`, and on values other than 0 and 1.
    """
    values, z = sample(successes), float(scipy.stats.norm.ppf((1 + inside(level)) / 2))
    if not np.isin(values, (0, 1)).all():
        raise TwoTowersError("a rate needs values of 0 and 1: take `bootstrap` for the mean of other numbers")
    codes, p, n = cluster_codes(clusters, len(values)), float(values.mean()), float(len(values))
    groups = int(codes.max()) + 1
    if p in (0, 1) or groups == 1:
        n = float(groups)
    else:
        n /= max(1.0, variance_of_mean(values, codes) * (n - 1) / (p * (1 - p)))
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    low, high = ((centre + side) / (1 + z * z / n) for side in (-half, half))
    return Interval(p, max(0.0, min(low, p)), min(1.0, max(high, p)), groups)


def p_value(values: ArrayLike, clusters: Iterable | None = None) -> float:
    """Two-sided p that values (n,) have mean zero: t test with the cluster-robust variance, clusters - 1 degrees.

    With clusters of equal size it is the t test of cluster means. No spread between clusters, no t: then it is the p of
    the sign-flip test, 2^(1 - clusters), or 1 when the mean is 0. Raises TwoTowersError as `bootstrap`.
    """
    values = sample(values)
    codes, mean = cluster_codes(clusters, len(values)), float(values.mean())
    groups = int(codes.max()) + 1
    error = math.sqrt(variance_of_mean(values, codes)) if groups > 1 else 0.0
    if error <= 1e-12 * abs(mean):
        return 2.0 ** (1 - groups) if mean else 1.0
    return float(2 * scipy.stats.t.sf(abs(mean) / error, groups - 1))


def discoveries(p_values: ArrayLike, q: float = 0.05) -> Bool[np.ndarray, "*tests"]:
    """Which tests stand when a share `q` of those that stand may be false (Benjamini and Hochberg 1995).

    `p_values` of any shape, (layer, head) for heads: all are one family. Raises TwoTowersError on p outside [0, 1].
    """
    p_values = np.asarray(p_values, dtype=float)
    if not p_values.size or not ((p_values >= 0) & (p_values <= 1)).all():
        raise TwoTowersError("p values are numbers from 0 to 1, at least one: leave out what was not tested")
    return scipy.stats.false_discovery_control(p_values, axis=None).reshape(p_values.shape) <= inside(q)


def overlap_within_layers(a: Iterable[tuple[int, int]], b: Iterable[tuple[int, int]], heads_per_layer: int) -> Overlap:
    """(layer, head) pairs that two sets share, beside chance that leaves both their number of heads in each layer.

    Exact: a sum of hypergeometric counts, one a layer. Raises TwoTowersError on a head that no layer has.
    """
    a, b = set(a), set(b)
    if outside := [head for _, head in a | b if not 0 <= head < heads_per_layer]:
        raise TwoTowersError(f"no head {outside[0]} in a layer of {heads_per_layer}: give the model's heads a layer")
    of_a, of_b = (Counter(layer for layer, _ in heads) for heads in (a, b))
    expected, chances = 0.0, np.ones(1)  # chances[k]: of sharing k
    for layer in sorted(of_a.keys() & of_b.keys()):
        i, j = of_a[layer], of_b[layer]
        expected += i * j / heads_per_layer
        chances = np.convolve(chances, scipy.stats.hypergeom.pmf(np.arange(min(i, j) + 1), heads_per_layer, i, j))
    count = len(a & b)
    probability = min(1.0, float(chances[count:].sum())) if count else 1.0
    return Overlap(count, expected, probability, min(1.0, float(chances[-1])))


def grouped(table: pd.DataFrame, by: list[str], value: str, clusters: str | None = None, seed: int = 0) -> pd.DataFrame:
    """One row per group of `by`, in order of appearance: its `bootstrap` under `value`, then low, high and n.

    Give one row per prompt in each group, or in `clusters` the column of what rows share. Raises TwoTowersError as
    `bootstrap`, on a missing column, and on groups without a name.
    """
    _has(table, *by, value, *([clusters] if clusters else []))
    if table[by].isna().any(axis=None):
        raise TwoTowersError(f"a group of {', '.join(by)} has no name: leave its rows out, and say so")
    rows = [
        dict(zip(by, key, strict=True))
        | bootstrap(group[value].to_numpy(), seed=seed, clusters=group[clusters] if clusters else None).as_row(value)
        for key, group in table.groupby(by, sort=False, observed=True)
    ]
    return pd.DataFrame(rows, columns=[*by, value, "low", "high", "n"])


def estimate(table: pd.DataFrame, column: str, /, **where: object) -> Interval:
    """`column`, low, high and n of the one row of a tidy table whose columns equal `where`.

    Raises TwoTowersError on a missing column, and when no row or several rows match.
    """
    _has(table, column, "low", "high", "n", *where)
    rows = table
    for name, value in where.items():
        rows = rows[rows[name] == value]
    if len(rows) != 1:
        asked = ", ".join(f"{name}={value!r}" for name, value in where.items())
        raise TwoTowersError(f"{len(rows)} rows have {asked or 'any values'}: name columns that leave one row")
    return Interval(*rows[[column, "low", "high"]].astype(float).iloc[0].tolist(), int(rows["n"].iloc[0]))


def _has(table: pd.DataFrame, *columns: str) -> None:
    if missing := [column for column in columns if column not in table]:
        raise TwoTowersError(f"no column '{missing[0]}': the table has {', '.join(map(str, table.columns))}")


def _varying(x: ArrayLike, y: ArrayLike) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    x, y = pairs(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        raise TwoTowersError("a list that never varies has no correlation: give values that differ")
    return x, y
