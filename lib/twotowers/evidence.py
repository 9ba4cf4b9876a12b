"""One rule for every claim of the book: effect, control, interval, verdict. One row a claim and model.

    row = compare(claim, "smollm2-135m", effect, random)     # effect (prompt,), random (draw, prompt)
    row["verdict"]                                            # "holds"

**Unit.** Prompts share class pairs, so class pairs are the clusters: values are averaged within each pair first, and an
interval is Student's t over these means (n = class pairs). It has no random numbers and no ties to break.

**Rule** (2026-11-22; its history is data/rules.csv). Let the claim say that the effect lies above `null`, and `smallest` be
the smallest effect that would matter; 0 where `null` is a threshold such as "at least half". In this order:

1. *absent*: the 90% interval lies within `smallest` of `null`;
2. *does not hold*: the 95% interval lies below `null`;
3. *undecided*: the 95% interval holds `null`;
4. without a control: *holds*;
5. with one: *undecided* where fewer than LEAST random sets were measured; *holds* where the difference from their mean lies
   above zero (95%) and at most MOST of the sets reach as much; else *not specific*:
   the effect is there, and not special to these heads.

A model that does not learn the task, and a rule that names no heads, are *not testable*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats
import xarray as xr

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder

HOLDS, NOT_SPECIFIC, ABSENT, FAILS = "holds", "not specific", "absent", "does not hold"
UNDECIDED, NOT_TESTABLE = "undecided", "not testable"
VERDICTS = {
    HOLDS: "the effect is there, and larger than in other heads where they are the control",
    NOT_SPECIFIC: "the effect is there, but other heads of the same layers do as much",
    ABSENT: "no effect that would matter: the interval lies within the smallest effect of interest",
    FAILS: "the effect is clearly less than claimed, or has the other sign",
    UNDECIDED: "too few observations to tell",
    NOT_TESTABLE: "the model does not learn the task, or the rule names no heads",
}
LEAST, MOST = 20, 0.05
CLUSTERS = {"pair": "class pairs", "labels": "label pairs", "label": "label words"}


@dataclass(frozen=True)
class Claim:
    """A line of data/claims.csv: what is claimed, how it is measured, and when the rule was written.

    `null`: the effect lies above it. `smallest`: effect of interest, in `unit`. `rule`: date on which null, smallest and
    measure were fixed; `seen`: what had been seen then.
    """

    id: str
    chapter: str
    statement: str
    measure: str
    null: float
    smallest: float
    unit: str
    source: str
    rule: str
    seen: str


def claims() -> dict[str, Claim]:
    """id -> claim, in the order of data/claims.csv."""
    table = pd.read_csv(data_folder() / "claims.csv", keep_default_na=False, dtype={"chapter": str})
    return {row["id"]: Claim(**row) for row in table.to_dict("records")}


@dataclass(frozen=True)
class Interval:
    """An estimate with 95% and 90% bounds from n clusters. NaN bounds where there are fewer than two."""

    estimate: float
    low: float
    high: float
    low90: float
    high90: float
    n: int

    def __format__(self, spec: str) -> str:
        spec = (spec or "+.2f").replace(".", "z.")  # no -0.00
        if np.isnan(self.low):
            return f"{self.estimate:{spec}} [no interval, n = {self.n}]"
        return f"{self.estimate:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def cluster_means(values: xr.DataArray, by: str = "pair") -> xr.DataArray:
    """Means within each cluster: the dimension `prompt` becomes `by`. Missing values are left out; no prompt is one NaN."""
    if values.sizes.get("prompt") == 0:
        return values.mean("prompt").expand_dims(by)
    return values.groupby(by).mean("prompt") if "prompt" in values.dims else values


def share(part: xr.DataArray, whole: xr.DataArray, by: str = "pair") -> xr.DataArray:
    """What share of `whole` a part is, as values over clusters: mean(part) / mean(whole), spread as that ratio is.

    part (..., prompt), whole (prompt,) -> (..., `by`). A cluster's value is the ratio plus its residual over the mean of
    the whole (delta method), so no cluster divides by its own small whole. For the measures "at least half of ...".
    """
    part, whole = cluster_means(part, by), cluster_means(whole, by)
    ratio = part.mean(by) / whole.mean(by)
    return ratio + (part - ratio * whole) / whole.mean(by)


def interval(means: np.ndarray | xr.DataArray) -> Interval:
    """Student's t interval of the mean over clusters (n,). All equal: bounds equal the estimate."""
    means = np.asarray(means, dtype=float)
    means = means[~np.isnan(means)]
    n, estimate = len(means), float(means.mean()) if len(means) else np.nan
    if n < 2:
        return Interval(estimate, np.nan, np.nan, np.nan, np.nan, n)
    error = means.std(ddof=1) / np.sqrt(n)
    wide, narrow = (float(scipy.stats.t.ppf(q, n - 1) * error) for q in (0.975, 0.95))
    return Interval(estimate, estimate - wide, estimate + wide, estimate - narrow, estimate + narrow, n)


def judge(
    effect: Interval, null: float, smallest: float, difference: Interval | None = None, share: float = 0.0, draws: int = 0
) -> str:
    """The verdict by the rule above. `difference`: from the mean of the random sets; `share` of `draws` reach as much."""
    if np.isnan(effect.low):
        return NOT_TESTABLE if np.isnan(effect.estimate) else UNDECIDED
    if null - smallest < effect.low90 and effect.high90 < null + smallest:
        return ABSENT
    if effect.high < null:
        return FAILS
    if effect.low <= null:
        return UNDECIDED
    if difference is None:
        return HOLDS
    if draws < LEAST:
        return UNDECIDED
    return HOLDS if difference.low > 0 and share <= MOST else NOT_SPECIFIC


def compare(
    claim: Claim, model: str, effect: xr.DataArray, random: xr.DataArray | None = None, by: str = "pair"
) -> dict[str, object]:
    """The row of one claim and model: effect, control (mean of random sets), difference, share, verdict.

    effect (prompt,) or already (pair,); random (draw, prompt) or (draw, pair): the same of matched random sets of heads.
    """
    effect = cluster_means(effect, by)
    whole = interval(effect)
    control = difference = None
    share, draws = np.nan, 0
    if random is not None:
        random = cluster_means(random, by)
        control, difference = interval(random.mean("draw")), interval(effect - random.mean("draw"))
        share, draws = float((random.mean(by) >= whole.estimate).mean()), random.sizes["draw"]
    row: dict[str, object] = {"claim": claim.id, "statement": claim.statement, "chapter": claim.chapter, "model": model}
    for name, part in (("effect", whole), ("control", control), ("difference", difference)):
        bounds = asdict(part) if part else {"estimate": np.nan, "low": np.nan, "high": np.nan}
        row |= {name: bounds["estimate"], f"{name}_low": bounds["low"], f"{name}_high": bounds["high"]}
    verdict = judge(whole, claim.null, claim.smallest, difference, share, draws)
    row |= {"share": share, "draws": draws, "n": whole.n, "null": claim.null, "smallest": claim.smallest, "unit": claim.unit}
    note = "no heads by the rule, or no such prompts" if verdict == NOT_TESTABLE else ""
    return row | {"verdict": verdict, "rule": claim.rule, "note": note, "clusters": CLUSTERS.get(by, by)}


def not_testable(claim: Claim, model: str, why: str) -> dict[str, object]:
    """The row of a model on which the claim cannot be tested, and why."""
    numbers = [f"{name}{end}" for name in ("effect", "control", "difference") for end in ("", "_low", "_high")]
    row: dict[str, object] = {"claim": claim.id, "statement": claim.statement, "chapter": claim.chapter, "model": model}
    row |= dict.fromkeys([*numbers, "share"], np.nan) | {"draws": 0, "n": 0, "null": claim.null, "smallest": claim.smallest}
    return row | {"unit": claim.unit, "verdict": NOT_TESTABLE, "rule": claim.rule, "note": why, "clusters": ""}


def over_sets(values: xr.DataArray, sets: Sequence[Sequence[tuple[int, int]]]) -> xr.DataArray:
    """Mean over the heads of each set, and over the prompts of each class pair: (prompt, layer, head) -> (draw, pair).

    Averaged over prompts first, so a thousand sets cost no more than one.
    """
    means = cluster_means(values).transpose(..., "layer", "head")
    flat = means.values.reshape(*means.shape[:-2], -1)
    n_heads = means.sizes["head"]
    index = np.array([[layer * n_heads + head for layer, head in heads] for heads in sets])
    return xr.DataArray(flat[..., index].mean(-1), dims=("pair", "draw"), coords={"pair": means["pair"]}).transpose("draw", "pair")


def read(folder: Path) -> pd.DataFrame:
    """All rows of evidence that the chapters of a book wrote, in the order of the claims. Empty where none did."""
    parts = [pd.read_csv(path, dtype={"chapter": str}, keep_default_na=True) for path in sorted(folder.glob("*.csv"))]
    if not parts:
        return pd.DataFrame(columns=["claim", "statement", "chapter", "model", "verdict"])
    order = {claim: i for i, claim in enumerate(claims())}
    return pd.concat(parts).sort_values("claim", key=lambda ids: ids.map(order), kind="stable", ignore_index=True)


def check_rows(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Rows as one table. Raises TwoTowersError when a claim is judged twice for one model."""
    table = pd.DataFrame(rows)
    if len(table) and table.duplicated(["claim", "model"]).any():
        twice = table[table.duplicated(["claim", "model"])].iloc[0]
        raise TwoTowersError(f"claim '{twice['claim']}' is judged twice for {twice['model']}: judge it once")
    return table
