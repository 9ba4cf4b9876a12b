"""Effects of every head by itself, its attention difference, and the routes of its effect.

Chapter 12. No set of heads and no threshold is used here. The prompts of a block are donors for one
another. For prompt i, *labels exchanged* is the prompt with the same texts in the same order and
the two labels exchanged. *Texts exchanged* has the demonstrations of the two classes in each
other's places, and the same right answer.

    >>> from twotowers.settings import Settings
    >>> pipeline = Pipeline(Settings(evaluation_blocks=1, k=2, separator="space"))
    >>> data = single_head_effects(pipeline.model, pipeline.design.intervention())
    >>> own, exchanged = data["attention_difference"]             # by the origin of the query
    >>> text_part, label_part = (own + exchanged) / 2, (own - exchanged) / 2
    >>> data["effect"].dims
    ('contrast', 'prompt', 'layer', 'head')
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor
from towerlab.measure.observations import (
    Tensors,
    answer_variables,
    observations,
    plain_z,
    read_batches,
)
from towerlab.measure.pipeline import Pipeline
from towerlab.measure.recipe import Recipe
from towerlab.model.attention import Attention, Weights, reading_attention
from towerlab.model.edits import UNCHANGED, edited_answers, patch_z, set_attention
from towerlab.model.label_attention import Places, attention_difference, places_of, swapped_weights
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.model.routes import Route, message, routed
from towerlab.model.unembed import logit_differences
from towerlab.prompts.blocks import DONORS, donors_of
from towerlab.prompts.prompt import Prompts
from twotowers import head_selection
from twotowers.heads import Heads

CONTRASTS = ("attention swapped", *list(DONORS)[:2])
POSITIONS = ["last position", "query's text", "from the query's text on", "every position"]
QUERIES = ["own", "labels exchanged"]
SENDERS = 8
"""Number of heads whose routes are measured"""
ROUTES = {
    "direct": Route(output=True, queries=False, mlps=False),
    "later queries": Route(output=False, queries=True, mlps=False),
    "MLPs": Route(output=False, queries=False, mlps=True),
    "all": Route(output=True, queries=True, mlps=True),
}


@torch.inference_mode()
def single_head_effects(
    model: Model, encoded: Prompts, contrasts: Sequence[str] = CONTRASTS
) -> xr.Dataset:
    """Compute the attention difference and the effects of each head, and of all heads together.

    Cost: eight runs of whole prompts, and for every head and contrast a run of the last position
    from the head's layer up. Memory: keys, values and attention of 2,048 tokens, and inputs of W_O
    of all heads at the last position of all prompts.

    Args:
        model: Any model.
        encoded: Prompts of whole blocks, four for each block.
        contrasts: The first of CONTRASTS, or more of them.

    Returns:
        Dataset of the plain `logit_difference` (prompt), and of these variables.

        - `attention_difference` (query_source, prompt, layer, head). Attention on labels of the
          query's class minus attention on the other labels, with the prompt's own query and with
          that of the prompt with exchanged labels; keys are the prompt's own. A query that depends
          only on the query's text keeps the difference (text part). A query that depends on the
          label of the coming answer reverses it (label part). NaN if labels are not at the same
          positions after the exchange.
        - `effect` (contrast, prompt, layer, head). Logit difference (true minus other label, nats)
          of the plain run minus that under one edit of one head at the last position, so positive
          towards the other label. "attention swapped": the head's sums of attention on the two
          classes' labels are exchanged, values do not change (`label_attention`). "labels
          exchanged", "texts exchanged": the head's input of W_O is that of the other prompt, which
          differs in the label or in the place. All later layers respond.
        - `direct_effect` (contrast, prompt, layer, head). The same effect with everything else held
          at the plain run, so that only the output of the head itself reaches the final norm, which
          is recomputed.
        - `logit_difference_all_swapped` (swapped_position, prompt). Logit difference with the
          attention of all heads swapped together, at the positions of POSITIONS. Each head has the
          weights of the plain run, swapped; values come from the current run.
    """
    z = plain_z(model, encoded)
    donors = donors_of(encoded)

    def run(index: list[int], batch: Prompts) -> Tensors:
        places = places_of(batch)
        last, swapped = _run_and_swap(model, batch, places)
        donated = []
        for contrast in contrasts[1:]:
            of_donors = z[donors[contrast]][index]
            donated.append(dict(enumerate(of_donors.unbind(1))))
        edits = [set_attention(model.all_heads, swapped, mask) for mask in _masks(batch)]
        all_swapped = answer_variables(batch, *edited_answers(model, batch, edits))
        partners = [encoded[donors[CONTRASTS[1]][i]] for i in index]
        return {
            **_effects_alone(last, swapped, donated),
            "logit_difference_all_swapped": all_swapped["logit_difference"],
            "attention_difference": _by_query_source(last, partners, places),
        }

    arrays = read_batches("head_effects", encoded, 2048, run)
    return observations(
        "head_effects",
        encoded,
        arrays,
        query_source=QUERIES,
        contrast=list(contrasts),
        swapped_position=POSITIONS,
    )


def _run_and_swap(
    model: Model, batch: Prompts, places: Places
) -> tuple[LastPosition, dict[int, Weights]]:
    """Return the plain run, and swapped attention of all positions by layer."""
    swapped: dict[int, Weights] = {}

    def read(layer: int, attention: Attention, _) -> None:
        swapped[layer] = swapped_weights(attention.weights(), places)

    with reading_attention(model, range(model.n_layers), read):
        last = LastPosition(model, batch)
    return last, swapped


def _effects_alone(
    last: LastPosition, swapped: dict[int, Weights], donated: Sequence[dict[int, Tensor]]
) -> Tensors:
    """Return the effects of each head: with swapped attention, and with each donated z."""
    model = last.model
    edits = [UNCHANGED]  # the plain run
    edits += [set_attention([head], swapped) for head in model.all_heads]
    for z in donated:
        edits += [patch_z([head], z) for head in model.all_heads]
    differences = last.logit_differences(edits)
    # The change by each head in the final stream, with all else as in the plain run.
    messages = [message(last, edit, edit.first_layer)[:, 0] for edit in edits]
    final = last.capture.resid_final + torch.stack(messages)
    direct = logit_differences(model, final, last.batch)
    shape = 1 + len(donated), model.n_layers, model.n_heads
    return {
        "logit_difference": differences[0],
        "effect": _effects(differences, shape),
        "direct_effect": _effects(direct, shape),
    }


def _by_query_source(
    last: LastPosition, partners: Prompts, places: Places
) -> Float[Tensor, "batch source layer head"]:
    """Return the attention differences with each prompt's own query, and with its partner's."""
    unchanged = _attention_differences(last, last, places)
    sources = []
    has_partner = []
    for e, partner in zip(last.batch, partners, strict=True):
        is_usable = e.places == partner.places
        has_partner.append(is_usable)
        # A prompt without a partner is its own, and its result is left out.
        sources.append(partner if is_usable else e)
    exchanged = _attention_differences(last, LastPosition(last.model, sources), places)
    exchanged[~torch.tensor(has_partner)] = torch.nan
    return torch.stack([unchanged, exchanged], 1)


@torch.inference_mode()
def path_effects(model: Model, encoded: Prompts, heads: Heads) -> xr.Dataset:
    """Compute the effect of each head by each route.

    Args:
        model: Any model.
        encoded: Prompts of whole blocks, four for each block.
        heads: Heads that send.

    Returns:
        Dataset of `effect_by_route` (route, sender, prompt), with coordinates `sender_layer` and
        `sender_head`. These are effects of "labels exchanged" (nats) if the head's output is read
        only by the final norm ("direct"), only by the attention of later layers ("later queries",
        with the last position's own key and value), only by MLPs, or by all of them: see
        `model.routes`.
    """
    donors = donors_of(encoded)[CONTRASTS[1]]
    z = plain_z(model, encoded)[donors]

    def run(index: list[int], batch: Prompts) -> Tensors:
        last = LastPosition(model, batch)
        donated = dict(enumerate(z[index].unbind(1)))
        versions = [
            (patch_z([head], donated), route) for route in ROUTES.values() for head in heads
        ]
        # The first version is the plain run.
        final = routed(last, [(UNCHANGED, ROUTES["all"]), *versions])
        differences = logit_differences(model, final, batch)
        return {"effect_by_route": _effects(differences, (len(ROUTES), len(heads)))}

    arrays = read_batches("path_effects", encoded, 2048, run)
    layer, number = np.reshape(heads, (-1, 2)).astype(int).T
    return observations(
        "head_effects",
        encoded,
        arrays,
        route=list(ROUTES),
        sender_layer=("sender", layer),
        sender_head=("sender", number),
    )


def _attention_differences(
    last: LastPosition, other: LastPosition, places: Places
) -> Float[Tensor, "batch layer head"]:
    """Return the attention differences of the last position with the queries of another run."""
    layers = []
    for layer, state in last.plain.items():
        query = other.plain[layer].attention.query
        weights = state.attention._replace(query=query).weights()
        differences = attention_difference(weights, places)[..., 0]
        layers.append(differences.double().cpu())
    return torch.stack(layers, 1)


def _effects(
    differences: Float[Tensor, "version batch"], shape: tuple[int, ...]
) -> Float[Tensor, "batch ..."]:
    """Return the decrease of the logit difference by each version, compared with the first."""
    plain = differences[0]
    effects = plain - differences[1:]
    return effects.T.unflatten(1, shape)


def _masks(batch: Prompts) -> Bool[Tensor, "set batch position"]:
    """Return a mask for each of POSITIONS."""
    position = torch.arange(len(batch[0].ids))
    start, stop = torch.tensor([e.query_span for e in batch]).T[..., None]
    from_query = position >= start
    in_query = from_query & (position < stop)
    is_last = position == batch[0].last
    everywhere = position >= 0
    masks = is_last, in_query, from_query, everywhere
    return torch.stack(torch.broadcast_tensors(*masks))


def recipe_head_effects(pipeline: Pipeline) -> xr.Dataset:
    """Measure the attention difference, the effects and the routes of every head by itself.

    The effect of all heads together is also measured. Sentences are long, so on sentences only
    swapped attention is measured, and no routes.

    Args:
        pipeline: Pipeline of the model.

    Returns:
        The measurement.
    """
    is_words = pipeline.settings.suite == "words"
    encoded = pipeline.design.intervention()
    contrasts = CONTRASTS if is_words else CONTRASTS[:1]
    recipe = Recipe(single_head_effects, encoded, (contrasts,))
    alone = pipeline.run("head_effects", recipe)
    senders = head_selection.by_effect(alone, SENDERS, either_sign=True) if is_words else []
    recipe = Recipe(path_effects, encoded, (senders,))
    by_route = pipeline.run("head_effects", recipe)
    return alone.assign(by_route)


RECIPES = {"head_effects": recipe_head_effects}
"""Measurement -> function of a pipeline that makes it"""
