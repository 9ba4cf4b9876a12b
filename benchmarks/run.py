"""Ratios, not seconds: what locating heads costs, over a plain batched forward pass of the same prompts.

    python benchmarks/run.py --preset table       # this book's own work, at 16 and 128 tokens
    python benchmarks/run.py --preset peers       # beside the other ways; two of them need make peers
    python benchmarks/run.py --preset large       # shapes of GPT2-large, GPT-J, Llama-7B
    python benchmarks/run.py --preset cost        # against prompts, tokens, vocabulary, beside what counting predicts
    python benchmarks/run.py --preset smollm2     # real weights, of a model of today: SmolLM2-135M
    python benchmarks/run.py --preset gpu         # large shapes on a GPU
    python benchmarks/run.py --methods ours,hooks --tokens 16 --prompts 8,64
    python benchmarks/run.py --methods ours --model smollm2-135m

Every line of a table is measured in a process of its own, on the same random weights and the same prompts, with
`--threads` threads; benchmarks/timing.py says how. Lines are written to benchmarks/results/PRESET.csv and .md as they
are finished, so that Ctrl-C keeps them and `--resume` goes on. The numbers of every way are compared with the plain
way to do the same: the largest difference of the first prompts, in nats. A float32 difference above 1e-4 fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch
import transformers
from methods import METHODS
from presets import PRESETS
from report import markdown, update_readme
from shapes import SHAPES
from timing import Cell
from twotowers.errors import TwoTowersError
from twotowers.model import files

HERE = Path(__file__).parent
TOLERANCE = 1e-4  # nats, in float32
COLUMNS = [
    "work", "by", "method", "shape", "weights", "dtype", "device", "prompts", "tokens", "vocabulary", "repeats", "ratio", "low",
    "high", "counted_ratio", "forward_ms", "work_ms", "predicted_ms", "forward_gflop", "further_gflop", "further_gexp",
    "book_gflop_s", "torch_gflop_s", "gexp_s", "forward_mb", "extra_mb", "difference_nats", "skipped", "machine",
    "cores", "threads", "torch", "transformers", "date",
]  # fmt: skip


def processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine(threads: int, device: str) -> dict:
    name = processor() if device == "cpu" else torch.cuda.get_device_name(device)
    return {
        "machine": name, "cores": os.cpu_count(), "threads": threads, "torch": torch.__version__,
        "transformers": transformers.__version__, "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def measured(cell: Cell) -> dict:
    """One line: the cell measured in a process of its own, or why not."""
    method = METHODS[cell.method]
    line = asdict(cell) | {"work": method.work, "by": method.name, "skipped": method.missing() or ""}
    if not line["skipped"]:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment |= {name: str(cell.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        command = [sys.executable, str(HERE / "timing.py"), json.dumps(asdict(cell))]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode == 0:
            line |= json.loads(done.stdout.splitlines()[-1])
        elif done.returncode < 0:
            line["skipped"] = f"stopped by signal {-done.returncode}" + (
                ", too little memory?" * (done.returncode == -9)
            )
        else:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            line["skipped"] = said[-1][:200]
    return line | machine(cell.threads, cell.device)


def write(lines: list[dict], out: Path, name: str, note: str) -> pd.DataFrame:
    """The lines so far as OUT/NAME.csv and .md, each put in place whole."""
    table = pd.DataFrame(lines).reindex(columns=COLUMNS)
    out.mkdir(parents=True, exist_ok=True)
    rounded = table.copy()
    numbers = rounded.select_dtypes("float").columns
    rounded[numbers] = rounded[numbers].map(lambda x: float(f"{x:.4g}"))
    for ending, text in ((".csv", rounded.to_csv(index=False)), (".md", markdown(rounded, note))):
        part = out / f"{name}{ending}.part"
        part.write_text(text)
        part.replace(out / f"{name}{ending}")
    return table


def run(cells: list[Cell], out: Path, name: str, note: str, resume: bool = False) -> pd.DataFrame:
    """Measure all cells, writing after each. `resume` keeps the lines of an earlier run that were measured whole: those
    from before the rates of the machine were named are measured again."""
    lines = []
    if resume and (out / f"{name}.csv").exists():
        earlier = pd.read_csv(out / f"{name}.csv", keep_default_na=False, na_values=[""])
        lines = [row for row in earlier.to_dict("records") if pd.notna(row["ratio"]) and pd.notna(row["gexp_s"])]
    done = {_key(line) for line in lines}
    todo = [cell for cell in cells if _key(asdict(cell) | {"vocabulary": cell.words}) not in done]
    table = write(lines, out, name, note) if lines else pd.DataFrame(columns=COLUMNS)
    for i, cell in enumerate(todo, 1):
        what = f"{cell.method}, {cell.shape}, {cell.prompts} prompts of {cell.tokens} tokens, {cell.words} words"
        print(f"{i}/{len(todo)}  {what}: ", end="", file=sys.stderr, flush=True)
        line = measured(cell)
        line["vocabulary"] = cell.words
        lines.append(line)
        table = write(lines, out, name, note)
        result = line["skipped"] or f"{line['ratio']:.2f} ({line['low']:.2f} to {line['high']:.2f})"
        print(result, file=sys.stderr, flush=True)
    return table


def _key(line: dict) -> tuple:
    keys = ("method", "shape", "weights", "dtype", "prompts", "tokens", "vocabulary", "threads", "device")
    return tuple(line[k] for k in keys)


def chosen(arguments: argparse.Namespace) -> list[Cell]:
    instead = {"shape": arguments.shape, "weights": "random"} if arguments.shape else {}
    if arguments.model:
        words = files.describe(arguments.model)["vocabulary"]
        instead = {"shape": arguments.model, "weights": "real", "vocabulary": words}
    if arguments.preset:
        cells = PRESETS[arguments.preset]()
    else:
        numbers = [[int(n) for n in str(given).split(",")] for given in (arguments.prompts, arguments.tokens)]
        methods = arguments.methods.split(",")
        if unknown := [m for m in methods if m not in METHODS]:
            raise SystemExit(f"unknown method '{unknown[0]}': known are {', '.join(METHODS)}")
        cells = [
            Cell(m, prompts=n, tokens=t, dtype=arguments.dtype, vocabulary=arguments.vocabulary)
            for m in methods for n in numbers[0] for t in numbers[1]
        ]  # fmt: skip
    cells = [
        replace(c, threads=arguments.threads, prompts=min(c.prompts, arguments.at_most or c.prompts), **instead)
        for c in cells
    ]
    cells = [replace(c, repeats=arguments.repeats or c.repeats, device=arguments.device or c.device) for c in cells]
    return list({c.key: c for c in cells}.values())  # a cap may have made two alike


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS)
    parser.add_argument("--methods", default="ours,hooks,authors,transformer_lens,nnsight", help="without a preset")
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--shape", choices=SHAPES, help="of every cell, with random weights; by itself gpt2")
    whose.add_argument("--model", help="real weights by name (smollm2-135m), folder or GGUF file")
    parser.add_argument("--prompts", default="8", help="one or more, with commas")
    parser.add_argument("--tokens", default="16,128", help="one or more, with commas")
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by itself the preset's own")
    parser.add_argument("--repeats", type=int, help="of every cell, instead of its own")
    parser.add_argument("--at-most", type=int, help="prompts of a cell: a quick look at a long preset")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="keep the lines that are there")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args(given)
    name = arguments.preset or "own"
    rest = [f"--at-most {arguments.at_most}"] if arguments.at_most else []
    rest += [f"--repeats {arguments.repeats}"] if arguments.repeats else []
    rest += [f"--{name} {given}" for name in ("shape", "model", "device") if (given := getattr(arguments, name))]
    note = " ".join(["python benchmarks/run.py", f"--preset {name}" if arguments.preset else "...", *rest])
    try:
        table = run(chosen(arguments), arguments.out, name, note, arguments.resume)
    except TwoTowersError as error:
        raise SystemExit(f"run.py: {error}") from None
    except KeyboardInterrupt:
        print(f"\nstopped; the finished lines are in {arguments.out / name}.csv", file=sys.stderr)
        return 130
    if arguments.out == HERE / "results":
        update_readme(HERE)
    print((arguments.out / f"{name}.md").read_text())
    wrong = table[(table["difference_nats"] > TOLERANCE) & (table["dtype"] == "float32")]
    for _, line in wrong.iterrows():
        print(f"{line['method']} differs by {line['difference_nats']:.2g} nats", file=sys.stderr)
    return int(len(wrong) > 0)


if __name__ == "__main__":
    sys.exit(main())
