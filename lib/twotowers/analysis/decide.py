"""What decides the answer: the split of a margin, or of every head's part of it, into what could decide it.

    prompts, design = factorial(draw("animal/country", 20))      # see `factorial`, where the terms are explained
    split(margin, design)                                        # nats and share of each term, with intervals
    split_heads(values, design)                                  # the same for every head

The margin is `log p(a) - log p(b)` in nats, a and b the first and second of a prompt's labels. It is fitted by least
squares as a sum of the terms of the design and of `prior`, 1 in every prompt: a preference for a label word.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from twotowers.errors import TwoTowersError

TERMS = ("prior", "last", "alternation", "place", "count", "match")
REST = "texts and the rest"
_FLOOR = 1e-9  # of what all terms explain; below it a term explains nothing


def split(
    margin: Float[np.ndarray, " prompt"],
    design: pd.DataFrame,
    clusters: str = "cluster",
    terms: Sequence[str] | None = None,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """What the margin (nats, label a over label b) is made of: one row per term of the design, and one for the rest.

    Columns: term; nats with low, high: what the term adds to the margin when it speaks fully for label a (half of the
    difference between a and b; for count, one demonstration more; missing for the rest); share with share_low,
    share_high; n, the number of clusters. Intervals are percentile intervals over resampled clusters.

    Shares are of the mean squared margin (its variance about zero, where nothing is decided) and add up to 1. What
    terms explain together is shared out as PMVD does (Feldman 2005; Groemping 2007, The American Statistician 61):
    what a term adds, averaged over the orders of adding, an order weighing more the less it leaves to later terms.
    So a share is never negative, and a term without an effect gets none; the plain average over orders (LMG) would give
    `place` a share of a margin that repeats the last label. The sum over last, alternation, place and count does not
    depend on this choice in a balanced design. A share holds what noise adds to it; the intervals of nats do not.

    `terms` names those to fit, by default all that vary. Raises TwoTowersError for margins that are not finite or all
    zero, another number of rows, terms that this design cannot tell apart, and fewer than two clusters.
    """
    margin = _values(np.asarray(margin)[:, None], design)
    terms, x = _matrix(design, terms)
    group, n = _groups(design, clusters)
    if not margin.any():
        raise TwoTowersError("every margin is 0, so nothing decides: check that the labels have different tokens")
    total = np.zeros((n, len(terms), len(terms))), np.zeros((n, len(terms))), np.zeros(n)
    for of, rows in zip(total, (x[:, :, None] * x[:, None], x * margin, margin[:, 0] ** 2), strict=True):
        np.add.at(of, group, rows)
    counts = np.random.default_rng([seed, 12]).multinomial(n, np.full(n, 1 / n), size=draws)
    nats, shares = _split(*(one.sum(0)[None] for one in total))
    drawn_nats, drawn_shares = _split(*(np.tensordot(counts, one, 1) for one in total))
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.quantile(np.pad(drawn_nats, ((0, 0), (0, 1)), constant_values=np.nan), tails, axis=0)
    share_low, share_high = np.quantile(drawn_shares, tails, axis=0)
    return pd.DataFrame(
        {
            "term": [*terms, REST], "nats": [*nats[0], np.nan], "low": low, "high": high, "share": shares[0],
            "share_low": share_low, "share_high": share_high, "n": n,
        }
    )  # fmt: skip


def split_heads(
    values: Float[np.ndarray, "prompt layer head"],
    design: pd.DataFrame,
    clusters: str = "cluster",
    terms: Sequence[str] | None = None,
    rate: float = 0.05,
) -> pd.DataFrame:
    """`split` of every head's values (a margin or a score of label a over b, nats), without intervals but with a test.

    One row per (layer, head, term): layer, head, term, nats, share, p, discovery, n (clusters). `p` is two-sided, from
    the least-squares effect with a cluster-robust standard error (CR1) and a t distribution of n - 1 degrees of
    freedom. `discovery`: p survives Benjamini and Hochberg's control of false discoveries at `rate` over all heads,
    within the term. The row of the rest has no nats and no p. Raises TwoTowersError as `split`; a head whose values are
    all 0 has no shares.
    """
    _, layers, heads = np.shape(values)
    y = _values(np.asarray(values).reshape(len(values), layers * heads), design)
    terms, x = _matrix(design, terms)
    group, n = _groups(design, clusters)
    nats, shares = _split((x.T @ x)[None], y.T @ x, (y**2).sum(0))
    influence = x @ np.linalg.inv(x.T @ x)
    rest = y - x @ nats.T
    correction = n / (n - 1) * (len(y) - 1) / max(len(y) - len(terms), 1)
    layer, head = (axis.ravel() for axis in np.indices((layers, heads)))
    tables = []
    for i, term in enumerate((*terms, REST)):
        table = pd.DataFrame({"layer": layer, "head": head, "term": term, "nats": np.nan, "share": shares[:, i]})
        table["p"], table["discovery"], table["n"] = np.nan, False, n
        if term != REST:
            scores = np.zeros((n, y.shape[1]))
            np.add.at(scores, group, influence[:, i, None] * rest)
            error = np.sqrt(correction * (scores**2).sum(0))
            tiny = 1e-12 * np.sqrt((y**2).mean(0))  # an exact fit leaves rounding, in the effect and in the error
            effect = np.where(abs(nats[:, i]) > tiny, nats[:, i], 0.0)
            ratio = np.where(effect == 0, 0.0, effect / np.maximum(error, tiny + (tiny == 0)))
            p = 2 * student.sf(abs(ratio), n - 1)
            table["nats"], table["p"], table["discovery"] = nats[:, i], p, false_discovery_control(p) <= rate
        tables.append(table)
    return pd.concat(tables, ignore_index=True).sort_values(["layer", "head"], kind="stable", ignore_index=True)


def _split(
    xx: Float[np.ndarray, "one_or_column term term"], xy: Float[np.ndarray, "column term"], yy: np.ndarray
) -> tuple[Float[np.ndarray, "column term"], Float[np.ndarray, "column share"]]:
    """Effects and shares (of all terms, then the rest) of many columns, from sums of products over prompts."""
    p = xy.shape[-1]
    explained = {(): np.zeros(len(xy))}
    for size in range(1, p + 1):
        for some in combinations(range(p), size):
            inverse = np.linalg.pinv(xx[:, some][:, :, some], hermitian=True)  # a resample may lack a term
            effects = np.einsum("cij,cj->ci", np.broadcast_to(inverse, (len(xy), size, size)), xy[:, some])
            explained[some] = (effects * xy[:, some]).sum(-1)
    every = explained[tuple(range(p))]  # the last one, whose effects are those of the fit
    whole = np.where(every > 0, every, 1.0)
    shares, weights = np.zeros((len(xy), p)), np.zeros(len(xy))
    for order in permutations(range(p)):
        before = [explained[tuple(sorted(order[:i]))] for i in range(p + 1)]
        left = [np.maximum(1 - one / whole, _FLOOR) for one in before[1:-1]]
        weight = 1 / np.prod([np.ones(len(xy)), *left], axis=0)
        shares[:, order] += weight[:, None] * np.diff(before, axis=0).T
        weights += weight
    with np.errstate(invalid="ignore"):
        shares = np.maximum(shares / weights[:, None], 0) / yy[:, None]
    return effects, np.c_[shares, np.maximum(1 - shares.sum(-1), 0)]


def _matrix(design: pd.DataFrame, terms: Sequence[str] | None) -> tuple[list[str], Float[np.ndarray, "prompt term"]]:
    """The terms to fit and their columns."""
    columns = design.assign(prior=1.0)
    if unknown := [t for t in terms or () if t not in TERMS]:
        raise TwoTowersError(f"unknown term '{unknown[0]}': choose from {', '.join(TERMS)}")
    named = [t for t in TERMS if (t in terms if terms else columns[t].any())]
    x = columns[named].to_numpy(float)
    for i, term in enumerate(named):
        if np.linalg.matrix_rank(x[:, : i + 1]) <= i:
            raise TwoTowersError(
                f"this design cannot tell '{term}' from {', '.join(named[:i])}: "
                "draw with a larger k or more orders, or name fewer terms"
            )
    return named, x


def _values(values: np.ndarray, design: pd.DataFrame) -> Float[np.ndarray, "prompt column"]:
    if len(values) != len(design):
        raise TwoTowersError(f"{len(values)} values for a design of {len(design)} prompts: give one of each")
    if not np.isfinite(values).all():
        raise TwoTowersError("some values are NaN or infinite: leave out the heads or prompts that have no value")
    return values.astype(float)


def _groups(design: pd.DataFrame, clusters: str) -> tuple[np.ndarray, int]:
    group = pd.factorize(design[clusters])[0]
    n = int(group.max()) + 1
    if n < 2:
        raise TwoTowersError("all prompts are one cluster: draw several, and few enough that not all share query words")
    return group, n
