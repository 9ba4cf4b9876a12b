"""A model as claims need it: its sets of heads, and the values and control of a claim.

    >>> from twotowers.settings import Settings
    >>> every = Measurements(Settings(model="smollm2-135m"))
    >>> model = Model(every, "smollm2-135m", every.measured("heads")["smollm2-135m"])
    >>> f"{model.learned:.0%}", str(model.sets["by attention"][0])
    ('71% [63%, 78%]', '18-6')

Claims on single heads are cross-fit: heads are chosen on other class pairs and label pairs than
those that judge, in turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
import xarray as xr

from twotowers import choose, intervals
from twotowers.claims import Claim
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.evidence import over_sets
from twotowers.heads import Head, Heads
from twotowers.measurements import Measurements
from twotowers.settings import Form

DRAWS = 1000
CHANCE, LEARNS = 0.5, 0.6
"""Accuracy between two labels by guessing; and one that a model which does not learn the task
cannot have, with 95% confidence"""
TOO_FEW = "too few class pairs to tell whether it learns the task"


class Model:
    """One model as claims need it: `sets` of heads, random ones, and its prompts.

    `learned`: its accuracy between the two labels on judging blocks.
    """

    def __init__(self, measurements: Measurements, name: str, heads: xr.Dataset):
        self.name, self.measurements, self.heads = name, measurements, heads
        self.learned = intervals.mean(heads["logit_difference"] > 0)

    @cached_property
    def sets(self) -> dict[str, list[Head]]:
        """Name -> heads, by the rules of `choose`, from all locating blocks."""
        locating = self.measurements.measured("locating")[self.name]
        return choose.head_sets(locating, self.measurements.settings.top_k)

    @property
    def form(self) -> Form:
        """The form of its prompts: what its measurements were given, else the best-learned one."""
        given = json.loads(self.heads.attrs["identity"])
        if given["k"] and given["separator"]:
            return Form(given["k"], given["separator"])
        return choose.form(self.measurements.measured("forms", labels="all")[self.name])

    def check_learned(self) -> None:
        """Raise NotTestable if the model does not learn the task, or if nobody can tell.

        A model does not learn if its accuracy is below LEARNS. If its interval reaches from CHANCE
        to LEARNS, or has no bounds, there are too few class pairs.
        """
        part = self.learned
        if part.low > CHANCE:
            return
        low, high = np.clip([part.low, part.high], 0, 1)
        why = "does not learn the task" if high < LEARNS else TOO_FEW
        raise NotTestable(f"{why}: accuracy {replace(part, low=low, high=high):.0%}")

    def turns(self, target: xr.DataArray) -> Iterator[tuple[dict[str, list[Head]], xr.DataArray]]:
        """Yield sets of heads from locating blocks, and the prompts of `target` that they judge,
        which have other class pairs and label pairs."""
        locating = self.measurements.measured("locating", labels="arbitrary")[self.name]
        for chooses, judges in choose.turns(locating, target):
            if not chooses.sizes["prompt"]:
                raise NotTestable(
                    "no locating block has other classes and other labels: give more (locate)"
                )
            yield choose.head_sets(chooses, self.measurements.settings.top_k), judges

    def drawn(self, heads: Heads, draws: int = DRAWS) -> list[list[Head]]:
        """Return so many random sets matched to some heads; one set may be there twice."""
        n_layers, n_heads, n_kv = (
            int(self.heads.attrs[name]) for name in ("layers", "heads", "key_value_heads")
        )
        return choose.matched_sets(
            [Head(*at) for at in heads], n_layers, n_heads, n_heads // n_kv, draws
        )

    def select(
        self, claim: Claim, values: xr.DataArray, control: xr.DataArray | None
    ) -> tuple[xr.DataArray, xr.DataArray | None]:
        """Return what a claim is judged by: values (prompt,), and a control (random_set, prompt)
        or None.

        Args:
            claim: A line of data/claims.csv.
            values: Over (prompt,) if the claim names no heads. Otherwise over (head_set, prompt),
                measured for named sets; or over (prompt, layer, head), measured for single heads:
                then heads are chosen on other class pairs and label pairs than those that judge, in
                turn, and random sets are drawn.
            control: The same values of random sets, over (head_set, random_set, prompt).

        Raises:
            NotTestable: If the rule names no heads in this model.
            TwoTowersError: If the set was not measured, and for a control that is missing, not
                asked for, or of another kind.
        """
        single = bool(claim.heads) and {"layer", "head"} <= set(values.dims)
        given = "none" if control is None else "random sets"
        if control is not None and "control" in control.coords:
            given = control["control"].item()
        if not single and claim.heads:
            values = self._entry(claim.heads, values)
            control = None if control is None else self._entry(claim.heads, control)
        drawn = single and claim.control == "random sets"
        if given != ("none" if drawn else claim.control):
            wanted = f"'{claim.control}'" + " of its single heads, which are drawn here" * drawn
            raise TwoTowersError(
                f"its control is {wanted}, and '{given}' is given: "
                "change control=, or its line in data/claims.csv"
            )
        return self._cross_fit(claim, values) if single else (values, control)

    def _entry(self, name: str, values: xr.DataArray) -> xr.DataArray:
        """Return the values of a named set."""
        there = values["head_set"].values.tolist() if "head_set" in values.dims else []
        if name in there:
            return values.sel(head_set=name)
        if not self.sets.get(name):
            raise NotTestable(f"the rule names no {name}")
        raise TwoTowersError(
            f"no '{name}' among the heads ({', '.join(there)}) of values or control: add this set"
        )

    def _cross_fit(
        self, claim: Claim, values: xr.DataArray
    ) -> tuple[xr.DataArray, xr.DataArray | None]:
        """Return the values of the heads of each turn, and of random ones in their place, on the
        prompts that it judges, which keep their order."""
        values = values.assign_coords(at=("prompt", range(values.sizes["prompt"])))
        turns = []
        for sets, judges in self.turns(values):
            if claim.heads not in sets:
                raise TwoTowersError(
                    f"chapters do not choose '{claim.heads}': give values over (head_set, prompt)"
                )
            if not sets[claim.heads]:
                raise NotTestable(f"the rule names no {claim.heads}")
            turns.append((sets[claim.heads], judges))
        chosen = list(dict.fromkeys(head for heads, _ in turns for head in heads))
        draws = self.drawn(chosen) if claim.control == "random sets" else []
        # The same random head in every turn.
        in_place_of = [dict(zip(chosen, draw, strict=True)) for draw in (chosen, *draws)]
        # In order: equal sets, equal numbers.
        parts = [
            over_sets(judges, [sorted(other[head] for head in heads) for other in in_place_of])
            for heads, judges in turns
        ]
        every = xr.concat(parts, "prompt").sortby("at").drop_vars("at")
        return every.isel(random_set=0, drop=True), (
            every.isel(random_set=slice(1, None)) if draws else None
        )
