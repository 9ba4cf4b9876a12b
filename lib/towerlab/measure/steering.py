"""Moving one tower along the direction between two classes, at graded doses. Chapter 11.

    directions = class_directions(model, encode_all(draw_blocks(200, form, seed=1), tokenizer))     # locating blocks
    measured = steering(model, judging, directions, {"comparers": [(18, 6), (18, 7), (18, 8)]})

With u the mean query of the pair's first class minus that of the second, and v the same of keys at label positions:

- *query*: dose u is added to the query of the last position, so a positive dose is towards the first class;
- *keys*: dose v is added at label positions of the first class, and taken away at those of the second, as the last
  position of the steered heads sees them. (Added at all alike it could not move attention between labels.) The distance
  between the classes' keys becomes 1 + 2 dose of what it was: -1 exchanges them, -1/2 leaves none. So a positive dose is
  towards the query's class, whichever that is;
- *both*: both at once. If attention is a product of the two towers, the score of a first-class label position over one
  of the second goes as (1/2 + dose) (1 + 2 dose) for queries of the first class, (-1/2 + dose) (1 + 2 dose) for the second.

The interventions are activation additions (Turner et al. 2023; Rimsky et al. 2024) within heads: they change what a head
attends to, and nothing that it reads or writes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Head, Heads, check_inside
from twotowers.recording import Recording

from towerlab.measure.chain import LOCATING, Run
from towerlab.measure.observations import Answers, joined, observations
from towerlab.measure.sets import DRAWS, present, with_other_halves
from towerlab.model import query_key
from towerlab.model.attention_edits import steer
from towerlab.model.capture import Capture, read_all
from towerlab.model.last_position import Edit, LastPosition
from towerlab.model.memory import run_batches
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompt

BLOCKS = 8
"""of each class pair, from which its direction comes: from fewer it would be that of single words"""
TOWERS = ("query", "keys", "both")
DOSES = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


def class_directions(model: Model, encoded: Sequence[Encoded], max_tokens: int = 1024) -> xr.Dataset:
    """Mean of the pair's first class minus that of its second, of every head: one direction a class pair.

    `query` (pair, layer, head, d_head): of the last position, before rotation, scaled (times a key: nats); `keys` (pair,
    layer, kv_head, d_head): of label positions by the class of their text, before rotation. Both after a norm of queries
    and keys where the model has one. Raises TwoTowersError for a pair whose prompts ask one class only.
    """
    names = sorted({e.prompt.dataset for e in encoded})
    classes = {cls: (names.index(name), c) for name in names for c, cls in enumerate(name.split("/"))}
    for name in names:
        if len({e.prompt.cls for e in encoded if e.prompt.dataset == name}) < 2:
            raise TwoTowersError(f"{name}: one of the classes is asked in no prompt: draw at least two blocks a pair")
    queries = torch.zeros(2, len(names), model.n_layers, model.n_heads, model.d_head, dtype=torch.float64)
    keys = torch.zeros(2, len(names), model.n_layers, model.n_key_value_heads, model.d_head, dtype=torch.float64)
    n_queries, n_keys = torch.zeros(2, 2, len(names), 1, 1, 1, dtype=torch.float64)

    def read(capture: Capture) -> tuple[list[Encoded], Tensor, Tensor]:
        """Queries (layer, prompt, head, d_head) and label keys (layer, prompt, place, kv_head, d_head)."""
        at = capture.label_positions[..., None].expand(-1, -1, model.d_model)
        normed = [query_key.normed(model, layer, capture.stream_inputs[layer]) for layer in range(model.n_layers)]
        last = [query_key.queries(model, layer, x[:, -1]) for layer, x in enumerate(normed)]
        labels = [query_key.keys(model, layer, x.gather(1, at)) for layer, x in enumerate(normed)]
        return capture.prompts, torch.stack(last).double().cpu(), torch.stack(labels).double().cpu()

    for prompts, last, labels in read_all("class directions", model, encoded, {"streams"}, read, max_tokens):
        for row, e in enumerate(prompts):
            pair, c = classes[e.prompt.cls]
            queries[c, pair] += last[:, row]
            n_queries[c, pair] += 1
            for place, d in enumerate(e.prompt.demonstrations):
                pair, c = classes[d.cls]
                keys[c, pair] += labels[:, row, place]
                n_keys[c, pair] += 1
    query, key = (mean[0] - mean[1] for mean in (queries / n_queries, keys / n_keys))
    return xr.Dataset(
        {
            "query": (("pair", "layer", "head", "d_head"), query.numpy(), {"units": "scaled query"}),
            "keys": (("pair", "layer", "kv_head", "d_head"), key.numpy(), {"units": "key"}),
        },
        coords={"pair": names},
    )


@torch.inference_mode()
def steering(
    model: Model,
    encoded: Sequence[Encoded],
    directions: xr.Dataset,
    sets: Mapping[str, Heads],
    doses: Sequence[float] = DOSES,
    towers: Sequence[str] = TOWERS,
    random: int = 1,
    others: Sequence[xr.Dataset] = (),
    seed: int = 0,
    max_tokens: int = 2048,
) -> Recording:
    """Answers with the heads of each set steered along the direction of the prompt's class pair: (tower, heads, dose, prompt).

    `directions` of `class_directions`, on other prompts. `heads`: the names of `sets`. The control, with a dimension `draw`:
    the same heads steered along `others`, else along as many random directions as `random` says, of the same norm, head by
    head. Cost: a run of each prompt, and one of the last position alone for each tower, set of heads, direction and dose.
    Raises TwoTowersError for a tower not of TOWERS, heads outside the model, and a class pair without a direction.
    """
    if unknown := [tower for tower in towers if tower not in TOWERS]:
        raise TwoTowersError(f"tower '{unknown[0]}': choose among {', '.join(TOWERS)}")
    for heads in sets.values():
        check_inside(heads, model.n_layers, model.n_heads, model.name)
    if missing := {e.prompt.dataset for e in encoded} - set(directions["pair"].values.tolist()):
        raise TwoTowersError(f"no direction for {min(missing)}: locate on prompts of the same class pairs")
    layers = sorted({layer for heads in sets.values() for layer, _ in heads})
    controls = list(others) or [random_directions(directions, [seed, draw]) for draw in range(random)]
    every_direction = [directions, *controls]
    answers = Answers(encoded, len(towers), len(sets), len(every_direction), len(doses))

    def run(index: list[int], batch: list[Encoded]) -> None:
        at = torch.tensor([e.label_positions for e in batch])
        vectors = [at_positions(model, batch, of_draw, layers) for of_draw in every_direction]
        edits: dict[tuple, Edit] = {}
        for t, tower in enumerate(towers):
            for (h, heads), (draw, (query, keys)) in product(enumerate(sets.values()), enumerate(vectors)):
                of_towers = (None if tower == "keys" else query, None if tower == "query" else keys)
                edits |= {(t, h, draw, d): steer(heads, *of_towers, at, dose) for d, dose in enumerate(doses)}
        answers.put_each(edits, index, *LastPosition(model, batch).answers(list(edits.values())))

    run_batches("steering", encoded, max_tokens, run)
    coordinates = {"tower": list(towers), "heads": list(sets), "dose": list(doses)}
    both = observations(encoded, answers.variables("tower", "heads", "draw", "dose"), **coordinates)
    kind = "other class pairs" if others else "random directions"
    control = both.isel(draw=slice(1, None)).assign_coords(draw=range(len(controls)), control=kind)
    return Recording(both.isel(draw=0), control if controls else None)


def random_directions(directions: xr.Dataset, seed: int | Sequence[int]) -> xr.Dataset:
    """Directions drawn evenly from the sphere, each as long as the one that it stands for."""
    rng = np.random.default_rng(seed)

    def random(x: xr.DataArray) -> xr.DataArray:
        normal = x.copy(data=rng.normal(size=x.shape))
        return normal * np.sqrt((x**2).sum("d_head") / (normal**2).sum("d_head"))

    return directions.map(random)


def directions_of_other_pairs(directions: xr.Dataset) -> list[xr.Dataset]:
    """For every class pair the direction of another one, as long as its own, head by head: one dataset for each shift of the pairs.

    A direction without length, as of first-layer queries of one and the same token, stays so.
    """

    def shift(x: xr.DataArray, by: int) -> xr.DataArray:
        other = x.roll(pair=by)
        length = (other**2).sum("d_head")
        return other * np.sqrt((x**2).sum("d_head") / length.where(length > 0, 1.0))

    return [directions.map(shift, by=by) for by in range(1, directions.sizes["pair"])]


def at_positions(
    model: Model, batch: Sequence[Encoded], directions: xr.Dataset, layers: Sequence[int]
) -> tuple[dict[int, Float[Tensor, "batch head d_head"]], dict[int, Float[Tensor, "batch kv_head label d_head"]]]:
    """Layer -> what a dose of 1 adds to the query of each prompt's last position, and to the keys at its labels."""
    of_prompt = directions.sel(pair=[e.prompt.dataset for e in batch])
    last = torch.tensor(batch[0].last, device=model.device)
    at = torch.tensor([e.label_positions for e in batch], device=model.device)[:, None]
    sign = torch.tensor([[_sign(e, d.cls) for d in e.prompt.demonstrations] for e in batch]).to(at)[:, None, :, None]
    queries, keys = {}, {}
    for layer in layers:
        query, key = (torch.tensor(of_prompt[name].isel(layer=layer).values) for name in ("query", "keys"))
        query, key = (x.to(model.device, torch.promote_types(model.dtype, torch.float32)) for x in (query, key))
        key = (key[:, :, None] * sign).expand(-1, -1, at.shape[-1], -1)
        queries[layer] = query_key.rotated(model, layer, query, last.expand(query.shape[:-1]))
        keys[layer] = query_key.rotated(model, layer, key, at.expand(key.shape[:-1]))
    return queries, keys


def _sign(encoded: Encoded, cls: str) -> int:
    return 1 if cls == encoded.prompt.dataset.split("/")[0] else -1


def directions_of_run(run: Run) -> xr.Dataset:
    """One direction a class pair, from prompts of the run's own that judge nothing."""
    return class_directions(run.model, run.encode(_directing(run, BLOCKS)))


def _directing(run: Run, blocks: int) -> list[Prompt]:
    """Prompts that directions come from: so many blocks of every class pair that is steered."""
    return run.blocks(blocks * len(run.pairs_of_few), LOCATING, pairs=run.pairs_of_few)


def _comparers(run: Run) -> dict[str, list[Head]]:
    """Where the rule names no comparers, the heads with the largest attention difference stand for them."""
    return present({"comparers": run.sets["comparers"] or run.sets["by attention"]})


def _steering(run: Run) -> Recording:
    """The comparers' queries, keys and both mirrored along class directions: a dose of -1."""
    few, directions, sets = run.encode(run.few()), directions_of_run(run), _comparers(run)
    return run.in_parts("steering", few, lambda some: steering(run.model, some, directions, sets, (-1.0,), random=0))


def _steering_random(run: Run) -> Recording:
    """The control of the claims about steering: the comparers along random directions of the same norm."""
    few, directions = run.encode(run.few()), directions_of_run(run)

    def measure(sets: Mapping[str, Heads], of: Sequence[Encoded], random: int) -> Recording:
        return steering(run.model, of, directions, sets, (-1.0, 1.0), ("query", "keys"), random)

    sets = _comparers(run)
    recording = run.in_parts("steering_random", few, lambda some: measure(sets, some, DRAWS))
    return with_other_halves(run, recording, "comparers", few, lambda sets, at: measure(sets, [few[i] for i in at], 0).data)


def _steering_pairs(run: Run) -> Recording:
    """Another control, which lies where queries lie: the comparers along the directions of all other class pairs."""
    sets, directions = _comparers(run), directions_of_run(run)
    options = {"doses": (-1.0, 1.0), "towers": ("query", "keys"), "others": directions_of_other_pairs(directions)}
    few = run.encode(run.few())
    return run.in_parts("steering_pairs", few, lambda some: steering(run.model, some, directions, sets, **options))


def _steering_labels(run: Run) -> xr.Dataset:
    """Comparers along directions from blocks of one half of the label pairs: prompts of the other half.

    Each direction comes from as many blocks as one of `_directions`, on average. Class pairs of which a half asks only one
    class are left out. Raises NotTestable where none is left.
    """
    first = {frozenset(pair.split("/")) for pair in run.labels[::2]}

    def halves(encoded: Sequence[Encoded]) -> list[list[Encoded]]:
        return [[e for e in encoded if (frozenset(e.prompt.labels) in first) == half] for half in (False, True)]

    locating, few = halves(run.encode(_directing(run, 2 * BLOCKS))), halves(run.encode(run.few()))
    classes = [{(e.prompt.dataset, e.prompt.cls) for e in half} for half in locating]
    pairs = {pair for pair in run.pairs_of_few if all((pair, cls) in half for half in classes for cls in pair.split("/"))}
    locating, few = ([[e for e in half if e.prompt.dataset in pairs] for half in of] for of in (locating, few))
    if not all(few):
        raise NotTestable("no half of its labels has blocks of both classes: give at least two label pairs")
    directions, sets = [class_directions(run.model, half) for half in locating], _comparers(run)

    def measure(some: Sequence[Encoded]) -> xr.Dataset:
        both = [(half, of_other) for half, of_other in zip(halves(some), directions[::-1], strict=True) if half]
        results = [steering(run.model, half, other, sets, (-1.0, 1.0), ("query", "keys"), random=0) for half, other in both]
        return joined([of.data for of in results])

    data = run.in_parts("steering_labels", few[0] + few[1], measure).data
    return data.expand_dims(labels_of_direction=["other"])
