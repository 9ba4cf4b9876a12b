"""From where a position reads which label it is: attention to some places finds there what the other prompt has. Appendix E.

    measured = label_sources(model, encoded)             # whole blocks of four prompts

`looks` asks which labels a head prefers; where layers are many a label may have been moved before, and is then read
elsewhere. `logit_difference_by_source` (reader, source, prompt): logit difference (true minus other label, nats) of a run in
which all heads of the `reader` (the last position, the query's text, both) find at the `source` the keys and values of the prompt
with the same texts and the two labels exchanged. Sources: labels, colons and texts of demonstrations, the query's text, and all
of them. All else is the prompt's own and responds. Where a reader gets the label from one source alone, the difference turns round.

A look may be at one of those other places as well. `logit_difference_demonstrations_reversed` (reversed_position, prompt) is
`logit_difference_all_reversed` of `looks` with the look at whole demonstrations reversed: at labels, at colons and at texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor
from twotowers.errors import TwoTowersError

from towerlab.measure.looks import POSITIONS, positions_reversed
from towerlab.measure.observations import observations
from towerlab.model.attention_hooks import reading_attention
from towerlab.model.capture import capture
from towerlab.model.memory import run_batches
from towerlab.model.model import Model
from towerlab.model.reversal import PARTS, attention_weights, places_of, reversed_weights, reversing, weighted, with_outputs
from towerlab.model.routes import logit_differences
from towerlab.prompts.blocks import donors_of
from towerlab.prompts.prompt import Encoded

READERS = ("last position", "query's text", "both")
SOURCES = ("labels", "colons", "texts", "query's text", "all")
KeysAndValues = Mapping[int, tuple[Tensor, Tensor]]
"""Of every layer"""
Positions = Bool[Tensor, "batch position"]


@torch.inference_mode()
def label_sources(model: Model, encoded: Sequence[Encoded]) -> xr.Dataset:
    """See the module. Raises TwoTowersError for blocks that are not whole, and where exchanged labels stand elsewhere."""
    donors = donors_of(encoded)["labels exchanged"]
    if any(e.label_positions != encoded[donor].label_positions for e, donor in zip(encoded, donors, strict=True)):
        raise TwoTowersError("labels differ in their number of tokens: give label pairs of equal length")
    differences = np.empty((len(READERS), len(SOURCES), len(encoded)))
    all_reversed = np.empty((len(POSITIONS), len(encoded)))

    def run(index: list[int], batch: list[Encoded]) -> None:
        donor_parts: dict[int, tuple[Tensor, Tensor]] = {}
        with ExitStack() as stack:
            for layer in range(model.n_layers):
                stack.enter_context(reading_attention(model, layer, partial(_keep, donor_parts, layer)))
            capture(model, [encoded[donors[i]] for i in index])
        for row, reader in enumerate(READERS):
            for column, source in enumerate(SOURCES):
                with finding(model, donor_parts, _readers(batch, reader), _sources(batch, source)):
                    final = capture(model, batch).resid_final
                differences[row, column, index] = logit_differences(model, final, batch).double().cpu().numpy()
        all_reversed[:, index] = _all_reversed(model, batch)

    run_batches("label sources", encoded, 2048, run)
    values = {
        "logit_difference_by_source": (("reader", "source", "prompt"), differences, "nats"),
        "logit_difference_demonstrations_reversed": (("reversed_position", "prompt"), all_reversed, "nats"),
    }
    return observations(encoded, values, reader=list(READERS), source=list(SOURCES), reversed_position=list(POSITIONS))


def _all_reversed(model: Model, batch: Sequence[Encoded]) -> np.ndarray:
    """Logit differences (reversed_position, batch) with the looks of all heads at whole demonstrations reversed."""
    of_layers: dict[int, Tensor] = {}

    def read(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest) -> None:
        weights = attention_weights(query, key, *rest)
        for part in PARTS:
            weights = reversed_weights(weights, places_of(batch, part))
        of_layers[layer] = weights

    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.enter_context(reading_attention(model, layer, partial(read, layer)))
        capture(model, batch)
    last = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.bool)
    last[:, batch[0].last] = True
    rows = []
    for at in (last, *positions_reversed(batch)):
        with reversing(model, of_layers, at):
            rows.append(logit_differences(model, capture(model, batch).resid_final, batch).double().cpu().numpy())
    return np.stack(rows)


def _keep(parts: dict[int, tuple[Tensor, Tensor]], layer: int, query: Tensor, key: Tensor, value: Tensor, *_) -> None:
    parts[layer] = key.clone(), value.clone()


def _readers(batch: Sequence[Encoded], reader: str) -> Positions:
    at = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.bool)
    for row, e in enumerate(batch):
        start, stop = e.query_span
        at[row, start : e.last + 1] = reader == "both"
        if reader == "last position":
            at[row, e.last] = True
        elif reader == "query's text":
            at[row, start:stop] = True
    return at


def _sources(batch: Sequence[Encoded], source: str) -> Positions:
    at = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.bool)
    for part in PARTS:
        if source in (part, "all"):
            at |= torch.stack([*places_of(batch, part)]).any(0)
    for row, e in enumerate(batch):
        at[row, slice(*e.query_span)] = source in ("query's text", "all")
    return at


def finding(model: Model, donor_parts: KeysAndValues, readers: Positions, sources: Positions) -> AbstractContextManager[None]:
    """A whole run of one batch in which the `readers` attend to other keys and values at the `sources`."""

    def output(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest) -> Float[Tensor, "batch head position d_head"]:
        at = sources.to(key.device)[:, None, :, None]
        mixed_key, mixed_value = (torch.where(at, new, own) for new, own in zip(donor_parts[layer], (key, value), strict=True))
        return weighted(attention_weights(query, mixed_key, *rest), mixed_value)

    return with_outputs(model, donor_parts, output, readers)
