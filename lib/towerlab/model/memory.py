"""A batch that does not fit in memory is run in smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from twotowers.errors import TwoTowersError, is_out_of_memory

from towerlab.prompts.prompt import Encoded

S = TypeVar("S")
T = TypeVar("T")


def in_memory(
    run: Callable[[list[int], list[Encoded]], T], batches: Iterable[tuple[list[int], list[Encoded]]]
) -> Iterator[tuple[list[int], T]]:
    """(index, run(index, batch)) for each batch: see `halved`. A run that failed is done again, on fewer prompts.

    Raises TwoTowersError when a single prompt does not fit; all other errors of `run` as they are.
    """

    def told(some: list[tuple[int, Encoded]]) -> T:
        index, batch = map(list, zip(*some, strict=True))
        try:
            return run(index, batch)
        except (MemoryError, RuntimeError) as error:
            if len(batch) > 1 or not is_out_of_memory(error):
                raise
            raise TwoTowersError(
                f"a prompt of {len(batch[0].ids)} tokens does not fit in memory: take a smaller k, a narrower "
                "dtype, another device or a smaller model"
            ) from None

    for some, found in halved(told, (list(zip(*one, strict=True)) for one in batches)):
        yield [i for i, _ in some], found
        del found  # or it would be held while the next batch runs


def halved(run: Callable[[list[S]], T], batches: Iterable[list[S]]) -> Iterator[tuple[list[S], T]]:
    """(batch, run(batch)) for each batch. One that does not fit in memory is halved, and no later one is larger.

    Errors of `run` come as they are: also memory's, when a batch of one does not fit.
    """
    most = 0
    for whole in batches:
        todo = [whole]
        while todo:
            batch = todo.pop(0)
            if most and len(batch) > most:
                todo = [batch[:most], batch[most:], *todo]
                continue
            try:
                found = run(batch)
            except (MemoryError, RuntimeError) as error:
                if len(batch) == 1 or not is_out_of_memory(error):
                    raise
            else:
                yield batch, found
                del found
                continue
            # Only here, where the error and all tensors that it holds are gone, is there room again.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            most = len(batch) // 2
            todo.insert(0, batch)
