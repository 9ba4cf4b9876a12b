"""Datasets of measurements, with one observation for each prompt.

    arrays = read_prompts("heads", model, encoded, {"weights"}, read)      # name -> (prompt, ...)
    data = observations("heads", encoded, arrays)

A prompt's properties are coordinates (`prompts.blocks.prompt_coordinates`). The dimensions of
arrays are listed in data/variables.csv; here the prompt is the first. `pipeline.save` writes a
dataset to its file.

    >>> arrays = {"effect_by_route": np.zeros((8, 4, 2)), "logit_difference": np.zeros(8)}
    >>> {name: array.dims for name, array in with_dims("head_effects", arrays).items()}
    {'effect_by_route': ('route', 'sender', 'prompt'), 'logit_difference': ('prompt',)}
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
import xarray as xr
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from jaxtyping import Float, Int
from torch import Tensor
from twotowers.catalogue import variables
from twotowers.errors import TwoTowersError

from towerlab.model.capture import Capture, capture, label_log_probs
from towerlab.model.model import Model, widen
from towerlab.model.proof import WIDER
from towerlab.progress import progress
from towerlab.prompts.blocks import prompt_coordinates
from towerlab.prompts.prompt import MAX_TOKENS, Prompts, batches

ANSWERS = ("log_prob_true", "log_prob_other", "logit_difference", "top_answer")
T = TypeVar("T")
Tensors = dict[str, Tensor]
"""Name -> values (batch, ...)"""
Arrays = Mapping[str, Any]
"""Name -> values (prompt, ...), or values with dimensions, as xarray takes them"""


def observations(
    measurement: str, encoded: Prompts, arrays: Arrays, **coordinates: Any
) -> xr.Dataset:
    """Return a dataset over prompts, with their properties as coordinates.

    Layers and heads count from 0. All of ANSWERS have the dimensions of the measurement's logit
    difference.

    Args:
        measurement: Measurement of data/variables.csv that has these variables.
        encoded: Prompts.
        arrays: Name -> values.
        **coordinates: Coordinates of dimensions other than layer, head and prompt.

    Returns:
        The dataset.
    """
    data = xr.Dataset(with_dims(measurement, arrays))
    prompts = [e.prompt for e in encoded]
    of_prompts = prompt_coordinates(prompts)
    if "demonstration" not in data.dims:
        of_prompts.pop("is_true_label", None)
    numbers = {dim: range(n) for dim, n in data.sizes.items() if dim in ("layer", "head")}
    return data.assign_coords(numbers | of_prompts | coordinates)


def with_dims(measurement: str, arrays: Arrays) -> dict[str, Any]:
    """Return arrays with the dimensions of the variables of a measurement, in its order.

    Args:
        measurement: Measurement of data/variables.csv that has these variables.
        arrays: Name -> values (prompt, ...), or values with dimensions, as xarray takes them.

    Returns:
        Name -> variable.
    """
    dims = {name: row.dims for name, row in variables()[measurement].items()}
    dims = dict.fromkeys(ANSWERS, dims.get("logit_difference", ("prompt",))) | dims
    out = {}
    for name, array in arrays.items():
        if not isinstance(array, tuple):
            prompt_first = sorted(dims[name], key="prompt".__ne__)
            array = xr.Variable(prompt_first, array).transpose(*dims[name])
        out[name] = array
    return out


def in_memory(run: Callable[[int], T], size: int) -> T:
    """Return run(size), with half the size each time that memory is short.

    Accelerate's `find_executable_batch_size` does the same, but collects garbage before each first
    try, which takes longer than a small batch.

    Args:
        run: Function of a size.
        size: First size to try.

    Returns:
        Result of the first run for which there is enough memory.

    Raises:
        TwoTowersError: If memory is short at size 1.
    """
    while True:
        try:
            return run(size)
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            if size == 1:
                raise TwoTowersError(
                    "cannot run a prompt: it does not fit in memory; choose a smaller k, a "
                    "narrower dtype, another device or a smaller model"
                ) from None
        # The error, and all tensors that it held, are gone only here.
        clear_device_cache(garbage_collection=True)
        size //= 2


def read_batches(
    name: str,
    encoded: Prompts,
    max_tokens: int,
    run: Callable[[list[int], Prompts], Mapping[str, Tensor]],
) -> dict[str, np.ndarray]:
    """Return the results of `run(index, batch)` for all batches, put together.

    If memory is short, all prompts are run again in smaller batches.

    Args:
        name: Name of the progress bar.
        encoded: Prompts.
        max_tokens: Maximum number of tokens of a batch.
        run: Function of the numbers of some prompts and of these prompts. It returns name ->
            (batch, ...).

    Returns:
        Name -> (prompt, ...).
    """

    def run_all(size: int) -> dict[str, np.ndarray]:
        out: dict[str, np.ndarray] = {}
        with progress(name, len(encoded)) as bar:
            for index, batch in batches(encoded, size):
                for key, values in run(index, batch).items():
                    # NumPy has no bfloat16.
                    values = widen(values) if values.is_floating_point() else values
                    array = values.cpu().numpy()
                    shape = len(encoded), *array.shape[1:]
                    out.setdefault(key, np.empty(shape, array.dtype))[index] = array
                bar.update(len(index))
        return out

    return in_memory(run_all, max_tokens)


def read_prompts(
    name: str,
    model: Model,
    encoded: Prompts,
    include: Collection[str],
    read: Callable[[Capture], Mapping[str, Tensor]],
    max_tokens: int = MAX_TOKENS,
) -> dict[str, np.ndarray]:
    """Return the results of `read` for each batch's capture, put together.

    If memory is short, all prompts are run and read again in smaller batches. So `read` must not
    add anything up, and its random draws must not depend on the order.

    Args:
        name: Name of the progress bar.
        model: Any model.
        encoded: Prompts.
        include: Further parts that a capture contains: see `capture`.
        read: Function of a capture. It returns name -> (batch, ...).
        max_tokens: Maximum number of tokens of a batch.

    Returns:
        Name -> (prompt, ...).
    """
    return read_batches(
        name, encoded, max_tokens, lambda _, batch: read(capture(model, batch, include))
    )


def plain_z(model: Model, encoded: Prompts) -> Float[Tensor, "prompt layer head d_head"]:
    """Return the inputs of W_O at the last position, in the model's dtype.

    Args:
        model: Any model.
        encoded: Prompts.

    Returns:
        Inputs of W_O (prompt, layer, head, d_head).
    """
    z = read_prompts(
        "plain runs", model, encoded, (), lambda run: {"z": run.attention_out_input.transpose(0, 1)}
    )["z"]
    return torch.from_numpy(z).to(model.dtype)


def check_finite(answers: Tensor) -> None:
    """Raise TwoTowersError if answers are not finite.

    An average over them would look like a result.

    Args:
        answers: Log-probabilities or logit differences.

    Raises:
        TwoTowersError: If a number is not finite.
    """
    if not answers.isfinite().all():
        raise TwoTowersError(f"cannot use the model: its answers are not finite; {WIDER}")


def answer_variables(
    batch: Prompts,
    top: Int[Tensor, "*versions batch"],
    log_prob: Float[Tensor, "*versions batch label"],
) -> Tensors:
    """Return the model's answers to versions of one batch, as variables.

    Args:
        batch: Prompts.
        top: Top tokens (*versions, batch).
        log_prob: Log-probabilities (nats) of the true label and the other label (*versions, batch,
            label).

    Returns:
        Variables (batch, *versions): `log_prob_true` and `log_prob_other` (nats), their difference
        `logit_difference` (nats), and `top_answer`, the top token (0 true label, 1 other label, 2
        another token).

    Raises:
        TwoTowersError: If numbers are not finite.
    """
    check_finite(log_prob)
    true, other = log_prob.unbind(-1)
    true_ids, other_ids = torch.tensor([e.label_pair_ids for e in batch]).T
    top_answer = torch.full_like(top, 2, dtype=torch.int8)
    top_answer[top == true_ids] = 0
    top_answer[top == other_ids] = 1
    values = true, other, true - other, top_answer
    variables = {}
    for name, of_batch_last in zip(ANSWERS, values, strict=True):
        variables[name] = of_batch_last.movedim(-1, 0)
    return variables


def captured_answers(capture: Capture) -> Tensors:
    """Return the answers of one batch's capture, as variables.

    Args:
        capture: Values of a batch.

    Returns:
        Variables (batch,): see `answer_variables`.
    """
    return answer_variables(capture.prompts, *label_log_probs(capture.logits, capture.prompts))
