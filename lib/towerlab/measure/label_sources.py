"""From where a position reads which label it is: attention to some places finds there what the other prompt has. Appendix E.

    measured = label_sources(model, encoded)             # whole blocks of four prompts

`looks` asks which labels a head prefers; where layers are many a label may have been moved before, and is then read
elsewhere. `logit_difference_by_source` (reader, source, prompt): logit difference (true minus other label, nats) of a run in
which all heads of the `reader` (the last position, the query's text, both) find at the `source` the keys and values of the prompt
with the same texts and the two labels exchanged. Sources: labels, colons and texts of demonstrations, the query's text, and all
of them. All else is the prompt's own and responds. Where a reader gets the label from one source alone, the difference turns round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor
from twotowers.errors import TwoTowersError

from towerlab.measure.looks import donors_of
from towerlab.measure.observations import observations
from towerlab.model.attention_hooks import reading_attention
from towerlab.model.capture import capture
from towerlab.model.hooks import changing_z
from towerlab.model.memory import in_memory
from towerlab.model.model import Model
from towerlab.model.reversal import attention_weights, weighted
from towerlab.model.routes import logit_differences
from towerlab.prompts.prompt import Encoded, batches

READERS = ("last position", "query's text", "both")
SOURCES = ("labels", "colons", "texts", "query's text", "all")
KeysAndValues = Mapping[int, tuple[Tensor, Tensor]]
"""Of every layer"""
Positions = Bool[Tensor, "batch position"]


@torch.inference_mode()
def label_sources(model: Model, encoded: Sequence[Encoded], max_tokens: int = 2048) -> xr.Dataset:
    """See the module. Raises TwoTowersError for blocks that are not whole, and where exchanged labels stand elsewhere."""
    donors = donors_of(encoded)["labels exchanged"]
    if any(one.label_positions != encoded[donor].label_positions for one, donor in zip(encoded, donors, strict=True)):
        raise TwoTowersError("labels differ in their number of tokens: give label pairs of equal length")
    found = np.empty((len(READERS), len(SOURCES), len(encoded)))

    def run(index: list[int], batch: list[Encoded]) -> None:
        theirs: dict[int, tuple[Tensor, Tensor]] = {}
        with ExitStack() as stack:
            for layer in range(model.n_layers):
                stack.enter_context(reading_attention(model, layer, partial(_keep, theirs, layer)))
            capture(model, [encoded[donors[i]] for i in index])
        for row, reader in enumerate(READERS):
            for column, source in enumerate(SOURCES):
                with finding(model, theirs, _readers(batch, reader), _sources(batch, source)):
                    final = capture(model, batch).resid_final
                found[row, column, index] = logit_differences(model, final, batch).double().cpu().numpy()

    for _ in in_memory(run, batches(encoded, max_tokens)):
        pass
    values = {"logit_difference_by_source": (("reader", "source", "prompt"), found, "nats")}
    return observations(encoded, values, reader=list(READERS), source=list(SOURCES))


def _keep(kept: dict[int, tuple[Tensor, Tensor]], layer: int, query: Tensor, key: Tensor, value: Tensor, *_) -> None:
    kept[layer] = key.clone(), value.clone()


def _readers(batch: Sequence[Encoded], reader: str) -> Positions:
    at = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.bool)
    for row, one in enumerate(batch):
        start, stop = one.query_span
        at[row, start : one.last + 1] = reader == "both"
        if reader == "last position":
            at[row, one.last] = True
        elif reader == "query's text":
            at[row, start:stop] = True
    return at


def _sources(batch: Sequence[Encoded], source: str) -> Positions:
    at = torch.zeros(len(batch), len(batch[0].ids), dtype=torch.bool)
    for row, one in enumerate(batch):
        for (start, stop), label in zip(one.text_spans, one.label_positions, strict=True):
            at[row, start:stop] = source in ("texts", "all")
            at[row, stop:label] = source in ("colons", "all")
            at[row, label] = source in ("labels", "all")
        at[row, slice(*one.query_span)] = source in ("query's text", "all")
    return at


@contextmanager
def finding(model: Model, theirs: KeysAndValues, readers: Positions, sources: Positions) -> Iterator[None]:
    """A whole run of one batch in which the `readers` attend to other keys and values at the `sources`."""
    z: dict[int, Tensor] = {}

    def read(layer: int, query: Tensor, key: Tensor, value: Tensor, *rest) -> None:
        at = sources.to(key.device)[:, None, :, None]
        mixed_key, mixed_value = (torch.where(at, new, own) for new, own in zip(theirs[layer], (key, value), strict=True))
        z[layer] = weighted(attention_weights(query, mixed_key, *rest), mixed_value).transpose(1, 2)

    def put(layer: int, own: Float[Tensor, "batch position head d_head"]) -> None:
        own[readers.to(own.device)] = z.pop(layer)[readers.to(own.device)].to(own)

    with ExitStack() as stack:
        for layer in theirs:
            stack.enter_context(reading_attention(model, layer, partial(read, layer)))
        stack.enter_context(changing_z(model, {layer: partial(put, layer) for layer in theirs}))
        yield
