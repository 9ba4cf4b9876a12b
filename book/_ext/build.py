"""Build of the book's pages, in which the last good pages stay until new ones are complete.

Run this script in the book's folder. _build/html is a link to the last good book, and one rename of
the link replaces the book. A failure is reported in one line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from assemble_pages import assemble_pages

BUILD = Path("_build")


def sphinx(source: Path, output: Path, log: Path) -> str:
    """Run jupyter-book with warnings as errors.

    Args:
        source: Folder of the sources.
        output: Folder of the build.
        log: File for the output of jupyter-book.

    Returns:
        The failure in one line, or "".
    """
    marker = output.with_suffix(".unfinished")
    if marker.exists():  # Sphinx would reuse the unfinished build without its warnings
        shutil.rmtree(output, ignore_errors=True)
    marker.touch()
    command = [
        sys.executable,
        "-c",
        "from jupyter_book.cli.main import main; main()",
        "build",
        str(source),
    ]
    with log.open("w") as stdout:
        code = subprocess.run(
            [*command, "--path-output", str(output), "-W", "--keep-going"],
            stdout=stdout,
            stderr=subprocess.STDOUT,
        ).returncode
    if not code:
        marker.unlink()
        return ""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log.read_text("utf8", "replace")).replace(
        f"{source.resolve()}/", ""
    )
    lines = [
        line for line in plain.splitlines() if re.search(r"WARNING|ERROR|CRITICAL|Error\b", line)
    ] or ["no warning"]
    return f"{lines[0]} ({len(lines)} in all: {log})"


def _put_in_place(pages: Path, html: Path) -> None:
    """Replace a link by a link to a copy of the pages, in one step.

    Args:
        pages: Folder of the built pages.
        html: Path of the link.
    """
    books = html.parent / "books"
    books.mkdir(exist_ok=True)
    copy, link = books / f"{time.time_ns()}", html.parent / ".html"
    shutil.copytree(pages, copy)
    link.unlink(missing_ok=True)
    link.symlink_to(copy.relative_to(html.parent), target_is_directory=True)
    if html.is_dir() and not html.is_symlink():  # Snakemake makes the folders of its outputs
        shutil.rmtree(html)
    os.replace(link, html)
    for old in books.iterdir():
        if old != copy:
            shutil.rmtree(old)


def main() -> int:
    """Build the pages, and print the reason of a failure.

    Returns:
        Exit status.
    """
    try:
        assemble_pages(Path(), BUILD / "assembled")
        why = sphinx(BUILD / "assembled", BUILD / "sphinx", BUILD / "sphinx.log")
        if not why:
            _put_in_place(BUILD / "sphinx/_build/html", BUILD / "html")
    except (OSError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        print(
            f"twotowers: cannot build the pages: {why}; the last good pages are kept",
            file=sys.stderr,
        )
    return int(bool(why))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
