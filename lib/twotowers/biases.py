"""The two biases of chapters 5 and 7: towards the more frequent label, and towards the nearest one.

>>> changes = ["one other fewer", "one true fewer"]
>>> measured = xr.Dataset({"logit_difference": ("change", [1.5, -0.5])}, {"change": changes})
>>> bias(measured, "majority").item()
2.0
"""

from __future__ import annotations

import xarray as xr

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
