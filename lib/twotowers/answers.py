"""Answers that are right by two scores: of all tokens, and of the two labels.

    >>> is_right = right_answers(xr.Dataset({"top_answer": 1, "logit_difference": 0.5}))
    >>> is_right.to_series().to_dict()
    {'top token': False, 'between the labels': True}

The measurement "dose" has the answers without heads of different rankings.
"""

from __future__ import annotations

import xarray as xr

from twotowers.head_selection import one_percent

TURN = "both in turn"
"""Ranking of heads that takes the first of each of two rankings, then the second of each, ..."""
ONE_PERCENT = "1% of the heads"
"""Name of the set with the first 1% of the heads by TURN"""


CHANCE = xr.DataArray([0, 0.5], {"score": ["top token", "between the labels"]})
"""Share of right answers without any knowledge of the task, by score"""


def right_answers(ds: xr.Dataset) -> xr.DataArray:
    """Return which answers are right: as top token of the vocabulary, and between the labels.

    Args:
        ds: Measurement with `top_answer` and `logit_difference`.

    Returns:
        Booleans over (score, ...).
    """
    is_top = ds["top_answer"] == 0
    is_likelier = ds["logit_difference"] > 0
    return xr.concat([is_top, is_likelier], CHANCE["score"])


def count_one_percent(measurement: xr.Dataset) -> int:
    """Return how many heads are 1% of the heads of a model.

    Args:
        measurement: Measurement of the model.
    """
    return one_percent(measurement.attrs["layers"] * measurement.attrs["heads"])


def without_one_percent(dose: xr.Dataset, *names: str) -> xr.DataArray:
    """Return which answers are right without 1% of the heads, by both rankings in turn.

        >>> top, nats = ("head_set", [0, 0, 7]), ("head_set", [1, 1, 1])
        >>> answers = {"top_answer": top, "logit_difference": nats}
        >>> sets = {"head_set": ["none", "1 both in turn", "2 both in turn"]}
        >>> dose = xr.Dataset(answers, sets, {"layers": 10, "heads": 20})  # two heads are 1%
        >>> is_right = without_one_percent(dose, "none")
        >>> is_right["head_set"].values.tolist(), is_right.sel(score="top token").values.tolist()
        (['none', '1% of the heads'], [True, False])

    Args:
        dose: Measurement "dose" of a model, or its random sets.
        *names: Names of further sets of heads, such as "none".

    Returns:
        Booleans over (score, head_set, ...), for the further sets and ONE_PERCENT.
    """
    turn = f"{count_one_percent(dose)} {TURN}"
    some = dose.sel(head_set=[*names, turn])
    renamed = some.assign_coords(head_set=[*names, ONE_PERCENT])
    return right_answers(renamed)
