"""The decision rule of all claims, from values to an effect, a control and a verdict.

`judge` is the rule, `judge_claim` applies it to one claim and one model, and `read` collects the
rows that the chapters have written.

    >>> near_half = Interval(0.5, (20, 9), low=0.4, high=0.6, low90=0.42, high90=0.58)
    >>> judge(near_half, null_value=0.0, smallest_effect=0.1)
    'holds'
    >>> judge(near_half, null_value=0.45, smallest_effect=0.1)
    'undecided'

Intervals come from `twotowers.intervals` and generalise to new class pairs and new label pairs.
Shares, which are effects divided by a denominator, have Fieller's intervals. Prompts whose labels
are the names of their classes are never judged together with prompts that have arbitrary labels.

The rule has been in force since 2026-11-23, and data/rules.csv has its history. Since 2026-11-25
equal random sets, which occur if few other heads are available, are counted once.

A claim is not testable on a model in these cases:

- The model does not learn the task, or there are too few class pairs to tell.
- The rule of selection (`head_selection`) selects no heads in the model.
- The effect is a share, and its denominator is not clearly different from zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from twotowers.claims import (
    ABSENT,
    FAILS,
    HOLDS,
    HOLDS_TOO_FEW,
    NOT_SPECIFIC,
    NOT_TESTABLE,
    ON_SOLVED,
    SECOND,
    SMALL,
    UNDECIDED,
    Claim,
    Statement,
    claims,
    paper_results,
)
from twotowers.errors import TwoTowersError
from twotowers.intervals import Interval, mean, means
from twotowers.paths import data_folder
from twotowers.tables import read_csv

MIN_RANDOM_SETS, MAX_EXCEEDANCE = 20, 0.05
SMALL_P = 0.05
SMALLEST_EFFECT_RATIO = 0.05


@dataclass(frozen=True)
class Control:
    """The effect in random sets of heads, or along random directions.

    Attributes:
        mean: Mean effect over the different random sets, with its interval.
        difference: Difference of the claim's effect and `mean`, with its interval.
        exceedance: Share of the random sets whose effect is at least as large as the claim's.
        n_random_sets: Number of different random sets.
    """

    mean: Interval
    difference: Interval
    exceedance: float
    n_random_sets: int


@dataclass(frozen=True)
class EvidenceRow:
    """The verdict on a claim, or on a result of the paper, in one model.

    A number that does not exist, such as the control of a claim without one, is NaN.

    Attributes:
        claim: Id of the claim or result.
        model: Name of the model.
        verdict: One of the verdicts of `twotowers.claims`.
        words: Basis of the verdict, or the reason why there is none.
        statement, chapter: Fields of the claim or result.
        effect, effect_low, effect_high: Estimate with its 95% interval. For a result of the paper,
            the number that is judged.
        control, control_low, control_high: Mean of the random sets with its 95% interval.
        difference, difference_low, difference_high: Effect minus control with its 95% interval.
        exceedance: Share of the random sets that reach the effect, or for a result of the paper the
            share of random lists that reach its verdict.
        n_random_sets: Number of different random sets.
        p: Two-sided p-value of the hypothesis that the effect equals the null.
        prompts, n, label_pairs: Numbers of prompts, of class pairs and of label pairs.
        observations: Name of the values that are counted as prompts.
        template: Prompt template.
        smallest_effect: Smallest effect of interest, in `unit`.
        unit: Unit of the effect.
        figure: Figure of this book for a result of the paper.
        mark: Mark of a model that fails the task of the result's prompts.
        stability: Share of resamples of the prompts in which the verdict stays.
        reason: Reason of a verdict that is open, or that holds for random heads as well.
        exceedance_in_layers, n_lists_in_layers: For a result of the paper, share of the random
            lists of other heads of the same layers that reach the verdict, and their number.
        share_in_layer: Share of the heads of the random sets, or of the random lists of other
            key-value groups, that are in the layer of the head that they replace.
        prompt_set: For a result of the paper, ON_PAPER for the first and ON_SOLVED for the second
            verdict.
    """

    claim: str
    model: str
    verdict: str
    words: str
    statement: str
    chapter: str
    effect: float = np.nan
    effect_low: float = np.nan
    effect_high: float = np.nan
    control: float = np.nan
    control_low: float = np.nan
    control_high: float = np.nan
    difference: float = np.nan
    difference_low: float = np.nan
    difference_high: float = np.nan
    exceedance: float = np.nan
    n_random_sets: int = 0
    p: float = np.nan
    prompts: int = 0
    n: int = 0
    label_pairs: int = 0
    observations: str = "prompts"
    template: str = ""
    smallest_effect: float = np.nan
    unit: str = ""
    figure: str = ""
    mark: str = ""
    stability: float = np.nan
    reason: str = ""
    exceedance_in_layers: float = np.nan
    n_lists_in_layers: int = 0
    share_in_layer: float = np.nan
    prompt_set: str = ""


def verdict_row(
    statement: Statement, model: str, verdict: str, words: str, **numbers: Any
) -> EvidenceRow:
    """Return the row of evidence of a statement and model.

    Args:
        statement: Claim, or result of the paper.
        model: Name of the model.
        verdict: Verdict on the statement.
        words: Basis of the verdict.
        **numbers: Further fields of the row.
    """
    return EvidenceRow(
        statement.id, model, verdict, words, statement.statement, statement.chapter, **numbers
    )


def judge(
    effect: Interval, null_value: float, smallest_effect: float, control: Control | None = None
) -> str:
    """Return the verdict on a claim that its effect is above `null_value`.

    The first rule that applies decides:

    1. `not testable` if there is no estimate; `undecided` if there is an estimate but no interval.
    2. `absent` if the 90% interval is within `smallest_effect` of `null_value` on both sides.
    3. `does not hold` if the 95% interval is entirely below `null_value`.
    4. `undecided` if the 95% interval contains `null_value`.
    5. `small` if the estimate is above `null_value` by less than `smallest_effect`.
    6. `holds` if there is no control.
    7. `holds, too few other heads` if fewer than MIN_RANDOM_SETS different random sets exist, or
       were measured.
    8. `holds` if the effect is clearly larger than in random sets, and the share of these sets that
       reach it is at most MAX_EXCEEDANCE.
    9. `not specific` otherwise: the effect exists, but other heads also have it.

    In rule 8, "clearly" means that the 95% interval of the difference from the mean of the random
    sets is above zero. With n different sets, a share below 1/(n + 1) cannot be distinguished from
    none.

    Args:
        effect: Effect with its 90% and 95% bounds.
        null_value: Null value of the claim.
        smallest_effect: Smallest effect of interest: for effects in nats SMALLEST_EFFECT_RATIO
            times the model's own logit difference, unless the claim gives another one. It is 0 if
            `null_value` is a threshold such as "at least half".
        control: Effect in random sets of heads, if the claim has a control.
    """
    if np.isnan(effect.low):
        return NOT_TESTABLE if np.isnan(effect.estimate) else UNDECIDED
    if null_value - smallest_effect < effect.low90 and effect.high90 < null_value + smallest_effect:
        return ABSENT
    if effect.high < null_value:
        return FAILS
    if effect.low <= null_value:
        return UNDECIDED
    if effect.estimate - null_value < smallest_effect:
        return SMALL
    if control is None:
        return HOLDS
    if control.n_random_sets < MIN_RANDOM_SETS:
        return HOLDS_TOO_FEW
    is_specific = control.difference.low > 0 and control.exceedance <= MAX_EXCEEDANCE
    return HOLDS if is_specific else NOT_SPECIFIC


def judge_claim(
    claim: Claim,
    model: str,
    values: xr.DataArray,
    *,
    denominator: xr.DataArray | None = None,
    control: xr.DataArray | None = None,
    logit_difference: float = np.nan,
    template: str = "",
) -> EvidenceRow:
    """Judge one claim on one model.

    Args:
        claim: A line of data/claims.csv.
        model: Name of the model.
        values: Effect on each prompt, over (prompt,).
        denominator: Denominator on each prompt, over (prompt,), if the claim is about a share.
        control: The same values of random sets, over (random_set, prompt) (`different_sets`).
        logit_difference: The model's own logit difference (nats).
        template: Prompt template, in words.

    Returns:
        Row of evidence. Its verdict is "not testable" if there are no prompts, or if the mean of
            `denominator` is not clearly above zero.

    Raises:
        TwoTowersError: If dimensions are wrong, if denominator or control have other prompts, if
            values are not finite, or if prompts with class names as labels are mixed with others.
    """
    _check_prompts(values, denominator, control)
    if not values.size:
        return verdict_row(claim, model, NOT_TESTABLE, "there are no such prompts")
    effect = mean(values, denominator=denominator)
    are_names = values["label_pair"] == values["class_pair"]
    if 0 < are_names.mean() < 1:
        raise TwoTowersError(
            "cannot judge two kinds of labels together: expected either names of classes or "
            "arbitrary labels; select one kind with measured(name, labels='names')"
        )
    if np.isnan(effect.estimate) and denominator is not None:
        words = f"the denominator is not clearly above zero: {mean(denominator):+.3f}"
        return verdict_row(claim, model, NOT_TESTABLE, words)
    random_sets = None if control is None else _control(effect, values, denominator, control)
    smallest_effect = claim.smallest_effect
    if smallest_effect is None:
        smallest_effect = SMALLEST_EFFECT_RATIO * logit_difference
    words = f"{effect:{claim.format}} {claim.unit}".removesuffix(" share")
    parts = {"effect": effect}
    numbers: dict[str, Any] = {}
    if random_sets is not None:
        n_sets, exceedance = random_sets.n_random_sets, random_sets.exceedance
        parts |= {"control": random_sets.mean, "difference": random_sets.difference}
        numbers |= {"exceedance": exceedance, "n_random_sets": n_sets}
        reach = round(exceedance * n_sets)
        # The judged set is counted with the others.
        p_random = (reach + 1) / (n_sets + 1)
        words += f"; control {random_sets.mean.estimate:{claim.format}}, {reach:,} of {n_sets:,}"
        words += f" different {claim.control} reach it (p = {p_random:.2g})"
    for name, part in parts.items():
        numbers |= {name: part.estimate, f"{name}_low": part.low, f"{name}_high": part.high}
    verdict = judge(effect, claim.null_value, smallest_effect, random_sets)
    return verdict_row(
        claim,
        model,
        verdict,
        words,
        reason=_reason(effect, claim, random_sets, verdict),
        p=mean(values - claim.null_value * (1.0 if denominator is None else denominator)).p,
        prompts=values.size,
        n=effect.n[0],
        label_pairs=effect.n[1],
        template=template,
        smallest_effect=smallest_effect,
        unit=claim.unit,
        **numbers,
    )


def _reason(effect: Interval, claim: Claim, control: Control | None, verdict: str) -> str:
    """Return why a claim is undecided, or how many random sets a claim has that has too few."""
    if verdict == HOLDS_TOO_FEW and control is not None:
        return f"{control.n_random_sets} different random sets"
    if verdict != UNDECIDED:
        return ""
    if np.isnan(effect.low):
        return "too few class pairs for an interval"
    return f"the interval holds {claim.null_value:g}"


def _control(
    effect: Interval, values: xr.DataArray, denominator: xr.DataArray | None, control: xr.DataArray
) -> Control:
    """Return the control of an effect, from the different random sets."""
    control = different_sets(control.transpose("random_set", "prompt"))
    mean_control = control.mean("random_set", skipna=False)
    random_effects = means(control) / (1.0 if denominator is None else mean(denominator).estimate)
    return Control(
        mean(mean_control, denominator=denominator),
        mean(values - mean_control, denominator=denominator),
        (random_effects >= effect.estimate).mean(),
        control.sizes["random_set"],
    )


def reach_text(share: float) -> str:
    """Return a share of random sets in percent, with a decimal near MAX_EXCEEDANCE.

        >>> reach_text(0.0532), reach_text(0.87), reach_text(0.01)
        ('5.3%', '87%', '1%')

    Args:
        share: Share of the random sets, or lists, that reach an effect or a verdict.
    """
    is_near = abs(share - MAX_EXCEEDANCE) < MAX_EXCEEDANCE / 2
    return f"{share:.1%}" if is_near else f"{share:.0%}"


def different_sets(control: Any) -> Any:
    """Return random sets of heads of which no two are equal.

        >>> values = xr.DataArray([[1, 0], [1, 0], [1, 1]], dims=("random_set", "prompt"))
        >>> different_sets(values).values.tolist()
        [[1, 0], [1, 1]]
        >>> numbered = values.assign_coords(set_number=("random_set", [0, 1, 1]))
        >>> both = xr.Dataset({"a": numbered, "b": ("random_set", [4, 5, 6])})
        >>> different_sets(both)["b"].values.tolist()
        [4, 5]

    Args:
        control: Values of random sets, over (random_set, ...), as an array or a dataset. Equal sets
            have equal numbers in the coordinate `set_number` (`files.select_random_sets`). In an
            array without it, they have equal values.

    Returns:
        The values without repeated sets, and without the coordinate.
    """
    labels = control.coords.get("set_number", control)
    labels = labels.transpose("random_set", ...).values
    is_repeated = pd.DataFrame(labels.reshape(len(labels), -1)).duplicated()
    different = control.isel(random_set=~is_repeated.values)
    return different.drop_vars("set_number", errors="ignore")


def _check_prompts(
    values: xr.DataArray, denominator: xr.DataArray | None, control: xr.DataArray | None
) -> None:
    """Check that values, denominator and control have their dimensions and the same prompts."""
    for name, array, dims in (
        ("values", values, ("prompt",)),
        ("denominator", denominator, ("prompt",)),
        ("control", control, ("random_set", "prompt")),
    ):
        if array is None:
            continue
        if {*array.dims} != {*dims}:
            raise TwoTowersError(
                f"wrong dimensions of {name}: expected ({', '.join(dims)}), got "
                f"({', '.join(map(str, array.dims))}); take means over the others first, or name "
                "the set of heads in data/claims.csv"
            )
        if any(
            not np.array_equal(values[coord], array[coord])
            for coord in values.coords.keys() & array.coords.keys()
            if values[coord].dims == ("prompt",)
        ):
            raise TwoTowersError(
                f"values and {name} differ in their prompts: expected the same prompts in the "
                "same order; measure both on the same prompts"
            )


def read(folder: Path, statements: Iterable[str] = (), solved: bool = False) -> pd.DataFrame:
    """Return the rows of evidence that chapters wrote, in the order of the statements.

    Args:
        folder: Folder of the CSV files, one for each chapter.
        statements: Ids of claims, or names of results of the paper; by default all claims.
        solved: Whether the verdicts on results of the paper are the second ones, on
            counterbalanced prompts.

    Returns:
        Fields of `EvidenceRow`, and `p_holm`: p, corrected for all rows of the same model.

    Raises:
        TwoTowersError: If no chapter has written evidence yet.
    """
    judged = *claims().values(), *paper_results().values()
    paths = [folder / f"{chapter}.csv" for chapter in sorted({row.chapter for row in judged})]
    # Other files, such as a copy of one of these, are no evidence.
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise TwoTowersError(
            f"missing evidence in '{folder}': run `make book`, or some chapters, first"
        )
    rows = pd.concat(map(read_csv, paths))
    order = [*(statements or claims())]
    is_solved = rows["prompt_set"] == ON_SOLVED
    rows = rows[rows["claim"].isin(order) & (is_solved == solved)].sort_values(
        "claim", key=lambda ids: ids.map(order.index), kind="stable", ignore_index=True
    )
    texts = rows[["mark", "figure", "reason", "prompt_set", "words"]].astype(object).fillna("")
    rows = rows.assign(**texts)
    return rows.assign(p_holm=rows.groupby("model")["p"].transform(holm))


def verdicts(folder: Path) -> dict[tuple[str, str], str]:
    """Return all verdicts that chapters wrote, by statement and model.

    A name with SECOND has the second verdict on a result of the paper.

    Args:
        folder: Folder of the CSV files, one for each chapter.
    """
    statements = {**claims(), **paper_results()}
    found = {}
    for solved in (False, True):
        for row in read(folder, statements, solved).itertuples():
            name = row.claim + SECOND * solved
            found[name, row.model] = row.verdict
    return found


def corrected(rows: pd.DataFrame) -> str:
    """Return how many of the claims that hold have a small p-value after Holm's correction.

    Args:
        rows: Rows of evidence that `read` returned.
    """
    holds = rows[rows["verdict"] == HOLDS]
    n_small = (holds["p_holm"] < SMALL_P).sum()
    return (
        f"Of {len(holds)} verdicts that a claim holds in a model, {n_small} have p below "
        f"{SMALL_P:g} after Holm's correction for all claims on the model. Of the others, some "
        "may hold by chance."
    )


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts that were judged again on prompts drawn with other seeds.

    Args:
        rows: Rows of evidence, which have seed 0.

    Returns:
        Columns of data/seeds.csv, and `moved`: whether the verdict on the claim in the model
            depends on the seed.
    """
    again = read_csv(data_folder() / "seeds.csv")
    asked = again[["model", "claim"]].drop_duplicates()
    seeds = pd.concat([rows.merge(asked).assign(seed=0), again])
    verdicts_of = seeds.groupby(["model", "claim"], sort=False)["verdict"]
    return seeds.assign(moved=verdicts_of.transform("nunique") > 1)


def holm(p: pd.Series) -> pd.Series:
    """Return Holm's (1979) adjusted p-values.

    The smallest p is multiplied by the number of p-values, the next by one less, and so on. No
    adjusted value is below the one before it. NaN stays NaN.

        >>> holm(pd.Series([0.03, np.nan, 0.01, 0.02, 0.7])).round(9).tolist()
        [0.06, nan, 0.04, 0.06, 0.7]
        >>> holm(pd.Series([0.7, 0.8])).tolist()
        [1.0, 1.0]

    Args:
        p: Unadjusted p-values.
    """
    ascending = p.dropna().sort_values()
    return (ascending * np.arange(len(ascending), 0, -1)).cummax().clip(upper=1.0).reindex(p.index)
