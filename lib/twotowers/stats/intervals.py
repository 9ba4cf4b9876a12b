"""Intervals, rank correlation and overlap by chance. All intervals are percentile bootstrap intervals.

    bootstrap([1, 1, 0, 1])                     # Interval(estimate=0.75, low=..., high=..., n=4)
    f"{bootstrap(correct):.0%}"                 # '93% [91%, 95%]'
    overlap({(22, 0), (21, 9)}, {(22, 0)}, 720)

A percentile bootstrap interval holds the middle `level` of the statistic over `draws` resamples with
replacement. It is honest about spread, not about bias, and too narrow for samples of fewer than about 20.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from twotowers.errors import TwoTowersError

# Entries of a block of resamples: bounds the memory at some tens of megabytes, whatever n and draws are.
_BLOCK = 1 << 20

STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda rows: rows.mean(-1),
    "median": lambda rows: np.median(rows, -1),
    "std": lambda rows: rows.std(-1, ddof=1) if rows.shape[-1] > 1 else np.full(rows.shape[:-1], np.nan),
}


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, from n observations. One observation has none: its bounds are NaN.

    Formats for prose: f"{i}" is '0.93 [0.91, 0.95]', f"{i:.0%}" is '93% [91%, 95%]'.
    """

    estimate: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        if spec[-1] in "f%" and "z" not in spec:
            spec = f"{spec[0]}z{spec[1:]}" if spec[0] in "+- " else f"z{spec}"  # no "-0.00"
        if math.isnan(self.low) or math.isnan(self.high):
            return f"{self.estimate:{spec}} [no interval, n = {self.n}]"
        return f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return format(self)

    def as_row(self, name: str) -> dict[str, float]:
        """Columns of a tidy table: the estimate under `name`, then low, high and n."""
        return {name: self.estimate, "low": self.low, "high": self.high, "n": self.n}


@dataclass(frozen=True)
class Overlap:
    """How many members two sets share, and what chance would do with sets of these sizes out of `total`."""

    count: int
    sizes: tuple[int, int]
    total: int
    expected: float
    probability: float
    """of sharing at least `count` when both sets are drawn at random (hypergeometric tail)"""

    def __str__(self) -> str:
        chance = f"by chance {self.expected:.2g}, p = {self.probability:.2g}"
        return f"{self.count} of {min(self.sizes)} shared ({chance})"


def bootstrap(
    values: ArrayLike, statistic: str = "mean", level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Statistic of values (n,) with its bootstrap interval. `statistic`: mean, median or std (over n - 1).

    Raises TwoTowersError on no values, NaN or infinite values, more than one axis, or an unknown statistic.
    """
    values, of = _sample(values), _statistic(statistic)
    resampled = (of(values[at]) for at in _resamples(len(values), draws, seed))
    return _interval(float(of(values)), resampled, level, len(values))


def bootstrap_difference(
    a: ArrayLike,
    b: ArrayLike,
    paired: bool = True,
    statistic: str = "mean",
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """statistic(a) - statistic(b) with its percentile bootstrap interval.

    `paired`: a[i] and b[i] belong to one prompt and are resampled together; n counts pairs. Otherwise each
    is resampled by itself and n is the smaller sample. Raises TwoTowersError as `bootstrap`, and on pairs of
    unequal length.
    """
    a, b, of = _sample(a), _sample(b), _statistic(statistic)
    if paired:
        _same_length(a, b)
        resampled = (of(a[at]) - of(b[at]) for at in _resamples(len(a), draws, seed))
        return _interval(float(of(a) - of(b)), resampled, level, len(a))
    ours = np.concatenate([of(a[at]) for at in _resamples(len(a), draws, [seed, 0])])
    theirs = np.concatenate([of(b[at]) for at in _resamples(len(b), draws, [seed, 1])])
    return _interval(float(of(a) - of(b)), [ours - theirs], level, min(len(a), len(b)))


def bootstrap_of_means(
    table: ArrayLike,
    of: Callable[[np.ndarray], np.ndarray],
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """A function of column means with its bootstrap interval over rows (prompts): ratios, differences, spreads.

    `table` (n, m); `of` maps means (..., m) to (...), for example `lambda m: 1 - m[..., 1] / m[..., 0]`. Resamples on
    which it is NaN or infinite are left out; an estimate that is not finite has no interval. Raises TwoTowersError on
    NaN or infinite values and on another number of axes.
    """
    table = np.asarray(table, dtype=float)
    if table.ndim != 2 or not table.size:
        raise TwoTowersError(f"a table of shape {table.shape}: give rows of prompts and at least one column")
    _sample(table.ravel())
    n = len(table)

    def statistic(means: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.asarray(of(means), dtype=float)
        return np.where(np.isfinite(found), found, np.nan)

    estimate = float(statistic(table.mean(0)))
    if math.isnan(estimate):
        return Interval(math.nan, math.nan, math.nan, n)
    # How often each row was drawn, times the table: no copy of the table for each resample.
    counts = (np.stack([np.bincount(row, minlength=n) for row in at]) for at in _resamples(n, draws, seed))
    return _interval(estimate, (statistic(rows @ table / n) for rows in counts), level, n)


def bootstrap_correlation(
    x: ArrayLike, y: ArrayLike, kind: str = "spearman", level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Correlation of x (n,) and y (n,) with its bootstrap interval over pairs; ranks are taken anew.

    `kind`: "spearman" or "pearson". With x and y of shape (n, k) all n k pairs are correlated, the k pairs of a prompt
    are resampled together, and n counts prompts. Resamples in which x or y does not vary are left out: they have none.
    Raises TwoTowersError as `bootstrap`, on fewer than 3 pairs, or when x or y never varies.
    """
    if kind not in ("spearman", "pearson"):
        raise TwoTowersError(f"kind='{kind}': choose 'spearman' or 'pearson'")
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    width = x.shape[1] if x.ndim == 2 and x.shape == y.shape else 1
    x, y = (_sample(a.ravel() if width > 1 else a) for a in (x, y))
    _same_length(x, y)
    if len(x) < 3:
        raise TwoTowersError(f"a correlation of {len(x)} pairs says nothing: give at least 3")
    _varies(x, y)
    prepare = _ranks if kind == "spearman" else lambda rows: rows
    n = len(x) // width
    x, y = x.reshape(n, width), y.reshape(n, width)

    def correlations(at: np.ndarray) -> np.ndarray:
        return _pearson(*(prepare(a[at].reshape(len(at), -1)) for a in (x, y)))

    resampled = (correlations(at) for at in _resamples(n, draws, seed, width))
    return _interval(float(correlations(np.arange(n)[None])[0]), resampled, level, n)


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Rank correlation of x (n,) and y (n,); ties share their average rank.

    Raises TwoTowersError when one never varies.
    """
    x, y = _sample(x), _sample(y)
    _same_length(x, y)
    _varies(x, y)
    return float(_pearson(_ranks(x[None]), _ranks(y[None]))[0])


def overlap(a: Iterable[Hashable], b: Iterable[Hashable], total: int) -> Overlap:
    """Shared members of two sets of heads out of `total` heads, beside chance: |a||b| / total expected.

    The probability is exact: sum over i >= count of C(|a|, i) C(total - |a|, |b| - i) / C(total, |b|).
    Raises TwoTowersError when `total` is smaller than the two sets together.
    """
    a, b = set(a), set(b)
    if (members := len(a | b)) > total or total < 1:
        raise TwoTowersError(f"{members} different heads cannot come from {total}: give the model's total")
    count, n_a, n_b = len(a & b), len(a), len(b)
    ways = sum(math.comb(n_a, i) * math.comb(total - n_a, n_b - i) for i in range(count, min(n_a, n_b) + 1))
    return Overlap(count, (n_a, n_b), total, n_a * n_b / total, ways / math.comb(total, n_b))


def _sample(values: ArrayLike) -> Float[np.ndarray, " n"]:
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or not len(values):
        raise TwoTowersError(f"values of shape {values.shape}: give a list of at least one number")
    if bad := int((~np.isfinite(values)).sum()):
        raise TwoTowersError(f"{bad} of {len(values)} values are NaN or infinite: leave them out, and say so")
    return values


def _statistic(name: str) -> Callable[[np.ndarray], np.ndarray]:
    if name not in STATISTICS:
        raise TwoTowersError(f"unknown statistic '{name}': choose one of {', '.join(STATISTICS)}")
    return STATISTICS[name]


def _same_length(a: np.ndarray, b: np.ndarray) -> None:
    if len(a) != len(b):
        raise TwoTowersError(f"pairs of {len(a)} and {len(b)} values: give two lists of equal length")


def _varies(x: np.ndarray, y: np.ndarray) -> None:
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        raise TwoTowersError("a list that never varies has no correlation: give values that differ")


def _resamples(n: int, draws: int, seed: int | list[int], width: int = 1) -> Iterable[np.ndarray]:
    """Blocks of resampled indices (block, n), each standing for `width` values; the total does not depend on blocks."""
    if draws < 1:
        raise TwoTowersError(f"draws={draws}: give at least 1, better 1000 or more")
    rng, block = np.random.default_rng(seed), max(1, _BLOCK // (n * width))
    for done in range(0, draws, block):
        yield rng.integers(0, n, size=(min(block, draws - done), n))


def _interval(estimate: float, resampled: Iterable[np.ndarray], level: float, n: int) -> Interval:
    if not 0 < level < 1:
        raise TwoTowersError(f"level={level}: give a share between 0 and 1, such as 0.95")
    if n < 2:
        return Interval(estimate, math.nan, math.nan, n)
    found = np.concatenate(list(resampled))
    found = found[~np.isnan(found)]
    if not len(found):
        return Interval(estimate, math.nan, math.nan, n)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate, float(low), float(high), n)


def _ranks(rows: Float[np.ndarray, "row n"]) -> Float[np.ndarray, "row n"]:
    """Ranks 1..n within each row, ties sharing their average, from counts of the distinct values."""
    distinct, code = np.unique(rows, return_inverse=True)
    code, offset = code.reshape(rows.shape), np.arange(len(rows))[:, None] * len(distinct)
    counts = np.bincount((code + offset).ravel(), minlength=len(rows) * len(distinct)).reshape(len(rows), -1)
    average = counts.cumsum(-1) - (counts - 1) / 2
    return np.take_along_axis(average, code, -1)


def _pearson(x: Float[np.ndarray, "row n"], y: Float[np.ndarray, "row n"]) -> Float[np.ndarray, " row"]:
    """Correlation of each row, NaN where a row does not vary."""
    still = (np.ptp(x, -1) == 0) | (np.ptp(y, -1) == 0)
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    scale[still] = np.nan
    return np.clip((x * y).sum(-1) / scale, -1, 1)
