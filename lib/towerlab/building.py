"""The book built by Snakemake, and what went wrong told in words: `twotowers book`.

>>> settings(["blocks=20 seed=1"], model="mini-gpt2")
{'blocks': '20', 'seed': '1', 'model': 'mini-gpt2'}
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.settings import Settings

from towerlab.model import loading

FAILED = ".failed.ipynb"
PAPERMILLS = {"injected-parameters", "papermill-error-cell-tag"}
"""Tags of cells that papermill adds"""


def listed(toc: Mapping[str, Any]) -> list[str]:
    """Every page that _toc.yml lists, without its ending, the opening page first."""
    return [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]


def settings(texts: Sequence[str], model: str | None) -> dict[str, str]:
    """Words such as "blocks=20 seed=1" -> settings, checked. Raises TwoTowersError in one line."""
    try:
        words = [word.partition("=") for text in texts for word in shlex.split(text)]
    except ValueError:
        raise TwoTowersError(f"{' '.join(texts)!r} has an open quote: close it") from None
    values = {name: value for name, _, value in words} | ({"model": model} if model else {})
    loading.check(Settings.of(values).model)
    return values


def check_notebooks(root: Path) -> None:
    """Raise TwoTowersError for a chapter that does not say what it reads: it would run on the
    shipped model in silence."""
    for path in (
        root / f"{page}.ipynb"
        for page in listed(yaml.safe_load((root / "_toc.yml").read_text("utf8")))
    ):
        try:
            about = (
                json.loads(path.read_text("utf8"))["metadata"].get("twotowers")
                if path.is_file()
                else {}
            )
        except (ValueError, KeyError, AttributeError):
            raise TwoTowersError(
                f"'{path}' is no notebook: restore it from the repository"
            ) from None
        if not isinstance(about, dict):
            raise TwoTowersError(
                f"'{path}' does not say what it reads (metadata.twotowers): restore it from the "
                "repository"
            )


def build(
    values: dict[str, str], jobs: int | None, threads: int, profile: str | None = None
) -> bool:
    """Bring measurements, chapters and pages up to date; whether all went well.

    A chapter that fails stops no other, and the pages are built with its last good one.

    Args:
        values: settings, as words.
        jobs: how many at a time; None: one, or what the profile says.
        threads: of each job.
        profile: of Snakemake.

    Raises:
        TwoTowersError: while another build is at work.
    """
    root = data_folder().parent
    below = root / "_build"
    check_notebooks(root)
    below.mkdir(exist_ok=True)
    log = below / "log/snakemake.txt"
    snakemake = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(root / "Snakefile"),
        "--directory",
        str(root),
    ]
    if profile:  # which says how many jobs, unless asked for another number
        how = ["--profile", profile, *(["--jobs", str(jobs)] if jobs else [])]
        print(f"what each job does: {log}", file=sys.stderr)
    else:
        how = ["--cores", str((jobs or 1) * threads)]
    how += [
        "--keep-going",
        "--rerun-incomplete",
        "--quiet",
        "rules",
        "host",
        "--configfile",
        str(below / "settings.json"),
    ]
    with locked(below / ".lock") as lock:
        log.parent.mkdir(exist_ok=True)
        log.write_text("")
        # Nobody else is at work: a build that was killed left the lock.
        if any((root / ".snakemake/locks").glob("*")):
            _run([*snakemake, "--unlock", "--quiet", "all"], lock)
        (below / "pages.failed").unlink(missing_ok=True)
        (below / "settings.json").write_text(json.dumps({"threads": threads, **values}))
        failed = [
            path.name.removesuffix(FAILED) for path in (below / "chapters").glob(f"*{FAILED}")
        ]
        # Snakemake takes failed chapters for done.
        again = [f"chapter_{name}" for name in failed if (root / f"book/{name}.ipynb").is_file()]
        how += ["--forcerun", *again] if again else []
        good = _run([*snakemake, *how], lock, TWOTOWERS_SNAKEMAKE_LOG=str(log))
        failures = [] if good else sorted((below / "chapters").glob(f"*{FAILED}"))
        if failures:
            _run([sys.executable, str(root / "book/_ext/build.py")], lock, cwd=root)
        _tell(below, good, failures)
    return good


@contextmanager
def locked(path: Path) -> Iterator[TextIO]:
    """The lock of a build, held until this block ends and until all commands end that it was passed
    on to with `_run`.

    Raises TwoTowersError while another build holds it, also one whose terminal is closed or whose
    parent was killed.
    """
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise TwoTowersError(
                "another `twotowers book` is at work on this book (process "
                f"{lock.read() or 'unknown'}): wait until it is "
                "done, or end it"
            ) from None
        yield lock


def _run(command: Sequence[str], lock: TextIO, cwd: Path | None = None, **environment: str) -> bool:
    """Whether a command ended well. When this one is interrupted, all that the command started is
    ended; when this one is killed the command goes on, and so holds the lock itself."""
    env = os.environ | {"TOKENIZERS_PARALLELISM": "false", **environment}
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[lock.fileno()],
    )
    try:
        lock.truncate(0)
        print(process.pid, end="", file=lock, flush=True)
        return process.wait() == 0
    except BaseException:
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, how)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        raise


def _tell(below: Path, good: bool, failures: Sequence[Path]) -> None:
    for path in failures:
        name = path.name.removesuffix(FAILED)
        print(f"twotowers: {name} failed: {why(path)} (as far as it came: {path})", file=sys.stderr)
    if (below / "pages.failed").is_file():
        reason = (below / "pages.failed").read_text("utf8")
        print(f"twotowers: the pages failed, the last good ones stay: {reason}", file=sys.stderr)
    elif not good and not failures:
        log = below / "log/snakemake.txt"
        print(
            f"twotowers: it failed before the chapters, see above or {log}; what is there stays",
            file=sys.stderr,
        )
    else:
        print(
            f"{'The book is ready' if good else 'The last good pages are'}: "
            f"{below / 'html/index.html'}"
        )


def why(notebook: Path) -> str:
    """What went wrong in a notebook that papermill left unfinished, in one line: cell 3 says
    ValueError: ..."""
    try:
        whole = json.loads(notebook.read_text("utf8"))["cells"]
        cells = [
            cell.get("outputs", [])
            for cell in whole
            if not PAPERMILLS & {*cell["metadata"].get("tags", [])}
        ]
        errors = [
            (i, o)
            for i, outputs in enumerate(cells, 1)
            for o in outputs
            if o["output_type"] == "error"
        ]
    except (OSError, ValueError, KeyError, TypeError):
        log = notebook.parents[1] / "log" / notebook.name.removesuffix(FAILED)
        return f"papermill could not start it: see {log}.txt"
    if not errors:
        return (
            "it wrote no evidence (chapter.close()), or its Python was killed, perhaps for memory"
        )
    at, error = errors[-1]
    lines = re.sub(r"\x1b\[[\d;]*m", "", str(error["evalue"])).strip().splitlines() or [
        "no message"
    ]
    kind = "" if error["ename"] == TwoTowersError.__name__ else f"{error['ename']}: "
    # The error escapes what cannot be printed.
    return str(TwoTowersError(f"cell {at} says {kind}{lines[0]}"))
