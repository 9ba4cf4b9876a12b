"""What the model loses when one head is ablated, for every head by itself. Chapter 12.

    data = single_ablations(model, encoded, "last")
    data.log_prob_lost.mean("prompt")               # (layer, head): the ranking of the EMNLP version

Cost: as many runs as there are heads, each from its head's layer on (`model.edits`).
"""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr
from twotowers.heads import Head
from twotowers.recording import Recording

from towerlab.measure.ablations import ablated_answers, check_positions
from towerlab.measure.chain import LOCATING, Run
from towerlab.measure.observations import observations, variables_of
from towerlab.model.model import Model
from towerlab.progress import progress
from towerlab.prompts.prompt import Encoded


def single_ablations(model: Model, encoded: Sequence[Encoded], positions: str = "all") -> xr.Dataset:
    """What each head alone is worth (prompt, layer, head): nats lost when it is ablated at "all" positions or the "last".

    - `log_prob_lost`: log-probability of the true label, plain minus ablated;
    - `logit_difference_lost`: the same of the true label's logit minus the other's.

    Above zero the head helps the true label. Raises TwoTowersError on unknown positions.
    """
    check_positions(positions)
    shape = (model.n_layers, model.n_heads)
    runs = [[Head(layer, head)] for layer in range(shape[0]) for head in range(shape[1])]
    with progress("single ablations", len(encoded)) as bar:
        log_prob = ablated_answers(model, encoded, runs, positions, bar).log_prob
    cost = (log_prob[:1] - log_prob[1:]).reshape(*shape, len(encoded), 2).transpose(2, 0, 1, 3)
    variables = variables_of("singles", log_prob_lost=cost[..., 0], logit_difference_lost=cost[..., 0] - cost[..., 1])
    return observations(encoded, variables, positions=positions)


def _singles(run: Run) -> Recording:
    """Every head zeroed by itself at the last position, on a quarter of the locating blocks (the EMNLP version's second list)."""
    few = run.encode(run.blocks(max(1, run.settings.locate // 4), LOCATING))
    return run.in_parts("singles", few, lambda some: single_ablations(run.model, some, "last"))
