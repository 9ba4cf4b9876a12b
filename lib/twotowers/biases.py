"""The two biases of chapters 5 and 7: towards the more frequent label, and towards the nearest one.

>>> changes = ["one other fewer", "one true fewer"]
>>> measured = xr.Dataset({"logit_difference": ("change", [1.5, -0.5])}, {"change": changes})
>>> bias(measured, "majority").item()
2.0
"""

from __future__ import annotations

import xarray as xr

from twotowers import intervals

CONDITIONS = {
    "majority": ("one other fewer", "one true fewer"),
    "recency": ("true nearest", "true first"),
}
"""Changes of a prompt in which count or place favours the right label, and the other label"""


def in_both_conditions(ds: xr.Dataset, kind: str) -> list[xr.DataArray]:
    """Return the logit differences where the right label is favoured, and where the other one is.

    Args:
        ds: Measurement with `logit_difference` over (change, ...).
        kind: Key of CONDITIONS.
    """
    nats = ds["logit_difference"]
    return [nats.sel(change=change, drop=True) for change in CONDITIONS[kind]]


def bias(ds: xr.Dataset, kind: str) -> xr.DataArray:
    """Return the bias of every prompt in nats.

    Args:
        ds: Measurement with `logit_difference` over (change, ...).
        kind: Key of CONDITIONS.
    """
    favoured, other = in_both_conditions(ds, kind)
    return favoured - other


def share_removed(ds: xr.Dataset, kind: str) -> str:
    """Return the share of a bias that a remedy removes, with its interval, as text.

    If the bias is not clearly above zero, the text says so.

        >>> coordinates = {"change": [*CONDITIONS["majority"]], "remedy": ["none", "remedy"]}
        >>> nats = xr.DataArray([[1.0, 1.0], [0.0, 0.5]], coordinates)
        >>> pairs = {name: ("prompt", [*"abcdef"]) for name in intervals.CLUSTERS}
        >>> nats = nats.expand_dims(prompt=6, axis=-1).assign_coords(pairs)
        >>> share_removed(nats.to_dataset(name="logit_difference"), "majority")
        '50% [50%, 50%]'

    Args:
        ds: Measurement with `logit_difference` over (change, remedy, prompt).
        kind: Key of CONDITIONS.
    """
    nats = bias(ds, kind)
    without = nats.sel(remedy="none", drop=True)
    left = nats.sel(remedy="remedy", drop=True)
    size = intervals.mean(without)
    if size.high < 0:
        return "the bias is reversed"
    if not size.low > 0:
        return "the bias is not clear"
    return f"{intervals.ratio(without - left, without):.0%}"
