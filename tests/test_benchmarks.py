"""The benchmark script runs, and what it counts is what torch counts and what one counts by
hand."""

from itertools import product

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from transformers import GPT2Config

from benchmarks import run

TINY = GPT2Config(
    n_layer=2, n_head=4, n_embd=16, vocab_size=60, n_positions=32, bos_token_id=0, eos_token_id=0
)
SDPA = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: (
        sdpa_flop_count(q, k, v)
    )
}


def test_it_runs_and_every_way_gives_the_same_numbers():
    table = run.measure(TINY, product(run.WORKS, [2, 3], [9, 12]), repeats=1)
    assert {"plain hooks", run.WHOLE, run.OWN} <= set(table["method"])
    assert {*table.groupby(["method", "work"]).size()} == {4}
    assert (table[["ratio", "operations"]] > 0).all(axis=None)
    n_lines = table.groupby(["work", "prompts", "method"]).ngroups
    assert run.markdown(table, "here").count("\n| ") == 1 + n_lines


@pytest.mark.parametrize(
    ("work", "own"), [("ablate all", True), ("ablate last", True), ("ablate last", False)]
)
def test_operations_are_those_that_torch_counts(work, own):
    make = run.WORKS[work][1][1 if own else 0][0](run.build(TINY), run.draw(TINY, 3, 11))
    with FlopCounterMode(display=False, custom_mapping=SDPA) as counted:
        make()
    assert run.operations(TINY, work, 3, 11, own) == counted.get_total_flops()
