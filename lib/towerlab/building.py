"""Build of the book by Snakemake: `twotowers book`."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.settings import Settings

from towerlab.model import loading

FAILED = ".failed.ipynb"


def listed(toc: Mapping[str, Any]) -> list[str]:
    """Return every page that _toc.yml lists, without its ending, the opening page first.

    Args:
        toc: Content of _toc.yml.

    Returns:
        Pages as paths relative to the folder of _toc.yml, such as "book/intro".
    """
    return [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]


def failure(log: Path) -> str:
    """Return the last line of papermill's log: the error of a cell, or of a kernel.

    Args:
        log: Path of the log.

    Returns:
        The line, with control characters escaped.
    """
    # The error escapes characters that cannot be printed.
    return str(TwoTowersError(log.read_text("utf8", "replace").rstrip().rpartition("\n")[2]))


def build(arguments: argparse.Namespace) -> NoReturn:
    """Update measurements, chapters and pages: this process becomes Snakemake.

    Args:
        arguments: Options of the command `twotowers book`.

    Raises:
        TwoTowersError: If a setting is wrong, if the model is unknown, or while another build runs.
    """
    try:
        words = [word.partition("=") for text in arguments.set for word in shlex.split(text)]
    except ValueError:
        raise TwoTowersError(
            f"cannot read {' '.join(arguments.set)!r}: a quote is missing; close it"
        ) from None
    values = {name: value for name, _, value in words}
    if arguments.model:
        values["model"] = arguments.model
    loading.check(Settings.from_values(values).model)  # raises for a name of nothing
    profile = arguments.profile and os.path.abspath(arguments.profile)
    os.chdir(data_folder().parent)
    Path("_build").mkdir(exist_ok=True)
    # Snakemake's own lock would outlive a build that was killed. This one ends with its process.
    lock = open("_build/.lock", "w")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TwoTowersError(
            "cannot build the book: another `twotowers book` is building it; wait until it is done"
        ) from None
    os.set_inheritable(lock.fileno(), True)
    # Snakemake restored the last good chapters, and regards them as new.
    failed = [path.name.removesuffix(FAILED) for path in Path("_build/chapters").glob(f"*{FAILED}")]
    again = [f"chapter_{name}" for name in failed if os.path.isfile(f"book/{name}.ipynb")]
    config = Path("_build/settings.json")
    config.write_text(json.dumps({"threads": arguments.threads, **values}))
    command = [sys.executable, "-m", "snakemake", "--nolock", "--configfile", str(config)]
    command += ["--keep-going", "--rerun-incomplete", "--quiet", "progress", "host"]
    command += (
        ["--profile", profile] if profile else ["--cores", str(arguments.jobs * arguments.threads)]
    )
    command += ["--forcerun", *again] if again else []
    os.execv(command[0], command)
