"""Build of the book by Snakemake: `twotowers book`."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from twotowers.errors import TwoTowersError
from twotowers.names import is_local
from twotowers.paths import data_folder
from twotowers.settings import Settings

from towerlab.model import loading

FAILED = ".failed.ipynb"
TRIGGERS = ("code", "input", "mtime", "params", "software-env")
"""Every reason of Snakemake to run a job again, whatever a profile says"""
PROFILE = "SNAKEMAKE_PROFILE"
"""Variable of Snakemake, which may be set for another project"""


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

    Missing measurements are made first, by as few processes as there are jobs, because each loads
    PyTorch and the model. On a cluster each measurement is a job.

    Args:
        arguments: Options of the command `twotowers book`.

    Raises:
        TwoTowersError: If a setting is wrong, if the model is unknown, or while another build runs.
    """
    # It takes a second, and other commands do not need it.
    from towerlab.plan import Plan, shares

    try:
        words = [word.partition("=") for text in arguments.set for word in shlex.split(text)]
    except ValueError:
        raise TwoTowersError(
            f"cannot read {' '.join(arguments.set)!r}: a quote is missing; close it"
        ) from None
    values = {name: value for name, _, value in words}
    if arguments.model:
        values["model"] = arguments.model
    settings = Settings.from_values(values)
    loading.check(settings.model)  # raises for a name of nothing
    if is_local(settings.model):  # the build runs in another folder
        values["model"] = os.path.abspath(settings.model)
        settings = Settings.from_values(values)
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
    plan = Plan(settings, has_chosen_model=bool(values.get("model")))
    missing = plan.missing()
    if not profile:
        on_one_device = settings.device != "cpu" or settings.device_map
        for suite, names in missing.items():
            for stage in shares(names, 1 if on_one_device else arguments.jobs):
                _measure(stage, {**values, "suite": suite}, arguments.threads)
    # Snakemake restored the last good chapters, and regards them as new.
    failed = [name for name in plan.notebooks if Path(f"_build/chapters/{name}{FAILED}").is_file()]
    again = [f"chapter_{name}" for name in failed]
    if profile:
        again += [str(path) for path in plan.paths(missing)]
    config = Path("_build/settings.json")
    config.write_text(json.dumps({"threads": arguments.threads, **values}))
    command = [sys.executable, "-m", "snakemake", "--nolock", "--configfile", str(config)]
    command += ["--keep-going", "--rerun-incomplete", "--quiet", "progress", "host"]
    command += (
        ["--profile", profile] if profile else ["--cores", str(arguments.jobs * arguments.threads)]
    )
    # The default one solves a linear program before each job.
    command += [] if profile else ["--scheduler", "greedy"]
    command += ["--rerun-triggers", *TRIGGERS]
    command += ["--forcerun", *again] if again else []
    os.environ.pop(PROFILE, None)
    os.execv(command[0], command)


def _measure(shares: Sequence[Sequence[str]], values: Mapping[str, str], threads: int) -> None:
    """Run `twotowers measure` for each share of measurements, at the same time.

    A failure is reported by the process, and again when Snakemake tries that measurement.
    """
    options = [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    processes: list[subprocess.Popen] = []
    try:
        for names in shares:
            command = [sys.executable, "-m", "towerlab.cli", "measure", *names, *options]
            stderr = subprocess.PIPE if len(shares) > 1 else None
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment
            )
            processes.append(process)
            if process.stderr:  # several bars would overwrite each other on a terminal
                processes.append(subprocess.Popen(["cat"], stdin=process.stderr, stdout=2))
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.terminate()
            process.wait()
