"""What every measurement is: an xarray.Dataset of one observation a prompt, and its file.

    found = observations(encoded, {"attention": (("prompt", "layer", "head", "place"), array, "share")})
    save(found, path, provenance)         # NetCDF, whole or not at all
    found = load(path)

A prompt's properties are coordinates (`prompts.blocks.about`); what made the file stands in its attributes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from twotowers.errors import TwoTowersError
from twotowers.model.capture import Capture, label_log_probs
from twotowers.prompts.blocks import about
from twotowers.prompts.prompt import Encoded

SAYS = ("true label", "other label", "another token")
"""What the top token of the vocabulary is: the values of `says`"""
DIGITS = 9
"""Bits of a float's mantissa that are kept in files: one part in 1,024"""

Variables = Mapping[str, tuple[Sequence[str], Any, str]]
"""Name -> (dimensions, values, unit)"""


def observations(encoded: Sequence[Encoded], variables: Variables, **coordinates: Any) -> xr.Dataset:
    """A dataset over prompts, with their properties and those given as coordinates."""
    held = about([e.prompt for e in encoded])
    arrays = {name: xr.DataArray(np.asarray(values), dims=dims, attrs={"units": unit})
              for name, (dims, values, unit) in variables.items()}  # fmt: skip
    if not any("place" in array.dims for array in arrays.values()):
        held.pop("true", None)
    return xr.Dataset(arrays, coords={**held, **coordinates})


class Answers:
    """The model's answers to prompts, filled batch by batch: log-probabilities (nats) of both labels, and the top token.

    `variables()` gives `log_prob_true`, `log_prob_other` and `says` (an index of SAYS), each over `dims`. Leading axes
    are whatever was varied (sets of heads, doses).
    """

    def __init__(self, encoded: Sequence[Encoded], *shape: int):
        self.encoded = list(encoded)
        self.log_prob = np.full((*shape, len(self.encoded), 2), np.nan)
        self.says = np.full((*shape, len(self.encoded)), -1, dtype=np.int8)

    def put(self, at: tuple, index: Sequence[int], top: Tensor, log_prob: Tensor) -> None:
        """Answers of the prompts `index`: top tokens (prompt,) and labels' log-probabilities (prompt, label)."""
        for row, i in enumerate(index):
            encoded = self.encoded[i]
            ids = list(encoded.label_ids.values())
            true = ids.index(encoded.true_id)
            self.log_prob[(*at, i)] = [float(log_prob[row, true]), float(log_prob[row, 1 - true])]
            answer = int(top[row])
            self.says[(*at, i)] = 0 if answer == ids[true] else 1 if answer in ids else 2

    def put_each(self, places: Iterable[tuple], index: Sequence[int], top: Tensor, log_prob: Tensor) -> None:
        """Answers of the prompts `index` at each of `places`: (place, prompt) and (place, prompt, label)."""
        for at, *answer in zip(places, top, log_prob, strict=True):
            self.put(at, index, *answer)

    def read(self, seen: Capture, at: tuple = ()) -> None:
        """Answers of one batch's capture."""
        self.put(at, seen.index, *label_log_probs(seen.logits, seen.prompts))

    def variables(self, *dims: str) -> dict[str, tuple[tuple[str, ...], np.ndarray, str]]:
        dims = (*dims, "prompt")
        return {
            "log_prob_true": (dims, self.log_prob[..., 0], "nats"),
            "log_prob_other": (dims, self.log_prob[..., 1], "nats"),
            "says": (dims, self.says, "0 true label, 1 other label, 2 another token"),
        }


def rounded(values: np.ndarray, bits: int = DIGITS) -> np.ndarray:
    """float32 with only `bits` bits of mantissa, rounded to nearest: files compress to a third."""
    x = np.ascontiguousarray(values, dtype=np.float32)
    drop = 23 - bits
    raw = x.view(np.uint32)
    half = (np.uint32(1) << np.uint32(drop - 1)) - np.uint32(1) + ((raw >> np.uint32(drop)) & np.uint32(1))
    kept = ((raw + half) >> np.uint32(drop)) << np.uint32(drop)
    return np.where(np.isfinite(x), kept.view(np.float32), x)


def save(found: xr.Dataset, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write a measurement whole or not at all. Variables of more than three dimensions are rounded to DIGITS bits.

    Raises TwoTowersError when it cannot be written.
    """
    found = found.assign_attrs({k: v if isinstance(v, str | int | float) else json.dumps(v) for k, v in provenance.items()})
    encoding: dict[str, dict[str, Any]] = {}
    for name, array in found.variables.items():
        if array.dtype.kind == "U":  # as characters, which compress; strings of varying length do not
            encoding[name] = {"dtype": "S1", "zlib": True, "complevel": 6}
        elif array.ndim:
            encoding[name] = {"zlib": True, "complevel": 6, "shuffle": True}
        if array.dtype.kind == "f" and array.ndim:
            kept = rounded(array.values) if array.ndim > 2 else array.values.astype(np.float32)
            found[name] = (array.dims, kept, array.attrs)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found.to_netcdf(part, engine="netcdf4", encoding=encoding)
        os.replace(part, path)
    except OSError as error:
        raise TwoTowersError(f"cannot write '{path}' ({error.strerror or error}): give another folder") from None
    finally:
        part.unlink(missing_ok=True)


def load(path: Path) -> xr.Dataset:
    """A saved measurement, in memory. Raises TwoTowersError for a file that is missing or damaged."""
    try:
        with xr.open_dataset(path, engine="netcdf4") as found:
            found = found.load()
    except FileNotFoundError:
        raise TwoTowersError(f"no measurement '{path}': measure it first (twotowers measure)") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise TwoTowersError(f"the measurement '{path}' is damaged ({type(error).__name__}): delete it") from None
    for name in ("true", "true_first"):
        if name in found.coords:
            found[name] = found[name].astype(bool)
    return found
