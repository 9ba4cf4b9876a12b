"""Ratios, not seconds: each way of scoring every head, over a plain batched forward pass of the same prompts.

    python benchmarks/run.py                         # what is installed; writes benchmarks/results.csv and .md
    python benchmarks/run.py --methods ours,hooks --tokens 16 --prompts 8

Every method runs in a process of its own, on the same random GPT-2-small-shaped model and the same prompts, with
`--threads` threads. It times the plain forward pass and itself in turn, so that a slow moment of the machine touches
both; the ratio is taken pair by pair. Extra memory is the process's peak above its peak after a forward pass. The
scores of all methods are compared: largest difference from `hooks`, in nats.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SHAPES = {
    "gpt2": {"model_type": "gpt2"},
    "gpt2-large": {"model_type": "gpt2", "n_layer": 36, "n_head": 20, "n_embd": 1280},
    "tiny": {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 1000},
    "llama-7b": {"model_type": "llama", "max_position_embeddings": 2048},
}


def one(arguments: argparse.Namespace) -> dict:
    """Measure one method in this process."""
    import numpy as np
    import torch
    from methods import METHODS, load, prompts

    torch.set_num_threads(arguments.threads)
    model = load(arguments.folder, arguments.dtype)
    encoded = prompts(model, arguments.prompts, arguments.tokens)
    forward, work = METHODS["forward"](model, encoded), METHODS[arguments.method](model, encoded)
    forward()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores = work()
    extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if scores is not None:
        np.save(arguments.scores, scores)
    pairs = []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        forward()
        middle = time.perf_counter()
        work()
        pairs.append((middle - start, time.perf_counter() - middle))
    ratios = sorted(b / a for a, b in pairs)
    return {
        "ratio": statistics.median(ratios), "low": ratios[0], "high": ratios[-1],
        "forward_ms_per_prompt": 1000 * statistics.median(a for a, _ in pairs) / len(encoded),
        "extra_mb": extra / 1024 if platform.system() == "Linux" else extra / 1024**2,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--methods", default="ours,hooks,authors,transformer_lens,nnsight")
    parser.add_argument("--tokens", default="16,128")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--scores", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.method:
        arguments.tokens = int(arguments.tokens)
        print(json.dumps(one(arguments)))
        return

    import pandas as pd
    from methods import largest_difference, make_model

    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        make_model(SHAPES[arguments.shape], folder, arguments.dtype)
        for tokens in arguments.tokens.split(","):
            saved: dict[str, Path] = {}
            for method in arguments.methods.split(","):
                saved[method] = Path(scratch) / f"{method}-{tokens}.npy"
                row = {"shape": arguments.shape, "method": method, "tokens": int(tokens), "prompts": arguments.prompts}
                rows.append(row | _in_a_process(arguments, method, tokens, folder, saved[method]))
                print(rows[-1], file=sys.stderr, flush=True)
            reference = saved.get("hooks")
            for row in rows[-len(saved) :]:
                row["difference_nats"] = largest_difference(saved[row["method"]], reference)
    table = pd.DataFrame(rows)
    note = f"{platform.machine()}, {os.cpu_count()} cores, {arguments.threads} thread(s), {time.strftime('%Y-%m-%d')}"
    table["machine"] = note
    part = arguments.out.with_suffix(".part")
    table.to_csv(part, index=False)
    part.replace(arguments.out.with_suffix(".csv"))
    print(table.drop(columns="machine").to_string(index=False, float_format=lambda x: f"{x:.3g}"))
    print(note)


def _in_a_process(arguments, method: str, tokens: str, folder: Path, scores: Path) -> dict:
    command = [sys.executable, __file__, "--method", method, "--folder", folder, "--scores", scores, "--tokens", tokens]
    for name in ("prompts", "repeats", "threads", "dtype"):
        command += [f"--{name}", getattr(arguments, name)]
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"skipped": done.stderr.strip().splitlines()[-1][:150]}
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
