"""A model whose claims are judged: whether it learns, its template, and its random sets of heads.

>>> selected({"by attention": [Head(1, 0)]}, "by attention")
[Head(layer=1, head=0)]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import xarray as xr

from twotowers import head_selection, identity, intervals, random_heads
from twotowers.claims import Claim
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Head, Heads
from twotowers.measurements import Measurements
from twotowers.settings import Template

CHANCE, LEARNS = 0.5, 0.6
"""Accuracy of guessing between two labels, and the accuracy below which a model does not learn the
task (`JudgedModel.check_learned`)"""
LEARNED = "learned"
"""Claim that the model learns the task. All other claims are not testable on a model that does
not."""


def selected(sets: Mapping[str, list[Head]], name: str) -> list[Head]:
    """Return the heads of a set.

    Args:
        sets: Sets of heads by name.
        name: Name of the set.

    Raises:
        NotTestable: If the set is empty.
    """
    if not sets.get(name):
        raise NotTestable(f"the rule selects no heads for the set '{name}'")
    return sets[name]


@dataclass
class JudgedModel:
    """A model with the inputs of its claims: random sets of heads, and prompts.

    Claims on single heads are cross-fit. Each split selects heads on other class pairs and label
    pairs than the ones on which they are evaluated.

        >>> from twotowers.settings import Settings
        >>> measurements = Measurements(Settings(model="smollm2-135m"))
        >>> name = "smollm2-135m"
        >>> model = JudgedModel(measurements, name, measurements.measured("heads")[name])
        >>> f"{model.accuracy:.0%}", str(model.template)
        ('71% [63%, 78%]', 'k = 4, line break')

    Attributes:
        measurements: Measurements of all models.
        name: Name of the model.
        heads: Measurement "heads" of the model.
    """

    measurements: Measurements
    name: str
    heads: xr.Dataset

    @cached_property
    def accuracy(self) -> intervals.Interval:
        """Accuracy between the two labels on evaluation blocks, with its interval."""
        return intervals.mean(self.heads["logit_difference"] > 0)

    @property
    def template(self) -> Template:
        """Prompt template of the measurements: the given or otherwise the most accurate one."""
        given = json.loads(self.heads.attrs["identity"])
        if given["k"] and given["separator"]:  # then no other template needs a measurement
            return Template(given["k"], given["separator"])
        return head_selection.select_template(self.measurements.measured("templates")[self.name])

    def check_learned(self) -> None:
        """Check that the model learns the task.

        A model learns the task if the interval of its accuracy is above CHANCE. Otherwise it does
        not learn the task if the interval is below LEARNS, and in all other cases there are too few
        class pairs to tell.

        Raises:
            NotTestable: If the model does not learn the task, or if there are too few class pairs.
        """
        if self.accuracy.low > CHANCE:
            return
        low, high = np.clip([self.accuracy.low, self.accuracy.high], 0, 1)
        reason = "too few class pairs to tell whether it learns the task"
        if high < LEARNS:
            reason = "does not learn the task"
        raise NotTestable(f"{reason}: accuracy {replace(self.accuracy, low=low, high=high):.0%}")

    def draw_random_sets(self, heads: Heads, n_sets: int = random_heads.DRAWS) -> list[list[Head]]:
        """Return different random sets in place of a set (`random_heads.control_sets`).

        Args:
            heads: Heads to replace.
            n_sets: Number of different sets, fewer if there are fewer.
        """
        return random_heads.control_sets(heads, self.heads.attrs, n_sets)

    def select(
        self, claim: Claim, values: xr.DataArray, control: xr.DataArray | None
    ) -> tuple[xr.DataArray, xr.DataArray | None]:
        """Return the values and the control by which a claim is judged.

        Args:
            claim: A line of data/claims.csv.
            values: Over (prompt,) if the claim names no heads. Otherwise over (head_set, prompt),
                measured for named sets; or over (prompt, layer, head), measured for single heads.
                In the last case the claim is cross-fit, and random sets are drawn here.
            control: The same values of random sets, over (head_set, random_set, prompt). Values of
                random forms have no head_set.

        Returns:
            Values over (prompt,), and a control over (random_set, prompt) or None.

        Raises:
            NotTestable: If the rule selects no heads in this model, or if no selection block has
                other classes and other labels.
            TwoTowersError: If the set was not measured, or if the control is missing, is not needed
                by the claim, or is of another kind.
        """
        is_single = bool(claim.heads) and {"layer", "head"} <= {*values.dims}
        kind = "none" if control is None else "random sets"
        if control is not None and "control" in control.coords:
            kind = control["control"].item()
        if claim.heads and not is_single:
            values = self._of_set(claim.heads, values)
            control = control if control is None else self._of_set(claim.heads, control)
        expected = claim.control
        if is_single and expected == "random sets":
            expected = "none"  # random sets of single heads are drawn here
        if kind != expected:
            raise TwoTowersError(
                f"wrong control '{kind}': expected '{expected}'; change control= or data/claims.csv"
            )
        if not is_single:
            return values, control
        of_heads, drawn = self._cross_fit(claim, values)
        return of_heads, drawn if control is None else control

    def _of_set(self, name: str, values: xr.DataArray) -> xr.DataArray:
        """Return the values of a named set."""
        if name in values.coords.get("head_set", ()):
            return values.sel(head_set=name)
        selected(self.measurements.sets[self.name], name)
        raise TwoTowersError(
            f"missing set of heads '{name}': expected it in values and control; measure it"
        )

    def _cross_fit(
        self, claim: Claim, values: xr.DataArray
    ) -> tuple[xr.DataArray, xr.DataArray | None]:
        """Return the values of cross-fit heads, and of random heads in their place, by prompt."""
        splits = self._splits(claim.heads, values)
        chosen = list(dict.fromkeys(head for split in splits for head in split.heads))
        effect = _mean_over_splits(splits, [dict(zip(chosen, chosen, strict=True))])
        effect = effect.isel(random_set=0, drop=True)
        if claim.control != "random sets":
            return effect, None
        # If a head is in several splits, the same random head replaces it in all of them.
        replacements = [
            dict(zip(chosen, heads, strict=True)) for heads in self.draw_random_sets(chosen)
        ]
        return effect, _mean_over_splits(splits, replacements)

    def _splits(self, name: str, values: xr.DataArray) -> list[Split]:
        """Return cross-fit splits of the prompts, each with its own heads of a named set."""
        values = values.assign_coords(number=("prompt", range(values.sizes["prompt"])))
        selection = self.measurements.measured("selection", labels="arbitrary")[self.name]
        k = identity.top_k(selection)
        splits = []
        for sets, evaluates in head_selection.cross_fit_sets(selection, values, k):
            if not sets:
                raise NotTestable(
                    "no selection block has other classes and other labels; choose more "
                    "selection_blocks"
                )
            splits.append(Split(selected(sets, name), evaluates))
        return splits


class Split(NamedTuple):
    """Prompts to evaluate, and the heads that other prompts select for them."""

    heads: list[Head]
    evaluates: xr.DataArray


def _mean_over_splits(
    splits: Sequence[Split], replacements: Sequence[Mapping[Head, Head]]
) -> xr.DataArray:
    """Return the mean over the heads of each split, over (random_set, prompt).

    Each of `replacements` makes one set: it names the head in place of each selected head. The
    prompts have the order of their coordinate `number`.
    """
    parts = []
    for split in splits:
        # Sorted, so that equal sets give equal numbers.
        sets = [sorted(replacement[head] for head in split.heads) for replacement in replacements]
        parts.append(head_selection.mean_over_sets(split.evaluates, sets))
    return xr.concat(parts, "prompt").sortby("number").drop_vars("number")
