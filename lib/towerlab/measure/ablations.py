"""What the model answers when sets of heads are ablated, or one head by itself, or attention along
edges. Chapters 6 and 12.

Ablating a head replaces what it feeds to W_O by zero (v1 6.2; EMNLP, table 3).

Knockouts ask where a step is done. Claim 2 of v1 (section 4): shallow layers merge each
demonstration's features into its label position, and the query's into the last position. A label
that may not see its text there loses the class, and the answer with it. The colon between text and
label sees the text too and can hand it on, so it is blocked as well. Attention knockout: Geva et
al. 2023; in halves of the layers, for label words: Wang et al. 2023.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(model="mini-gpt2", blocks=1, k=2, separator="space"))
    >>> two = {"two": [(0, 1), (1, 0)]}
    >>> data = ablations(pipeline.model, pipeline.design.intervention(), two)
    >>> data["head_set"].values.tolist(), data["logit_difference"].dims
    (['none', 'two'], ('head_set', 'prompt'))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor
from twotowers import head_selection
from twotowers.heads import Heads

from towerlab.measure.observations import Tensors, answers_of, observations, read_batches
from towerlab.measure.pipeline import SELECTION, Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import by_increase, present, random_sets
from towerlab.model.attention import block_outputs, restarted
from towerlab.model.capture import answer
from towerlab.model.edits import answers, edited, everywhere, knockout, zero
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompts

Positions = Literal["all", "last"]
"""Where heads are ablated: at all positions, or at the last one only"""
NONE = "none"
"""The set of no heads: the plain run"""
Edges = list[tuple[slice, slice]]
"""(from positions, to positions): every position of the first may attend to none of the second"""


def ablations(model: Model, encoded: Prompts, sets: Mapping[str, Heads]) -> xr.Dataset:
    """Answers with each set of heads ablated at all positions.

    The cost of a set whose lowest head is of layer l of L: about L - l blocks.

    Args:
        sets: name -> heads.

    Returns:
        `log_prob_true`, `log_prob_other`, `logit_difference` (nats) and `says`, over (head_set,
            prompt): `head_set` are the names of `sets` after "none", the plain run.
    """
    runs = {NONE: (), **sets}
    arrays = ablated(model, encoded, list(runs.values()), "all")
    return observations("ablations", encoded, arrays, head_set=list(runs))


def single_ablations(
    model: Model, encoded: Prompts, positions: Positions = "all", first_layer: int = 0
) -> xr.Dataset:
    """What each head alone is worth: nats lost when it is ablated.

    Cost: as many runs as heads, each from its head's layer on.

    Args:
        positions: where heads are ablated.
        first_layer: heads below it are not tried.

    Returns:
        `log_prob_lost` (prompt, layer, head): log-probability of the true label, plain minus
            ablated, and `logit_difference_lost`, the same of the true label's logit minus the
            other's. Above zero the head helps the true label; NaN below `first_layer`.
    """
    shape = model.n_layers, model.n_heads
    heads = [[at] if at[0] >= first_layer else () for at in np.ndindex(shape)]
    answered = ablated(model, encoded, [(), *heads], positions)
    lost = {name: (x[:, :1] - x[:, 1:]).reshape(-1, *shape) for name, x in answered.items()}
    arrays = {
        "log_prob_lost": lost["log_prob_true"],
        "logit_difference_lost": lost["logit_difference"],
    }
    data = observations("singles", encoded, arrays, positions=positions)
    return data.where(data["layer"] >= first_layer)


@torch.inference_mode()
def ablated(
    model: Model, encoded: Prompts, runs: Sequence[Heads], positions: Positions
) -> dict[str, np.ndarray]:
    """Return answers with the heads of each run ablated, over (prompt, run).

    Args:
        model: Any model.
        encoded: Prompts.
        runs: Heads of each run.
        positions: Where heads are ablated.
    """

    def run(_, batch: Prompts) -> Tensors:
        if positions == "last":
            answered = LastPosition(model, batch).answers([zero(heads) for heads in runs])
        else:
            edits = [zero(heads, everywhere(batch)) for heads in runs]
            answered = answers(model, batch, edits)
        return answers_of(batch, *answered)

    return read_batches("ablations", encoded, 1024, run)


TWELVE = 20
"""First heads of either of the two rankings from which the paper's twelve are taken in turn"""


def _singles(pipeline: Pipeline) -> Recipe:
    """Every head zeroed by itself at the last position, on a quarter of the locating blocks (the
    EMNLP version's second list)."""
    design = pipeline.design
    blocks = design.blocks(max(1, pipeline.settings.locate // 4), SELECTION)
    return Recipe(single_ablations, design.encode(blocks), ("last",))


def _ablations(pipeline: Pipeline) -> Recipe:
    """The paper's twelve heads zeroed at all positions, as the EMNLP version does, and random sets
    matched to them."""
    single = pipeline.measured("singles")["log_prob_lost"].mean("prompt")
    heads = head_selection.union(
        by_increase(pipeline, TWELVE), head_selection.top(single, TWELVE), 12
    )
    sets, encoded = {"paper's twelve": heads}, pipeline.design.intervention()
    return Recipe(ablations, encoded, (), sets, random_sets(pipeline, sets))


def labels_to_own_text(encoded: Encoded) -> Edges:
    """Return edges from each label, and all between it and its text, to its text."""
    pairs = zip(encoded.label_positions, encoded.text_spans, strict=True)
    return [(slice(stop, label + 1), slice(start, stop)) for label, (start, stop) in pairs]


EDGES: dict[str, Callable[[Encoded], Edges]] = {
    "labels and colons to own text": labels_to_own_text,
    "last position to query": lambda e: [(slice(e.last, None), slice(*e.query_span))],
}


def closed_edges(
    batch: Prompts, edges: Callable[[Encoded], Edges]
) -> Bool[Tensor, "batch query position"]:
    """Return which attention the edges close, for prompts of one length: see `edits.knockout`."""
    closed = torch.zeros(len(batch), len(batch[0].ids), len(batch[0].ids), dtype=torch.bool)
    for row, encoded in enumerate(batch):
        for begin, end in edges(encoded):
            closed[row, begin, end] = True
    return closed


def default_cuts(n_layers: int) -> list[int]:
    """Seven cuts evenly spaced between the layers, with 0 and `n_layers` besides."""
    return np.unique(np.linspace(0, n_layers, 9).round().astype(int)).tolist()


@torch.inference_mode()
def knockouts(model: Model, encoded: Prompts, cuts: Sequence[int]) -> xr.Dataset:
    """Answers with no attention along each of EDGES in the layers below each cut.

    Cost: a whole run, and for each of the edges one more, and for each cut the layers from it on.

    Args:
        cuts: for a cut l, layers 0 to l - 1 are blocked. The first cut is 0, which blocks nothing;
            one at the number of layers is the full block, the positive control.

    Returns:
        Answers over (edges, cut, prompt).
    """

    def run(_, batch: Prompts) -> Tensors:
        plain, each = answer(model, batch), []
        for maker in EDGES.values():
            each.append(plain)
            below = block_outputs(model, [cut - 1 for cut in cuts[1:]])
            with below as shut, edited(model, knockout(model, closed_edges(batch, maker))):
                answer(model, batch)
            for cut in cuts[1:]:
                with restarted(model, cut, shut[cut - 1]):
                    each.append(answer(model, batch))
        answered = (torch.stack(of) for of in zip(*each, strict=True))
        return answers_of(batch, *(of.unflatten(0, (len(EDGES), len(cuts))) for of in answered))

    arrays = read_batches("knockouts", encoded, 1024, run)
    return observations("knockouts", encoded, arrays, edges=list(EDGES), cut=list(cuts))


def _knockouts(pipeline: Pipeline) -> Recipe:
    """Attention knocked out below cuts spread over the layers, one of them at the layer of the
    first head by writing."""
    sets = present(pipeline.head_sets)
    first = min(layer for layer, _ in sets.get("by writing") or sets["located"])
    cuts = sorted({*default_cuts(pipeline.model.n_layers), first})
    return Recipe(knockouts, pipeline.design.intervention(), (cuts,))
