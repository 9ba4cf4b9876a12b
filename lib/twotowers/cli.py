"""The command line: `twotowers run` executes chapters on models.

    twotowers run --model openai-community/gpt2-large --n-prompts 200
    twotowers run --model a --model b --chapters 01-locate,03-mrr --labels foo,bar
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from twotowers.errors import TwoTowersError

PARAMETERS = {
    "datasets": "named sets, separated by commas",
    "n_prompts": "prompts a set",
    "labels": "two label words, separated by a comma; the first is the true one",
    "norm": "frozen, recomputed or raw",
    "top_k": "how many heads count as in-context heads",
    "heads": "heads to look at, such as 22-0,19-11, in place of the located ones",
    "seed": "of every draw",
    "device": "cpu, cuda, cuda:1 or mps",
    "dtype": "float32, bfloat16, float16 or float64",
}
_NUMBERS = {"n_prompts", "top_k", "seed"}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="twotowers", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="execute chapters on models", description="Execute chapters on models.")
    run.add_argument("--model", action="append", required=True, help="shipped name, folder or hub id; may be repeated")
    run.add_argument("--chapters", help="such as 01-locate,03-mrr; all by default")
    for name, text in PARAMETERS.items():
        run.add_argument(f"--{name.replace('_', '-')}", help=text)
    run.add_argument("--out", default="runs", help="folder of the executed chapters (default: runs)")
    run.add_argument("--results", help="folder of the small tables that are kept (default: the book's data/results)")
    run.add_argument("--force", action="store_true", help="run chapters whose inputs did not change, too")
    return top


def _run(given: argparse.Namespace) -> None:
    from twotowers import runs  # torch takes seconds to load; --help and a mistyped option need not wait
    from twotowers.paths import data_folder

    wanted = {name: value for name in PARAMETERS if (value := getattr(given, name)) is not None}
    wanted |= {name: int(wanted[name]) for name in _NUMBERS & set(wanted) if wanted[name].lstrip("-").isdecimal()}
    named = given.chapters.split(",") if given.chapters is not None else None
    jobs = runs.plan(given.model, [name.strip() for name in named] if named else named, wanted)
    out, results = Path(given.out), Path(given.results) if given.results else data_folder() / "results"
    for i, job in enumerate(jobs, 1):
        said = f"[{i}/{len(jobs)}] {job.chapter} on {job.model}"
        print(f"{said} ...", flush=True)
        start = time.monotonic()
        ran = runs.run(job, out, results, given.force)
        print(f"{said}: {f'done in {time.monotonic() - start:.0f} s' if ran else 'nothing changed'}", flush=True)
        if i == len(jobs) or jobs[i].model != job.model:
            made, kept = out / job.folder / "tables", results / job.folder
            left = runs.keep(made, kept)
            print(f"tables of {job.model}: {made}, the small ones also in {kept}")
            if left:
                print(f"  too large to keep there: {', '.join(left)}")
    print("`make book` adds pages for them to the book.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 after one line that says what is wrong, 2 for a mistyped option, 130 when interrupted."""
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a job that is stopped lets go as Ctrl-C does
    try:
        _run(given)
    except TwoTowersError as error:
        print(f"twotowers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the killed kernel was waited for
        print("twotowers: interrupted; chapters that were done are kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
