"""Which cells a run measures. Names of presets are names of files in benchmarks/results."""

from __future__ import annotations

from dataclasses import replace

from timing import Cell


def _cells(*lines: tuple[str, int, int, int]) -> list[Cell]:
    """One cell for each (method, tokens, prompts, repeats)."""
    return [Cell(m, tokens=t, prompts=n, repeats=r) for m, t, n, r in lines]


def table() -> list[Cell]:
    """What this book's own work costs: some eight minutes on one thread.

    What prompts share (the factors of the heads) weighs less the more there are, so the ratio of 32 prompts bounds
    that of 1,000 from above.
    """
    return _cells(
        ("ours", 16, 8, 5), ("ours", 128, 8, 3), ("ours", 16, 1000, 1), ("ours", 128, 32, 1),
        ("ours_positions", 16, 64, 1), ("ours_positions", 128, 8, 1),
        ("ours_zero_all", 16, 8, 1), ("ours_zero_all", 128, 1, 1), ("ours_zero_last", 16, 8, 3),
        ("ours_zero_last", 128, 8, 2),
    )  # fmt: skip


def peers() -> list[Cell]:
    """Each work beside the other ways to do it, on the same eight prompts: a quarter of an hour.

    The slowest ways are measured at 16 tokens only.
    """
    quick, slow = ("ours", "hooks", "transformer_lens", "nnsight"), ("positions_in_batches", "zero_all_whole_runs")
    return _cells(
        *((m, t, 8, 7 if t == 16 else 3) for t in (16, 128) for m in quick),
        ("authors", 16, 8, 3), ("authors", 128, 8, 1),
        ("ours_positions", 16, 8, 3), ("ours_zero_all", 16, 8, 2), ("ours_zero_last", 16, 8, 3),
        *((m, 16, 8, 1) for m in (*slow, "zero_last_whole_runs")),
    )  # fmt: skip


def large() -> list[Cell]:
    """Shapes of the paper's models, bfloat16, eight prompts of 16 tokens; the largest takes 16 GB of memory."""
    return [Cell(shape=shape, dtype="bfloat16", repeats=3) for shape in ("gpt2-large", "gpt-j", "llama-7b")]


def smollm2() -> list[Cell]:
    """Real weights, at the lengths of the book's forms of a prompt: a quarter of an hour."""
    cells = [(8, 19, 3), (64, 19, 1), (1000, 19, 1), (64, 63, 1), (1000, 63, 1)]
    return [Cell(shape="smollm2-135m", weights="real", prompts=n, tokens=t, repeats=r) for n, t, r in cells]


def gpu() -> list[Cell]:
    """Large shapes on a GPU: few prompts and many, and the work done by plain hooks beside it."""
    many = [(8, 16, 5), (64, 63, 3), (1000, 16, 3)]
    cells = [
        Cell(method, shape=shape, dtype=dtype, prompts=n, tokens=t, repeats=r)
        for shape, dtype in (("gpt2-large", "float32"), ("gpt-j", "bfloat16"), ("llama-7b", "bfloat16"))
        for n, t, r in many for method in ("ours", "hooks")
    ]  # fmt: skip
    cells.append(Cell("ours_zero_last", shape="gpt2-large", prompts=8, repeats=1))
    return [replace(cell, device="cuda") for cell in cells]


def cost() -> list[Cell]:
    """One thing varied at a time: prompts, tokens, words of the vocabulary."""
    return [
        *(Cell(prompts=n, repeats=3 if n <= 256 else 1) for n in (8, 16, 32, 64, 128, 256, 512, 1000)),
        *(Cell(prompts=16, tokens=n, repeats=3) for n in (16, 32, 64, 128, 256)),
        *(Cell(prompts=64, vocabulary=n, repeats=3) for n in (2_000, 5_000, 10_000, 20_000, 50_000)),
    ]


def tiny() -> list[Cell]:
    """Every way once, on a tiny model: does it run?"""
    from methods import METHODS

    return [Cell(method, shape="tiny", repeats=1) for method in METHODS]


PRESETS = {f.__name__: f for f in (table, peers, large, gpu, cost, smollm2, tiny)}
