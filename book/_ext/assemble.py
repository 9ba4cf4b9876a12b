"""Put together what jupyter-book builds: the book's sources, executed chapters, their tables and small data.

    python book/_ext/assemble.py STAGE EXECUTED.ipynb ... --runs runs/MODEL/CHAPTER.ipynb ...

Files are written only where they differ, so that Sphinx reads again only what changed.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import yaml
from run_pages import index, run_pages, with_runs

WIDGET = "application/vnd.jupyter.widget-view+json"
INJECTED = "injected-parameters"  # papermill's tag for the cell it adds
RUN_LIVE = "*A widget is here when this chapter runs live: open it in Jupyter (`make lab`).*"
SHIPPED = {".md", ".csv", ".json", ".png", ".svg"}  # of data/: never the weights


def for_the_page(notebook: dict) -> dict:
    """A note in place of each widget, dead without a running Python; no progress bars; papermill's cell folded."""
    notebook["metadata"].pop("widgets", None)
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        if INJECTED in tags:
            tags.append("hide-input")
        if "outputs" in cell:
            cell["outputs"] = [shown(output) for output in cell["outputs"] if not is_progress(output)]
    return notebook


def is_progress(output: dict) -> bool:
    """Whether an output is a progress bar of tqdm, which is a widget in a notebook."""
    data = output.get("data", {})
    return WIDGET in data and bool(re.search(r"\d+%\||\d+it \[", "".join(data.get("text/plain", ""))))


def shown(output: dict) -> dict:
    if WIDGET not in output.get("data", {}):
        return output
    return {"output_type": "display_data", "data": {"text/markdown": RUN_LIVE}, "metadata": {}}


def as_bytes(notebook: dict) -> bytes:
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def staged(root: Path, executed: list[Path], runs: list[Path]) -> dict[str, bytes]:
    """Every file of the stage: its path there and its content."""
    contents = {name: (root / name).read_bytes() for name in ("_config.yml", "_toc.yml")}
    for source in (root / "book").rglob("*"):
        hidden = {"__pycache__", ".ipynb_checkpoints"} & set(source.parts)
        if source.is_file() and source.suffix != ".ipynb" and not hidden:
            contents[source.relative_to(root).as_posix()] = source.read_bytes()
    for source in (root / "data").rglob("*"):
        if source.is_file() and source.suffix in SHIPPED:
            contents[source.relative_to(root).as_posix()] = source.read_bytes()
    for chapter in executed:
        notebook = for_the_page(json.loads(chapter.read_text("utf8")))
        contents[f"book/{chapter.name}"] = as_bytes(notebook)
        for table in (root / "_build/tables" / chapter.parent.name).glob("*.csv"):
            contents[f"tables/{chapter.parent.name}/{table.name}"] = table.read_bytes()
    if runs:
        contents |= staged_runs(root, runs, {Path(name).stem for name in contents if name.startswith("book/")})
    return contents


def staged_runs(root: Path, runs: list[Path], pages: set[str]) -> dict[str, bytes]:
    """The pages of other models' runs, and the table of contents with them."""
    by_model: dict[str, dict[str, dict]] = {}
    for chapter in sorted(runs):
        notebook = for_the_page(json.loads(chapter.read_text("utf8")))
        by_model.setdefault(chapter.parent.name, {})[chapter.stem] = notebook
    contents = {}
    for model, notebooks in by_model.items():
        contents[f"book/runs/{model}/index.md"] = index(model).encode()
        for name, notebook in run_pages(notebooks, model, pages).items():
            contents[f"book/runs/{model}/{name}.ipynb"] = as_bytes(notebook)
    toc = with_runs(yaml.safe_load((root / "_toc.yml").read_text()), {m: list(n) for m, n in by_model.items()})
    return contents | {"_toc.yml": yaml.safe_dump(toc, sort_keys=False).encode()}


def assemble(root: Path, stage: Path, executed: list[Path], runs: list[Path]) -> None:
    contents = staged(root, executed, runs)
    for old in stage.rglob("*"):
        if old.is_file() and old.relative_to(stage).as_posix() not in contents:
            old.unlink()
    for name, content in contents.items():
        target = stage / name
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    shutil.rmtree(stage / "book/_ext/__pycache__", ignore_errors=True)


if __name__ == "__main__":
    split = sys.argv.index("--runs") if "--runs" in sys.argv else len(sys.argv)
    named = [Path(name) for name in sys.argv]
    assemble(Path(), named[1], named[2:split], named[split + 1 :])
