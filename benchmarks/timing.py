"""Measure one cell in this process: run.py starts `python benchmarks/timing.py CELL-AS-JSON` for each.

The plain forward pass and the work are timed in turn, so that a slow moment of the machine touches both; the ratio is
taken pair by pair. Memory is measured on a run of its own: the largest resident size during it, above that before it;
on a GPU, what torch has allocated there.
"""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial

MEMORY_TOKENS = 4096  # memory is measured on at most so many tokens of prompts
COMPARED, SHORT = 2, 16  # prompts whose numbers are compared with the reference's, and their tokens at most


@dataclass(frozen=True)
class Cell:
    """One line of a table."""

    method: str = "ours"
    shape: str = "gpt2"
    weights: str = "random"  # or "real": then the shape is the name of a model
    prompts: int = 8
    tokens: int = 16
    repeats: int = 5
    dtype: str = "float32"
    vocabulary: int | None = None  # None: the shape's own
    threads: int = 1
    device: str = "cpu"

    @property
    def key(self) -> tuple:
        return tuple(v for k, v in asdict(self).items() if k != "repeats")

    @property
    def words(self) -> int:
        """Of the vocabulary."""
        from shapes import SHAPES

        return self.vocabulary or SHAPES[self.shape].words


def resident() -> int:
    """Bytes of this process in memory now."""
    try:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
    except OSError:
        import psutil

        return psutil.Process().memory_info().rss
    import resource

    return pages * resource.getpagesize()


def largest_resident() -> int:
    """Largest `resident` since /proc/self/clear_refs was told to count anew; 0 where the system keeps no such count."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024
    except (OSError, StopIteration):
        return 0


class Peak:
    """Watch the resident size: `with Peak() as peak: work()`, then `peak.mb` above that at the start.

    Linux keeps the largest itself; elsewhere a thread looks every millisecond. What an earlier run freed but the
    allocator kept would hide what this one takes, so it is given back first.
    """

    def __enter__(self) -> Peak:
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None) if sys.platform != "win32" else None, "malloc_trim"):
            libc.malloc_trim(0)
        self._most = self._before = resident()
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # count the largest anew
            self._counted = True
        except OSError:
            self._counted = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if not self._counted:
            self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self._most = max(self._most, resident())

    def __exit__(self, *_) -> None:
        self._most = max(self._most, largest_resident() if self._counted else resident())
        self._done.set()
        if not self._counted:
            self._thread.join()

    @property
    def mb(self) -> float:
        return (self._most - self._before) / 2**20


class DevicePeak:
    """`Peak` of a GPU's own memory."""

    def __init__(self, device: str):
        self.device = device

    def __enter__(self) -> DevicePeak:
        import torch

        self._count, self._before = torch.cuda.max_memory_allocated, torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *_) -> None:
        self.mb = (self._count(self.device) - self._before) / 2**20


def finished(device: str) -> float:
    """The time when the device has done all that was asked of it so far."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(cell: Cell) -> dict:
    import numpy as np
    import operations
    import torch
    from methods import METHODS, forward, reference_of
    from shapes import build, prompts, shape_of
    from twotowers.model import loading
    from twotowers.paper import costs

    torch.set_num_threads(cell.threads)
    real = cell.weights == "real"
    model = (
        loading.load(cell.shape, dtype=cell.dtype, device=cell.device) if real
        else build(cell.shape, cell.dtype, cell.vocabulary, device=cell.device)
    )  # fmt: skip
    peak = Peak if cell.device == "cpu" else partial(DevicePeak, cell.device)
    method, encoded = METHODS[cell.method], prompts(model, cell.prompts, cell.tokens)
    # The numbers first: that also warms up what is made once in a process.
    few, reference = prompts(model, COMPARED, min(SHORT, cell.tokens)), reference_of(method)
    found = np.asarray(method.make(model, few)())
    difference = 0.0 if reference is method.make else float(np.abs(found - reference(model, few)()).max())

    some = encoded[: max(1, MEMORY_TOKENS // cell.tokens)]
    plain, work = forward(model, some), method.make(model, some)
    with peak() as forward_peak:
        plain()
    with peak() as work_peak:
        work()

    if len(some) < len(encoded):
        plain, work = forward(model, encoded), method.make(model, encoded)
    pairs = []
    for _ in range(cell.repeats):
        start = finished(cell.device)
        plain()
        middle = finished(cell.device)
        work()
        pairs.append((middle - start, finished(cell.device) - middle))
    ratios = sorted(b / a for a, b in pairs)
    forward_s, work_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    shape, n, tokens = shape_of(model), cell.prompts, cell.tokens
    plainly, further = costs.forward(shape, n, tokens), method.operations(shape, n, tokens)
    rates = operations.rates(model.d_model, cell.device)
    # The forward pass costs what it was measured to cost; the rest is predicted from the counts.
    predicted = forward_s + rates.seconds(further, plainly.stock / forward_s)
    return {
        "ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1],
        "counted_ratio": costs.ratio(shape, further, n, tokens),
        "forward_ms": 1000 * forward_s / n, "work_ms": 1000 * work_s / n,
        "predicted_ms": 1000 * predicted / n if method.own else None,
        "forward_gflop": plainly.stock / n / 1e9, "further_gflop": (further.stock + further.products) / n / 1e9,
        "further_gexp": further.exponentials / n / 1e9,
        "book_gflop_s": rates.products / 1e9, "torch_gflop_s": rates.torch_products / 1e9,
        "gexp_s": rates.exponentials / 1e9,
        "forward_mb": forward_peak.mb, "extra_mb": work_peak.mb, "difference_nats": difference,
        "vocabulary": model.unembedding.vocabulary, "by": method.shown(), "work": method.work,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(Cell(**json.loads(sys.argv[1])))))
