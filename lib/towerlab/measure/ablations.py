"""What the model answers when sets of heads are ablated. Chapter 6 (v1 section 6.2; EMNLP version, table 3).

    data = ablations(model, encoded, {"twelve": twelve})
    data.says.sel(heads="twelve", positions="last", replacement="zero")       # (prompt,)

Ablating a head replaces what it feeds to W_O by zero, everywhere or at the last position only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm
from twotowers import choose
from twotowers.errors import TwoTowersError
from twotowers.heads import Head, Heads, check_inside
from twotowers.recording import Recording

from towerlab.measure.chain import Run
from towerlab.measure.observations import Answers, observations
from towerlab.measure.sets import random_sets, with_by_increase, with_control
from towerlab.model.edits import UNCHANGED, answers, everywhere, zero
from towerlab.model.last_position import LastPosition
from towerlab.model.memory import in_memory
from towerlab.model.model import Model
from towerlab.progress import progress
from towerlab.prompts.prompt import Encoded, batches

POSITIONS = ("all", "last")
"""Where heads are ablated: at all positions, or at the last one only"""
NONE = "none"
"""The set of no heads: the plain run"""


def ablations(
    model: Model,
    encoded: Sequence[Encoded],
    sets: Mapping[str, Sequence[tuple[int, int]]],
    positions: Sequence[str] = POSITIONS,
    max_tokens: int = 1024,
) -> xr.Dataset:
    """log_prob_true, log_prob_other (nats) and says with each set of heads ablated: (positions, replacement, heads, prompt).

    `heads` are the names of `sets` after "none", the plain run, which an empty set equals; `replacement` is "zero". Cost of
    a set whose lowest head is of layer l of L: about L - l blocks, of all positions or of one (`model.edits`).
    Memory: `max_tokens` positions at a time, beside what a plain run of a quarter as many leaves behind. Raises
    TwoTowersError on a head outside the model and on unknown positions.
    """
    for heads in sets.values():
        check_inside(heads, model.n_layers, model.n_heads, model.name)
    check_positions(*positions)
    all_sets: dict[str, frozenset[Head]] = {NONE: frozenset()}
    all_sets |= {name: frozenset(Head(*head) for head in heads) for name, heads in sets.items()}
    different = list(dict.fromkeys(heads for heads in all_sets.values() if heads))
    row: dict[frozenset[Head], int] = {frozenset(): 0} | {heads: 1 + i for i, heads in enumerate(different)}
    rows, runs = [row[heads] for heads in all_sets.values()], [sorted(heads) for heads in different]
    out = Answers(encoded, len(positions), 1, len(all_sets))
    with progress("ablations", len(positions) * len(encoded)) as bar:
        for p, where in enumerate(positions):
            of_runs = ablated_answers(model, encoded, runs, where, bar, max_tokens)
            out.log_prob[p, 0], out.says[p, 0] = of_runs.log_prob[rows], of_runs.says[rows]
    coordinates = {"positions": list(positions), "replacement": ["zero"], "heads": list(all_sets)}
    return observations(encoded, out.variables(*coordinates), **coordinates)


def check_positions(*positions: str) -> None:
    """Raise TwoTowersError on what is none of POSITIONS."""
    for where in positions:
        if where not in POSITIONS:
            raise TwoTowersError(f"positions='{where}': choose {' or '.join(POSITIONS)}")


@torch.inference_mode()
def ablated_answers(
    model: Model, encoded: Sequence[Encoded], runs: Sequence[Heads], positions: str, bar: tqdm, max_tokens: int = 1024
) -> Answers:
    """Answers (1 + run, prompt): of the plain run, then with the heads of each of `runs` ablated at `positions`."""
    out = Answers(encoded, 1 + len(runs))

    def run(index: list[int], batch: list[Encoded]) -> None:
        at = everywhere(batch) if positions == "all" else None
        edits = [UNCHANGED, *(zero(heads, at) for heads in runs)]
        of_edits = answers(model, batch, edits) if positions == "all" else LastPosition(model, batch).answers(edits)
        out.put_each(np.ndindex(len(edits)), index, *of_edits)

    for index, _ in in_memory(run, batches(encoded, max_tokens)):
        bar.update(len(index))
    return out


TWELVE = 20
"""First heads of either of the two rankings from which the paper's twelve are taken in turn"""


def _ablations(run: Run) -> Recording:
    """The paper's twelve heads zeroed at all positions, as the EMNLP version does, and random sets matched to them."""
    few, single = run.encode(run.few()), run.measured("singles")["log_prob_lost"].mean("prompt")
    by_increase = with_by_increase(run, TWELVE)["by increase"]
    twelve = {"paper's twelve": choose.union(by_increase, choose.top(single, TWELVE), 12)}

    def measure(sets: Mapping[str, Heads]) -> xr.Dataset:
        return run.in_parts("ablations", few, lambda some: ablations(run.model, some, sets, ("all",))).data

    return with_control(measure, twelve, {name: random_sets(run, heads) for name, heads in twelve.items()})
