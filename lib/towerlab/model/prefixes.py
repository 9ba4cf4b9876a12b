"""Inputs of all layers for many prompts that begin alike, each beginning run once.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.word_blocks import word_blocks
    >>> from twotowers.settings import Template
    >>> model = load("mini-gpt2")
    >>> words = {"animal": ["dog", "cat", "bee"], "country": ["italy", "spain", "peru"]}
    >>> prompts = word_blocks("animal/country", words, Template(1, "space"), "foo/bar", seed=0)
    >>> inputs = stream_inputs(model, model.encode(prompts), max_tokens=4096)
    >>> inputs.last.shape, inputs.labels.shape  # (prompt, layer, d_model), (prompt, label, ...)
    (torch.Size([12, 4, 96]), torch.Size([12, 2, 4, 96]))

The beginning of a prompt ends with its last label. Attention is causal, so the beginning does not
depend on the query, and its keys and values serve all queries that follow it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from towerlab.model.attention import block_calls
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompts, of_one_length

Ids = tuple[int, ...]


class StreamInputs(NamedTuple):
    """The residual stream at the input of every layer, on the CPU."""

    last: Float[Tensor, "prompt layer d_model"]
    """At the last position"""
    labels: Float[Tensor, "prompt label layer d_model"]
    """At the labels of the demonstrations"""


class _End(NamedTuple):
    """The rest of a prompt, the row of its beginning, and the number of the prompt."""

    ids: Ids
    row: int
    prompt: int


@torch.inference_mode()
def stream_inputs(model: Model, encoded: Prompts, max_tokens: int) -> StreamInputs:
    """Compute the inputs of all layers at the last position and at labels.

    Cost: one run of each different beginning, and of the rest of each prompt. The results equal
    those of whole prompts up to rounding.

    Args:
        model: Any model.
        encoded: Prompts with equal numbers of demonstrations.
        max_tokens: Maximum number of tokens that are run at once.
    """
    n_prompts = len(encoded)
    n_labels = len(encoded[0].label_positions)
    shape = model.n_layers, model.d_model
    last = torch.empty(n_prompts, *shape, dtype=model.dtype)
    labels = torch.empty(n_prompts, n_labels, *shape, dtype=model.dtype)
    prompts_of: dict[Ids, list[int]] = {}  # beginning -> numbers of prompts
    for i, e in enumerate(encoded):
        length = e.label_positions[-1] + 1
        prompts_of.setdefault(e.ids[:length], []).append(i)
    for beginnings in of_one_length(list(prompts_of), max_tokens):
        length = len(beginnings[0])
        cache = DynamicCache(config=model.config)
        streams = _run(model, beginnings, cache)
        ends = []
        for row, ids in enumerate(beginnings):
            for i in prompts_of[ids]:
                positions = list(encoded[i].label_positions)
                labels[i] = streams[row, positions]
                ends.append(_End(encoded[i].ids[length:], row, i))
        # Each row of this batch also holds the keys and values of its beginning.
        max_rows = max_tokens // (length + 1)
        for some in of_one_length(ends, max_rows, lambda end: len(end.ids)):
            texts, rows, prompts = zip(*some, strict=True)
            of_rows = copy.deepcopy(cache)
            of_rows.batch_select_indices(torch.tensor(rows, device=model.device))
            streams = _run(model, texts, of_rows)
            last[list(prompts)] = streams[:, -1]
    return StreamInputs(last, labels)


def _run(
    model: Model, texts: Sequence[Ids], cache: DynamicCache
) -> Float[Tensor, "text position layer d_model"]:
    """Run texts that follow what is in the cache, and return the inputs of all layers."""
    embeddings = model.hf.get_input_embeddings().weight
    ids = torch.tensor(texts, device=embeddings.device)
    layers = range(model.n_layers)
    with block_calls(model, layers) as calls:
        model.hf.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    inputs = [calls[layer][0].cpu() for layer in layers]
    return torch.stack(inputs, 2)
