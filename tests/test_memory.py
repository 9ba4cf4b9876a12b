"""Work that does not fit in memory is done again in smaller batches, then refused in one line."""

import gc

import pytest
import torch
from conftest import random_prompts, refused, tiny
from tolerances import near
from towerlab.measure.observations import in_memory
from towerlab_experiments.head_values import heads, increases

ERRORS = [
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to"),
    RuntimeError("MPS backend out of memory"),
]


@pytest.fixture(autouse=True)
def _little_garbage():
    """What earlier tests left is not collected again: that takes most of the time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("error", ERRORS, ids=range(len(ERRORS)))
def test_sizes_are_halved_until_one_does_not_fit(error):
    sizes = []

    def run(size, most):
        sizes.append(size)
        if size > most:
            raise error
        return size

    assert in_memory(lambda size: run(size, 3), 21) == 2 and sizes == [21, 10, 5, 2]
    refused("it does not fit in memory", in_memory, lambda size: run(size, 0), 2)
    with pytest.raises(ZeroDivisionError):
        in_memory(lambda size: 1 / 0, 8)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        in_memory(lambda size: torch.ones(size, 2) @ torch.ones(size, 2), 8)


@pytest.mark.parametrize("measure", [heads, increases])
def test_results_are_the_same_in_small_memory(measure, monkeypatch):
    model, encoded, sizes = tiny("gpt2"), random_prompts(7, lengths=(14,)), []
    whole, forward = measure(model, encoded), model.layers[-1].forward

    def limited(hidden, *args, **kwargs):
        sizes.append(len(hidden))
        if len(hidden) > 2:
            raise ERRORS[0]
        return forward(hidden, *args, **kwargs)

    monkeypatch.setattr(model.layers[-1], "forward", limited)
    again = measure(model, encoded)
    assert max(sizes) > 2
    for name in whole.data_vars:
        near(whole[name], again[name], rtol=1e-5, atol=1e-6)
