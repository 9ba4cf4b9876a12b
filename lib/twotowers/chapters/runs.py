"""Run chapters on a model through papermill: runs/MODEL/CHAPTER.ipynb, its tables, and a small copy of them.

    todo = plan(["openai-community/gpt2-large"], chapters=None, parameters={"n_prompts": 200})
    for one in todo: run(one, out=Path("runs"))
    keep(Path("runs/MODEL/tables"), Path("data/results/MODEL"))

A chapter runs in a folder of its own beside the results and is moved in place when its last cell is done, so an
interrupted or failed chapter leaves the last good one as it was. A chapter whose inputs did not change is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
import papermill
from huggingface_hub import try_to_load_from_cache
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from twotowers.chapters.chapter import HEADS_TABLE
from twotowers.chapters.parameters import ONE_CHAPTERS, check_parameters, nearest
from twotowers.errors import TwoTowersError
from twotowers.model import chat, loading
from twotowers.paths import data_folder, shipped_models
from twotowers.prompts import datasets
from twotowers.stats import tables

LARGEST_TABLE = 128 << 10  # bytes; what is kept in data/results: a row for each head of a 7B model fits
LARGEST_MODEL = 1 << 20  # bytes of all tables of one model there
FAILED = "failed"  # folder in runs/MODEL for a chapter as far as it came


@dataclass(frozen=True)
class Job:
    """One chapter to run on one model, with the parameters that this chapter declares."""

    chapter: str
    model: str
    parameters: dict[str, Any]

    @property
    def folder(self) -> str:
        """The model as a folder name."""
        return folder_of(self.model)


def folder_of(model: str) -> str:
    """A shipped name, a folder's own name, or a hub id with its slash replaced, as a folder name."""
    name = Path(model).resolve().name if Path(model).is_dir() and model not in shipped_models() else model
    return re.sub(r"[^\w.-]+", "--", name.strip("/"))


def book_folder() -> Path:
    return data_folder().parent / "book"


def chapters() -> dict[str, Path]:
    """Name -> notebook of every chapter that runs on a model, in the book's order."""
    return {path.stem: path for path in sorted(book_folder().glob("[0-9]*.ipynb"))}


def plan(models_named: Sequence[str], chapters_named: Sequence[str] | None, parameters: dict[str, Any]) -> list[Job]:
    """Every chapter for every model, all parameters checked; nothing is loaded.

    `chapters_named` None takes all. Raises TwoTowersError, in one line, on an unknown chapter, a parameter that is
    unknown, out of range or that no chosen chapter has, a data set that cannot be drawn, an unknown dtype, a device
    that is not here, a model folder without weights, two models whose folders would have one name, and a chat model
    that is none.
    """
    known = chapters()
    chosen = list(known) if chapters_named is None else [_chapter(name, known) for name in chapters_named]
    given = check_parameters(parameters, ONE_CHAPTERS)
    seen: dict[str, str] = {}
    named = [check_parameters({"model": model})["model"] for model in models_named]
    for model in [*named, *given.get("more_models", [])]:  # the tables of those beside bear their folder's name
        loading.check(model, given.get("dtype", "float32"), given.get("device", "cpu"), given.get("device_map"))
        if (other := seen.setdefault(folder_of(model), model)) != model:
            raise TwoTowersError(f"'{other}' and '{model}' would share the folder {folder_of(model)}: rename one")
    if given.get("chat_model"):
        chat.check(given["chat_model"])
    for name in given.get("datasets", []):
        labels = {"labels": tuple(given["labels"])} if "labels" in given else {}
        datasets.draw(name, given.get("n_prompts", 1), seed=given.get("seed", 0), k=given.get("k", 2), **labels)
    declared = {name: parameters_of(known[name]) for name in chosen}
    for name in given:
        if not any(name in has for has in declared.values()):
            raise TwoTowersError(f"no chosen chapter has the parameter '{name}': leave it out or choose other chapters")
    order = sorted(dict.fromkeys(chosen), key=list(known).index)  # later chapters read the tables of earlier ones
    return [
        Job(chapter, model, {name: value for name, value in given.items() if name in declared[chapter]})
        for model in dict.fromkeys(named)
        for chapter in order
    ]


def _chapter(name: str, known: Iterable[str]) -> str:
    if name not in known:
        raise TwoTowersError(f"unknown chapter '{name}': {nearest(name, known)}")
    return name


def parameters_of(notebook: Path) -> set[str]:
    """Names that the notebook's parameters cell sets."""
    cells = nbformat.read(notebook, 4).cells
    source = "\n".join(c.source for c in cells if "parameters" in c.metadata.get("tags", []))
    return set(re.findall(r"^(\w+)\s*=", source, flags=re.MULTILINE))


def run(job: Job, out: Path, force: bool = False, bar: bool | None = None) -> bool:
    """Execute a chapter into out/MODEL; False when nothing had changed.

    Raises TwoTowersError, in one line, naming the chapter, the cell and what it said, when a cell fails. `bar`: show
    the progress over cells; by default when someone watches.
    """
    home = tables.writable(out / job.folder)
    stamp = home / ".inputs" / f"{job.chapter}.json"
    done = home / f"{job.chapter}.ipynb"
    sources = _sources(job, home)
    (home / FAILED / f"{job.chapter}.ipynb").unlink(missing_ok=True)
    if not force and done.exists() and _read(stamp) == sources | _models_state(job):
        return False
    with tempfile.TemporaryDirectory(prefix=f".{job.chapter}.", dir=home) as part:
        aside, made = Path(part), Path(part) / "tables"
        shutil.copytree(home / "tables", made) if (home / "tables").is_dir() else made.mkdir()
        _remove(made, job.chapter)
        _execute(job, aside, made, home / FAILED, sys.stderr.isatty() if bar is None else bar)
        # From here on only renames: without a stamp the chapter would run again.
        stamp.unlink(missing_ok=True)
        tables.writable(home / "tables")
        _remove(home / "tables", job.chapter)
        for table in made.glob(f"{job.chapter}-*.csv"):
            os.replace(table, home / "tables" / table.name)
        text = (aside / "out.ipynb").read_text("utf8").replace(made.as_posix(), (home / "tables").as_posix())
        (aside / "out.ipynb").write_text(text, "utf8")
        os.replace(aside / "out.ipynb", done)
        stamp.parent.mkdir(exist_ok=True)
        (aside / "inputs.json").write_text(json.dumps(sources | _models_state(job)))
        os.replace(aside / "inputs.json", stamp)
    return True


def _remove(folder: Path, chapter: str) -> None:
    for old in folder.glob(f"{chapter}-*.csv"):
        old.unlink()


def _execute(job: Job, aside: Path, made: Path, failed: Path, bar: bool) -> None:
    given = job.parameters | {"model": job.model, "out": made.as_posix()}
    try:
        papermill.execute_notebook(
            chapters()[job.chapter], aside / "out.ipynb", given,
            kernel_name="python3", language="python", progress_bar=bar,
            extra_arguments=["--IPKernelApp.log_level=50"],  # its remarks about sockets are not the reader's business
        )  # fmt: skip
        return
    except PapermillExecutionError as error:
        said = re.sub(r"\x1b\[[\d;]*m", "", str(error.evalue)).strip().splitlines() or ["no message"]
        what = f"cell {error.cell_index + 1} says {error.ename}: {said[0]}"
    except DeadKernelError:
        what = "its Python was killed, perhaps for memory: take fewer n_prompts, a narrower dtype or a larger machine"
    except NoSuchKernel:
        raise TwoTowersError("there is no Jupyter kernel to run chapters with: pip install ipykernel") from None
    failed.mkdir(exist_ok=True)
    kept = failed / f"{job.chapter}.ipynb"
    os.replace(aside / "out.ipynb", kept)
    raise TwoTowersError(f"{job.chapter} on {job.model} failed, {what} (as far as it came: {kept})") from None


def keep(folder: Path, target: Path) -> list[str]:
    """Copy the small stamped tables of `folder` to `target`, replacing what is there; names of those too large."""
    tables.writable(target)
    left, total = [], 0
    chosen = {}
    for table in sorted(folder.glob("*.csv")):
        size = table.stat().st_size
        if size > LARGEST_TABLE or total + size > LARGEST_MODEL:
            left.append(table.stem)
            continue
        total += size
        chosen[table.name] = table.read_bytes()
    for old in target.glob("*.csv"):
        if old.name not in chosen:
            old.unlink()
    for name, content in chosen.items():
        part = target / f".{name}.{os.getpid()}.part"
        part.write_bytes(content)
        os.replace(part, target / name)
    return left


def _sources(job: Job, home: Path) -> dict[str, Any]:
    """What a chapter's result depends on, but for the model."""
    digest = hashlib.sha256()
    files = [chapters()[job.chapter], *sorted(Path(__file__).parent.glob("*.py")), data_folder() / "published.csv"]
    files += [*sorted((data_folder() / "words").glob("*")), data_folder() / "sentences" / "files.csv"]
    if job.chapter != HEADS_TABLE.rsplit("-", 1)[0]:
        files.append(home / "tables" / f"{HEADS_TABLE}.csv")
    for path in files:
        digest.update(path.name.encode() + (path.read_bytes() if path.is_file() else b""))
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {"sources": digest.hexdigest(), "parameters": job.parameters, "versions": versions}


def _models_state(job: Job) -> dict[str, Any]:
    """The state of the model and of every other one that the chapter takes."""
    others = [*job.parameters.get("more_models", []), *filter(None, [job.parameters.get("chat_model")])]
    return {"model": _model_state(job.model), "others": [_model_state(other) for other in others]}


def _model_state(model: str) -> Any:
    """What tells one state of a model from another, without reading its weights."""
    folder = shipped_models().get(model, Path(model))
    if folder.is_dir():
        return [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(folder.iterdir()) if f.is_file()]
    found = try_to_load_from_cache(model, "config.json")  # its folder is named after the commit
    return Path(found).parent.name if isinstance(found, str) else None


def _read(stamp: Path) -> Any:
    try:
        return json.loads(stamp.read_text())
    except (OSError, json.JSONDecodeError):
        return None
