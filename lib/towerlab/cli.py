"""Command line: measure a model, precompute its measurements for the book, build the book.

    twotowers measure heads query_key_vectors --model path/to/model --evaluation-blocks 20
    twotowers precompute path/to/model --evaluation-blocks 200       # resumes if interrupted
    twotowers book --set "evaluation_blocks=20 seed=1"         # `make book` calls this

    >>> vars(parser().parse_args(["measure", "heads", "--top-k", "3"]))["top_k"]
    '3'

The modules that measure are imported when a command needs them: torch takes seconds, and the error
of a mistyped option does not need it.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence

from twotowers.errors import TwoTowersError
from twotowers.settings import DEFAULT, Settings

from towerlab import building

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command as Ctrl-C does"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Returns:
        Parser with the commands `measure`, `precompute` and `book`.
    """
    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="twotowers",
        description="Measure models, store measurements for the book, and build the book.\n\n"
        "Example: twotowers measure --model path/to/model --evaluation-blocks 20",
        formatter_class=form,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add_command(name: str, example: str, summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}\n\nExample: twotowers {name} {example}",
            formatter_class=form,
        )
        command.set_defaults(error=command.error)
        return command

    measure = add_command(
        "measure",
        "heads answers --model path/to/model --evaluation-blocks 20",
        "Measure a model. Existing measurements are reused.",
    )
    measure.add_argument(
        "--list",
        action="store_true",
        help="list all measurements with their inputs and costs, and exit",
    )
    precompute = add_command(
        "precompute",
        "path/to/model --evaluation-blocks 200 --prompts 200",
        "Measure a model, and store the results in data/measurements, where pages find them. "
        "Measurements that the named ones need are reused, also those on other numbers of prompts.",
    )
    precompute.add_argument("model", metavar="MODEL", help="name, folder, or Hugging Face id")
    for command, excluded in ((measure, ()), (precompute, ("model", "out"))):
        command.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="names of measurements, see `twotowers measure --list` (default: all)",
        )
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
        "--jobs",
        type=_count,
        default=1,
        metavar="N",
        help="number of parallel jobs; ignored with --profile (default: 1)",
    )
    book.add_argument(
        "--threads",
        type=_count,
        default=1,
        metavar="N",
        help="number of threads of each job (default: 1)",
    )
    book.add_argument(
        "--profile", metavar="FOLDER", help="folder of a Snakemake profile, such as profiles/slurm"
    )
    return top


def add_settings(command: argparse.ArgumentParser, excluded: Sequence[str]) -> None:
    """Add an option for every setting, without a default of its own.

    So a setting that is not given is not in the namespace.

    Args:
        command: Parser of the command.
        excluded: Names of settings to leave out.
    """
    for name, schema in Settings.model_json_schema()["properties"].items():
        if name in excluded:
            continue
        default = DEFAULT.get(name, schema["default"])
        kind = schema.get("anyOf", [schema])[0]
        placeholder = "N" if "minimum" in kind else None
        if "enum" in kind:
            placeholder = f"{{{','.join(dict.fromkeys([*kind['enum'], default]))}}}"
        command.add_argument(
            f"--{name.replace('_', '-')}",
            default=argparse.SUPPRESS,
            metavar=placeholder,
            help=f"{schema.get('description')} (default: {default})",
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

    # What the named ones need may have been measured on more prompts: it is not replaced.
    named = frozenset(names) if precomputing else None
    pipeline = Pipeline(settings, command, named)
    if not precomputing and arguments.list:
        for name, row in rows.items():
            summary = (recipe_of(name).__doc__ or "").partition("\n")[0]
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


def _count(text: str) -> int:
    """Return a whole number of at least 1 from the text of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    Args:
        arguments: Words of the command line; by default the arguments of this process.

    Returns:
        Exit status: see `guarded`.
    """
    words = sys.argv[1:] if arguments is None else arguments
    options, rest = parser().parse_known_args(words)
    # argparse gives the first names to NAME, and leaves those that follow an option.
    late_names = [word for word in rest if "names" in options and not word.startswith("-")]
    if unknown := [word for word in rest if word not in late_names]:
        options.error(f"unrecognized arguments: {' '.join(unknown)}")  # with the command's usage
    if late_names:
        options.names += late_names
    if options.command == "book":
        return guarded(lambda: building.build(options))
    command = shlex.join(["twotowers", *map(_without_place, words)])
    return guarded(lambda: _measure(options, command))


def _without_place(word: str) -> str:
    """Return a word of the command line with the name of a folder, not its place.

    Measurements keep their command, and may be shared.
    """
    option, equals, value = word.rpartition("=")
    if not os.path.isdir(value):
        return word
    return f"{option}{equals}{os.path.basename(os.path.realpath(value))}"


def guarded(function: Callable[[], int]) -> int:
    """Run a function, and turn its errors into one line and an exit status.

    Args:
        function: Function that returns an exit status.

    Returns:
        0 on success; 1 if a part of the book failed or numbers differ; 2 after one line on bad
        input; 130 on Ctrl-C; 141 if the program that reads the output has ended, as in `| head`.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path may have letters that it cannot encode
            stream.reconfigure(errors="backslashreplace")
    kinds = [kind for kind in SIGNALS if signal.getsignal(kind) is not signal.SIG_IGN]  # nohup
    # A process that is stopped, or loses its terminal, ends as on Ctrl-C.
    handlers = {kind: signal.signal(kind, signal.default_int_handler) for kind in kinds}
    status = 2
    try:
        result = function()
        print(end="", flush=True)  # an error of the output is met here, not at the end of Python
        return result
    except TwoTowersError as error:
        text = str(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 141
    except MemoryError as error:
        text = f"not enough memory: {error}; use fewer blocks or prompts, or a narrower dtype"
    except OSError as error:
        text = f"cannot read or write a file: {error}; use another folder"
    except ModuleNotFoundError as error:  # `pip install .` has only the analysis
        if str(error.name).startswith("towerlab."):
            raise
        text = f"missing package '{error.name}': run `pip install -e .[measure]`"
    except KeyboardInterrupt:
        status = 130
        text = "interrupted: results so far are kept; run the same command to continue"
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)  # whoever called this ends in its own way
    print(f"twotowers: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    exit_status = main()
    gc.freeze()  # or Python, when it ends, looks for garbage in all that torch imports: a second
    sys.exit(exit_status)
