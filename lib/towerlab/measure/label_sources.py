"""From where a position reads which label it is: attention to some places finds there what the other prompt has. Appendix E.

    measured = label_sources(model, encoded)             # whole blocks of four prompts

`looks` asks which labels a head prefers; where layers are many a label may have been moved before, and is then read
elsewhere. `logit_difference_by_source` (reader, source, prompt): logit difference (true minus other label, nats) of a run in
which all heads of the `reader` (the last position, the query's text, both) find at the `source` the keys and values of the prompt
with the same texts and the two labels exchanged. Sources: labels, colons and texts of demonstrations, the query's text, and all
of them. All else is the prompt's own and responds. Where a reader gets the label from one source alone, the difference turns round.

A look may be at one of those other places as well. `logit_difference_demonstrations_reversed` (reversed_position, prompt) is
`logit_difference_all_reversed` of `looks` with the look at whole demonstrations reversed: at labels, at colons and at texts.
`logit_difference` (prompt) is plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import product

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from towerlab.measure.chain import Run
from towerlab.measure.looks import POSITIONS, labels_stand_as, positions_reversed
from towerlab.measure.observations import observations
from towerlab.measure.registry import measurement
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
def label_sources(model: Model, encoded: Sequence[Encoded], max_tokens: int = 2048) -> xr.Dataset:
    """See the module. Where labels do not stand at the same positions once they are exchanged, `logit_difference_by_source` has
    no number. Cost: 21 runs of whole prompts. Memory: keys, values and attention of `max_tokens` tokens.

    Raises TwoTowersError for blocks that are not whole, and as `heads` on prompts.
    """
    donors = donors_of(encoded)["labels exchanged"]
    plain, n = np.empty(len(encoded)), len(encoded)
    by_source, all_reversed = np.full((len(READERS), len(SOURCES), n), np.nan), np.empty((len(POSITIONS), n))

    def run(index: list[int], batch: list[Encoded]) -> None:
        fits = np.array([labels_stand_as(e, encoded[donors[i]]) for i, e in zip(index, batch, strict=True)])
        others = [encoded[donors[i]] if fit else e for i, e, fit in zip(index, batch, fits, strict=True)]
        donor_parts: dict[int, tuple[Tensor, Tensor]] = {}
        with ExitStack() as stack:
            for layer in range(model.n_layers):
                stack.enter_context(reading_attention(model, layer, partial(_keep, donor_parts, layer)))
            capture(model, others)
        for (row, reader), (column, source) in product(enumerate(READERS), enumerate(SOURCES)):
            with finding(model, donor_parts, _readers(batch, reader), _sources(batch, source)):
                by_source[row, column, index] = np.where(fits, _differences(model, batch), np.nan)
        plain[index], *all_reversed[:, index] = _all_reversed(model, batch)

    run_batches("label sources", encoded, max_tokens, run)
    return observations(
        encoded,
        {
            "logit_difference": (("prompt",), plain, "nats"),
            "logit_difference_by_source": (("reader", "source", "prompt"), by_source, "nats"),
            "logit_difference_demonstrations_reversed": (("reversed_position", "prompt"), all_reversed, "nats"),
        },
        reader=list(READERS), source=list(SOURCES), reversed_position=list(POSITIONS),
    )  # fmt: skip


def _differences(model: Model, batch: Sequence[Encoded]) -> np.ndarray:
    return logit_differences(model, capture(model, batch).resid_final, batch).double().cpu().numpy()


def _all_reversed(model: Model, batch: Sequence[Encoded]) -> list[np.ndarray]:
    """Logit differences (batch) of the plain run, and with the looks of all heads at whole demonstrations reversed at POSITIONS."""
    of_layers: dict[int, Tensor] = {}

    def read(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest) -> None:
        of_layers[layer] = attention_weights(query, key, *rest)
        for part in PARTS:
            of_layers[layer] = reversed_weights(of_layers[layer], places_of(batch, part))

    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.enter_context(reading_attention(model, layer, partial(read, layer)))
        differences = [_differences(model, batch)]
    for at in (_readers(batch, READERS[0]), *positions_reversed(batch)):
        with reversing(model, of_layers, at):
            differences.append(_differences(model, batch))
    return differences


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


@measurement("label_sources", needs=("forms",), version=1, on="few", passes=21)
def _label_sources(run: Run) -> xr.Dataset:
    """At which places the last position and the query's text read which label it is."""
    return run.in_parts("label_sources", run.encode(run.few()), lambda some: label_sources(run.model, some)).data
