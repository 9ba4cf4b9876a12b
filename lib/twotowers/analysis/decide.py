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
from twotowers.stats.resample import group_sums

TERMS = ("prior", "last", "alternation", "place", "count", "match")
PLACES = "label at each place"
REST = "texts and the rest"
NATS, SHARES = ["nats", "low", "high"], ["share", "share_low", "share_high"]
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
    """What the margin (nats, label a over label b) is made of: one row per term of the design, then PLACES and REST.

    PLACES is what a weight of its own for the label at each place, counted from the query, explains beyond the terms (a
    preference for the first label and the last one, say); nothing by design in all orders of 2 + 2. REST are the texts
    and whatever label sequences do in no such way.

    Columns: term; nats with low, high: what the term adds to the margin when it speaks fully for label a (half of the
    difference between a and b; for count, one demonstration more; missing for PLACES and REST); share with share_low,
    share_high; n, the number of clusters. Intervals are percentile intervals over resampled clusters.

    Shares are of the mean squared margin (its variance about zero, where nothing is decided) and add up to 1. What
    terms explain together is shared out as PMVD does (Feldman 2005; Groemping 2007, The American Statistician 61):
    what a term adds, averaged over the orders of adding, an order weighing more the less it leaves to later terms.
    So a share is never negative, and a term without an effect gets none; the plain average over orders (LMG) would give
    `place` a share of a margin that repeats the last label. The sum over last, alternation, place and count does not
    depend on this choice in a balanced design. A share holds what noise adds to it; nats do not.

    `terms` names those to fit, by default all that vary. Raises TwoTowersError for margins that are not finite or all
    zero, another number of rows, terms that this design cannot tell apart, and fewer than two clusters.
    """
    margin = _values(np.asarray(margin)[:, None], design)
    terms, x = _matrix(design, terms)
    group, n = _groups(design, clusters)
    if not margin.any():
        raise TwoTowersError("every margin is 0, so nothing decides: check that the labels have different tokens")
    x, p = np.c_[x, _beyond(x, design)], len(terms)
    sums = [group_sums(rows, group) for rows in (x[:, :, None] * x[:, None], x * margin, margin[:, 0] ** 2)]
    times = np.random.default_rng([seed, 12]).multinomial(n, np.full(n, 1 / n), size=draws)
    nats, shares = _split(*(one.sum(0)[None] for one in sums), p)
    drawn = _split(*(np.tensordot(times, one, 1) for one in sums), p)
    tails = [(1 - level) / 2, (1 + level) / 2]
    table = pd.DataFrame({"term": [*terms, PLACES, REST]})
    for columns, found, of_draws in zip((NATS, SHARES), (nats, shares), drawn, strict=True):
        table[columns] = np.vstack([found, *np.quantile(of_draws, tails, axis=0)[:, None]]).T
    return table.assign(n=n)


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
    within the term. A small p says that an effect is not 0, not that it is large: layers above a head that matches all
    show a little. PLACES and REST have no nats and no p. Raises TwoTowersError as `split`; a head whose values are all
    0 has no shares.
    """
    _, layers, heads = np.shape(values)
    y = _values(np.asarray(values).reshape(len(values), layers * heads), design)
    terms, x = _matrix(design, terms)
    group, n = _groups(design, clusters)
    full, p = np.c_[x, _beyond(x, design)], len(terms)
    nats, shares = _split((full.T @ full)[None], y.T @ full, (y**2).sum(0), p)
    influence, fitted = x @ np.linalg.inv(x.T @ x), x @ nats[:, :p].T
    correction = n / (n - 1) * (len(y) - 1) / max(len(y) - p, 1)
    tiny = 1e-12 * np.sqrt((y**2).mean(0))  # an exact fit leaves rounding, in the effect and in the error
    layer, head = (axis.ravel() for axis in np.indices((layers, heads)))
    tables = []
    for i, term in enumerate((*terms, PLACES, REST)):
        table = pd.DataFrame({"layer": layer, "head": head, "term": term, "nats": nats[:, i], "share": shares[:, i]})
        probability, found = np.nan, False
        if i < p:
            scores = group_sums(influence[:, i, None] * (y - fitted), group)
            error = np.maximum(np.sqrt(correction * (scores**2).sum(0)), tiny)
            ratio = np.divide(nats[:, i], error, out=np.zeros(y.shape[1]), where=abs(nats[:, i]) > tiny)
            probability = 2 * student.sf(abs(ratio), n - 1)
            found = false_discovery_control(probability) <= rate
        tables.append(table.assign(p=probability, discovery=found, n=n))
    return pd.concat(tables, ignore_index=True).sort_values(["layer", "head"], kind="stable", ignore_index=True)


def _split(
    xx: Float[np.ndarray, "one_or_column term term"],
    xy: Float[np.ndarray, "column term"],
    yy: Float[np.ndarray, " column"],
    p: int,
) -> tuple[Float[np.ndarray, "column row"], Float[np.ndarray, "column row"]]:
    """Effects and shares of the first p terms, PLACES (the columns after them) and REST, for many columns at once.

    From sums of products over prompts; PLACES and REST have no effect (NaN).
    """

    def fit(some: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Effects of some terms together, and the sum of squares that they explain."""
        inverse = np.linalg.pinv(xx[:, some][:, :, some], rcond=1e-10, hermitian=True)  # a resample may lack a term
        effects = (inverse @ xy[:, some, None])[..., 0]
        return effects, (effects * xy[:, some]).sum(-1)

    explained = {some: fit(list(some))[1] for size in range(p + 1) for some in combinations(range(p), size)}
    every, shares, weights = explained[tuple(range(p))], np.zeros((len(xy), p)), np.zeros(len(xy))
    whole = np.where(every > 0, every, 1.0)
    for order in permutations(range(p)):
        before = np.array([explained[tuple(sorted(order[:i]))] for i in range(p + 1)])
        weight = 1 / np.maximum(1 - before[1:-1] / whole, _FLOOR).prod(0)
        shares[:, order] += weight[:, None] * np.diff(before, axis=0).T
        weights += weight
    places = fit(range(xy.shape[1]))[1] - every
    with np.errstate(invalid="ignore"):
        shares = np.maximum(np.c_[shares / weights[:, None], places] / yy[:, None], 0)
    none = np.full((len(xy), 2), np.nan)
    return np.c_[fit(range(p))[0], none], np.c_[shares, np.maximum(1 - shares.sum(-1), 0)]


def _beyond(x: Float[np.ndarray, "prompt term"], design: pd.DataFrame) -> Float[np.ndarray, "prompt place"]:
    """The label at each place, counted from the query (+1 for a, -1 for b, 0 for none), less what terms say of it."""
    places = np.zeros((len(design), design["labels"].str.len().max()))
    for row, labels in zip(places, design["labels"], strict=True):
        row[: len(labels)] = [1 if letter == "a" else -1 for letter in reversed(labels)]
    left, sizes, _ = np.linalg.svd(places - x @ np.linalg.lstsq(x, places)[0], full_matrices=False)
    return left[:, sizes > 1e-9 * len(design)]


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
