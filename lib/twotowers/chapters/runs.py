"""A plan carried out by Snakemake, and small tables kept: the one engine behind `make book` and `twotowers run`.

    ended = work(for_run(["mini-gpt2"], None, {}, "runs"), jobs=2)       # what became of every job
    keep(Path("runs/mini-gpt2"), ["03-mrr"], results_folder("mini-gpt2"))

What must be done again is decided here, by `stamps.whole`; Snakemake brings it in order and spreads it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from twotowers.chapters import stamps
from twotowers.chapters.plan import Plan
from twotowers.chapters.stamps import PAGES, stamp_of
from twotowers.errors import TwoTowersError
from twotowers.paths import REPOSITORY, SITE, data_folder
from twotowers.stats import tables
from twotowers.studies.context import SINCE

LARGEST_TABLE = 512 << 10  # bytes; what is kept in data/results: eight rows for each head of SmolLM2 fit
LARGEST_MODEL = 3 << 20  # bytes of all tables of one model there
SHARED = re.compile(r"-[0-9a-f]{6}$")  # a table on other sets than its chapter's, see `Context.file_of`
HTML = "_build/html"
SKIPPED = "nothing changed"
PROFILE = "TWOTOWERS_PROFILE"  # set for Snakemake: the folder of its profile, whose scripts lie beside the config.yaml
OWN = "@engine"  # below a root: locks, plans and logs; no model's folder can have this name
# No time, record or lock of Snakemake's decides anything: stamps do, see `stamps`.
FLAGS = ("--keep-going", "--nolock", "--ignore-incomplete", "--drop-metadata", "--rerun-triggers", "mtime")


@dataclass
class Ended:
    """What became of a job: done, nothing changed, or failed and why, in one line."""

    chapter: str
    model: str
    status: str
    why: str = ""
    seconds: int = 0

    def __str__(self) -> str:
        if self.status == stamps.DONE:
            return f"done in {self.seconds:,} s"
        return f"{self.status}{': ' if self.why else ''}{self.why}"


def work(
    plan: Plan, jobs: int | None = None, threads: int = 1, force: bool = False, profile: str | None = None
) -> list[Ended]:
    """Run what is not done, chapters side by side, then the book's pages if the plan has any; see the module.

    `jobs`: chapters or shards at a time, by default what the profile says, or 1. `threads`: of one of them. `profile`:
    Snakemake's, for a cluster. Raises TwoTowersError when the root cannot be written or has a name that is no name for
    a cluster, and when Snakemake does not start; KeyboardInterrupt after all that was started is stopped.
    """
    root = tables.writable(plan.root).resolve()
    if profile and (
        odd := re.search(r"[^\w\s./@+,:=()'-]", str(root))
    ):  # executors put this path between double quotes
        raise TwoTowersError(
            f"'{root}' has a {odd[0]!r} in it, which a cluster's commands may take for code: rename it"
        )
    homes = sorted({key.split("/")[0] for key in plan.jobs}) + [f"@{PAGES}"] * bool(plan.main)
    with alone(tables.writable(root / OWN), homes) as held:
        todo = voided(plan, root, force)
        events: dict[str, dict[str, Any]] = {}
        if todo:
            log, since = root / OWN / f"{homes[0]}.log", time.time() - 0.1
            profile = str(Path(profile).absolute()) if profile and Path(profile).is_dir() else profile
            command = [*_command(jobs, threads, profile), "--configfile", str(log.with_suffix(".json"))]
            environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
            environment |= {"TOKENIZERS_PARALLELISM": "false", SINCE: str(since), PROFILE: profile or ""}
            log.unlink(missing_ok=True)
            given_up: list[str] = []
            while True:
                told = plan.as_json() | {"threads": threads, "given_up": given_up}
                for event in _snakemake(plan, root, todo, log, command, environment, told, held):
                    events[event["key"]] = event
                if not (lost := lost_shards(plan, root, todo, given_up)):
                    break
                given_up += lost  # and once more: these chapters do without those that were lost
            lost = f"it ended without a word, or was not started ({Path(plan.root) / OWN / log.name})"
            for key in todo:
                if events.get(key, {}).get("status", "running") == "running":  # on a cluster only stamps come back
                    events[key] = stamps.read(root / stamp_of(key)) or {"status": stamps.FAILED, "why": lost}
    ended = [_ended(plan, key, events.get(key, {"status": SKIPPED})) for key in plan.jobs]
    return ended + ([_ended(plan, PAGES, events.get(PAGES, {"status": SKIPPED}))] if plan.main else [])


def _ended(plan: Plan, key: str, event: dict[str, Any]) -> Ended:
    job = plan.jobs.get(key, {"chapter": PAGES, "model": ""})
    return Ended(job["chapter"], job["model"], event["status"], event.get("why", ""), event.get("seconds", 0))


@contextmanager
def alone(folder: Path, names: Sequence[str]) -> Iterator[list[int]]:
    """Hold a lock for each name, waiting for another run that has it; leftovers of killed runs may be cleared then."""
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.lock").open("a")) for name in names]
        for name, file in zip(names, files, strict=True):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print(f"waiting for another run that has {name} ...", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield [file.fileno() for file in files]


def voided(plan: Plan, root: Path, force: bool) -> list[str]:
    """The keys of what must be done, their stamps removed, and leftovers of killed runs too."""
    for home in {root / key.split("/")[0] for key in plan.jobs}:
        shutil.rmtree(home / ".part", ignore_errors=True)
        for part in home.glob("tables/.*.part"):
            part.unlink(missing_ok=True)
    todo: list[str] = []
    for key, job in plan.jobs.items():
        outdated = job["reads_all"] and set(plan.after[key]) & set(todo)
        if force or outdated or not stamps.whole(root, key, job):
            todo.append(key)
    if plan.main and (todo or not pages_whole(plan, root)):
        todo.append(PAGES)
    for key in todo:
        (root / stamp_of(key)).unlink(missing_ok=True)
    for key, job in plan.jobs.items():  # parts that a killed run left are taken up again
        home, chapter = key.split("/")
        afresh = force or key not in todo or key not in plan.shards or job["parameters"].get("recorded") == "never"
        stamps.clear_shards(root / home, chapter, parts=afresh)
    return todo


def pages_whole(plan: Plan, root: Path) -> bool:
    """Whether the book that lies there is made of these very chapters and sources."""
    stamp = stamps.read(root / stamp_of(PAGES))
    lies = (data_folder().parent / HTML / "index.html").is_file()
    return lies and stamp.get("status") == stamps.DONE and stamp["state"] == pages_state(plan, root)


def pages_state(plan: Plan, root: Path) -> str:
    """One checksum of all that the pages are made of: the book's sources, stamps of chapters, other models' runs."""
    home = data_folder().parent
    files = [
        home / "_config.yml",
        home / "_toc.yml",
        home / "CITATION.cff",
        *(root / stamp_of(key) for key in plan.jobs),
    ]
    files += [f for f in home.glob("book/**/*") if f.is_file() and f.suffix not in (".ipynb", ".pyc")]
    files += [*data_folder().glob("**/*.md"), *data_folder().glob("**/*.json"), *data_folder().glob("**/*.png")]
    files += [*home.glob("runs/*/*.ipynb"), *home.glob("runs/*/.done/*.json")]
    addresses = [os.environ.get(name, "") for name in (REPOSITORY, SITE)]
    return stamps.digest(files) + ",".join([*addresses, *sorted(plan.jobs)])


def _command(jobs: int | None, threads: int, profile: str | None) -> list[str]:
    """How Snakemake is called: with a profile, which says where jobs run and how many, or on this machine."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(data_folder().parent / "Snakefile"), *FLAGS]
    if profile is None:
        return [*command, "--cores", str((jobs or 1) * threads)]
    return [*command, "--profile", profile, *(["--jobs", str(jobs)] if jobs else [])]


def _snakemake(
    plan: Plan, root: Path, todo: Sequence[str], log: Path, command: list[str], environment: dict[str, str],
    told: dict[str, Any], held: list[int],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Start Snakemake on the missing stamps of `todo`; what its jobs tell, while a bar over chapters shows it."""
    file = log.with_suffix(".json")
    tables.write(file, json.dumps({"plan": str(file), **told}).encode())
    targets = [stamp_of(key) for key in todo if not (root / stamp_of(key)).exists()]
    with log.open("a") as said:
        process = subprocess.Popen(
            [*command, "--quiet", "all", "--", *targets], cwd=root, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True, pass_fds=held,
        )  # fmt: skip
        try:
            yield from shown(process.stdout, plan, len(targets), said)
            process.wait()
        except BaseException:
            stop(process)
            raise


def lost_shards(plan: Plan, root: Path, todo: Sequence[str], given_up: Sequence[str]) -> list[str]:
    """Chapters that wait for a shard that was lost, and for no other chapter."""
    there = lambda name: (root / name).exists()  # noqa: E731
    return [
        key for key in todo
        if key in plan.shards and key not in given_up and not there(stamp_of(key))
        and all(there(stamp_of(one)) for one in plan.after[key])
        and not all(map(there, stamps.shards_of(key, plan.shards[key])))
    ]  # fmt: skip


def shown(lines: Iterable[str], plan: Plan, total: int, log: TextIO) -> Iterator[dict[str, Any]]:
    """The events among `lines`, each shown as it comes: under a bar for who watches, else a line; the rest is logged.

    A line that two jobs wrote into each other is no event: what became of them their stamps tell.
    """
    watched, n = sys.stderr.isatty(), 0
    with tqdm(total=total, disable=not watched, unit="chapter", leave=False) as bar:
        for line in lines:
            try:
                event = json.loads(line) if line.startswith('{"key"') else None
            except ValueError:
                event = None
            if event is None:
                log.write(line)
                continue
            ended = _ended(plan, event["key"], event)
            what = f"{ended.chapter} on {ended.model}" if ended.model else ended.chapter
            if event["status"] == "running":
                bar.set_description(what)
            else:
                n += 1
                bar.update()
                if not watched:
                    print(f"[{n}/{total}] {what}: {ended}", flush=True)
            yield event


def stop(process: subprocess.Popen) -> None:
    """End Snakemake and its jobs, kernels included, which follow their parents."""
    previous = [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)]
    for how, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, how)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    for one, handler in zip((signal.SIGINT, signal.SIGTERM), previous, strict=True):
        signal.signal(one, handler)


def keep(home: Path, chapters: Sequence[str], target: Path) -> list[str]:
    """Copy the small tables of finished chapters to `target`, in place of their old ones; the names of those too large.

    A table that chapters share stays: one that was kept before may need it.
    Raises TwoTowersError, and copies nothing, when one of them is lost or damaged.
    """
    found = {name for chapter in chapters for name in stamps.read(home / f".done/{chapter}.json")["tables"]}
    stamps.table_digests(home, found)
    tables.writable(target)
    old = {path for chapter in chapters for path in target.glob(f"{chapter}-*.csv") if not SHARED.search(path.stem)}
    total = sum(path.stat().st_size for path in target.glob("*.csv") if path not in old and path.stem not in found)
    large, kept = [], set()
    for name in sorted(found):
        table = home / "tables" / f"{name}.csv"
        size = table.stat().st_size
        if size > LARGEST_TABLE or total + size > LARGEST_MODEL:
            large.append(name)
            continue
        total += size
        kept.add(target / table.name)
        tables.write(target / table.name, table.read_bytes())
    for path in old - kept:
        path.unlink()
    return large
