"""How fast this machine does each kind of operation that `twotowers.paper.costs` counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from timing import finished
from twotowers.model.products import matmul_t
from twotowers.paper.costs import Operations

ROWS, WORDS = 1024, 1024  # of the block that the rates are measured on; it stays in a processor's outer cache
LARGE = 8192  # of each side on a GPU, which a smaller one would leave half idle


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


def rates(width: int, device: str = "cpu", seconds: float = 0.3) -> Rates:
    """Measured on matrices of this width, some seconds each."""
    rows, words = (ROWS, WORDS) if device == "cpu" else (LARGE, LARGE)
    a, b = (torch.rand(n, width, device=device) for n in (rows, words))
    out, products = torch.empty(rows, words, device=device), 2.0 * rows * width * words
    return Rates(
        products / _each(lambda: matmul_t(a, b), device, seconds),
        products / _each(lambda: a @ b.T, device, seconds),
        rows * words / _each(lambda: out.zero_().exp_().sum(-1), device, seconds),
    )


def _each(work, device: str, seconds: float) -> float:
    work()
    start, n = finished(device), 0
    while (spent := finished(device) - start) < seconds or n == 0:
        work()
        n += 1
    return spent / n
