"""The two towers of one head: its query at the last position and its keys at the label positions, as vectors. Chapter 4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from twotowers.errors import NotTestable
from twotowers.heads import Head, listed
from twotowers.recording import Recording

from towerlab.measure.chain import Run
from towerlab.measure.observations import observations, variables_of
from towerlab.model import query_key
from towerlab.model.capture import Capture, check_labels_left, read_all
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded


def towers(model: Model, encoded: Sequence[Encoded], heads: Sequence[Head]) -> xr.Dataset:
    """`query_vector` (prompt, listed_head, component) and `key_vector` (prompt, listed_head, place, component).

    Both before any rotation to positions. The scaling is part of the query, so their product is the score (nats) as if no
    position were rotated.
    """
    check_labels_left(encoded)
    n, places, d = len(encoded), len(encoded[0].label_positions), model.d_head
    query = np.empty((n, len(heads), d), dtype=np.float32)
    key = np.empty((n, len(heads), places, d), dtype=np.float32)

    def read(capture: Capture) -> None:
        for i, (layer, head) in enumerate(heads):
            x = query_key.normed(model, layer, capture.stream_inputs[layer])
            at = capture.label_positions[:, :, None].expand(-1, -1, x.shape[-1])
            query[capture.index, i] = query_key.queries(model, layer, x[:, -1])[:, head].float().cpu().numpy()
            keys = query_key.keys(model, layer, x.gather(1, at))[:, :, model.value_head(head)]
            key[capture.index, i] = keys.float().cpu().numpy()

    read_all("towers", model, encoded, {"streams"}, read)
    return observations(encoded, variables_of("towers", query_vector=query, key_vector=key), **listed(heads))


def _towers(run: Run) -> Recording:
    """Queries and keys of the head that prefers the query's class most, and of the one that writes most."""
    if not run.sets["by attention"]:
        raise NotTestable("no head attends more to labels of the query's class")
    best = [*run.sets["by attention"][:1], *run.sets["by writing"][:1]]
    return run.in_parts("towers", run.judging(0.5), lambda some: towers(run.model, some, list(dict.fromkeys(best))))
