"""One shard of a chapter: python -m twotowers.chapters.shard PLAN HOME/.shards/CHAPTER-1-of-3.json

It runs the chapter's studies as its notebook does and saves no table: all that stays are parts of their work (see
`studies.parts`), which the chapter's own job then reads. What a lost shard leaves undone, others or that job compute.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from twotowers import studies
from twotowers.chapters import stamps
from twotowers.chapters.execute import end_with_parent, tell
from twotowers.chapters.notebooks import declared, least_prompts, studied
from twotowers.errors import TwoTowersError
from twotowers.parameters import Parameters
from twotowers.stats import tables
from twotowers.studies.context import CHAPTERS, SHARDS, Study
from twotowers.studies.parts import Store
from twotowers.studies.run import Run


def studies_of(chapter: str) -> list[Study]:
    """The studies that a chapter publishes. No torch is loaded."""
    for module in pkgutil.iter_modules(studies.__path__):
        importlib.import_module(f"{studies.__name__}.{module.name}")
    names = studied(chapter)
    return [study for study in CHAPTERS.get(chapter, []) if study.function.__name__ in names]


def run(made: Path, parts: Path, job: dict[str, Any]) -> str:
    """Every study of the chapter, its tables in a folder that is thrown away. Returns what went wrong, one line."""
    faults = []
    with tempfile.TemporaryDirectory(dir=tables.writable(parts), prefix="tables-") as folder:
        shutil.copytree(tables.writable(made), folder, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        given = declared(job["chapter"]) | job["parameters"] | {"out": folder}
        one = Run(Parameters.of(given), least_prompts(job["chapter"]))
        for study in studies_of(job["chapter"]):
            try:
                one.table(study)
            except TwoTowersError:  # the page will say it
                continue
            except Exception as error:
                faults.append(
                    f"{study.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                )
    return "; ".join(faults)


def main(plan_file: str, stamp_file: str) -> int:
    """Exit status 0 when a stamp was written; the chapter goes on without those that were not."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_with_parent()
    plan, stamp_path, start = (
        json.loads(Path(plan_file).read_text("utf8")),
        Path(stamp_file).absolute(),
        time.monotonic(),
    )
    chapter, own, of = re.fullmatch(r"(.+)-(\d+)-of-(\d+)", stamp_path.stem).groups()
    home = stamp_path.parents[1]
    key = f"{home.name}/{chapter}"
    job = plan["jobs"][key]
    os.chdir(plan["cwd"])
    tell(key=key, status="running")
    with FileLock(tables.writable(stamp_path.parent) / f"{stamp_path.stem}.lock"):  # `twotowers status` looks at it
        others = (stamps.read(path) for path in stamp_path.parent.glob(f"{chapter}-*-of-{of}.json"))
        why = ""
        if not any(one.get("status") == stamps.DONE and one["job"] == job for one in others):
            parts = home / stamps.PARTS / chapter
            os.environ[SHARDS] = Store(str(parts), job["state"], int(of), int(own)).told
            why = run(home / "tables", parts, job)
        stamp = {"job": job, "status": stamps.FAILED if why else stamps.DONE, "why": why}
        tables.write(stamp_path, json.dumps(stamp | {"seconds": round(time.monotonic() - start)}).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
