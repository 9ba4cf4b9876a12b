"""Means and ratios over prompts, with intervals for other class pairs and label pairs.

    >>> pairs = {"class_pair": ("prompt", list("aabbcc")), "label_pair": ("prompt", list("xyzxyz"))}
    >>> values = xr.DataArray([1.0, 1.2, 0.8, 1.0, 1.4, 1.2], dims="prompt", coords=pairs)
    >>> mean(values).n, f"{mean(values):.2f}"
    ((3, 3), '1.10 [0.56, 1.64]')
    >>> round(ratio(values / 2, values).estimate, 6)
    0.5

Prompts share class pairs and label pairs, which are two crossed samples of all possible pairs. So
variances are two-way clustered (Cameron, Gelbach and Miller 2011, "Robust Inference With Multiway
Clustering"):

    V = V(class pairs) + V(label pairs) - V(cells of both)

If this is negative, or if there is only one label pair, V is the larger of the first two terms. The
degrees of freedom of Student's t are the smaller number of clusters minus one. The estimate is the
mean over class pairs of their means. This module does not load torch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import stdtr, stdtrit  # scipy.stats has both and takes a second longer to import

from twotowers.errors import TwoTowersError

CLUSTERS = ("class_pair", "label_pair")
"""Coordinates of the two factors: class pair and label pair of a prompt"""
QUANTILES = (0.975, 0.95)
"""Quantiles of Student's t for the bounds of the 95% and the 90% interval"""
MIN_EQUAL = 6
"""Minimum number of clusters with equal means that have an interval. Fewer of them do not show how
clusters vary (in a sign test five equal signs have p = 0.06)."""


LARGEST_SHARE = 10.0
"""Largest upper bound of a share that is shown: beyond it the denominator is hardly above zero"""


@dataclass(frozen=True)
class Interval:
    """An estimate with 95% and 90% bounds, NaN if there are too few clusters (`MIN_EQUAL`).

    Attributes:
        estimate: Mean or ratio.
        n: Number of clusters of each factor, such as 20 class pairs and 9 label pairs.
        low, high: Bounds of the 95% interval.
        low90, high90: Bounds of the 90% interval.
        p: Two-sided p-value of the hypothesis that the mean is zero. A ratio has none.
    """

    estimate: float
    n: tuple[int, ...]
    low: float = np.nan
    high: float = np.nan
    low90: float = np.nan
    high90: float = np.nan
    p: float = np.nan

    def __format__(self, spec: str) -> str:
        """Return the estimate and its 95% bounds in one number format."""
        if np.isnan(self.estimate):
            return "no number"
        estimate, low, high = (
            signed(value, spec or "+.2f") for value in (self.estimate, self.low, self.high)
        )
        if spec.endswith("%") and self.high > LARGEST_SHARE:
            high = f"over {LARGEST_SHARE:,.0%}"
        if np.isnan(self.low):
            return f"{estimate} [no interval, n = {self.n[0]}]"
        return f"{estimate} [{low}, {high}]"


def signed(value: float, spec: str) -> str:
    """Return a number as text, without a sign if it is zero when rounded.

        >>> signed(-0.001, "+.2f"), signed(-0.1, "+.2f")
        ('0.00', '-0.10')

    Args:
        value: The number.
        spec: Format of the number.
    """
    text = format(value, spec)
    return text if re.search("[1-9]", text) else text.lstrip("+-")


class Sample:
    """Means (variable,) of variables over the same prompts, with their covariance."""

    def __init__(self, variables: np.ndarray, prompts: xr.DataArray, clusters: Sequence[str]):
        """Check the prompts, and compute the means.

        All clusters of the first factor have the same weight.

        Args:
            variables: Over (variable, prompt).
            prompts: An array over the same prompts, with the coordinates of their clusters.
            clusters: Names of one or two of these coordinates.

        Raises:
            TwoTowersError: If dimensions are wrong, if values are not finite, or if a coordinate is
                missing.
        """
        if variables.ndim != 2:
            dims = ", ".join(map(str, prompts.dims))
            raise TwoTowersError(
                f"wrong dimensions of the values: expected (prompt), got ({dims}); take means first"
            )
        for name in clusters:
            if name not in prompts.coords:
                raise TwoTowersError(
                    f"missing coordinate '{name}' of the values: expected one value for each "
                    "prompt; keep this coordinate when you compute the values"
                )
        n_bad = int((~np.isfinite(variables)).sum())
        if n_bad:
            raise TwoTowersError(
                f"cannot use {n_bad} of {variables.size} values: expected finite numbers; find "
                "the reason, or leave out these prompts"
            )
        variables = variables.astype(float)
        self.factors = []
        for name in clusters:
            codes, _ = pd.factorize(prompts[name].values)
            self.factors.append(codes)
        self.n = tuple(len(np.unique(codes)) for codes in self.factors)
        first = self.factors[0]
        prompts_of_cluster = np.bincount(first)[first]
        weights = 1 / (self.n[0] * prompts_of_cluster)
        self.means = variables @ weights
        if not len(first):
            self.means = np.full(len(variables), np.nan)
        residuals = variables - self.means[:, None]
        self._residuals = residuals * weights

    def covariance(self, direction: Sequence[float]) -> np.ndarray:
        """Return the covariance of the means (variable, variable).

        Args:
            direction: Over (variable,). If the two-way variance along it is not above zero, the
                larger one-way covariance is returned.
        """

        def variance(covariance: np.ndarray) -> float:
            return float(np.asarray(direction) @ covariance @ direction)

        usable = [codes for codes, n in zip(self.factors, self.n, strict=True) if n > 1]
        one_way = [self._one_way(codes) for codes in usable]
        if len(one_way) == 2:
            first, second = one_way
            _, cells = np.unique(self.factors[0] * self.n[1] + self.factors[1], return_inverse=True)
            two_way = first + second - self._one_way(cells)
            if variance(two_way) > 0:
                return two_way
        return max(one_way, key=variance)

    def _one_way(self, codes: np.ndarray) -> np.ndarray:
        """Return the covariance if prompts of different clusters of one factor are independent."""
        sums = np.array([np.bincount(codes, row) for row in self._residuals])
        n = sums.shape[1]
        return sums @ sums.T * n / (n - 1)

    def error(self, direction: Sequence[float]) -> float:
        """Return the standard error along a direction.

        It is NaN, because it cannot be estimated, for a single cluster and for fewer than MIN_EQUAL
        equal clusters.

        Args:
            direction: Over (variable,).
        """
        if self.n[0] < 2:
            return np.nan
        covariance = self.covariance(direction)
        error = float(np.sqrt(direction @ covariance @ direction))
        has_few = self.n[0] < MIN_EQUAL
        return np.nan if error <= 1e-9 and has_few else error

    @property
    def freedom(self) -> int:
        """Degrees of freedom of Student's t."""
        return min(n for n in self.n if n > 1) - 1


def mean(
    values: xr.DataArray,
    clusters: Sequence[str] = CLUSTERS,
    denominator: xr.DataArray | None = None,
) -> Interval:
    """Return the mean over prompts, or its ratio to another mean, with its interval.

    If the means of all clusters are equal, the bounds equal the mean. With fewer than MIN_EQUAL
    such clusters there are no bounds.

        >>> pairs = {"class_pair": ("prompt", list("abc")), "label_pair": ("prompt", list("xxx"))}
        >>> nats = xr.DataArray([1.0, 2.0, 3.0], dims="prompt", coords=pairs)
        >>> f"{mean(nats):.1f}"
        '2.0 [-0.5, 4.5]'
        >>> f"{mean(nats[:1]):.1f}", f"{mean(nats[:0])}"
        ('1.0 [no interval, n = 1]', 'no number')

    Args:
        values: Over (prompt,).
        clusters: Names of one or two coordinates.
        denominator: Over (prompt,), of the same prompts, for a `ratio`.

    Raises:
        TwoTowersError: As in `Sample`.
    """
    if denominator is not None:
        return ratio(values, denominator, clusters)
    sample = Sample(values.values[None], values, clusters)
    estimate = float(sample.means[0])
    error = sample.error([1.0])
    if np.isnan(error):
        return Interval(estimate, sample.n)
    t_wide, t_narrow = stdtrit(sample.freedom, QUANTILES)
    wide = float(t_wide) * error
    narrow = float(t_narrow) * error
    if error:
        p = 2 * float(stdtr(sample.freedom, -abs(estimate) / error))
    else:
        p = float(estimate == 0)
    return Interval(
        estimate,
        sample.n,
        estimate - wide,
        estimate + wide,
        estimate - narrow,
        estimate + narrow,
        p,
    )


def ratio(
    numerator: xr.DataArray, denominator: xr.DataArray, clusters: Sequence[str] = CLUSTERS
) -> Interval:
    """Return mean(numerator) / mean(denominator) with Fieller's bounds.

    The bounds are those r at which the mean of numerator - r denominator may be zero. A denominator
    that is the same in all prompts only scales the numerator.

    Args:
        numerator: Over (prompt,), with the coordinates of the clusters.
        denominator: Over (prompt,), of the same prompts.
        clusters: Names of one or two coordinates.

    Returns:
        All NaN if the mean denominator is not clearly above zero, because any ratio is then
            possible.

    Raises:
        TwoTowersError: As in `Sample`.
    """
    whole = denominator.values
    if whole.size and whole[0] > 0 and (whole == whole[0]).all():  # nothing of it to estimate
        return replace(mean(numerator / float(whole[0]), clusters), p=np.nan)
    variables = np.stack([numerator.values, whole])
    sample = Sample(variables, numerator, clusters)
    above, below = sample.means.tolist()
    estimate = above / below if below > 0 else np.nan
    low = mean(denominator, clusters).low
    if low <= 0:
        return Interval(np.nan, sample.n)
    direction = [1.0, -estimate]
    if np.isnan(low) or np.isnan(sample.error(direction)):  # too few clusters
        return Interval(estimate, sample.n)
    covariance = sample.covariance(direction)
    t_wide, t_narrow = stdtrit(sample.freedom, QUANTILES)
    wide = _fieller(sample.means, covariance, t_wide)
    narrow = _fieller(sample.means, covariance, t_narrow)
    if np.isnan(wide).any():
        return Interval(np.nan, sample.n)
    return Interval(estimate, sample.n, *wide, *narrow)


def _fieller(means: np.ndarray, covariance: np.ndarray, t: float) -> tuple[float, float]:
    """Return the two r at which x^2 = t^2 variance(x), where x = numerator - r denominator.

    They are NaN if they do not enclose numerator / denominator.
    """
    (constant, linear), (_, square) = np.outer(means, means) - t**2 * covariance
    if square <= 0:
        return np.nan, np.nan
    # Only rounding can take it below zero, since numerator / denominator is between the bounds.
    discriminant = max(linear**2 - square * constant, 0.0)
    spread = np.sqrt(discriminant)
    low = (linear - spread) / square
    high = (linear + spread) / square
    return float(low), float(high)


def table(
    values: Mapping[str, xr.DataArray],
    by: Sequence[str] = (),
    *,
    denominator: Mapping[str, xr.DataArray] | None = None,
    clusters: Sequence[str] = CLUSTERS,
    **columns: Any,
) -> pd.DataFrame:
    """Return means with 95% intervals for every model and every combination of entries.

        >>> pairs = {"class_pair": ("prompt", list("abc")), "label_pair": ("prompt", list("xxx"))}
        >>> nats = xr.DataArray([1.0, 2.0, 3.0], dims="prompt", coords=pairs)
        >>> table({"a model": nats}, unit="nats")[["model", "value", "n", "unit"]].values.tolist()
        [['a model', 2.0, 3, 'nats']]

    Args:
        values: Arrays by model, over (prompt,) and the dimensions `by`.
        by: Names of dimensions.
        denominator: Denominators by model, over (prompt,). A share whose denominator is not clearly
            above zero has no numbers.
        clusters: Names of coordinates, such as the ones of class pairs and label pairs.
        **columns: Further columns, the same in every row.

    Returns:
        Columns model, names in `by`, value, low, high, n (clusters of the first factor), and the
            given ones. They also exist if there are no rows. If all values are missing, as for a
            set without heads, the numbers are missing.

    Raises:
        TwoTowersError: If dimensions are wrong, or if only a part of the values is missing.
    """
    rows = []
    for model, data in values.items():
        below = denominator.get(model) if denominator else None
        entries_of_dims = [data[dim].values.tolist() for dim in by]
        for entries in itertools.product(*entries_of_dims):
            part = data.sel(dict(zip(by, entries, strict=True)))
            result = Interval(np.nan, (0,))
            if not np.isnan(part.values).all():
                result = mean(part, clusters, below)
            numbers = result.estimate, result.low, result.high, result.n[0]
            rows.append([model, *entries, *numbers])
    names = ["model", *by, "value", "low", "high", "n"]
    return pd.DataFrame(rows, columns=names).assign(**columns)


def not_above_zero(values: Mapping[str, xr.DataArray], name: str) -> dict[str, str]:
    """Return the reason why an effect is not clearly above zero, for each model where it is not.

    Args:
        values: Effect of every prompt by model, over (prompt,).
        name: Name of the effect, such as "bias".
    """
    sizes = {model: mean(of_model) for model, of_model in values.items()}
    return {
        model: f"the {name} is {'reversed' if size.high < 0 else 'not clear'}: {size} nats"
        for model, size in sizes.items()
        if not size.low > 0
    }


def means(values: xr.DataArray, clusters: Sequence[str] = CLUSTERS) -> np.ndarray:
    """Return the estimates of many variables.

    Args:
        values: Over (random_set, prompt).
        clusters: Names of coordinates. The first one weights the prompts.

    Returns:
        Over (random_set,).

    Raises:
        TwoTowersError: As in `Sample`.
    """
    variables = values.transpose("random_set", "prompt")
    sample = Sample(variables.values, values, clusters)
    return sample.means


def resample(values: xr.DataArray) -> xr.DataArray:
    """Return means over prompts that are drawn with replacement.

    The prompts of a block share their texts, so they are drawn together. In the paper's sets each
    prompt is a block of its own. Values over the same blocks have the same draws.

    Args:
        values: Over (..., prompt).

    Returns:
        Means of 1000 resamples, over (resample, ...).
    """
    blocks = _blocks(values)
    n = len(np.unique(blocks))
    rng = np.random.default_rng(0)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=1000)[:, blocks]
    shares = counts / counts.sum(axis=1, keepdims=True)
    weights = xr.DataArray(shares, dims=("resample", "prompt"))
    return weights @ (values * 1.0)


def _blocks(values: xr.DataArray) -> np.ndarray:
    """Return the number of the block of each prompt; without blocks, each prompt has its own."""
    if "block" not in values.coords:
        return np.arange(values.sizes["prompt"])
    # The paper's sets count their prompts from zero, each set anew
    keys = pd.MultiIndex.from_arrays([values["block"].values, values["class_pair"].values])
    numbers, _ = pd.factorize(keys)
    return numbers


def stack(values: xr.DataArray, by: str = "class_pair") -> xr.DataArray:
    """Stack prompts by a coordinate, such as their class pair.

    All its entries need the same number of prompts. Coordinates without an index are dropped.

    Args:
        values: Over (..., prompt), with the coordinate.
        by: Name of the coordinate.

    Returns:
        Over (`by`, ..., prompt).
    """
    parts = {name: part.reset_coords(drop=True) for name, part in values.groupby(by)}
    stacked = xr.concat(parts.values(), by)
    return stacked.assign_coords({by: [*parts]})
