"""What the model answers when sets of heads are ablated, or one head by itself. Chapters 6 and 12 (v1 6.2; EMNLP, table 3).

    data = ablations(model, encoded, {"twelve": twelve})
    data.says.sel(heads="twelve")                   # (prompt,)
    data = single_ablations(model, encoded, "last")
    data.log_prob_lost.mean("prompt")               # (layer, head): the ranking of the EMNLP version

Ablating a head replaces what it feeds to W_O by zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from twotowers import choose
from twotowers.heads import Head, Heads

from towerlab.measure.chain import LOCATING, Run
from towerlab.measure.observations import answers_of, observations, read_batches
from towerlab.measure.recipe import Recipe
from towerlab.measure.sets import by_increase, random_sets
from towerlab.model.edits import UNCHANGED, answers, everywhere, zero
from towerlab.model.last_position import LastPosition
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded

Positions = Literal["all", "last"]
"""Where heads are ablated: at all positions, or at the last one only"""
NONE = "none"
"""The set of no heads: the plain run"""


def ablations(model: Model, encoded: Sequence[Encoded], sets: Mapping[str, Heads]) -> xr.Dataset:
    """log_prob_true, log_prob_other (nats) and says with each set of heads ablated at all positions: (heads, prompt).

    `heads` are the names of `sets` after "none", the plain run. Cost of a set whose lowest head is of layer l of L: about L - l
    blocks.
    """
    return observations("ablations", encoded, ablated(model, encoded, list(sets.values()), "all"), heads=[NONE, *sets])


def single_ablations(model: Model, encoded: Sequence[Encoded], positions: Positions = "all", first_layer: int = 0) -> xr.Dataset:
    """What each head alone is worth (prompt, layer, head): nats lost when it is ablated at "all" positions or the "last".

    - `log_prob_lost`: log-probability of the true label, plain minus ablated;
    - `logit_difference_lost`: the same of the true label's logit minus the other's.

    Above zero the head helps the true label; NaN below `first_layer`. Cost: as many runs as heads, each from its head's layer on.
    """
    heads = [[Head(layer, head)] for layer in range(first_layer, model.n_layers) for head in range(model.n_heads)]
    answered, lost = ablated(model, encoded, heads, positions), {}
    for name, answer in (("log_prob_lost", answered["log_prob_true"]), ("logit_difference_lost", answered["logit_difference"])):
        of_heads = (answer[:, :1] - answer[:, 1:]).reshape(len(encoded), -1, model.n_heads)
        lost[name] = np.pad(of_heads, ((0, 0), (first_layer, 0), (0, 0)), constant_values=np.nan)
    return observations("singles", encoded, lost, positions=positions)


@torch.inference_mode()
def ablated(model: Model, encoded: Sequence[Encoded], runs: Sequence[Heads], positions: Positions) -> dict[str, np.ndarray]:
    """Answers (prompt, 1 + run): of the plain run, then with the heads of each of `runs` ablated at `positions`."""

    def run(_, batch: list[Encoded]) -> dict[str, Tensor]:
        if positions == "last":
            return answers_of(batch, *LastPosition(model, batch).answers([UNCHANGED, *map(zero, runs)]))
        return answers_of(batch, *answers(model, batch, [UNCHANGED, *(zero(heads, everywhere(batch)) for heads in runs)]))

    return read_batches("ablations", encoded, 1024, run)


TWELVE = 20
"""First heads of either of the two rankings from which the paper's twelve are taken in turn"""


def _singles(run: Run) -> Recipe:
    """Every head zeroed by itself at the last position, on a quarter of the locating blocks (the EMNLP version's second list)."""
    return Recipe(single_ablations, run.encode(run.blocks(max(1, run.settings.locate // 4), LOCATING)), ("last",))


def _ablations(run: Run) -> Recipe:
    """The paper's twelve heads zeroed at all positions, as the EMNLP version does, and random sets matched to them."""
    single = run.measured("singles")["log_prob_lost"].mean("prompt")
    twelve = {"paper's twelve": choose.union(by_increase(run, TWELVE), choose.top(single, TWELVE), 12)}
    return Recipe(ablations, run.few(), (), twelve, random_sets(run, twelve))
