"""Time until a chapter shows its first figure, and until its end, on a model of your own.

    python -m benchmarks.first_figure path/to/model                  # chapters 4, 6 and 11
    python -m benchmarks.first_figure path/to/model 04 06            # some chapters
    python -m benchmarks.first_figure path/to/model 04 --repeats 3   # the median of three runs
    python -m benchmarks.first_figure path/to/model out.ipynb        # a chapter that papermill ran

Each chapter runs through papermill as in README.md, in a process of its own and with no
measurement of the model, whose folder must not have the name of a precomputed model. The times of
its cells are those that papermill writes into the notebook. They start with the first cell, so they
do not contain the start of the kernel. The unit is a plain batched pass over the prompts of the
first figure, in the same number of threads, so that machines compare. Run it on a machine without
other work.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from towerlab import cli
from towerlab.measure.pipeline import Pipeline
from towerlab.prompts.paper_sets import LISTED_SETS
from towerlab.prompts.prompt import Encoded
from towerlab_experiments.answers import read_answers
from towerlab_experiments.paper import encoded_sets
from twotowers.book import BLOCKS
from twotowers.errors import TwoTowersError
from twotowers.settings import FEW_BLOCKS, Settings

from benchmarks.run import machine

BOOK = Path(__file__).resolve().parents[1] / "book"
CHAPTERS = ("04", "06", "11")
ON_BLOCKS = ("11",)
"""Chapters whose first figure is about blocks; those of the others are about the paper's sets"""
CAPTION = re.compile(r'class="caption" id="fig-([\w-]+)"')
TITLES = ["chapter", "first figure", "seconds", "plain passes", "end, seconds", "plain passes"]


def times(notebook: dict[str, Any]) -> tuple[str, float, float]:
    """Return the first figure of a notebook that papermill ran, and two times.

    Args:
        notebook: Notebook as JSON.

    Returns:
        Number of the first figure, time until the end of its cell, and time until the end of the
        last cell (seconds), both from the start of the first cell.

    Raises:
        TwoTowersError: If papermill did not run the whole notebook, or if it has no figure.
    """
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    stamps = [cell["metadata"].get("papermill", {}) for cell in cells]
    if not all(stamp.get("end_time") for stamp in stamps):
        raise TwoTowersError(
            "cannot time the notebook: expected times of all cells; run it with papermill"
        )
    start = datetime.fromisoformat(stamps[0]["start_time"])
    ends = [(datetime.fromisoformat(stamp["end_time"]) - start).total_seconds() for stamp in stamps]
    for cell, end in zip(cells, ends, strict=True):
        if caption := CAPTION.search(json.dumps(cell["outputs"]).replace('\\"', '"')):
            return caption[1].replace("-", "."), end, ends[-1]
    raise TwoTowersError("cannot time the notebook: expected a figure, got none; run a chapter")


def run(chapter: str, model: str, out: str) -> dict[str, Any]:
    """Return a chapter as papermill runs it, without any measurement of the model.

    Args:
        chapter: Start of the chapter's name, such as "04".
        model: Name or folder of the model.
        out: Folder of the measurements.

    Returns:
        Notebook as JSON.

    Raises:
        TwoTowersError: If there is no such chapter, or if it fails.
    """
    found = sorted(BOOK.glob(f"{chapter}*.ipynb"))
    if len(found) != 1:
        names = ", ".join(path.stem for path in sorted(BOOK.glob("[0-9]*.ipynb")))
        raise TwoTowersError(f"unknown chapter '{chapter}': expected the start of one of {names}")
    result = Path(out) / "run.ipynb"
    result.parent.mkdir(parents=True, exist_ok=True)
    parameters = ["-p", "model", model, "-p", "out", out]
    command = [sys.executable, "-m", "papermill", str(found[0]), str(result), *parameters]
    ran = subprocess.run([*command, "--no-progress-bar"], capture_output=True, text=True)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise TwoTowersError(f"chapter '{found[0].stem}' failed: {last}; run it with papermill")
    return json.loads(result.read_text("utf8"))


def prompts_of(chapter: str, pipeline: Pipeline) -> list[Encoded]:
    """Return the prompts of the first figure of a chapter.

    Args:
        chapter: Start of the chapter's name.
        pipeline: Pipeline of the model.

    Returns:
        Prompts of the paper's two listed sets, or of the evaluation blocks for interventions.
    """
    design = pipeline.design
    if chapter[:2] in ON_BLOCKS:
        return design.intervention()
    return encoded_sets(design, LISTED_SETS)


def plain_pass(pipeline: Pipeline, encoded: Sequence[Encoded], repeats: int = 3) -> float:
    """Return the time of a plain batched pass over some prompts, after one pass that warms up.

    Args:
        pipeline: Pipeline of the model.
        encoded: Prompts.
        repeats: Number of timed passes.

    Returns:
        Median (seconds).
    """
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        read_answers(pipeline.model, encoded)
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])


def row(name: str, figures: Iterable[tuple[str, float, float]], unit: float) -> list[str]:
    """Return a row of the table: medians over some runs of a chapter.

    Args:
        name: Name of the chapter.
        figures: Result of `times` for each run.
        unit: Time of a plain pass (seconds).

    Returns:
        Cells in the order of TITLES.
    """
    numbers, firsts, ends = zip(*figures, strict=True)
    cells = []
    for seconds in (median(firsts), median(ends)):
        cells += [f"{seconds:.0f}", f"{seconds / unit:.0f}×"]
    return [name, numbers[0], *cells]


def markdown(rows: Iterable[Sequence[str]], where: str) -> str:
    """Return the times as a Markdown table.

    Args:
        rows: Results of `row`.
        where: Description of the machine.
    """
    lines = [TITLES, ["---"] * len(TITLES), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{where}.\n"


def main(*words: str) -> int:
    """Read the command line, run chapters, and print the table.

    Args:
        *words: Words of the command line.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_figure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="name, folder, or Hugging Face id")
    parser.add_argument(
        "chapters",
        nargs="*",
        default=CHAPTERS,
        metavar="CHAPTER",
        help="starts of names of chapters, or notebooks that papermill ran (default: 04 06 11)",
    )
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="runs (default: 1)")
    options = parser.parse_args(words)
    rows = []
    for name in options.chapters:
        is_given = name.endswith(".ipynb")
        with tempfile.TemporaryDirectory() as out:
            if is_given:
                found = [times(json.loads(Path(name).read_text("utf8")))]
            else:
                found = [
                    times(run(name, options.model, f"{out}/{i}")) for i in range(options.repeats)
                ]
            folder = "_build/measurements" if is_given else f"{out}/0"
            blocks = dict.fromkeys(BLOCKS, FEW_BLOCKS)
            pipeline = Pipeline(Settings(model=options.model, out=folder, **blocks))
            chapter = found[0][0].partition(".")[0].zfill(2)
            unit = plain_pass(pipeline, prompts_of(chapter, pipeline))
        rows.append(row(Path(name).name, found, unit))
    where = machine().replace("1 thread", f"{torch.get_num_threads()} threads")
    print(markdown(rows, where))
    return 0


if __name__ == "__main__":
    sys.exit(cli.guarded(lambda: main(*sys.argv[1:])))
