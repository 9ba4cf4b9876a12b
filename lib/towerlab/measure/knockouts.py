"""Attention knocked out along edges, in the layers below a cut: by where a step is done. Chapter 6.

    measured = knockouts(model, encoded, default_cuts(model.n_layers))
    measured.sel(edges="labels and colons to own text", cut=18)    # blocked in layers 0 to 17

Claim 2 of v1 (section 4): shallow layers merge each demonstration's features into its label position, and the query's
into the last position. A label that may not see its text there loses the class, and the answer with it. The colon
between text and label sees the text too and can hand it on, so it is blocked as well. Attention knockout: Geva et al.
2023; in halves of the layers, for label words: Wang et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor

from towerlab.measure.chain import Run
from towerlab.measure.observations import answers_of, observations, read_batches
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import present
from towerlab.model.attention import block_outputs, restarted
from towerlab.model.capture import answer
from towerlab.model.edits import edited, knockout
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded

Edges = list[tuple[Iterable[int], Iterable[int]]]
"""(from positions, to positions): every position of the first may attend to none of the second"""


def labels_to_own_text(encoded: Encoded) -> Edges:
    """From each label, and all that stands between it and its text, to its text."""
    pairs = zip(encoded.label_positions, encoded.text_spans, strict=True)
    return [(range(span[1], label + 1), range(*span)) for label, span in pairs]


EDGES: dict[str, Callable[[Encoded], Edges]] = {
    "labels and colons to own text": labels_to_own_text,
    "last position to query": lambda e: [([e.last], range(*e.query_span))],
}


def closed_edges(batch: Sequence[Encoded], edges: Callable[[Encoded], Edges]) -> Bool[Tensor, "batch query position"]:
    """Which attention the edges close, for prompts of one length: see `edits.knockout`."""
    closed = torch.zeros(len(batch), len(batch[0].ids), len(batch[0].ids), dtype=torch.bool)
    for row, encoded in enumerate(batch):
        for begin, end in edges(encoded):
            closed[row][torch.tensor(list(begin))[:, None], torch.tensor(list(end))] = True
    return closed


def default_cuts(n_layers: int, n: int = 7) -> list[int]:
    """n cuts evenly spaced between the layers, with 0 and `n_layers` besides."""
    return np.unique(np.linspace(0, n_layers, n + 2).round().astype(int)).tolist()


@torch.inference_mode()
def knockouts(model: Model, encoded: Sequence[Encoded], cuts: Sequence[int]) -> xr.Dataset:
    """Answers with no attention along each of EDGES in layers 0 to l - 1, for each cut l: (edges, cut, prompt).

    The first cut is 0, which blocks nothing; one at the number of layers is the full block, the positive control. Cost for each of
    the edges: two whole runs, and for each cut one of the layers from it on. Raises TwoTowersError for a position that may not
    attend to itself.
    """

    def run(_, batch: list[Encoded]) -> dict[str, Tensor]:
        each = []
        for maker in EDGES.values():
            each.append(answer(model, batch))
            everywhere = knockout(model, range(model.n_layers), closed_edges(batch, maker))
            with block_outputs(model, [cut - 1 for cut in cuts[1:]]) as shut, edited(model, everywhere):
                answer(model, batch)
            for cut in cuts[1:]:
                with restarted(model, cut, shut[cut - 1]):
                    each.append(answer(model, batch))
        top, log_prob = (torch.stack(of).unflatten(0, (len(EDGES), len(cuts))) for of in zip(*each, strict=True))
        return answers_of(batch, top, log_prob)

    arrays = read_batches("knockouts", encoded, 1024, run)
    return observations("knockouts", encoded, arrays, edges=list(EDGES), cut=list(cuts))


def _knockouts(run: Run) -> Recipe:
    """Attention knocked out below cuts spread over the layers, one of them at the layer of the first head by writing."""
    first = min(layer for layer, _ in present(run.sets).get("by writing") or run.sets["located"])
    cuts = sorted({*default_cuts(run.model.n_layers), first})
    return Recipe(knockouts, run.few(), (cuts,))
