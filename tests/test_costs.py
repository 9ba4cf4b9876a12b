"""Counted operations against torch's own count and by hand; predictions on rows made by hand."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from conftest import ROOT, random_prompts, tiny
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count
from twotowers.analysis import ablate, increase, locate
from twotowers.analysis.edit_heads import all_heads
from twotowers.errors import TwoTowersError
from twotowers.model.model import matrix_of
from twotowers.paper import costs
from twotowers.paper.costs import Operations, Shape

SMALL = Shape("small", "Small", "gpt2", 2, 4, 4, 64, 16, 256, False, 1000, True)
SDPA = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}


def of(model, gated):
    sizes = (model.n_layers, model.n_heads, model.n_key_value_heads, model.d_model, model.d_head)
    return Shape(
        "", "", "", *sizes, matrix_of(model.part(0, "ffn_out")).shape[1], gated, model.unembedding.vocabulary, True
    )


@pytest.mark.parametrize("positions", ["all", "last"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_operations_of_zeroing_every_head_are_those_that_torch_counts(kind, positions):
    model, encoded = tiny(kind), random_prompts(3, lengths=(11,))
    with FlopCounterMode(display=False, custom_mapping=SDPA) as counted:
        ablate.ablate_heads(model, encoded, all_heads(model), positions)
    shape = of(model, gated=kind == "llama")
    found = costs.forward(shape, 3, 11) + costs.zeroing(shape, 3, 11, positions)
    assert found == Operations(counted.get_total_flops())


def test_operations_of_the_increases_by_hand():
    # 1000 words, width 64, 2 layers of 4 heads, each 16 wide.
    blocks, exponentials = 2 * 1000 * 64 * 3, 1000 * (2 * 4 + 3 * 2)
    assert costs.increases(SMALL, 1) == Operations(0, blocks + 2 * 1000 * 64 * 8, exponentials)
    factored = 2 * 1000 * 64 * 64 * 2 + 2 * 1000 * 16 * 500 * 8
    assert costs.increases(SMALL, 500) == Operations(0, 500 * blocks + factored, 500 * exponentials)
    assert costs.increases(SMALL, 1, 7).exponentials == 1000 * (2 * 4 * 7 + 3 * 2)


def test_operations_of_the_other_ways_by_hand():
    assert costs.OTHERS["all heads and blocks"](SMALL, 3, 5) == Operations(
        0, 2 * 1000 * 64 * 3 * 2 * 7, 1000 * 3 * 2 * 7
    )
    assert costs.OTHERS["zeroing every head, last position"](SMALL, 3, 5) == costs.forward(SMALL, 24, 5)
    half = Operations(stock=costs.forward(SMALL, 3, 5).stock / 2)
    assert costs.ratio(SMALL, half, 3, 5) == 1.5 and set(costs.OTHERS) == set(costs.WORKS)


def test_more_heads_than_ride_at_once_take_the_plain_run_again():
    many = replace(SMALL, layers=300)
    assert (
        costs.zeroing(many, 1, 5, "last").stock > 1200 * 2 * many.words * many.d_model + costs.forward(many, 1, 5).stock
    )
    with pytest.raises(TwoTowersError, match="choose 'all' or 'last'"):
        costs.zeroing(SMALL, 1, 5, "first")


@pytest.mark.parametrize(
    "name, billions", [("gpt2-large", 0.774), ("gpt-j", 6.05), ("llama-7b", 6.74), ("llama-13b", 13.0), ("llama-30b", 32.5),
                       ("smollm2-135m", 0.1345), ("qwen2.5-coder-1.5b", 1.54)]
)  # fmt: skip
def test_shapes_have_the_parameters_that_their_authors_state(name, billions):
    assert costs.shapes()[name].weights / 1e9 == pytest.approx(billions, rel=0.01)


def recorded(**given):
    row = {"work": "all heads and blocks", "method": "ours", "shape": "small", "dtype": "float32", "prompts": 8, "tokens": 5,
           "device": "cpu", "vocabulary": 1000, "ratio": 2.0, "forward_ms": 1.0, "work_ms": 3.0, "predicted_ms": 2.0}  # fmt: skip
    return row | given


def test_what_was_measured_stands_beside_what_counting_predicts():
    zeroed = "zeroing every head, last position"
    table = costs.held(
        pd.DataFrame([
            recorded(), recorded(method="hooks"), recorded(ratio=float("nan")),
            recorded(work=zeroed, method="ours_zero_last", predicted_ms=float("nan"), vocabulary=500),
        ]),
        {"small": SMALL},
    )  # fmt: skip
    smaller = replace(SMALL, words=500)
    counted = costs.ratio(smaller, costs.WORKS[zeroed](smaller, 8, 5), 8, 5)
    assert table["over"].tolist() == pytest.approx([1.5, 3 / counted]) and table["work"].iloc[1] == zeroed


def devices(**given):
    one = costs.Device("A", 4, 1e-6, 2e-6, 28e-9, 0.5, 1.0, 3600, 7200, "", "")
    return [replace(one, **given)]


def test_the_whole_paper_on_one_device_and_on_eight(monkeypatch):
    big = replace(SMALL, name="big", shown="Big", layers=2600, d_model=2048)  # 16 GB: five devices for each copy
    monkeypatch.setattr(costs, "WHOLE", ("small", "big"))
    monkeypatch.setattr(costs, "shapes", lambda: {"small": SMALL, "big": big})
    monkeypatch.setattr(costs, "devices", devices)
    t = (
        costs.whole_paper(pd.DataFrame({"over": [0.5, 2.0]}), tokens=5)
        .set_index(["model", "gpus", "work"])
        .sort_index()
    )
    one, eight = (t.loc["Small", n, "accuracy alone"] for n in (1, 8))
    stock = costs.forward(SMALL, 5000, 5).stock
    # A million operations a second at the peak; low: all of it, half as long as counted; high: half of it, twice as long.
    assert (one["seconds_low"], one["seconds_high"]) == pytest.approx((stock / 1e6 / 2, stock / 1e6 * 4))
    assert eight["seconds_low"] == pytest.approx(one["seconds_low"] / 8)
    assert (eight["dollars_low"], one["dollars_high"]) == pytest.approx((one["seconds_low"], 2 * one["seconds_high"]))
    walk, shared = t.loc["Small", 1, "all heads and blocks"], t.loc["Small", 8, "all heads and blocks"]
    assert (
        shared["petaflop"] > walk["petaflop"] and shared["seconds_low"] > walk["seconds_low"] / 8
    )  # shared in each copy
    further = costs.increases(SMALL, 5000)
    expected = (stock / 1e6 + further.products / 2e6 + further.exponentials) / 2
    assert walk["seconds_low"] == pytest.approx(expected)
    assert t.loc["Big", 1]["copies"].eq(0).all() and t.loc["Big", 1]["seconds_low"].isna().all()
    assert (
        t.loc["Big", 8]["copies"].eq(8 // -(-costs.memory_gb(big, 5) // 4)).all()
        and (t.loc["Big", 8]["seconds_low"] > 0).all()
    )


def test_damaged_data_are_named(tmp_path, monkeypatch):
    (tmp_path / "costs").mkdir()
    monkeypatch.setattr(costs, "data_folder", lambda: tmp_path)
    for word in ("many", "-3"):
        head = ",".join(f.name for f in costs.fields(Shape))
        (tmp_path / "costs/shapes.csv").write_text(f"{head}\na,A,gpt2,{word},4,4,64,16,256,no,1000,yes\n")
        with pytest.raises(TwoTowersError, match=r"shapes.csv' is damaged \(line 2: .*number.*restore it"):
            costs.shapes()


def test_the_memory_of_a_walk_by_hand():
    """1000 words, width 64, 2 layers of 4 heads, each 16 wide, 5 tokens, float32: every term in turn."""
    vector = 2 * (2 * 64 + 64)  # of one prompt: what goes in, the FFN's part, the heads
    one_pass = 4 * 3 * (5 * (4 * 256 + 6 * 64) + 1000)
    assert costs.pass_bytes(SMALL, 3, 5, 4) == one_pass
    held = 4 * 3 * (vector + 2 * 64)
    full = vector * 3 * 8 + 4 * 3 * 2 * 5 * (2 * 64 + 1024) + 4 * 1024 * 2 * 64  # 3 prompts: each vector by itself
    assert costs.walk_bytes(SMALL, 3, 5, 4, False) == held + max(one_pass + 8 * 3 * 1000, full)
    held, factored = 4 * 90 * (vector + 2 * 64), vector * 90 * 8 + 4 * 90 * 2 * (2 * 64 + 1024) + 4 * 1024 * (
        2 * 64 + 64 + 3 * 90
    )  # fmt: skip
    read = costs.pass_bytes(SMALL, 90, 5, 4) + 8 * 90 * 1000  # all in one batch of 512 tokens
    assert costs.walk_bytes(SMALL, 90, 5, 4, False) == held + max(read, factored)
    many = costs.walk_bytes(SMALL, 10**6, 5, 4, False)
    assert many == costs.walk_bytes(SMALL, 10**7, 5, 4, False) < 20 * costs.WALK, "however many prompts there are"
    assert costs.walk_bytes(SMALL, 10**6, 5, 4, True) > many, "more at once on a GPU"


@pytest.mark.parametrize("work", costs.MEMORY)
def test_memory_grows_with_all_that_it_depends_on_and_every_work_is_counted(work):
    count, about = costs.MEMORY[work], (4, 8, 4, False)
    least = count(SMALL, *about)
    for wider in (dict(words=2000), dict(d_ff=2560), dict(layers=40)):
        assert count(replace(SMALL, **wider), *about) >= least
    assert count(replace(SMALL, words=9000, d_ff=9000), *about) > least
    assert count(SMALL, 4, 8, 2, False) < least <= count(SMALL, 8, 8, 4, False)
    assert set(costs.MEMORY) == set(costs.WORKS)


def test_measured_memory_stands_beside_the_forward_pass_or_what_is_counted():
    work = "all heads and blocks"
    counted = costs.MEMORY[work](SMALL, 8, 5, 4, False) / 2**20
    plain = costs.pass_bytes(SMALL, 8, 5, 4) / 2**20
    rows = [
        recorded(forward_mb=plain / 2, extra_mb=3 * counted),
        recorded(forward_mb=10 * counted, extra_mb=20 * counted),
        recorded(forward_mb=1.0, extra_mb=float("nan")),
        recorded(method="hooks", forward_mb=1.0, extra_mb=1.0),
        recorded(prompts=5000, forward_mb=0.0, extra_mb=1.0),
        recorded(dtype="bfloat16", forward_mb=0.0, extra_mb=1.0),
    ]
    t = costs.held_memory(pd.DataFrame(rows), {"small": SMALL})
    assert t["over"][:2].tolist() == pytest.approx([3, 2]) and t["forward_over"][0] == pytest.approx(0.5)
    assert t["prompts"].tolist() == [8, 8, 4096 // 5, 8], "memory is measured on so many"
    assert 1 / t["over"][3] == pytest.approx(costs.MEMORY[work](SMALL, 8, 5, 2, False) / 2**20)


def test_the_benchmarks_measure_memory_as_it_is_held():
    text = (ROOT / "benchmarks/timing.py").read_text(), (ROOT / "benchmarks/methods.py").read_text()
    assert f"MEMORY_TOKENS = {costs.MEASURED}" in text[0] and f'BASELINE_TOKENS = {{"cpu": {costs.PLAIN},' in text[1]
    assert (locate.GROUP_BYTES, increase.LIMIT, increase.SLAB, ablate.AT_ONCE) == (
        costs.WALK, costs.WALK, costs.SLAB, costs.LOGITS,
    )  # fmt: skip


def test_the_recorded_peaks_are_all_held():
    results = sorted((ROOT / "benchmarks/results").glob("*.csv"))
    t = pd.concat([pd.read_csv(path) for path in results])
    found = costs.held_memory(t)
    own = t["method"].str.startswith("ours") & t["extra_mb"].notna() & (t["device"] == "cpu")
    assert len(found) == own.sum() > 30
    assert found.loc[found["dtype"] == "float32", "over"].between(1 / 5, 5).all(), "a rough guide, but one"
