"""How fast this machine does each kind of operation that `twotowers.paper.costs` counts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from twotowers.model.products import matmul_t
from twotowers.paper.costs import Operations

ROWS, WORDS = 1024, 1024  # of the block that the rates are measured on; it stays in a processor's outer cache


@dataclass(frozen=True)
class Rates:
    """A second, in float32 and with the threads now set: products of two large matrices as this book makes them and as
    torch does by itself, and exponentials with their sum."""

    products: float
    torch_products: float
    exponentials: float

    def seconds(self, work: Operations, stock: float) -> float:
        """Of a work whose products within the model's own modules go at the rate `stock`."""
        return work.stock / stock + work.products / self.products + work.exponentials / self.exponentials


def rates(width: int, seconds: float = 0.3) -> Rates:
    """Measured on matrices of this width, some seconds each."""
    a, b, out = torch.rand(ROWS, width), torch.rand(WORDS, width), torch.empty(ROWS, WORDS)
    products = 2.0 * ROWS * width * WORDS
    return Rates(
        products / _each(lambda: matmul_t(a, b), seconds),
        products / _each(lambda: a @ b.T, seconds),
        ROWS * WORDS / _each(lambda: out.zero_().exp_().sum(-1), seconds),
    )


def _each(work, seconds: float) -> float:
    work()
    start, n = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds or n == 0:
        work()
        n += 1
    return spent / n
