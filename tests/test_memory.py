"""A batch that does not fit in memory: halved until it does, then one line; with a memory that we
make small."""

import gc
import weakref

import numpy as np
import pytest
import torch
from conftest import random_prompts, refused, tiny
from towerlab.measure.heads import heads
from towerlab.model import capture, memory
from towerlab.prompts.prompt import batches

ERRORS = [
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory: you tried to"
    ),
    torch.OutOfMemoryError("CUDA out of memory. Tried to"),
    MemoryError(),
    RuntimeError("MPS: out of memory"),
]


def small(most, error, attempts):
    """A run that fits `most` prompts at a time."""

    def run(index, batch):
        attempts.append(len(batch))
        if len(batch) > most:
            raise error
        return [2 * i for i in index]

    return run


def prompts(n):
    """Batches of prompts of one length: eight of them are 112 tokens."""
    return batches(random_prompts(n, lengths=(14,)), 112)


@pytest.mark.parametrize("error", ERRORS, ids=range(len(ERRORS)))
@pytest.mark.parametrize(
    "most, sizes", [(8, [8, 8, 5]), (3, [8, 4, *[2] * 10, 1]), (1, [8, 4, 2, *[1] * 21])]
)
def test_a_batch_is_halved_until_it_fits_and_later_ones_are_no_larger(error, most, sizes):
    attempts = []
    results = list(memory.in_memory(small(most, error, attempts), prompts(21)))
    assert attempts == sizes
    assert [i for index, _ in results for i in index] == list(range(21))
    assert [i for _, result in results for i in result] == [2 * i for i in range(21)]


@pytest.mark.parametrize("error", ERRORS, ids=range(len(ERRORS)))
def test_one_prompt_that_does_not_fit_is_one_line(error):
    refused(
        "a prompt of 14 tokens does not fit in memory: take a smaller k",
        list,
        memory.in_memory(small(0, error, []), prompts(5)),
    )


def test_other_errors_are_not_taken_for_it():
    sizes = []
    with pytest.raises(RuntimeError, match="shape mismatch"):
        list(memory.in_memory(small(3, RuntimeError("shape mismatch"), sizes), prompts(8)))
    assert sizes == [8]


def test_only_one_batch_is_held_at_a_time():
    results = weakref.WeakSet()

    def run(index, batch):
        gc.collect()
        assert len(results) == 0
        result = type("Result", (), {})()
        results.add(result)
        return result

    n = 0
    for _, result in memory.in_memory(run, prompts(24)):
        n += 1
        del result
    assert n == 3


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_captures_and_heads_are_the_same_in_small_memory(kind, monkeypatch):
    model, encoded, sizes = tiny(kind), random_prompts(7, lengths=(14,)), []

    def results():
        logits = {
            i: c.logits[row]
            for c in capture.captures(model, encoded)
            for row, i in enumerate(c.index)
        }
        return torch.stack([logits[i] for i in range(7)]), heads(model, encoded)

    whole, forward = results(), model.blocks[-1].forward

    def limited(hidden, *args, **kwargs):  # the last block, when hooks have seen the rest
        sizes.append(len(hidden))
        if len(hidden) > 2:
            raise ERRORS[0]
        return forward(hidden, *args, **kwargs)

    monkeypatch.setattr(model.blocks[-1], "forward", limited)
    again = results()
    assert max(sizes) > 2
    torch.testing.assert_close(whole[0], again[0])
    for name in whole[1].data_vars:
        np.testing.assert_allclose(whole[1][name], again[1][name], rtol=1e-5, atol=1e-6)
