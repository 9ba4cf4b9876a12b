"""The book's pages, built aside and put in place whole. The Snakefile calls it: python book/_ext/build.py PLAN STAMP

_build/html is a link to the last good book, and one rename of it puts the next one there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from assemble import assemble
from twotowers.chapters import stamps
from twotowers.chapters.execute import end_with_parent, tell
from twotowers.chapters.plan import Plan
from twotowers.chapters.runs import HTML, pages_state
from twotowers.chapters.stamps import PAGES
from twotowers.errors import TwoTowersError
from twotowers.stats import tables

HOME = Path(__file__).parents[2]
BUILD = HOME / "_build"
JUPYTER_BOOK = """
from jupyter_book.cli.main import main
from twotowers.chapters.execute import end_with_parent
end_with_parent()
main()
"""


def sphinx(stage: Path, output: Path, log: Path) -> str:
    """Run jupyter-book, warnings being errors; what went wrong, in one line, or nothing."""
    unfinished = output.with_suffix(".unfinished")
    if unfinished.exists():  # Sphinx would take what it left for good, and warn of nothing again
        shutil.rmtree(output, ignore_errors=True)
    unfinished.touch()
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", str(stage), "--path-output", str(output)]
    command += ["-W", "--keep-going"]
    with log.open("w") as said:
        failed = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT).returncode
    if not failed:
        unfinished.unlink()
        return ""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log.read_text("utf8", "replace")).replace(f"{stage}/", "")
    found = [line for line in plain.splitlines() if re.search(r"WARNING|ERROR|Error\b", line)] or ["no warning"]
    return f"{found[0]} ({len(found)} in all: {os.path.relpath(log)})"


def put_in_place(built: Path, html: Path) -> None:
    """Let `html` be a copy of `built`, from one moment to the next."""
    books = html.parent / "books"
    books.mkdir(exist_ok=True)
    copy, link = books / f"{time.time_ns()}", html.parent / ".html"
    shutil.copytree(built, copy)
    link.unlink(missing_ok=True)
    link.symlink_to(copy.relative_to(html.parent), target_is_directory=True)
    if html.is_dir() and not html.is_symlink():  # made before books were links
        html.rename(books / "before")
    os.replace(link, html)
    for old in books.iterdir():
        if old != copy:
            shutil.rmtree(old)


def main(plan_file: str, stamp_file: str) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with_parent()
    plan, stamp = json.loads(Path(plan_file).read_text("utf8")), Path(stamp_file).absolute()
    os.chdir(plan["cwd"])
    tell(key=PAGES, status="running")
    start, state = time.monotonic(), ""
    try:
        state = pages_state(Plan(**{name: plan[name] for name in Plan.__dataclass_fields__}), stamp.parent)
        assemble(HOME, BUILD / "stage", plan)
        why = sphinx(BUILD / "stage", BUILD / "sphinx", stamp.with_suffix(".log"))
        if not why:
            put_in_place(BUILD / "sphinx/_build/html", HOME / HTML)
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
    except TwoTowersError as error:
        why = str(error)
    told = {"status": stamps.FAILED if why else stamps.DONE, "why": why, "seconds": round(time.monotonic() - start)}
    tables.write(stamp, json.dumps({"state": state, **told}).encode())
    tell(key=PAGES, **told)


if __name__ == "__main__":
    main(*sys.argv[1:])
