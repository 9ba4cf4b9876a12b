"""Inputs of all layers for many prompts that begin alike, each beginning run once.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.word_blocks import word_blocks
    >>> from twotowers.settings import Template
    >>> model = load("mini-gpt2")
    >>> words = {"animal": ["dog", "cat", "bee"], "country": ["italy", "spain", "peru"]}
    >>> prompts = word_blocks("animal/country", words, Template(1, "space"), "foo/bar", seed=0)
    >>> inputs = stream_inputs(model, model.encode(prompts))
    >>> inputs.last.shape, inputs.labels.shape  # (prompt, layer, d_model), (prompt, label, ...)
    (torch.Size([12, 4, 96]), torch.Size([12, 2, 4, 96]))

The beginning of a prompt ends with its last label. Attention is causal, so the beginning does not
depend on the query, and its keys and values serve all queries that follow it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from towerlab.model.attention import block_calls
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompts

Ids = tuple[int, ...]
MAX_TOKENS = 4096
"""Maximum number of tokens that are run at once"""


class StreamInputs(NamedTuple):
    """The residual stream at the input of every layer, on the CPU."""

    last: Float[Tensor, "prompt layer d_model"]
    """At the last position"""
    labels: Float[Tensor, "prompt label layer d_model"]
    """At the labels of the demonstrations"""


@torch.inference_mode()
def stream_inputs(model: Model, encoded: Prompts, max_tokens: int = MAX_TOKENS) -> StreamInputs:
    """Compute the inputs of all layers at the last position and at labels.

    Cost: one run of each different beginning, and of the rest of each prompt. The results equal
    those of whole prompts up to rounding.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.
        max_tokens: Maximum number of tokens that are run at once.
    """
    shape = model.n_layers, model.d_model
    last = torch.empty(len(encoded), *shape, dtype=model.dtype)
    labels = torch.empty(len(encoded), len(encoded[0].label_positions), *shape, dtype=model.dtype)
    prompts_of: dict[Ids, list[int]] = {}  # beginning -> numbers of prompts
    for i, e in enumerate(encoded):
        prompts_of.setdefault(e.ids[: e.label_positions[-1] + 1], []).append(i)
    beginnings = list(prompts_of)
    for numbers in _of_one_length(beginnings, max_tokens):
        begun, cache = [beginnings[i] for i in numbers], DynamicCache(config=model.config)
        streams = _run(model, begun, cache)
        followed = [(row, i) for row, ids in enumerate(begun) for i in prompts_of[ids]]
        for row, i in followed:
            labels[i] = streams[row, list(encoded[i].label_positions)]
        ends = [encoded[i].ids[len(begun[0]) :] for _, i in followed]
        # Each row of this batch also holds the keys and values of its beginning.
        for some in _of_one_length(ends, max_tokens // (len(begun[0]) + 1)):
            rows, prompts = zip(*(followed[j] for j in some), strict=True)
            of_rows = copy.deepcopy(cache)
            of_rows.batch_select_indices(torch.tensor(rows, device=model.device))
            last[list(prompts)] = _run(model, [ends[j] for j in some], of_rows)[:, -1]
    return StreamInputs(last, labels)


def _of_one_length(texts: Sequence[Ids], max_tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of texts of equal length, with at most `max_tokens` tokens together."""
    by_length: dict[int, list[int]] = {}
    for i, ids in enumerate(texts):
        by_length.setdefault(len(ids), []).append(i)
    for length, numbers in by_length.items():
        size = max(1, max_tokens // length)
        for first in range(0, len(numbers), size):
            yield numbers[first : first + size]


def _run(
    model: Model, texts: Sequence[Ids], cache: DynamicCache
) -> Float[Tensor, "text position layer d_model"]:
    """Run texts that follow what is in the cache, and return the inputs of all layers."""
    embeddings = model.hf.get_input_embeddings().weight
    ids = torch.tensor(texts, device=embeddings.device)
    with block_calls(model, range(model.n_layers)) as calls:
        model.hf.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    return torch.stack([calls[layer][0].cpu() for layer in range(model.n_layers)], 2)
