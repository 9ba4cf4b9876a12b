"""Command line: measure a model, precompute its measurements for the book, build the book.

    twotowers measure heads query_key_vectors --model path/to/model --evaluation-blocks 20
    twotowers precompute path/to/model --evaluation-blocks 200       # resumes if interrupted
    twotowers book --set "evaluation_blocks=20 seed=1"         # `make book` calls this

    >>> vars(parser().parse_args(["measure", "heads", "--top-k", "3"]))["top_k"]
    '3'

The modules of a command are imported when it is called: torch takes seconds, and the error of a
mistyped option does not need it.
"""

from __future__ import annotations

import argparse
import errno
import shlex
import signal
import sys
from collections.abc import Callable, Sequence

from twotowers.errors import TwoTowersError
from twotowers.settings import Settings

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Returns:
        Parser with the commands `measure`, `precompute` and `book`.
    """
    top = argparse.ArgumentParser(
        prog="twotowers",
        description="Example: twotowers measure --model path/to/model --evaluation-blocks 20\n\n"
        "Measure models, store measurements for the book, and build the book.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add_command(name: str, example: str, summary: str) -> argparse.ArgumentParser:
        text = f"Example: twotowers {name} {example}\n\n{summary}"
        form = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(name, help=summary, description=text, formatter_class=form)

    measure = add_command(
        "measure",
        "heads answers --model path/to/model --evaluation-blocks 20",
        "Measure a model. Existing measurements are reused.",
    )
    measure.add_argument(
        "--list", action="store_true", help="list of all measurements with their inputs and costs"
    )
    precompute = add_command(
        "precompute",
        "path/to/model --evaluation-blocks 200 --prompts 200",
        "Measure a model, and store the results in data/measurements for all pages.",
    )
    precompute.add_argument("model", help=Settings.model_fields["model"].description)
    for command, excluded in ((measure, ()), (precompute, ("model", "out"))):
        command.add_argument("names", nargs="*", metavar="NAME", help="measurements (default: all)")
        add_settings(command, excluded)
    book = add_command(
        "book",
        '--model path/to/model --set "evaluation_blocks=20" --jobs 2',
        "Measure, run the chapters that changed, and build the pages.",
    )
    book.add_argument("--model", help="model, as for `measure` (default: mini-gpt2)")
    book.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="settings of `measure`, such as 'evaluation_blocks=20 seed=1'",
    )
    book.add_argument(
        "--jobs", default="1", help="number of parallel jobs, without --profile (default: 1)"
    )
    book.add_argument("--threads", default="1", help="number of threads of each job (default: 1)")
    book.add_argument("--profile", help="folder of a Snakemake profile, such as profiles/slurm")
    return top


def add_settings(command: argparse.ArgumentParser, excluded: Sequence[str] = ()) -> None:
    """Add an option for every setting, without a default of its own.

    So a setting that is not given is not in the namespace.

    Args:
        command: Parser of the command.
        excluded: Names of settings to leave out.
    """
    for name, field in Settings.model_fields.items():
        if name in excluded:
            continue
        empty = "none" if name == "device_map" else "auto"
        default = empty if field.default in (None, []) else field.default
        text = f"{field.description} (default: {default})"
        command.add_argument(
            f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, metavar="VALUE", help=text
        )


def _measure(arguments: argparse.Namespace, command: str) -> int:
    """Run `measure` or `precompute`, and return the exit status."""
    from twotowers import catalogue
    from twotowers.paths import data_folder

    values = {
        name: value for name, value in vars(arguments).items() if name in Settings.model_fields
    }
    precomputing = arguments.command == "precompute"
    if precomputing:
        values["out"] = str(data_folder() / "measurements")
    settings = Settings.from_values(values)
    names = arguments.names or list(catalogue.catalogue())
    rows = {name: catalogue.row_of(name) for name in names}  # raises for a name of none
    from towerlab.measure.pipeline import AGAIN, Pipeline, recipe_of

    pipeline = Pipeline(settings, command)
    if not precomputing and arguments.list:
        for name, row in rows.items():
            summary = " ".join((recipe_of(name).__doc__ or "").partition("\n\n")[0].split())
            needs = f" Needs {', '.join(row.needs)}." if row.needs else ""
            print(f"{name}: {summary}{needs} About {row.passes:g} passes of each prompt.")
        return 0
    from towerlab.model import loading

    loading.check(settings.model, settings.device)
    for name in names:
        attributes = pipeline.measured(name).attrs
        # Nothing was measured: such a file is not for the book.
        if precomputing and AGAIN in attributes:
            pipeline.path(name).unlink()
            raise TwoTowersError(
                f"cannot precompute '{name}': {attributes[catalogue.NOT_TESTABLE]}"
            )
    print(f"{', '.join(names)}: {pipeline.path(names[-1]).parent}")
    return 0


def _book(arguments: argparse.Namespace, command: str) -> int:
    """Run `book`, which does not return."""
    from towerlab import building

    jobs, threads = _count(arguments.jobs, "jobs"), _count(arguments.threads, "threads")
    building.build(arguments.set, arguments.model, jobs, threads, arguments.profile)


def _count(value: str, name: str) -> int:
    """Return a whole number of at least 1 from the text of an option."""
    if not value.isdecimal() or int(value) < 1:
        raise TwoTowersError(
            f"cannot use --{name} {value!r}: expected a whole number of at least 1"
        )
    return int(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    Args:
        arguments: Words of the command line; by default the arguments of this process.

    Returns:
        Exit status: see `guarded`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    functions = {"measure": _measure, "precompute": _measure, "book": _book}
    return guarded(lambda: functions[options.command](options, shlex.join(["twotowers", *words])))


def guarded(function: Callable[[], int]) -> int:
    """Run a function, and turn its errors into one line and an exit status.

    Args:
        function: Function that returns an exit status.

    Returns:
        0 on success; 1 if a part of the book failed or numbers differ; 2 after one line on bad
        input; 130 on Ctrl-C.
    """
    for kind in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(kind) is not signal.SIG_IGN:  # nohup
            # A process that is stopped, or loses its terminal, ends as on Ctrl-C.
            signal.signal(kind, signal.default_int_handler)
    try:
        return function()
    except TwoTowersError as error:
        print(f"twotowers: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        file = error.filename or "a file"
        print(
            f"twotowers: cannot write '{file}': {error.strerror}; choose another folder",
            file=sys.stderr,
        )
        return 2
    except ModuleNotFoundError as error:  # `pip install .` has only the analysis
        if str(error.name).startswith("towerlab."):
            raise
        print(
            f"twotowers: missing package '{error.name}': run `pip install -e .[measure]`",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(
            "twotowers: interrupted: results so far are kept; run the same command to continue",
            file=sys.stderr,
        )
        return 130


if __name__ == "__main__":
    sys.exit(main())
