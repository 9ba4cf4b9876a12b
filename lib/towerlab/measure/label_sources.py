"""Where the last position finds which label it is, and where it is told at which place to look. Appendix E.

    measured = label_sources(model, encoded)             # whole blocks of four prompts

`looks` asks which labels a head prefers; where layers are many, label or match may have been moved to another position before.
`logit_difference_by_source` (contrast, reader, source, prompt): logit difference (true minus other label, nats) of a run in
which all heads of the `reader` (the last position, the query's text) find at the `source` the keys and values of another prompt:
that with the two labels exchanged, or with texts exchanged, whose demonstrations of the two classes are in each other's
places, so that the right answer is the same. Sources: labels, colons and texts of demonstrations, the query's text, and all of
them. All else is the prompt's own and responds. What tells the reader *which label* turns the difference round with labels
exchanged, what tells it *at which place* with texts exchanged, and a source of what class the query is with neither.

A look may be at one of those other places as well, and the label that stands at a text or colon may be that of its own
demonstration, predicted, or the one before. So:

- `logit_difference_stretches_reversed` (stretch, reversed_position, prompt): `logit_difference_all_reversed` of `looks` with looks
  at labels, at colons and at texts reversed. Stretches: a demonstration's text and colon count with its own label, or with the
  label before.
- `effect_by_demonstration` (of_class, after_class, prompt): logit difference of the plain run minus that of one in which the last
  position finds texts and colons of the other prompt at some demonstrations: those of the query's or the other class that follow
  one of the query's or the other class. No number where a prompt has no such demonstration.

`logit_difference` (prompt) is plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from towerlab.measure.chain import Run
from towerlab.measure.looks import POSITIONS, labels_stand_as, positions_reversed
from towerlab.measure.observations import observations, variables_of
from towerlab.model.attention_hooks import reading_all
from towerlab.model.capture import capture
from towerlab.model.memory import run_batches
from towerlab.model.model import Model
from towerlab.model.reversal import PARTS, attention_weights, places_of, reversed_weights, reversing, weighted, with_outputs
from towerlab.model.routes import logit_differences
from towerlab.prompts.blocks import DONORS, donors_of
from towerlab.prompts.prompt import Encoded

QUERY = "query's text"
READERS = ("last position", QUERY)
EXCHANGED = DONORS[:2]
SOURCES = ("labels", "colons", "texts", QUERY, "all")
STRETCHES = ("before and at a label", "at and after a label")
CLASSES = ("query's", "other")
KeysAndValues = Mapping[int, tuple[Tensor, Tensor]]
"""Of every layer"""
Positions = Bool[Tensor, "batch position"]


@torch.inference_mode()
def label_sources(model: Model, encoded: Sequence[Encoded], max_tokens: int = 2048) -> xr.Dataset:
    """See the module. Where a source stands elsewhere in the other prompt, there is no number; texts and colons are taken to
    stand as their labels do. Cost: 36 runs of whole prompts. Memory: keys, values and attention of `max_tokens` tokens.

    Raises TwoTowersError for blocks that are not whole, and as `heads` on prompts.
    """
    donors = donors_of(encoded)
    n, plain = len(encoded), np.empty(len(encoded))
    by_source = np.full((len(EXCHANGED), len(READERS), len(SOURCES), n), np.nan)
    of_stretches = np.empty((len(STRETCHES), len(POSITIONS), n))
    by_demonstration = np.full((len(CLASSES), len(CLASSES), n), np.nan)

    def run(index: list[int], batch: list[Encoded]) -> None:
        plain[index], of_stretches[..., index] = _stretches_reversed(model, batch)
        for number, contrast in enumerate(EXCHANGED):
            answered = partial(_with_parts_of, model, batch, [encoded[donors[contrast][i]] for i in index])
            sources = [(reader, source_positions(batch, source), source == QUERY) for reader in READERS for source in SOURCES]
            by_source[number][..., index] = answered(sources).reshape(len(READERS), len(SOURCES), -1)
            if number == 0:
                at = [_demonstrations(batch, *of) for of in np.ndindex(by_demonstration.shape[:2])]
                effects = plain[index] - answered([(READERS[0], some, False) for some in at])
                effects = np.where(torch.stack(at).any(2).numpy(), effects, np.nan)
                by_demonstration[..., index] = effects.reshape(len(CLASSES), len(CLASSES), -1)

    run_batches("label sources", encoded, max_tokens, run)
    variables = variables_of(
        "label_sources", logit_difference=plain, logit_difference_by_source=by_source,
        logit_difference_stretches_reversed=of_stretches, effect_by_demonstration=by_demonstration,
    )  # fmt: skip
    return observations(
        encoded, variables, contrast=list(EXCHANGED), reader=list(READERS), source=list(SOURCES), stretch=list(STRETCHES),
        reversed_position=list(POSITIONS), of_class=list(CLASSES), after_class=list(CLASSES),
    )  # fmt: skip


def differences(model: Model, batch: Sequence[Encoded]) -> np.ndarray:
    """Logit differences (batch,) of a run of prompts of one length, under whatever edit is in force."""
    return logit_differences(model, capture(model, batch).resid_final, batch).double().cpu().numpy()


def _stretches_reversed(model: Model, batch: Sequence[Encoded]) -> tuple[np.ndarray, np.ndarray]:
    """Logit differences, plain (batch) and with the looks of all heads at stretches reversed (stretch, position, batch)."""
    plain_weights: dict[int, Tensor] = {}

    def read(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest) -> None:
        plain_weights[layer] = attention_weights(query, key, *rest)

    with reading_all(model, read):
        plain = differences(model, batch)
    at = reader_positions(batch, READERS[0]), *positions_reversed(batch)
    out = np.empty((len(STRETCHES), len(at), len(batch)))
    for row, after in enumerate((False, True)):
        places = [places_of(batch, part, after) for part in PARTS]
        of_layers = {layer: reduce(reversed_weights, places, weights) for layer, weights in plain_weights.items()}
        for column, positions in enumerate(at):
            with reversing(model, of_layers, positions):
                out[row, column] = differences(model, batch)
    return plain, out


def _with_parts_of(
    model: Model, batch: Sequence[Encoded], others: Sequence[Encoded], versions: Sequence[tuple[str, Positions, bool]]
) -> np.ndarray:
    """Logit differences (version, batch) where a reader finds at some positions the keys and values of the other prompts. No
    number where these stand elsewhere; a version says whether it is enough that the query stands at the same place."""
    pairs = list(zip(batch, others, strict=True))
    whole = np.array([labels_stand_as(e, other) for e, other in pairs])
    ends = np.array([(e.query_span, e.last) == (other.query_span, other.last) for e, other in pairs])
    parts = keys_and_values(model, [other if fit else e for (e, other), fit in zip(pairs, ends, strict=True)])
    out = np.empty((len(versions), len(batch)))
    for row, (reader, positions, of_query) in enumerate(versions):
        with finding(model, parts, reader_positions(batch, reader), positions):
            out[row] = np.where(ends if of_query else whole, differences(model, batch), np.nan)
    return out


def keys_and_values(model: Model, batch: Sequence[Encoded]) -> KeysAndValues:
    """Those of all heads in a plain run of prompts of one length."""
    parts: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(layer: int, query: Tensor, key: Tensor, value: Tensor, *_) -> None:
        parts[layer] = key.clone(), value.clone()

    with reading_all(model, keep):
        capture(model, batch)
    return parts


def reader_positions(batch: Sequence[Encoded], reader: str) -> Positions:
    """Those of one of READERS."""
    at = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.bool)
    for row, e in enumerate(batch):
        start, stop = e.query_span
        at[row, e.last] = reader == "last position"
        at[row, start:stop] = reader == QUERY
    return at


def source_positions(batch: Sequence[Encoded], source: str) -> Positions:
    """Those of one of SOURCES."""
    at = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.bool)
    for part in PARTS:
        if source in (part, "all"):
            at |= torch.stack([*places_of(batch, part)]).any(0)
    for row, e in enumerate(batch):
        at[row, slice(*e.query_span)] = source in (QUERY, "all")
    return at


def _demonstrations(batch: Sequence[Encoded], of_class: int, after_class: int) -> Positions:
    """Texts and colons of the demonstrations of one of CLASSES that follow one of CLASSES."""
    both = [places_of(batch, part)[of_class] & places_of(batch, part, after=True)[after_class] for part in PARTS[1:]]
    return both[0] | both[1]


def finding(model: Model, donor_parts: KeysAndValues, readers: Positions, sources: Positions) -> AbstractContextManager[None]:
    """A whole run of one batch in which the `readers` attend to other keys and values at the `sources`."""

    def output(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest) -> Float[Tensor, "batch head position d_head"]:
        at = sources.to(key.device)[:, None, :, None]
        mixed_key, mixed_value = (torch.where(at, new, own) for new, own in zip(donor_parts[layer], (key, value), strict=True))
        return weighted(attention_weights(query, mixed_key, *rest), mixed_value)

    return with_outputs(model, donor_parts, output, readers)


def _label_sources(run: Run) -> xr.Dataset:
    """Where the last position and the query's text read which label it is, and at which place it stands."""
    return run.in_parts("label_sources", run.encode(run.few()), lambda some: label_sources(run.model, some)).data
