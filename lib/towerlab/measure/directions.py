"""The directions between two classes in every head's queries and keys, and what moving along them adds. Chapter 11.

    directions = class_directions(model, encode_all(draw_blocks(200, form, seed=1), tokenizer))     # locating blocks
    queries, keys = at_positions(model, batch, directions, [18])       # what a coefficient of 1 adds in layer 18

With u the mean query of the pair's first class minus that of the second, and v the same of keys at label positions:

- u is added to the query of the last position, so a positive coefficient is towards the first class;
- v is added at label positions of the first class, and taken away at those of the second, as the last position of the moved
  heads sees them. (Added at all alike it could not move attention between labels.) The distance between the classes' keys
  becomes 1 + 2 coefficient of what it was: -1 exchanges them, -1/2 leaves none. So a positive coefficient is towards the
  query's class, whichever that is.

The interventions are activation additions (Turner et al. 2023; Rimsky et al. 2024) within heads: they change what a head
attends to, and nothing that it reads or writes there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from twotowers.errors import NotTestable, TwoTowersError

from towerlab.measure.chain import LOCATING, Run
from towerlab.measure.observations import read_prompts
from towerlab.model import query_key
from towerlab.model.capture import Capture
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompt

BLOCKS = 8
"""of each class pair, from which its direction comes: from fewer it would be that of single words"""


def class_directions(model: Model, encoded: Sequence[Encoded]) -> xr.Dataset:
    """Mean of the pair's first class minus that of its second, of every head: one direction a class pair.

    `query` (pair, layer, head, d_head): of the last position, before rotation, scaled (times a key: nats); `keys` (pair,
    layer, kv_head, d_head): of label positions by the class of their text, before rotation. Both after a norm of queries
    and keys where the model has one. Memory: both of all these prompts. Raises TwoTowersError for a pair whose prompts ask one
    class only.
    """
    names = sorted({e.prompt.dataset for e in encoded})
    for name in names:
        if len({e.prompt.cls for e in encoded if e.prompt.dataset == name}) < 2:
            raise TwoTowersError(f"{name}: one of the classes is asked in no prompt: draw at least two blocks a pair")

    def read(capture: Capture) -> dict[str, Tensor]:
        """Queries (prompt, layer, head, d_head) and label keys (prompt, place, layer, kv_head, d_head)."""
        at = capture.label_positions[..., None].expand(-1, -1, model.d_model)
        normed = [query_key.normed(model, layer, capture.stream_inputs[layer]) for layer in range(model.n_layers)]
        last = [query_key.queries(model, layer, x[:, -1]) for layer, x in enumerate(normed)]
        labels = [query_key.keys(model, layer, x.gather(1, at)) for layer, x in enumerate(normed)]
        return {"query": torch.stack(last, 1), "keys": torch.stack(labels, 2)}

    vectors, variables = read_prompts("class directions", model, encoded, {"streams"}, read, 1024), {}
    asked, shown = [e.prompt.cls for e in encoded], [[d.cls for d in e.prompt.demonstrations] for e in encoded]
    for name, head, classes in (("query", "head", asked), ("keys", "kv_head", shown)):
        first, second = (
            [vectors[name][np.array(classes) == pair.split("/")[side]].mean(0, dtype=float) for pair in names] for side in (0, 1)
        )
        variables[name] = (("pair", "layer", head, "d_head"), np.array(first) - np.array(second))
    return xr.Dataset(variables, coords={"pair": names})


def random_directions(directions: xr.Dataset, seed: int | Sequence[int]) -> xr.Dataset:
    """Directions drawn evenly from the sphere, each as long as the one that it stands for."""
    rng = np.random.default_rng(seed)

    def random(x: xr.DataArray) -> xr.DataArray:
        normal = x.copy(data=rng.normal(size=x.shape))
        return normal * np.sqrt((x**2).sum("d_head") / (normal**2).sum("d_head"))

    return directions.map(random)


def at_positions(
    model: Model, batch: Sequence[Encoded], directions: xr.Dataset, layers: Sequence[int]
) -> tuple[dict[int, Float[Tensor, "batch head d_head"]], dict[int, Float[Tensor, "batch kv_head label d_head"]]]:
    """Layer -> what a dose of 1 adds to the query of each prompt's last position, and to the keys at its labels."""
    of_prompt = directions.sel(pair=[e.prompt.dataset for e in batch])
    last = torch.tensor(batch[0].last, device=model.device)
    at = torch.tensor([e.label_positions for e in batch], device=model.device)[:, None]
    first = [[d.cls == e.prompt.dataset.split("/")[0] for d in e.prompt.demonstrations] for e in batch]
    sign = torch.where(torch.tensor(first), 1, -1).to(at)[:, None, :, None]
    queries, keys = {}, {}
    for layer in layers:
        query, key = (torch.tensor(of_prompt[name].isel(layer=layer).values) for name in ("query", "keys"))
        query, key = (x.to(model.device, torch.promote_types(model.dtype, torch.float32)) for x in (query, key))
        key = (key[:, :, None] * sign).expand(-1, -1, at.shape[-1], -1)
        queries[layer] = query_key.rotated(model, layer, query, last.expand(query.shape[:-1]))
        keys[layer] = query_key.rotated(model, layer, key, at.expand(key.shape[:-1]))
    return queries, keys


def directions_of_run(run: Run) -> xr.Dataset:
    """One direction a class pair, from prompts of the run's own that judge nothing."""
    return class_directions(run.model, run.encode(_directing(run, BLOCKS)))


def of_other_labels(run: Run, encoded: Sequence[Encoded]) -> list[tuple[list[int], xr.Dataset]]:
    """Which of the prompts have labels of one half of the label pairs, with directions from prompts of the other half; of both.

    Each direction comes from as many blocks as one of `directions_of_run`, on average. Raises NotTestable where a half lacks one
    of the classes.
    """
    first = {frozenset(pair.split("/")) for pair in run.labels[::2]}
    directing, halves = run.encode(_directing(run, 2 * BLOCKS)), []
    for half in (True, False):
        at = [i for i, e in enumerate(encoded) if (frozenset(e.prompt.labels) in first) == half]
        pairs = {encoded[i].prompt.dataset for i in at}
        others = [e for e in directing if e.prompt.dataset in pairs and (frozenset(e.prompt.labels) in first) != half]
        asked = {(e.prompt.dataset, e.prompt.cls) for e in others}
        if not at or not all((pair, cls) in asked for pair in pairs for cls in pair.split("/")):
            raise NotTestable("no half of its labels has blocks of both classes: give at least two label pairs")
        halves.append((at, class_directions(run.model, others)))
    return halves


def _directing(run: Run, blocks: int) -> list[Prompt]:
    """Prompts that directions come from: so many blocks of every class pair that is moved."""
    return run.blocks(blocks * len(run.pairs_of_few), LOCATING, pairs=run.pairs_of_few)
