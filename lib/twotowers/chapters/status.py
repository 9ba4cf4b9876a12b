"""How far runs are: what is done, running, failed and why, waiting; seconds, peak memory, and an estimate of what is left.

Read off the plans, locks and stamps that runs leave below their root; nothing is started and nothing is changed.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from twotowers.chapters import stamps
from twotowers.chapters.runs import OWN
from twotowers.errors import TwoTowersError

RUNNING, WAITING = "running", "waiting"
COLUMNS = ["chapter", "model", "status", "seconds", "peak_mb", "why"]


def status(root: Path) -> pd.DataFrame:
    """One row a job of the latest plan of every model: chapter, model, status, seconds, peak_mb (of the kernel), why.

    Raises TwoTowersError when nothing was ever run there.
    """
    plans = sorted((root / OWN).glob("*.json"))
    if not plans:
        raise TwoTowersError(f"nothing was run in '{root}': name the folder of a run with --out")
    return pd.DataFrame([row for plan in plans for row in _rows(root, plan)], columns=COLUMNS)


def _rows(root: Path, plan: Path) -> Iterator[dict[str, Any]]:
    jobs = stamps.read(plan).get("jobs", {})
    for key, job in jobs.items():
        home, chapter = key.split("/")
        stamp, part = stamps.read(root / stamps.stamp_of(key)), root / home / ".part" / f"{chapter}.ipynb"
        row: dict[str, Any] = {"chapter": chapter, "model": job["model"], "seconds": 0, "peak_mb": 0, "why": ""}
        if stamp.get("job") == job:
            row |= {name: stamp[name] for name in ("status", "seconds", "peak_mb", "why") if name in stamp}
        elif waits := _shards(root, key, stamps.read(plan).get("shards", {}).get(key, 1)):
            row |= {"status": RUNNING, "why": waits}
        elif part.is_file() and _held(root / OWN / f"{home}.lock"):
            row |= {"status": RUNNING, **_progress(part)}
        else:
            row["status"] = WAITING
        yield row


def _shards(root: Path, key: str, of: int) -> str:
    """ "2 of 3 shards done, 1 running", until all have ended or when none does anything."""
    paths = [root / path for path in stamps.shards_of(key, of)]
    done = sum(path.is_file() for path in paths)
    running = sum(lock.is_file() and _held(lock) for lock in (path.with_suffix(".lock") for path in paths))
    return f"{done} of {of} shards done, {running} running" if running else ""


def _held(lock: Path) -> bool:
    """Whether a run has this lock."""
    try:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _progress(part: Path) -> dict[str, Any]:
    """Seconds since the start, and "cell 3 of 12": papermill writes both into the notebook after every cell."""
    try:
        notebook = json.loads(part.read_text("utf8"))
        start = datetime.fromisoformat(notebook["metadata"]["papermill"]["start_time"])
    except (OSError, ValueError, KeyError):
        return {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    done = sum(c["metadata"].get("papermill", {}).get("status") == "completed" for c in cells)
    seconds = round((datetime.now(UTC) - start.replace(tzinfo=start.tzinfo or UTC)).total_seconds())
    return {"seconds": seconds, "why": f"cell {min(done + 1, len(cells))} of {len(cells)}"}


def left(table: pd.DataFrame) -> float | None:
    """Seconds of work that are left, from the mean of what is done; None where that says nothing."""
    done = table.loc[table["status"] == stamps.DONE, "seconds"]
    open_ = table["status"].isin([RUNNING, WAITING])
    if done.empty or not open_.any():
        return None
    spent = table.loc[table["status"] == RUNNING, "seconds"].clip(upper=done.mean()).sum()
    return float(open_.sum() * done.mean() - spent) or None


def said(table: pd.DataFrame) -> str:
    """The table as lines of text, and a last one with the counts and the estimate."""
    wide = [max(len(str(one)) for one in table[name]) for name in ("chapter", "model", "status")]
    lines = [
        f"  {r.chapter:{wide[0]}}  {r.model:{wide[1]}}  {r.status:{wide[2]}}"
        + (f"  {r.seconds:,} s" if r.seconds else "") + (f"  {r.peak_mb:,} MB" if r.peak_mb else "")
        + (f"  {r.why}" if r.why else "")
        for r in table.itertuples()
    ]  # fmt: skip
    counts = ", ".join(f"{n} {name}" for name, n in table["status"].value_counts(sort=False).items())
    rest = left(table)
    return "\n".join([*lines, counts + (f"; about {rest / 60:,.0f} min of work left" if rest is not None else "")])
