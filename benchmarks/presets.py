"""Which cells a run measures. Names of presets are names of files in benchmarks/results."""

from __future__ import annotations

from dataclasses import replace

from measure import Cell

TOKENS = (16, 128)


def _at_each_length(cells: list[Cell]) -> list[Cell]:
    """Each cell at 16 tokens as it stands, and at 128 with a third of the repeats."""
    return [
        replace(c, tokens=n, repeats=c.repeats if n == TOKENS[0] else -(-c.repeats // 3)) for c in cells for n in TOKENS
    ]


def table() -> list[Cell]:
    """What this book's own work costs. Some hours on one thread: --at-most 64 is a quarter of an hour."""
    return _at_each_length(
        [
            Cell("ours", repeats=7),
            Cell("ours", prompts=1000, repeats=3),
            Cell("ours_positions", prompts=1000, repeats=1),
            Cell("ours_zero_all", repeats=3),
            Cell("ours_zero_last", repeats=3),
        ]
    )


def peers() -> list[Cell]:
    """Each work beside the other ways to do it, on the same eight prompts."""
    return _at_each_length(
        [
            *(Cell(m, repeats=7) for m in ("ours", "hooks", "transformer_lens", "nnsight")),
            *(Cell(m, repeats=3) for m in ("authors", "ours_positions", "positions_in_batches")),
            *(
                Cell(m, repeats=1)
                for m in ("ours_zero_all", "zero_all_whole_runs", "ours_zero_last", "zero_last_whole_runs")
            ),
        ]
    )


def large() -> list[Cell]:
    """Shapes of the paper's models, bfloat16, eight prompts of 16 tokens; the largest takes 16 GB of memory."""
    return [Cell(shape=shape, dtype="bfloat16", repeats=3) for shape in ("gpt2-large", "gpt-j", "llama-7b")]


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


PRESETS = {f.__name__: f for f in (table, peers, large, cost, tiny)}
