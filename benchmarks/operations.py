"""Operations counted on paper, and how fast this machine does each kind: what a work must cost at the least.

`products` are the multiplications and additions of matrix products, `exponentials` one for each vector and word.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from twotowers.model.model import Model
from twotowers.model.products import matmul_t

ROWS, WORDS = 1024, 1024  # of the block that the rates are measured on; it stays in a processor's outer cache


@dataclass(frozen=True)
class Operations:
    """For all prompts together."""

    products: float
    exponentials: float = 0.0

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.products + other.products, self.exponentials + other.exponentials)


def forward(model: Model, n: int, tokens: int) -> Operations:
    """n prompts through the model, logits at the last position only."""
    weights = sum(p.numel() for block in model.blocks for p in block.parameters() if p.dim() == 2)
    attention = 2 * tokens * tokens * model.n_heads * model.d_head * model.n_layers  # query x key, weight x value
    last = model.unembedding.vocabulary * model.d_model
    return Operations(2.0 * n * (tokens * weights + attention + last))


def increases(model: Model, n: int, vectors: int = 1) -> Operations:
    """All blocks and `vectors` vectors of each head, of n prompts: see lib/twotowers/walk.py.

    The embedding and the FFN outputs are projected in full width. Vectors of heads are too, or through `E gamma W_O^h`,
    which is made once for all prompts: whichever is cheaper.
    """
    words, d, layers, heads = model.unembedding.vocabulary, model.d_model, model.n_layers, model.n_heads
    rows = n * layers * heads * vectors
    full = 2.0 * words * d * rows
    factored = 2.0 * words * layers * heads * model.d_head * d + 2.0 * words * model.d_head * rows
    blocks = 2.0 * n * words * d * (layers + 1)
    return Operations(blocks + min(full, factored), float(words) * (rows + 3 * n * layers))


def rates(width: int, seconds: float = 0.3) -> tuple[float, float]:
    """Products and exponentials a second on this machine, in float32 and with the threads now set."""
    a, b, out = torch.rand(ROWS, width), torch.rand(WORDS, width), torch.empty(ROWS, WORDS)
    return (
        2.0 * ROWS * width * WORDS / _each(lambda: matmul_t(a, b), seconds),
        ROWS * WORDS / _each(lambda: out.zero_().exp_().sum(-1), seconds),
    )


def _each(work, seconds: float) -> float:
    work()
    start, n = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds or n == 0:
        work()
        n += 1
    return spent / n
