"""What every head asks, sends and does, and which way it goes: no set of heads, no threshold. Chapter 12.

    measured = looks(model, encoded)                     # whole blocks of four prompts
    own, other = (measured.preference.sel(query_of=prompt) for prompt in QUERIES)
    text_part, label_part = (own + other) / 2, (own - other) / 2

The prompts of a block are donors for one another. For prompt i, *labels exchanged* is the prompt with the same texts in
the same order and the two labels exchanged; *texts exchanged* has the demonstrations of the two classes in each other's
places, and the same right answer; *both exchanged* is both.

**What its query asks for.** `preference` (query_of, query_position, prompt, layer, head): attention on labels of the query's
class minus that on the others, with the prompt's own query and with that of the prompt with exchanged labels; keys are the
prompt's own. A query that knows the query's text alone keeps its preference (text part); one that asks for the label that is
about to be said turns round (label part). Taking the keys instead says the same: with the keys of the other prompt and its
own query prompt i has the preference that the other prompt has with the query of i, and with query and keys of the other
prompt it has that prompt's preference. So both parts by keys are those by queries, the two prompts in each other's stead.

**What it does.** `effect` (contrast, prompt, layer, head): logit difference (true minus other label, nats) of the plain run
minus that under one edit of one head at the last position, so towards the other label. *reversed*: its preference is
reversed, values stay (`model.edits`); *labels exchanged*, *texts exchanged*: what it feeds to W_O is that of the other
prompt: which label, which place. All that comes later responds. `direct_effect`: the same
with all else held at the plain run, so that only what the head itself writes reaches the final norm, which is recomputed.

**Which way it goes.** For the heads with the largest effect (the absolute mean over these prompts of *reversed*), each by
itself, `effect_by_route` (contrast, output, queries, mlps, sender, prompt): effects where what it writes is read (1) or not
(0) by the final norm (`output`), by the attention of later layers (`queries`, with the last position's own key and value)
and by MLPs: see `model.routes`. Coordinates `sender_layer`, `sender_head`.

**How much is accounted for.** `logit_difference_all_reversed` (reversed_position, prompt): logit difference with the
preferences of all heads reversed at once, at the last position, in the query's text, in both (from the query's text to the
end), and at every position. Each has the weights of the plain run, reversed; values are those of the run.
`logit_difference` (prompt) is plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor
from twotowers.heads import Head

from towerlab.measure.chain import Run
from towerlab.measure.observations import observations, variables_of
from towerlab.model.attention import Attention, reading_all
from towerlab.model.capture import capture, check_labels_left, plain_z
from towerlab.model.edits import UNCHANGED, Weights, attend, edited, feed, places_of, preference, reversed_weights
from towerlab.model.last_position import LastPosition
from towerlab.model.memory import run_batches
from towerlab.model.model import Model
from towerlab.model.routes import Route, attention_block_output, logit_differences, routed
from towerlab.prompts.blocks import DONORS, donors_of
from towerlab.prompts.prompt import Encoded

Outputs = Mapping[int, Float[Tensor, "batch head d_head"]]
"""Layer -> what all its heads feed to W_O at the last position"""
CONTRASTS = ("reversed", *DONORS[:2])
POSITIONS = ("last position", "query's text", "from the query's text on", "every position")
QUERIES = ("own", "labels exchanged")
SENDERS = 8
"""Heads whose ways are followed"""
ROUTES = [Route(*route) for route in product((False, True), repeat=3)]


def looks(
    model: Model, encoded: Sequence[Encoded], contrasts: Sequence[str] = CONTRASTS, senders: int = SENDERS, max_tokens: int = 2048
) -> xr.Dataset:
    """See the module. `contrasts`: "reversed", and others of CONTRASTS; `senders`: how many heads' ways are followed.

    Raises TwoTowersError for blocks that are not whole, and as `heads` on prompts.
    """
    alone = one_by_one(model, encoded, contrasts, max_tokens)
    return alone.assign(ways(model, encoded, contrasts, strongest(alone, senders), max_tokens))


@torch.inference_mode()
def one_by_one(model: Model, encoded: Sequence[Encoded], contrasts: Sequence[str], max_tokens: int = 2048) -> xr.Dataset:
    """All of `looks` but the ways.

    Where labels do not stand at the same positions once they are exchanged, `preference` has no number for the other
    prompt's query. Cost: eight runs of whole prompts, and for every head and contrast a run of the last position from the
    head's layer up. Memory: keys, values and attention of `max_tokens` tokens, and what all heads feed to W_O at the last
    position of all prompts.
    """
    check_labels_left(encoded)
    donors = donors_of(encoded)
    preferences = _preferences(model, encoded, donors[CONTRASTS[1]], max_tokens)
    z_of = partial(_z_of, donors, plain_z(model, encoded, max_tokens))
    plain, everywhere, effect, direct = _effects(model, encoded, contrasts, z_of, max_tokens)
    variables = variables_of(
        "looks", logit_difference=plain, preference=preferences, effect=effect, direct_effect=direct,
        logit_difference_all_reversed=everywhere,
    )  # fmt: skip
    return observations(
        encoded, variables, query_of=list(QUERIES), query_position=[POSITIONS[0]], contrast=list(contrasts),
        reversed_position=list(POSITIONS), layer=range(model.n_layers), head=range(model.n_heads),
    )  # fmt: skip


def strongest(alone: xr.Dataset, n: int) -> list[Head]:
    """The heads with the largest effect of *reversed*, by its absolute mean over prompts."""
    mean = alone["effect"].sel(contrast=CONTRASTS[0]).mean("prompt").values
    return [Head(*divmod(int(i), mean.shape[1])) for i in np.argsort(-abs(mean), axis=None, kind="stable")[:n]]


@torch.inference_mode()
def ways(
    model: Model, encoded: Sequence[Encoded], contrasts: Sequence[str], heads: Sequence[Head], max_tokens: int = 2048
) -> xr.Dataset:
    """Which way the effects of some heads go."""
    z_of = partial(_z_of, donors_of(encoded), plain_z(model, encoded, max_tokens))
    effects = _effects_by_route(model, encoded, contrasts, heads, z_of, max_tokens)
    return observations(
        encoded, variables_of("looks", effect_by_route=effects),
        contrast=list(contrasts), output=[0, 1], queries=[0, 1], mlps=[0, 1],
        sender_layer=("sender", [layer for layer, _ in heads]), sender_head=("sender", [head for _, head in heads]),
    )  # fmt: skip


def _preferences(model: Model, encoded: Sequence[Encoded], donors: Sequence[int], max_tokens: int) -> np.ndarray:
    """Preferences of the last position (query_of, 1, prompt, layer, head)."""
    preferences = np.full((len(QUERIES), 1, len(encoded), model.n_layers, model.n_heads), np.nan)

    def run(index: list[int], batch: list[Encoded]) -> None:
        fits = [labels_stand_as(e, encoded[donors[i]]) for i, e in zip(index, batch, strict=True)]
        others = [encoded[donors[i]] if fit else e for i, e, fit in zip(index, batch, fits, strict=True)]
        places = places_of(batch)
        donor_queries: dict[int, Tensor] = {}

        def keep(layer: int, attention: Attention) -> None:
            donor_queries[layer] = attention.last().query.clone()

        def read(layer: int, attention: Attention) -> None:
            own = attention.last()
            for row, one in enumerate((own, own._replace(query=donor_queries.pop(layer)))):
                of_last = preference(one.weights(), places).double().cpu().numpy()
                for b, i in enumerate(index):
                    if one is own or fits[b]:
                        preferences[row, 0, i, layer] = of_last[b, :, 0]

        with reading_all(model, keep):
            capture(model, others)
        with reading_all(model, read):
            capture(model, batch)

    run_batches("preferences", encoded, max_tokens, run)
    return preferences


def labels_stand_as(e: Encoded, other: Encoded) -> bool:
    """Whether both prompts have their labels, their query and their end at the same positions."""
    return (e.label_positions, e.query_span, e.last) == (other.label_positions, other.query_span, other.last)


def _reversed_z(last: LastPosition) -> Outputs:
    """z of the last position with reversed weights."""
    places, z = places_of(last.batch), {}
    for layer, plain in last.plain.items():
        z[layer] = plain.attention.z(reversed_weights(plain.attention.weights(), places))[:, :, 0]
    return z


def _z_of(donors: Mapping[str, list[int]], z: Tensor, contrast: str, index: list[int], reversed_z: Outputs) -> Outputs:
    """What all heads feed to W_O under a contrast, for the prompts `index`."""
    if contrast == CONTRASTS[0]:
        return reversed_z
    rows = [donors[contrast][i] for i in index]
    return {layer: z[rows, layer] for layer in range(z.shape[1])}


def _effects(
    model: Model, encoded: Sequence[Encoded], contrasts: Sequence[str], z_of: Callable[..., Outputs], max_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The dataset's logit differences, plain and with all heads reversed; effects, direct effects."""
    n, n_layers, n_heads = len(encoded), model.n_layers, model.n_heads
    each = list(product(range(n_layers), range(n_heads)))
    plain, everywhere = np.empty(n), np.empty((len(POSITIONS), n))
    effect, direct = np.empty((2, len(contrasts), n, n_layers, n_heads))

    def run(index: list[int], batch: list[Encoded]) -> None:
        places = places_of(batch)
        of_layers: dict[int, Weights] = {}

        def read(layer: int, attention: Attention) -> None:
            of_layers[layer] = reversed_weights(attention.weights(), places)

        def difference(final: Tensor) -> np.ndarray:
            return logit_differences(model, final, batch).double().cpu().numpy()

        with reading_all(model, read):
            last = LastPosition(model, batch)
        reversed_z = _reversed_z(last)
        outputs = [z_of(name, index, reversed_z) for name in contrasts]
        edits = [UNCHANGED, attend(each, of_layers)]
        edits += [feed([head], z) for z in outputs for head in each]
        differences = np.empty((len(edits), len(batch)))
        for rows, final in last.finals(edits):
            differences[rows] = difference(final)
        plain[index], everywhere[0, index] = differences[:2]
        effects = (differences[0] - differences[2:]).reshape(len(contrasts), n_layers, n_heads, len(batch))
        effect[:, index] = effects.transpose(0, 3, 1, 2)
        for (row, z), layer in product(enumerate(outputs), range(n_layers)):
            alone = difference(last.capture.resid_final + _messages(last, layer, z[layer]))
            direct[row, index, layer] = (difference(last.capture.resid_final) - alone).T
        for row, at in enumerate(positions_reversed(batch), start=1):
            with edited(model, attend(each, of_layers, at)):
                everywhere[row, index] = difference(capture(model, batch).resid_final)

    run_batches("effects", encoded, max_tokens, run)
    return plain, everywhere, effect, direct


def _messages(last: LastPosition, layer: int, z: Float[Tensor, "batch head d_head"]) -> Float[Tensor, "head batch d_model"]:
    """What each head of a layer, alone, changes in its attention block's output when it feeds its z to W_O."""
    plain = last.plain[layer].z
    versions = plain.repeat(1, 1, plain.shape[1], 1)  # as rows
    for head in range(plain.shape[1]):
        versions[:, head, head] = z[:, head]
    changed = attention_block_output(last.model, layer, versions) - attention_block_output(last.model, layer, plain)
    return changed.transpose(0, 1)


def positions_reversed(batch: Sequence[Encoded]) -> Bool[Tensor, "set batch position"]:
    """Those of POSITIONS after the first."""
    at = torch.zeros(len(POSITIONS) - 1, len(batch), len(batch[0].ids), dtype=torch.bool)
    for row, e in enumerate(batch):
        at[0, row, slice(*e.query_span)] = at[1, row, e.query_span[0] :] = at[2, row] = True
    return at


def _effects_by_route(
    model: Model,
    encoded: Sequence[Encoded],
    contrasts: Sequence[str],
    heads: Sequence[Head],
    z_of: Callable[..., Outputs],
    max_tokens: int,
) -> np.ndarray:
    """Effects by route (contrast, output, queries, mlps, head, prompt) of each head alone: zero of no route."""
    out = np.zeros((len(contrasts), len(ROUTES), len(heads), len(encoded)))

    def run(index: list[int], batch: list[Encoded]) -> None:
        last = LastPosition(model, batch)
        outputs = [z_of(name, index, _reversed_z(last)) for name in contrasts]
        each = [at for at in np.ndindex(out.shape[:3]) if any(ROUTES[at[1]])]
        versions = [(feed([heads[h]], outputs[c]), ROUTES[r]) for c, r, h in each]
        final = torch.cat([next(last.finals([UNCHANGED]))[1], routed(last, versions)])
        plain, *differences = logit_differences(model, final, batch).double().cpu().numpy()
        for at, difference in zip(each, differences, strict=True):
            out[*at, index] = plain - difference

    run_batches("ways", encoded, max_tokens, run)
    return out.reshape(len(contrasts), 2, 2, 2, len(heads), len(encoded))


def _looks(run: Run) -> xr.Dataset:
    """Every head at the last position: what it asks, sends and does, which way it goes, and how much all of them account for.

    On sentences, which are long, swapped attention alone.
    """
    encoded, contrasts = run.encode(run.few()), CONTRASTS if run.settings.suite == "words" else CONTRASTS[:1]
    alone = run.in_parts("looks", encoded, lambda some: one_by_one(run.model, some, contrasts)).data
    heads = strongest(alone, SENDERS)
    return alone.assign(run.in_parts("looks", encoded, lambda some: ways(run.model, some, contrasts, heads), "ways.").data)
