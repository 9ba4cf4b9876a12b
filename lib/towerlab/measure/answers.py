"""What the model answers: the measurement that needs no hook. Chapters 1, 5 and 7, appendix B."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from twotowers import choose
from twotowers.errors import TwoTowersError
from twotowers.forms import SEPARATORS, Form

from towerlab.measure.chain import JUDGING, Run
from towerlab.measure.observations import Answers, observations
from towerlab.measure.registry import measurement
from towerlab.model.capture import answer
from towerlab.model.memory import in_memory
from towerlab.model.model import Model
from towerlab.progress import progress
from towerlab.prompts.prompt import Encoded, Prompt, batches
from towerlab.prompts.variants import factorial, patterns


def answers(model: Model, encoded: Sequence[Encoded], max_tokens: int = 4096) -> xr.Dataset:
    """log_prob_true, log_prob_other (nats) and says of every prompt (prompt,): one forward pass each."""
    out = Answers(encoded)
    with progress("answers", len(encoded)) as bar:
        for index, (top, log_prob) in in_memory(lambda _, batch: answer(model, batch), batches(encoded, max_tokens)):
            out.put((), index, top, log_prob)
            bar.update(len(index))
    return observations(encoded, out.variables())


def joined(parts: Sequence[xr.Dataset], **coordinates: Sequence) -> xr.Dataset:
    """Measurements of several sets of prompts as one, each with a value of every coordinate given: (prompt,)."""
    named = [
        part.assign_coords({name: ("prompt", [values[i]] * part.sizes["prompt"]) for name, values in coordinates.items()})
        for i, part in enumerate(parts)
    ]
    return xr.concat(named, "prompt", data_vars="minimal", coords="minimal", compat="override", join="override")


KS = (1, 2, 4, 8)
"""Demonstrations of each class that are tried, with every separator; the paper's form is two, separated by a space"""
ORDERS = 6
"""Orders of the demonstrations in the factorial design: all of two and two, a spread of more"""


@measurement("forms", needs=(), version=1, judges=False)
def _forms(run: Run) -> xr.Dataset:
    """Answers on the locating blocks in every form that is chosen from and the model can read; what is given is not varied."""
    ks = [run.settings.k] if run.settings.k else [k for k in KS if k <= choose.MOST_K]
    run.locating(Form(ks[0], run.settings.separator or "space"))  # raises, where not even the shortest prompt can be read
    return joined(_in_forms(run, ks))


@measurement("demonstrations", needs=("forms",), version=1, judges=False)
def _demonstrations(run: Run) -> xr.Dataset:
    """The same with more demonstrations than are chosen from, up to eight of each class, for Figure 1.1 alone."""
    more = [] if run.settings.k else [k for k in KS if k > choose.MOST_K]
    return joined([run.measured("forms").drop_attrs(deep=False), *_in_forms(run, more)])


def _in_forms(run: Run, ks: Sequence[int]) -> list[xr.Dataset]:
    """Answers on the locating blocks in each form that the model can read."""
    parts, separator = [], run.settings.separator
    for form in (Form(k, between) for k in ks for between in ((separator,) if separator else SEPARATORS)):
        try:
            encoded = run.locating(form)
        except TwoTowersError:
            continue
        parts.append(joined([answers(run.model, encoded)], k=[form.k], separator=[form.separator]))
    return parts


@measurement("answers", needs=("forms",), version=1)
def _answers(run: Run) -> xr.Dataset:
    """Answers on two and a half times as many blocks as heads are measured on."""
    return answers(run.model, run.judging(2.5))


@measurement("factorial", needs=("forms",), version=1)
def _factorial(run: Run) -> xr.Dataset:
    """Answers to two blocks of every class pair in up to ORDERS orders, with queries of either class, under both label assignments."""
    blocks = run.blocks(run.fewest, JUDGING)  # the query of the other class comes from another block of the pair
    return answers(run.model, run.encode(factorial(blocks, spread_orders(blocks[0]))))


def spread_orders(prompt: Prompt) -> list[str]:
    """Up to ORDERS of a prompt's orders, evenly spread from "TTFF" to "FFTT", with each its mirror."""
    every = patterns(prompt)
    return [every[round(i)] for i in np.linspace(0, len(every) - 1, min(ORDERS, len(every)))]
