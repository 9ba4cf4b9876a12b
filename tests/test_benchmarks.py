"""The benchmarks' tables: their columns, the agreement they rest on, what is skipped and why. Nothing is timed here."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode
from twotowers.model import catalog
from twotowers.model.architectures import ARCHITECTURES
from twotowers.model.model import Model
from twotowers.paper import costs

sys.path.insert(0, str(ROOT / "benchmarks"))
import methods
import report
import run
import shapes
import timing
from methods import METHODS
from presets import PRESETS
from timing import Cell

pytestmark = pytest.mark.slow
CELL = Cell(shape="tiny", prompts=3, tokens=5, repeats=1)
RESULTS = ROOT / "benchmarks/results"
FAKE = {
    "ratio": 1.5, "low": 1.25, "high": 2.0, "forward_ms": 1.0, "work_ms": 1.5, "extra_mb": 30.0, "forward_mb": 10.0,
    "difference_nats": 1e-6, "counted_ratio": 1.75, "book_gflop_s": 80.0, "torch_gflop_s": 40.0, "gexp_s": 0.5,
}  # fmt: skip


@pytest.fixture
def tiny():
    return shapes.build("tiny")


@pytest.fixture
def fake(monkeypatch):
    """Cells that are not run: every line is FAKE, and those asked for are listed."""
    asked = []

    def measured(cell):
        asked.append(cell)
        method = METHODS[cell.method]
        line = asdict(cell) | {"method": cell.method, "work": method.work, "by": method.name, "skipped": ""}
        return line | FAKE | run.machine(cell.threads, cell.device)

    monkeypatch.setattr(run, "measured", measured)
    return asked


@pytest.mark.parametrize("name", METHODS)
def test_a_way_gives_the_numbers_of_the_plain_way(name):
    if METHODS[name].missing():
        pytest.skip(METHODS[name].missing())
    model = shapes.build("tiny")
    few = shapes.prompts(model, 3, 5)
    found = np.asarray(METHODS[name].make(model, few)())
    expected = methods.reference_of(METHODS[name])(model, few)()
    assert found.shape == expected.shape == (3, 2, 4, 5)[: found.ndim] or found.shape == (3, 8)
    assert np.abs(expected).max() > 1e-3
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("name", ["ours", "ours_positions", "hooks"])
def test_a_measured_line_has_the_columns_of_the_table(name):
    line = timing.measure(timing.Cell(name, **{k: getattr(CELL, k) for k in ("shape", "prompts", "tokens", "repeats")}))
    assert set(line) <= set(run.COLUMNS)
    assert line["low"] <= line["ratio"] <= line["high"]
    assert 0 <= line["difference_nats"] < 1e-4
    assert (line["predicted_ms"] is None) == (name == "hooks")
    assert line["counted_ratio"] == pytest.approx(1 + line["further_gflop"] / line["forward_gflop"])
    assert min(line["book_gflop_s"], line["torch_gflop_s"], line["gexp_s"]) > 0
    if name != "hooks":
        assert line["predicted_ms"] > line["forward_ms"]


def test_a_wrong_number_is_seen(monkeypatch, tmp_path, fake):
    plain = methods.REFERENCES[methods.HEADS]
    monkeypatch.setitem(methods.REFERENCES, methods.HEADS, lambda m, e: lambda: plain(m, e)() + 0.5)
    line = timing.measure(CELL)
    assert line["difference_nats"] == pytest.approx(0.5, abs=1e-4)
    monkeypatch.setitem(FAKE, "difference_nats", line["difference_nats"])
    assert run.main(["--methods", "ours", "--shape", "tiny", "--out", str(tmp_path)]) == 1


def test_a_run_leaves_a_table_and_the_same_in_words(tmp_path):
    given = ["--methods", "ours", "--shape", "tiny", "--prompts", "2", "--tokens", "4", "--repeats", "1"]
    assert run.main([*given, "--out", str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "own.csv")
    assert list(table.columns) == run.COLUMNS
    line = table.iloc[0]
    assert (line["method"], line["prompts"], line["tokens"], line["vocabulary"]) == ("ours", 2, 4, 1000)
    assert pd.isna(line["skipped"])
    text = (tmp_path / "own.md").read_text()
    assert report.over_forward(line) in text and line["machine"] in text and line["date"] in text


@pytest.mark.parametrize("name", ["transformer_lens", "nnsight"])
def test_a_library_that_is_missing_is_skipped_and_named(monkeypatch, tmp_path, name):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    given = ["--methods", name, "--shape", "tiny", "--tokens", "4", "--out", str(tmp_path)]
    assert run.main(given) == 0
    line = pd.read_csv(tmp_path / "own.csv").iloc[0]
    assert "make peers" in line["skipped"] and pd.isna(line["ratio"])
    assert f"not run: {line['skipped']}" in (tmp_path / "own.md").read_text()


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (1, "Traceback ...\nIndexError: too long", "IndexError: too long"),
        (-9, "", "too little memory?"),
        (2, "", "exit status 2"),
    ],
)
def test_a_way_that_fails_says_why(monkeypatch, status, said, expected):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, status, "", said))
    assert expected in run.measured(CELL)["skipped"]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_known_ways_and_shapes(preset):
    cells = PRESETS[preset]()
    assert cells
    assert {cell.method for cell in cells} <= set(METHODS)
    assert {cell.shape for cell in cells} <= set(shapes.SHAPES)
    assert {cell.shape for cell in cells if cell.weights == "real"} <= set(catalog.models())


def test_a_preset_can_be_made_smaller(fake, tmp_path):
    given = ["--preset", "cost", "--shape", "tiny", "--at-most", "20", "--repeats", "1", "--out", str(tmp_path)]
    assert run.main(given) == 0
    assert {cell.repeats for cell in fake} == {1}
    assert max(cell.prompts for cell in fake) == 20
    assert len(pd.read_csv(tmp_path / "cost.csv")) == len(fake) < len(PRESETS["cost"]())
    assert "--at-most 20 --repeats 1 --shape tiny`" in (tmp_path / "cost.md").read_text()


def test_an_interrupted_run_keeps_its_lines_and_goes_on(fake, monkeypatch, tmp_path):
    usual = run.measured

    def until_the_third(cell):
        if len(fake) == 2:
            raise KeyboardInterrupt
        return usual(cell)

    given = ["--preset", "large", "--out", str(tmp_path)]
    monkeypatch.setattr(run, "measured", until_the_third)
    assert run.main(given) == 130
    assert pd.read_csv(tmp_path / "large.csv")["shape"].tolist() == ["gpt2-large", "gpt-j"]
    monkeypatch.setattr(run, "measured", usual)
    assert run.main([*given, "--resume"]) == 0
    assert [cell.shape for cell in fake] == ["gpt2-large", "gpt-j", "llama-7b"]
    assert pd.read_csv(tmp_path / "large.csv")["shape"].tolist() == ["gpt2-large", "gpt-j", "llama-7b"]


def test_a_line_from_before_the_rates_were_named_is_measured_again(fake, tmp_path):
    given = ["--methods", "ours", "--shape", "tiny", "--tokens", "4,8", "--out", str(tmp_path), "--resume"]
    assert run.main(given) == 0 and len(fake) == 2
    table = pd.read_csv(tmp_path / "own.csv")
    table.loc[1, "gexp_s"] = np.nan
    table.to_csv(tmp_path / "own.csv", index=False)
    assert run.main(given) == 0
    assert [cell.tokens for cell in fake] == [4, 8, 8]


def test_an_unknown_way_is_refused_before_anything_runs(fake):
    with pytest.raises(SystemExit, match="unknown method 'yours'"):
        run.main(["--methods", "ours,yours"])
    assert fake == []


def test_every_process_gets_the_same_weights(tiny):
    again, other = shapes.build("tiny"), shapes.build("tiny", seed=1)
    first, second, third = (m.hf.transformer.h[1].mlp.c_fc.weight for m in (tiny, again, other))
    assert torch.equal(first, second) and not torch.equal(first, third)
    assert 0.01 < first.std() < 0.03
    assert {p.dtype for p in shapes.build("tiny", "bfloat16").hf.parameters()} == {torch.bfloat16}
    assert shapes.build("tiny", vocabulary=77).unembedding.vocabulary == 77


def test_the_stock_model_shares_the_weights_and_gives_the_same_logits(tiny):
    stock = shapes.stock(tiny)
    ours, theirs = dict(tiny.hf.named_parameters()), dict(stock.named_parameters())
    assert all(theirs[name].data_ptr() == weight.data_ptr() for name, weight in ours.items())
    ids = torch.arange(7)[None]
    assert torch.allclose(stock(ids).logits, tiny.hf(ids).logits, atol=1e-5)


def test_the_products_of_a_forward_pass_are_those_that_torch_counts(tiny):
    stock = shapes.stock(tiny)
    stock.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counted, torch.inference_mode():
        stock(torch.arange(24).view(2, 12), use_cache=False, logits_to_keep=1)
    assert costs.forward(shapes.SHAPES["tiny"], 2, 12).stock == counted.get_total_flops()


@pytest.mark.parametrize("name", ["gpt2", "gpt-j", "smollm2-135m", "qwen2.5-coder-1.5b"])
def test_a_model_made_in_a_shape_has_it(name):
    shape = shapes.SHAPES[name]
    model = shapes.build(name, "bfloat16") if name == "gpt2" else on_paper(shape)
    assert replace(shapes.shape_of(model), name=shape.name, shown=shape.shown) == shape


def on_paper(shape):
    """A model without memory for its weights."""
    with torch.device("meta"):
        hf = shapes._empty(shapes._config(shape), torch.bfloat16, None)
    return Model(shape.name, hf, None, ARCHITECTURES[shape.model_type])


def test_real_weights_are_measured_by_the_name_of_their_model(fake, tmp_path, capsys):
    given = ["--methods", "ours", "--tokens", "4", "--prompts", "2", "--model"]
    assert run.main([*given, "mini-gpt2", "--out", str(tmp_path)]) == 0
    (cell,) = fake
    assert (cell.shape, cell.weights, cell.words) == ("mini-gpt2", "real", 2004)
    line = timing.measure(cell)
    assert line["difference_nats"] < 1e-4 and line["counted_ratio"] > 1 and line["vocabulary"] == 2004
    assert "Real weights; `python benchmarks/run.py ... --model mini-gpt2`" in (tmp_path / "own.md").read_text()
    with pytest.raises(SystemExit, match=r"run\.py: there is no folder 'no/such/one': give a folder"):
        run.main([*given, "no/such/one"])


def test_the_rates_of_a_machine_are_named_where_they_were_measured(fake, tmp_path):
    assert run.main(["--methods", "ours", "--shape", "tiny", "--tokens", "4", "--out", str(tmp_path)]) == 0
    said = "80 GFLOP/s as this book makes them, 40 as torch does by itself; 0.5 G exponentials a second"
    assert said in (tmp_path / "own.md").read_text()
    assert report.rates(pd.read_csv(tmp_path / "own.csv").assign(book_gflop_s=np.nan)) == ""


def test_the_peak_is_what_a_work_takes_and_not_what_was_there_before():
    kept = torch.ones(20 << 18)  # 20 MB
    with timing.Peak() as idle:
        pass
    with timing.Peak() as busy:
        torch.ones(60 << 18)
    assert idle.mb < 5 and 55 < busy.mb < 75 and len(kept)


def test_the_recorded_tables_have_the_columns_and_agree():
    recorded = sorted(RESULTS.glob("*.csv"))
    assert {"peers", "cost", "large", "table"} <= {path.stem for path in recorded}
    for path in recorded:
        table = pd.read_csv(path)
        assert list(table.columns) == run.COLUMNS, path.name
        exact = table[(table["dtype"] == "float32") & table["ratio"].notna()]
        assert (exact["difference_nats"] < run.TOLERANCE).all(), path.name
        assert path.with_suffix(".md").exists()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda p: p.stem)
def test_what_was_counted_follows_from_the_shape_alone(path):
    for row in pd.read_csv(path).to_dict("records"):
        shape, n, tokens = replace(shapes.SHAPES[row["shape"]], words=row["vocabulary"]), row["prompts"], row["tokens"]
        further = METHODS[row["method"]].operations(shape, n, tokens)
        counted = {
            "forward_gflop": costs.forward(shape, n, tokens).stock / n / 1e9,
            "further_gflop": (further.stock + further.products) / n / 1e9,
            "further_gexp": further.exponentials / n / 1e9,
            "counted_ratio": costs.ratio(shape, further, n, tokens),
        }
        assert {name: row[name] for name in counted} == pytest.approx(counted, rel=1e-3)


def test_readme_shows_the_recorded_numbers(tmp_path):
    text = (ROOT / "README.md").read_text()
    for folder, name in ((RESULTS, "peers.csv"), (RESULTS, "table.csv")):
        (tmp_path / "benchmarks/results").mkdir(parents=True, exist_ok=True)
        (tmp_path / "benchmarks/results" / name).write_text((folder / name).read_text())
    (tmp_path / "README.md").write_text(f"before {report.BEGIN} old {report.END} after")
    report.update_readme(tmp_path / "benchmarks")
    block = (tmp_path / "README.md").read_text().removeprefix("before ").removesuffix(" after")
    assert "old" not in block and block in text


def test_the_page_on_cost_shows_the_recorded_run(tmp_path):
    command = [sys.executable, "-m", "papermill", "book/cost.ipynb", str(tmp_path / "out.ipynb"), "--no-progress-bar"]
    done = subprocess.run([*command, "-p", "out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    said = "".join(
        "".join(o["data"].get("text/markdown", "")) for c in cells for o in c.get("outputs", []) if "data" in o
    )
    line = pd.read_csv(RESULTS / "peers.csv").iloc[-1]
    assert str(line["date"]) in said and line["machine"] in said
    assert "nan" not in said.lower().split()
