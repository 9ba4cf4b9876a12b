"""A batch that does not fit in memory is run in smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from twotowers.errors import TwoTowersError
from twotowers.prompts.prompt import Encoded

T = TypeVar("T")


def in_memory(
    run: Callable[[list[int], list[Encoded]], T], batches: Iterable[tuple[list[int], list[Encoded]]]
) -> Iterator[tuple[list[int], T]]:
    """(index, run(index, batch)) for each batch. One that does not fit is halved, and no later one is larger.

    Raises TwoTowersError when a single prompt does not fit; all other errors of `run` as they are.
    """
    most = 0
    for whole in batches:
        todo = [whole]
        while todo:
            index, batch = todo.pop(0)
            if most and len(batch) > most:
                todo = [(index[:most], batch[:most]), (index[most:], batch[most:]), *todo]
                continue
            try:
                found = run(index, batch)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(batch) == 1:
                    raise TwoTowersError(
                        f"a prompt of {len(batch[0].ids)} tokens does not fit in memory: take a smaller k, a narrower "
                        "dtype, another device or a smaller model"
                    ) from None
            else:
                yield index, found
                del found  # or it would be held while the next batch runs
                continue
            # Only here, where the error and all tensors that it holds are gone, is there room again.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            most = len(batch) // 2
            todo.insert(0, (index, batch))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short, on any device: PyTorch has its own type for some of them only."""
    text = str(error).lower()
    short = "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or short
