"""What every measurement is: an xarray.Dataset of one observation a prompt.

    data = observations(encoded, {"attention": (("prompt", "layer", "head", "place"), array)})

A prompt's properties are coordinates (`prompts.blocks.about`). Its file: `store.save`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor
from twotowers.errors import TwoTowersError
from twotowers.schema import variables

from towerlab.model.capture import Capture, label_log_probs, read_all
from towerlab.model.model import Model
from towerlab.model.proof import WIDER
from towerlab.prompts.blocks import about
from towerlab.prompts.prompt import Encoded

Variables = Mapping[str, tuple[Sequence[str], Any]]
"""Name -> (dimensions, values); their units stand in `twotowers.schema`"""


def observations(encoded: Sequence[Encoded], variables: Variables, **coordinates: Any) -> xr.Dataset:
    """A dataset over prompts, with their properties and those given as coordinates; layers and heads count from 0."""
    data, of_prompts = xr.Dataset(variables), about([e.prompt for e in encoded])
    if "place" not in data.dims:
        of_prompts.pop("true", None)
    numbers = {dim: range(n) for dim, n in data.sizes.items() if dim in ("layer", "head")}
    return data.assign_coords(numbers | of_prompts | coordinates)


def variables_of(measurement: str, **values: Any) -> dict[str, tuple[Sequence[str], Any]]:
    """Arrays with the dimensions that the schema gives to the variables of a measurement."""
    schema = variables()[measurement]
    return {name: (schema[name].dims, array) for name, array in values.items()}


def read_prompts(
    what: str,
    model: Model,
    encoded: Sequence[Encoded],
    record: Collection[str],
    read: Callable[[Capture], Mapping[str, Tensor]],
    max_tokens: int = 4096,
) -> dict[str, np.ndarray]:
    """Name -> (prompt, ...), of what `read(capture)` gives of each batch, name -> (batch, ...): see `read_all`."""
    out: dict[str, np.ndarray] = {}

    def keep(capture: Capture) -> None:
        for name, x in read(capture).items():
            array = (x.float() if x.dtype.itemsize < 4 else x).cpu().numpy()  # NumPy has no bfloat16
            out.setdefault(name, np.empty((len(encoded), *array.shape[1:]), array.dtype))[capture.index] = array

    read_all(what, model, encoded, record, keep, max_tokens)
    return out


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

    def variables(self, *dims: str) -> dict[str, tuple[Sequence[str], np.ndarray]]:
        true, other = np.moveaxis(self.log_prob, -1, 0)
        arrays = {"log_prob_true": true, "log_prob_other": other, "logit_difference": true - other, "says": self.says}
        return {name: ((*dims, "prompt"), array) for name, array in arrays.items()}
