"""A batch that does not fit in memory is run in smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from twotowers.errors import TwoTowersError, is_out_of_memory

from towerlab.progress import progress
from towerlab.prompts.prompt import Encoded, batches

S = TypeVar("S")
T = TypeVar("T")


def in_memory(
    run: Callable[[list[int], list[Encoded]], T], stream: Iterable[tuple[list[int], list[Encoded]]]
) -> Iterator[tuple[list[int], T]]:
    """(index, run(index, batch)) for each batch: see `halved`. A run that failed is done again, on
    fewer prompts.

    Raises TwoTowersError when a single prompt does not fit; all other errors of `run` as they are.
    """

    def run_or_explain(pairs: list[tuple[int, Encoded]]) -> T:
        index, batch = map(list, zip(*pairs, strict=True))
        try:
            return run(index, batch)
        except (MemoryError, RuntimeError) as error:
            if len(batch) > 1 or not is_out_of_memory(error):
                raise
            raise TwoTowersError(
                f"a prompt of {len(batch[0].ids)} tokens does not fit in memory: take a smaller "
                "k, a narrower dtype, another device or a smaller model"
            ) from None

    for pairs, result in halved(
        run_or_explain, (list(zip(*batch, strict=True)) for batch in stream)
    ):
        yield [i for i, _ in pairs], result
        del result  # or it would be held while the next batch runs


def run_batches(
    what: str,
    encoded: Sequence[Encoded],
    max_tokens: int,
    run: Callable[[list[int], list[Encoded]], object],
) -> None:
    """run(index, batch), which writes at `index`, for each of `prompts.batches`, with a bar: see
    `in_memory`."""
    with progress(what, len(encoded)) as bar:
        for index, _ in in_memory(run, batches(encoded, max_tokens)):
            bar.update(len(index))


def halved(run: Callable[[list[S]], T], batches: Iterable[list[S]]) -> Iterator[tuple[list[S], T]]:
    """(batch, run(batch)) for each batch. One that does not fit in memory is halved, and no later
    one is larger.

    Errors of `run` come as they are: also memory's, when a batch of one does not fit.
    """
    most = 0
    for first in batches:
        queue = [first]
        while queue:
            batch = queue.pop(0)
            if most and len(batch) > most:
                queue = [batch[:most], batch[most:], *queue]
                continue
            try:
                result = run(batch)
            except (MemoryError, RuntimeError) as error:
                if len(batch) == 1 or not is_out_of_memory(error):
                    raise
            else:
                yield batch, result
                del result
                continue
            # Only here, where the error and all tensors that it holds are gone, is there room
            # again.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            most = len(batch) // 2
            queue.insert(0, batch)
