"""Answers with sets of heads ablated, with one head ablated, or with attention knocked out.

Chapters 6 and 12. Ablating a head replaces its input of W_O by zero (v1 6.2; EMNLP, table 3).

Knockouts find the layers in which a step is done. Claim 2 of v1 (section 4): shallow layers merge
each demonstration's features into its label position, and the query's features into the last
position. A label that cannot attend to its text there loses the class, and with it the answer. The
colon between text and label also attends to the text and can pass it on, so it is blocked as well.
Attention knockout: Geva et al. 2023; in halves of the layers, for label words: Wang et al. 2023.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=1, k=2, separator="space"))
    >>> two = {"two": [(0, 1), (1, 0)]}
    >>> data = ablations(pipeline.model, pipeline.design.intervention(), two)
    >>> data["head_set"].values.tolist(), data["logit_difference"].dims
    (['none', 'two'], ('head_set', 'prompt'))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool
from torch import Tensor
from towerlab.measure.design import SELECTION
from towerlab.measure.observations import Tensors, answer_variables, observations, read_batches
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import draw_random_sets, present
from towerlab.model.attention import block_outputs, restarted
from towerlab.model.capture import answer
from towerlab.model.edits import edited, edited_answers, everywhere, knockout, zero_ablate
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompts
from twotowers import head_selection
from twotowers.heads import Heads, HeadSets

Positions = Literal["all", "last"]
"""Positions at which heads are ablated: all positions, or the last position"""
NONE = "none"
"""The set of no heads: the plain run"""
Edges = list[tuple[slice, slice]]
"""(queries, keys): attention from every position of the first to every position of the second is
blocked"""


@torch.inference_mode()
def ablations(
    model: Model, encoded: Prompts, sets: HeadSets, positions: Positions = "all"
) -> xr.Dataset:
    """Compute answers with each set of heads ablated.

    Cost of a set whose lowest head is of layer l of L: about L - l blocks.

    Args:
        model: Any model.
        encoded: Prompts.
        sets: Name -> heads.
        positions: Positions at which heads are ablated, "all" or "last".

    Returns:
        Dataset of `log_prob_true`, `log_prob_other`, `logit_difference` (nats) and `top_answer`,
        over (head_set, prompt). `head_set` are "none", the plain run, and the names of `sets`.
    """
    runs = {NONE: (), **sets}

    def run(_, batch: Prompts) -> Tensors:
        if positions == "last":
            edits = [zero_ablate(heads) for heads in runs.values()]
            last = LastPosition(model, batch)
            return answer_variables(batch, *last.answers(edits))
        edits = [zero_ablate(heads, everywhere(batch)) for heads in runs.values()]
        return answer_variables(batch, *edited_answers(model, batch, edits))

    arrays = read_batches("ablations", encoded, 1024, run)
    return observations("ablations", encoded, arrays, head_set=list(runs))


def single_head_ablations(
    model: Model, encoded: Prompts, positions: Positions = "all", first_layer: int = 0
) -> xr.Dataset:
    """Compute the decrease of the answer (nats) when a single head is ablated, for every head.

    Cost: one run for each head, from the head's layer on.

    Args:
        model: Any model.
        encoded: Prompts.
        positions: Positions at which heads are ablated, "all" or "last".
        first_layer: Lowest layer whose heads are ablated.

    Returns:
        Dataset with these variables. They are positive if the head helps the true label, and NaN
        below `first_layer`.

        - `log_prob_lost` (prompt, layer, head). Log-probability of the true label, plain run minus
          ablated run (nats).
        - `logit_difference_lost` (prompt, layer, head). The true label's logit minus the other
          label's, plain run minus ablated run (nats).
    """
    shape = model.n_layers, model.n_heads
    sets: dict[str, Heads] = {}
    for head in model.all_heads:
        sets[str(head)] = [head] if head.layer >= first_layer else ()
    answered = ablations(model, encoded, sets, positions)
    plain = answered.sel(head_set=NONE)
    lost = plain - answered.sel(head_set=list(sets))  # (prompt, head_set)
    log_prob = lost["log_prob_true"].values
    logit_difference = lost["logit_difference"].values
    arrays = {
        "log_prob_lost": log_prob.reshape(-1, *shape),
        "logit_difference_lost": logit_difference.reshape(-1, *shape),
    }
    data = observations("single_head_ablations", encoded, arrays)
    return data.where(data["layer"] >= first_layer)


N_RANKED = 20
"""Number of first heads of either ranking from which the paper's twelve are taken in turn"""


def recipe_single_head_ablations(pipeline: Pipeline) -> Recipe:
    """Ablate every head alone at the last position, on a quarter of the selection blocks.

    This gives the second list of the EMNLP version.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    design = pipeline.design
    n_blocks = max(1, pipeline.settings.selection_blocks // 4)
    blocks = design.blocks(n_blocks, SELECTION)
    return Recipe(single_head_ablations, design.encode(blocks), ("last",))


def recipe_ablations(pipeline: Pipeline) -> Recipe:
    """Ablate the paper's twelve heads at all positions, and random sets matched to them.

    The EMNLP version does the same.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    lost = pipeline.measured("single_head_ablations")["log_prob_lost"]
    by_ablation = head_selection.top_heads(lost.mean("prompt"), N_RANKED)
    increases = pipeline.measured("selection_increases")
    by_increase = head_selection.by_increase(increases, N_RANKED)
    heads = head_selection.interleave(by_increase, by_ablation, 12)
    sets = {"paper's twelve": heads}
    random = draw_random_sets(pipeline, sets)
    return Recipe(ablations, pipeline.design.intervention(), (), sets, random)


def _to_own_text(e: Encoded) -> Edges:
    """Return the edges from each label, and the tokens between it and its text, to the text."""
    edges = []
    for label, (start, stop) in zip(e.label_positions, e.text_spans, strict=True):
        queries = slice(stop, label + 1)
        text = slice(start, stop)
        edges.append((queries, text))
    return edges


def _to_query(e: Encoded) -> Edges:
    """Return the edges from the last position to the query."""
    last = slice(e.last, None)
    query = slice(*e.query_span)
    return [(last, query)]


EDGES: dict[str, Callable[[Encoded], Edges]] = {
    "labels and colons to own text": _to_own_text,
    "last position to query": _to_query,
}


def closed_edges(
    batch: Prompts, edges: Callable[[Encoded], Edges]
) -> Bool[Tensor, "batch query position"]:
    """Return the attention that some edges block: see `edits.knockout`.

    Args:
        batch: Prompts of one token length.
        edges: Function of a prompt that returns its edges.

    Returns:
        True where attention is blocked (batch, query, position).
    """
    n_prompts = len(batch)
    length = len(batch[0].ids)
    closed = torch.zeros(n_prompts, length, length, dtype=torch.bool)
    for row, e in enumerate(batch):
        for queries, positions in edges(e):
            closed[row, queries, positions] = True
    return closed


def default_cuts(n_layers: int) -> list[int]:
    """Return seven cuts evenly spaced between the layers, and 0 and `n_layers`.

        >>> default_cuts(30), default_cuts(3)
        ([0, 4, 8, 11, 15, 19, 22, 26, 30], [0, 1, 2, 3])

    Args:
        n_layers: Number of layers of the model.

    Returns:
        Cuts in rising order.
    """
    cuts = np.linspace(0, n_layers, 9).round()
    return np.unique(cuts.astype(int)).tolist()


@torch.inference_mode()
def knockouts(model: Model, encoded: Prompts, cuts: Sequence[int]) -> xr.Dataset:
    """Compute answers with attention along each of EDGES blocked in the layers below each cut.

    Cost: a whole run, and for each of the edges one more run, and for each cut the layers from it
    on.

    Args:
        model: Any model.
        encoded: Prompts.
        cuts: Cuts. For a cut l, layers 0 to l - 1 are blocked. The first cut is 0, which blocks
            nothing. A cut at the number of layers is the full block, the positive control.

    Returns:
        Dataset of answers over (edges, cut, prompt).
    """

    def run(_, batch: Prompts) -> Tensors:
        plain = answer(model, batch)
        answered = []
        for edges in EDGES.values():
            answered.append(plain)
            edit = knockout(model, closed_edges(batch, edges))
            below = block_outputs(model, [cut - 1 for cut in cuts[1:]])
            with below as outputs, edited(model, edit):
                answer(model, batch)
            for cut in cuts[1:]:
                with restarted(model, cut, outputs[cut - 1]):
                    answered.append(answer(model, batch))
        tops, log_probs = zip(*answered, strict=True)
        top = torch.stack(tops)
        log_prob = torch.stack(log_probs)
        shape = len(EDGES), len(cuts)
        return answer_variables(batch, top.unflatten(0, shape), log_prob.unflatten(0, shape))

    arrays = read_batches("knockouts", encoded, 1024, run)
    return observations("knockouts", encoded, arrays, edges=list(EDGES), cut=list(cuts))


def recipe_knockouts(pipeline: Pipeline) -> Recipe:
    """Knock out attention below cuts spread over the layers.

    One of the cuts is at the layer of the first head by written logit difference.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        Recipe of the measurement.
    """
    names = "by written logit difference", "by attribution"
    heads, *_ = present(pipeline.head_sets, *names).values()
    lowest = min(heads).layer
    cuts = {*default_cuts(pipeline.model.n_layers), lowest}
    return Recipe(knockouts, pipeline.design.intervention(), (sorted(cuts),))


RECIPES = {
    "single_head_ablations": recipe_single_head_ablations,
    "ablations": recipe_ablations,
    "knockouts": recipe_knockouts,
}
"""Measurement -> function of a pipeline that makes it"""
