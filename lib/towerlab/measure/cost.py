"""What some measurements of a model will cost, said before they are made."""

from __future__ import annotations

import time
from collections.abc import Iterable

from twotowers import store
from twotowers.disk import check_writable
from twotowers.errors import Unavailable

from towerlab.measure.chain import Run
from towerlab.prompts.prompt import batches

WORK = 1.2e9
"""Bytes beside the weights: PyTorch, and captures of many prompts in `heads`, in three copies"""


def cost(run: Run, names: Iterable[str]) -> str:
    """What is still to be made of some measurements, in a line, where it takes minutes: runs of a
    prompt, time, memory.

    The time is that of one plain batch, so it holds for a machine that is as busy as now.
    """
    every = dict.fromkeys(part for name in names for part in store.versions(name))
    missing = [name for name in every if not run.there(name)]
    if not missing:
        return ""
    # This imports torch, whose seconds are saved where nothing is missing.
    from towerlab.model.capture import answer

    check_writable(run.path(missing[0]))
    try:
        sample = run.sample(missing)
    except Unavailable:
        return ""
    if len(sample[0].ids) > run.model.context:
        return ""
    block = next(prompts for _, prompts in batches(sample))
    answer(run.model, block)  # the first one is slower
    for batch in (block, 8 * block):  # few prompts are slow in a small model
        start = time.monotonic()
        answer(run.model, batch)
        seconds = (time.monotonic() - start) / len(batch)
        if seconds > 0.1:
            break
    passes = sum(run.passes(name) for name in missing)
    minutes = passes * seconds / 60
    if minutes < 1:
        return ""
    n = f"{len(missing)} measurement{'s' * (len(missing) > 1)}"
    what = f"{n} to make, about as long as {passes:,.0f} runs of a prompt"
    memory = run.model.bytes * 17 / 16 + WORK
    return f"{run.name}: {what}: {minutes:.0f} min, {memory / 1e9:.1f} GB of memory"
