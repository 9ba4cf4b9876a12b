"""What a claim is judged by: its values and its control, out of what a chapter gives.

    effect, control = select(claim, values, control, model)     # (prompt,) and (random_set, prompt)

Claims on single heads are cross-fit: heads are chosen on other class pairs and label pairs than
those that judge, in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xarray as xr

from twotowers.claims import Claim
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.evidence import over_sets

if TYPE_CHECKING:
    from twotowers.book import Model


def select(
    claim: Claim, values: xr.DataArray, control: xr.DataArray | None, model: Model
) -> tuple[xr.DataArray, xr.DataArray | None]:
    """What a claim is judged by, out of the values and the control that a chapter gives.

    A claim without heads wants values (prompt,) and a control (random_set, prompt). One about a set
    wants (head_set, prompt), measured for named sets, and (head_set, random_set, prompt); or
    (prompt, layer, head), measured for single heads: then it is cross-fit, and random sets are
    drawn.

    Args:
        claim: a line of data/claims.csv.
        values: over these dimensions.
        control: the same of random sets, or None.
        model: whose sets of heads are meant.

    Returns:
        Values (prompt,) and control (random_set, prompt), or None where there is none.

    Raises:
        NotTestable: where the rule names no heads in this model.
        TwoTowersError: for a set that was not measured, and a control that is missing, not asked
            for, or of another kind.
    """
    single = bool(claim.heads) and {"layer", "head"} <= set(values.dims)
    drawn = single and claim.control == "random sets"
    given = (
        "none"
        if control is None
        else control["control"].item()
        if "control" in control.coords
        else "random sets"
    )
    if not single:
        values = _of_set(claim, values, model)
        control = None if control is None else _of_set(claim, control, model)
    if given != ("none" if drawn else claim.control):
        wanted = f"'{claim.control}'" + " of its single heads, which are drawn here" * drawn
        raise TwoTowersError(
            f"its control is {wanted}, and '{given}' is given: "
            "change control=, or its line in data/claims.csv"
        )
    return _cross_fit(claim, values, model) if single else (values, control)


def _of_set(claim: Claim, values: xr.DataArray, model: Model) -> xr.DataArray:
    """The entry of the set that a claim is about; all that is given where it is about none."""
    if not claim.heads:
        return values
    there = values["head_set"].values.tolist() if "head_set" in values.dims else []
    if claim.heads in there:
        return values.sel(head_set=claim.heads)
    if not model.sets.get(claim.heads):
        raise NotTestable(f"the rule names no {claim.heads}")
    raise TwoTowersError(
        f"no '{claim.heads}' among the heads ({', '.join(there)}) of values or control: "
        "add this set"
    )


def _cross_fit(
    claim: Claim, values: xr.DataArray, model: Model
) -> tuple[xr.DataArray, xr.DataArray | None]:
    """Each turn's heads, and random ones in their place, on the prompts that it judges, which keep
    their order."""
    turns = []
    for sets, judges in model.turns(
        values.assign_coords(at=("prompt", range(values.sizes["prompt"])))
    ):
        if claim.heads not in sets:
            raise TwoTowersError(
                f"chapters do not choose '{claim.heads}': give values over (head_set, prompt)"
            )
        if not sets[claim.heads]:
            raise NotTestable(f"the rule names no {claim.heads}")
        turns.append((sets[claim.heads], judges))
    chosen = list(dict.fromkeys(head for heads, _ in turns for head in heads))
    draws = model.drawn(chosen) if claim.control == "random sets" else []
    # The same random head in every turn.
    in_place_of = [dict(zip(chosen, draw, strict=True)) for draw in (chosen, *draws)]
    parts = []
    for heads, judges in turns:
        # In order: equal sets, equal numbers.
        each = [sorted(other[head] for head in heads) for other in in_place_of]
        parts.append(over_sets(judges, each))
    every = xr.concat(parts, "prompt").sortby("at").drop_vars("at")
    random = every.isel(random_set=slice(1, None)) if draws else None
    return every.isel(random_set=0, drop=True), random
