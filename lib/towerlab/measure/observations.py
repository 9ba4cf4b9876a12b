"""What every measurement is: an xarray.Dataset of one observation a prompt.

    data = observations(encoded, {"attention": (("prompt", "layer", "head", "place"), array, "share")})

A prompt's properties are coordinates (`prompts.blocks.about`). Its file: `store.save`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor
from twotowers.errors import TwoTowersError
from twotowers.recording import Recording
from twotowers.schema import variables

from towerlab.model.capture import Capture, label_log_probs
from towerlab.model.proof import WIDER
from towerlab.prompts.blocks import about
from towerlab.prompts.prompt import Encoded

Variables = Mapping[str, tuple[Sequence[str], Any, str]]
"""Name -> (dimensions, values, unit)"""


def observations(encoded: Sequence[Encoded], variables: Variables, **coordinates: Any) -> xr.Dataset:
    """A dataset over prompts, with their properties and those given as coordinates; layers and heads count from 0."""
    of_prompts = about([e.prompt for e in encoded])
    arrays = {name: xr.DataArray(np.asarray(x), dims=dims, attrs={"units": unit}) for name, (dims, x, unit) in variables.items()}
    if not any("place" in array.dims for array in arrays.values()):
        of_prompts.pop("true", None)
    sizes = {dim: n for array in arrays.values() for dim, n in array.sizes.items() if dim in ("layer", "head")}
    return xr.Dataset(arrays, coords={**{dim: range(n) for dim, n in sizes.items()}, **of_prompts, **coordinates})


def variables_of(measurement: str, **values: Any) -> dict[str, tuple[Sequence[str], Any, str]]:
    """Arrays with the dimensions and units that the schema gives to the variables of a measurement."""
    schema = variables()[measurement]
    return {name: (schema[name].dims, array, schema[name].units) for name, array in values.items()}


def joined(parts: Sequence[xr.Dataset], along: str = "prompt", **coordinates: Sequence) -> xr.Dataset:
    """Measurements of several sets of prompts, or of what lies along another dimension, as one; each with a value of every
    coordinate given: (along,)."""
    datasets = [
        part.assign_coords({name: (along, [values[i]] * part.sizes[along]) for name, values in coordinates.items()})
        for i, part in enumerate(parts)
    ]
    return xr.concat(datasets, along, data_vars="minimal", coords="minimal", compat="override", join="override")


def joined_parts(parts: Sequence[Recording], along: str) -> Recording:
    """A measurement of which each part holds some of what lies along a dimension."""
    if len(parts) == 1:
        return parts[0]
    data, *others = ([of.drop_attrs(deep=False) for of in group if of is not None] for group in zip(*parts, strict=True))
    return Recording(joined(data, along), *(joined(group, along) if group else None for group in others))


class Answers:
    """The model's answers to prompts, filled batch by batch: log-probabilities (nats) of both labels, and the top token.

    `variables()` gives `log_prob_true`, `log_prob_other`, their difference, and `says` (the top token: 0 true label,
    1 other label, 2 another token), each over `dims`.
    Leading axes are whatever was varied (sets of heads, doses).
    """

    def __init__(self, encoded: Sequence[Encoded], *shape: int):
        self.encoded = list(encoded)
        self.log_prob = np.full((*shape, len(self.encoded), 2), np.nan)
        self.says = np.full((*shape, len(self.encoded)), -1, dtype=np.int8)

    def put(self, at: tuple, index: Sequence[int], top: Tensor, log_prob: Tensor) -> None:
        """Answers of the prompts `index`: top tokens (prompt,) and labels' log-probabilities (prompt, label).

        Raises TwoTowersError for those that are not finite: an average over them would pass for a result.
        """
        if not log_prob.isfinite().all():
            raise TwoTowersError(f"the model answers prompts with numbers that are not finite: {WIDER}")
        self.log_prob[(*at, index)] = log_prob
        for i, answer in zip(index, top.tolist(), strict=True):
            pair = self.encoded[i].label_pair
            self.says[(*at, i)] = pair.index(answer) if answer in pair else 2

    def put_each(self, places: Iterable[tuple], index: Sequence[int], top: Tensor, log_prob: Tensor) -> None:
        """Answers of the prompts `index` at each of `places`: (place, prompt) and (place, prompt, label)."""
        for at, *answer in zip(places, top, log_prob, strict=True):
            self.put(at, index, *answer)

    def read(self, capture: Capture, at: tuple = ()) -> None:
        """Answers of one batch's capture."""
        self.put(at, capture.index, *label_log_probs(capture.logits, capture.prompts))

    def variables(self, *dims: str) -> dict[str, tuple[tuple[str, ...], np.ndarray, str]]:
        dims = (*dims, "prompt")
        return {
            "log_prob_true": (dims, self.log_prob[..., 0], "nats"),
            "log_prob_other": (dims, self.log_prob[..., 1], "nats"),
            "logit_difference": (dims, self.log_prob[..., 0] - self.log_prob[..., 1], "nats"),
            "says": (dims, self.says, "0 true label, 1 other label, 2 another token"),
        }
