"""Rules of chapters 8 and 9: whether heads write the labels of sentences, and attend to them.

    >>> right_and_other = [[[0.4, 0.4, 0.04, 0.9]], [[0.2, 0.21, 0.0, 0.0]]]  # of four heads
    >>> sums = xr.DataArray(right_and_other, {"label": LABELS}, ["label", *SETS_AND_HEADS])
    >>> share_that_attends(sums).item()  # the first and the last
    0.5

A rule is a share of sets of sentences.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from twotowers import intervals
from twotowers.paper_results import LABELS

SETS_AND_HEADS = ("class_pair", "selected_head")
LARGE_RANK = 10  # times the mean reciprocal rank in heads that are in no list
LARGE_ATTENTION = 0.05


def at_labels(ds: xr.Dataset, ranks: xr.Dataset) -> xr.DataArray:
    """Return reciprocal ranks and OV logit differences of heads at foo and at bar.

    Args:
        ds: Measurement `paper` on sentences.
        ranks: Measurement `paper_ranks` on the same sentences.

    Returns:
        Means over labels, (quantity, kind, class_pair, prompt, selected_head). The quantities are
            "rank" and "nats", the kinds right and other labels, which are foo and bar.
    """
    reciprocal_rank = 1 / ranks.own_rank
    quantities = xr.Dataset({"rank": reciprocal_rank, "nats": ds.ov_logit_difference})
    both = quantities.to_dataarray("quantity")
    means = []
    for is_of_kind in (ds.is_true_label, ~ds.is_true_label):
        of_kind = both.where(is_of_kind)
        means.append(of_kind.mean("demonstration"))
    by_kind = xr.concat(means, "kind")
    return intervals.stack(by_kind)


def usual_rank(values: xr.DataArray, heads: np.ndarray) -> xr.DataArray:
    """Return the geometric mean over some heads of the mean reciprocal ranks.

    Args:
        values: Result of `at_labels`.
        heads: Names of heads that are in no list.
    """
    ranks = values.sel(quantity="rank").mean("prompt")
    ranks = ranks.sel(selected_head=heads)
    logarithms = xr.apply_ufunc(np.log, ranks)
    return np.exp(logarithms.mean("selected_head"))


def relative_to(values: xr.DataArray, usual: xr.DataArray) -> xr.DataArray:
    """Return values whose reciprocal ranks are divided by the usual rank.

    Args:
        values: Result of `at_labels`.
        usual: Result of `usual_rank`.
    """
    ranks = values.sel(quantity=["rank"])
    nats = values.sel(quantity=["nats"])
    relative = ranks / usual
    return xr.concat([relative, nats], "quantity")


def share_that_reads(values: xr.DataArray) -> xr.DataArray:
    """Return in how many sets heads rank both labels high and raise each label at its positions.

    Args:
        values: Result of `relative_to`, mean over prompts.
    """
    is_high = values.sel(quantity="rank") >= LARGE_RANK
    is_towards = values.sel(quantity="nats") > 0
    reads = (is_high & is_towards).all("kind")
    return reads.mean(SETS_AND_HEADS)


def share_that_attends(attention: xr.DataArray) -> xr.DataArray:
    """Return in how many sets heads attend to right labels, and twice as much as to other ones.

    Args:
        attention: Sums over labels of a kind, mean over prompts, (label, class_pair,
            selected_head).
    """
    true, false = (attention.sel(label=label) for label in LABELS)
    is_twice = true >= 2 * false
    is_large = true >= LARGE_ATTENTION
    attends = is_twice & is_large
    return attends.mean(SETS_AND_HEADS)
