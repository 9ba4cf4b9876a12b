"""The command line: chapters executed on models, and the authors' numbers measured.

twotowers run --model openai-community/gpt2-large --n-prompts 200
twotowers run --model a --model b --chapters 01-locate,03-mrr --labels foo,bar
twotowers verify --model gpt2-large
twotowers models                      # those with a name: sizes, licences, what is in the cache
twotowers models smollm2-135m         # fetched now, not when first used
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
    "k": "demonstrations of each class (default: 2)",
    "long": "what to do with a prompt that is longer than the model reads: drop or truncate",
    "norm": "frozen, recomputed or raw",
    "top_k": "how many heads count as in-context heads",
    "heads": "heads to look at, such as 22-0,19-11, in place of the located ones",
    "seed": "of every draw",
    "device": "cpu, cuda, cuda:1 or mps",
    "dtype": "float32, bfloat16, float16 or float64",
    "device_map": "auto: spread the model over all devices (needs accelerate)",
    "more_models": "further models beside each one in the charts of 08-llama, separated by commas",
    "chat_model": "a chat model that 09-sentence-case asks, folder or hub id (default: none)",
}
_NUMBERS = {"n_prompts", "k", "top_k", "seed"}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="twotowers", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="execute chapters on models", description="Execute chapters on models.")
    run.add_argument("--model", action="append", required=True, help="shipped name, folder or hub id; may be repeated")
    run.add_argument("--chapters", help="such as 01-locate,03-mrr; all by default")
    for name, text in PARAMETERS.items():
        run.add_argument(f"--{name.replace('_', '-')}", help=text)
    run.add_argument("--force", action="store_true", help="run chapters whose inputs did not change, too")
    text = "Measure what the authors' notebooks print, and save it for the scorecard."
    check = commands.add_parser("verify", help="measure the numbers that the authors print", description=text)
    check.add_argument("--model", required=True, help="gpt2-large, llama-7b, or a folder or hub id of that name")
    for name in ("device", "dtype"):
        check.add_argument(f"--{name}", help=PARAMETERS[name])
    text = "List the models that have a name of their own; fetch those that are named."
    listed = commands.add_parser("models", help="list the models that have a name, or fetch them", description=text)
    listed.add_argument("names", nargs="*", metavar="NAME", help="a model to fetch into the cache")
    for one in (run, check):
        one.add_argument("--out", default="runs", help="folder of what is made (default: runs)")
        one.add_argument("--results", help="folder of the small tables that are kept (default: data/results)")
    return top


def _kept(given: argparse.Namespace, folder: str) -> None:
    from twotowers.chapters import runs
    from twotowers.paths import data_folder

    made = Path(given.out) / folder / "tables"
    target = (Path(given.results) if given.results else data_folder() / "results") / folder
    left = runs.keep(made, target)
    print(f"tables: {made}, the small ones also in {target}")
    if left:
        print(f"  too large to keep there: {', '.join(left)}")


def _run(given: argparse.Namespace) -> None:
    from twotowers.chapters import runs  # torch takes seconds to load; --help and a mistyped option need not wait

    wanted = {name: value for name in PARAMETERS if (value := getattr(given, name)) is not None}
    wanted |= {name: int(wanted[name]) for name in _NUMBERS & set(wanted) if wanted[name].lstrip("-").isdecimal()}
    named = given.chapters.split(",") if given.chapters is not None else None
    jobs = runs.plan(given.model, [name.strip() for name in named] if named else named, wanted)
    for i, job in enumerate(jobs, 1):
        said = f"[{i}/{len(jobs)}] {job.chapter} on {job.model}"
        print(f"{said} ...", flush=True)
        start = time.monotonic()
        ran = runs.run(job, Path(given.out), given.force)
        print(f"{said}: {f'done in {time.monotonic() - start:.0f} s' if ran else 'nothing changed'}", flush=True)
        if i == len(jobs) or jobs[i].model != job.model:
            _kept(given, job.folder)
    print("`make book` adds pages for them to the book.")


def _verify(given: argparse.Namespace) -> None:
    from twotowers.chapters import runs
    from twotowers.model import loading
    from twotowers.paper import verify
    from twotowers.stats import tables

    model = verify.HUB.get(given.model, given.model)
    if tables.paper_model(model) not in verify.HUB:
        raise TwoTowersError(f"the authors print no numbers for '{model}': choose {' or '.join(verify.HUB)}")
    options = {name: value for name in ("device", "dtype") if (value := getattr(given, name)) is not None}
    loading.check(model, **options)
    print(f"loading {model} ...", flush=True)
    loaded = loading.load(model, **options)
    table = verify.authors_numbers(loaded)
    folder = runs.folder_of(model)
    tables.save(table, Path(given.out) / folder / "tables", verify.TABLE, fingerprint=loaded.fingerprint)
    print(table.to_string(index=False))
    _kept(given, folder)
    if off := int((~table["agrees"]).sum()):
        raise TwoTowersError(f"{off} of {len(table)} differ by more than {verify.TOLERANCE}: see the table")
    print(f"all {len(table)} numbers agree within {verify.TOLERANCE}")


def _models(given: argparse.Namespace) -> None:
    from twotowers.model import catalog

    for name in given.names:
        if name not in catalog.models():
            known = ", ".join(catalog.models())
            raise TwoTowersError(f"'{name}' is not in the catalogue of models to fetch: choose one of {known}")
        print(catalog.fetch(name))
    if not given.names:
        print(catalog.table())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 after one line that says what is wrong, 2 for a mistyped option, 130 when interrupted."""
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a job that is stopped lets go as Ctrl-C does
    try:
        {"run": _run, "verify": _verify, "models": _models}[given.command](given)
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
