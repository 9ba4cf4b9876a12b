"""Put together what jupyter-book builds: the book's sources, executed chapters, their tables and small data.

Files are written only where they differ, so that Sphinx reads again only what changed.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import online
import opening
import yaml
from run_pages import index, run_pages, with_runs
from twotowers.chapters import stamps
from twotowers.exhibits import listing, scorecard
from twotowers.exhibits.claim import code

WIDGET = "application/vnd.jupyter.widget-view+json"
INJECTED = "injected-parameters"  # papermill's tag for the cell it adds
RUN_LIVE = "*A widget is here when this chapter runs live: open it in Jupyter (`make lab`).*"
OPENING = "book/intro.md"
LISTS = "scorecard"  # the chapter at whose end all exhibits are listed
SHIPPED = {".md", ".csv", ".json", ".png", ".svg"}  # of data/: never the weights


@dataclass
class Page:
    """A chapter as it was executed: HOME/CHAPTER.ipynb below `root`; `source` is its notebook without outputs."""

    root: Path
    home: str
    chapter: str
    source: Path

    @property
    def executed(self) -> Path:
        return self.root / self.home / f"{self.chapter}.ipynb"

    @property
    def stamp(self) -> dict:
        return stamps.read(self.root / stamps.stamp_of(f"{self.home}/{self.chapter}"))

    def tables(self) -> list[Path]:
        """The tables that its stamp names."""
        folder = self.root / self.home / "tables"
        return [folder / f"{name}.csv" for name in self.stamp.get("tables", [])]

    def notebook(self, staged_tables: str) -> dict:
        """What the page shows: the last good run; the bare source where there was none. It says which, and why."""
        found = self.executed if self.executed.exists() else self.source
        notebook = for_the_page(json.loads(found.read_text("utf8")))
        if (why := self.stamp.get("why")) or found == self.source:
            shown = "this page is of the last run that did not" if found == self.executed else "no figure can be shown"
            add(
                notebook, 1, f"**This chapter failed when it was last run**, so {shown}: {code(why or 'no word of it')}"
            )
        names = [path.stem for path in self.tables()]
        for output in captions(notebook):
            output["data"]["text/markdown"] = as_caption(output, names, staged_tables)
        if names:
            links = ", ".join(f"{{download}}`{name}.csv </{staged_tables}/{name}.csv>`" for name in names)
            where = (self.root / self.home / "tables").as_posix()
            add(notebook, len(notebook["cells"]), f"**Tables of this page**, made in {code(where)}: {links}. "
                "The first line of each says how it was made; `pandas.read_csv(path, skiprows=1)` reads the rest.")  # fmt: skip
        return notebook


def captions(notebook: dict) -> list[dict]:
    """The outputs that are captions of exhibits: what `Chapter.publish` gave a number."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [output for output in outputs if "exhibit" in output.get("metadata", {})]


def as_caption(output: dict, names: list[str], staged_tables: str) -> str:
    """A caption with a name that links lead to, a class for its looks, and a link where it names its table."""
    exhibit = output["metadata"]["exhibit"]
    text, _, last = "".join(output["data"]["text/markdown"]).rstrip().rpartition(" ")
    name = last.strip("`").removesuffix(".csv")
    link = f"{{download}}`CSV </{staged_tables}/{name}.csv>`" if name in names else last
    target = f"({exhibit['anchor']})=\n" if exhibit["number"] else ""
    return f"{target}{{.exhibit .{exhibit['number'].partition(' ')[0].lower() or 'fig'}}}\n{text} {link}"


def targets(notebook: dict) -> dict[str, str]:
    """Table -> the name that links lead to, of the first exhibit on a page that was made of it."""
    found = {}
    for output in captions(notebook):
        if named := re.match(r"\((.+)\)=\n", "".join(output["data"]["text/markdown"])):
            found.setdefault(output["metadata"]["exhibit"]["table"].removesuffix(".csv"), named[1])
    return found


def list_of_exhibits(notebooks: list[dict]) -> str:
    """A section with links from each exhibit of the paper to those of chapters, in the book's order."""
    found = [output["metadata"]["exhibit"] for notebook in notebooks for output in captions(notebook)]
    return f"## List of exhibits\n\nThe paper's figures and tables, and ours beside them.\n\n{listing.listed(found)}"


def add(notebook: dict, at: int, text: str) -> None:
    """A Markdown cell at a place."""
    cell = {"cell_type": "markdown", "id": f"added-{at}", "metadata": {}, "source": text}
    notebook["cells"].insert(at, cell)


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
    """An output as the page has it: a note for a widget, and a chart as data."""
    data = output.get("data", {})
    if WIDGET in data:
        return {"output_type": "display_data", "data": {"text/markdown": RUN_LIVE}, "metadata": {}}
    if "altair-viz" in (html := "".join(data.get("text/html", ""))):
        data["text/html"] = chart_block(html)
    return output


def chart_block(html: str) -> str:
    """Altair's HTML as data alone, which book/_page/charts.js draws: a page has no script that holds anybody's words.

    Raises ValueError when Altair writes its charts in another way than it did.
    """
    name, call = re.search(r'<div id="(altair-viz-[\w-]+)"', html), html.rfind("\n  })({")
    if not name or call < 0:
        raise ValueError("Altair writes charts in another way: look at chart_block in book/_ext/assemble.py")
    spec, _ = json.JSONDecoder().raw_decode(html, call + len("\n  })("))
    written = json.dumps(lean(spec), separators=(",", ":")).replace("<", "\\u003c")
    return f'<div id="{name[1]}"></div>\n<script type="application/json" class="chart">{written}</script>\n'


def lean(spec: dict) -> dict:
    """The chart with its data as columns, only those that something in it names: the CSV holds all of them.

    Numbers have four digits, more than a chart can show; book/_page/charts.js makes rows of the columns again.
    """
    said = json.dumps({key: part for key, part in spec.items() if key != "datasets"})

    def named(column: str) -> bool:
        return json.dumps(column)[1:-1] in said or not re.fullmatch(r"[\w ]+", column)

    def columns(rows: list[dict]) -> dict:
        names = dict.fromkeys(name for row in rows for name in row if named(name))
        return {name: [four_digits(row.get(name)) for row in rows] for name in names}

    return {key: {name: columns(rows) for name, rows in part.items()} if key == "datasets" else part
            for key, part in spec.items()}  # fmt: skip


def four_digits(value):
    """Numbers with a part after the point, also those in a list: four digits, none of them lost before the point."""
    if isinstance(value, list):
        return [four_digits(one) for one in value]
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return round(value) if abs(value) >= 1000 or value == round(value) else float(f"{value:.4g}")


def as_bytes(notebook: dict) -> bytes:
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def staged(home: Path, plan: dict) -> dict[str, bytes]:
    """Every file of the stage: its path there and its content."""
    contents = {"_config.yml": online.with_addresses((home / "_config.yml").read_bytes())}
    for name in ("_toc.yml", "CITATION.cff"):
        contents[name] = (home / name).read_bytes()
    for source in (home / "book").rglob("*"):
        hidden = {"__pycache__", ".ipynb_checkpoints"} & set(source.parts)
        if source.is_file() and source.suffix != ".ipynb" and not hidden:
            contents[source.relative_to(home).as_posix()] = source.read_bytes()
    for source in (home / "data").rglob("*"):
        if source.is_file() and source.suffix in SHIPPED:
            contents[source.relative_to(home).as_posix()] = source.read_bytes()
    main, others = pages(home, plan)
    notebooks = {page.chapter: page.notebook(f"tables/{page.home}") for page in main}
    if LISTS in notebooks:
        add(notebooks[LISTS], len(notebooks[LISTS]["cells"]), list_of_exhibits([*notebooks.values()]))
    for page in main:
        contents[f"book/{page.chapter}.ipynb"] = as_bytes(notebooks[page.chapter])
        contents |= {f"tables/{page.home}/{table.name}": table.read_bytes() for table in page.tables()}
    linked = {(page.home, table): at for page in main for table, at in targets(notebooks[page.chapter]).items()}
    known = {Path(name).stem for name in contents if name.startswith("book/")}
    for model, found in others.items():
        at = f"tables/runs/{model}"
        contents[f"book/runs/{model}/index.md"] = index(model).encode()
        for name, notebook in run_pages({page.chapter: page.notebook(at) for page in found}, model, known).items():
            contents[f"book/runs/{model}/{name}.ipynb"] = as_bytes(notebook)
            linked |= {(model, table): at for table, at in targets(notebook).items()}
        contents |= {f"{at}/{table.name}": table.read_bytes() for page in found for table in page.tables()}
    first = contents.get(OPENING, b"").decode()
    for marker, made in (("<!-- figure 1 -->", lambda: opening.figure_1(main[0].root / main[0].home / "tables")),
                         ("<!-- ladder -->", lambda: opening.ladder(scorecard.models(), linked))):  # fmt: skip
        if marker in first and main:
            contents[OPENING] = (first := first.replace(marker, made())).encode()
    toc = with_runs(
        yaml.safe_load((home / "_toc.yml").read_text()), {m: [p.chapter for p in f] for m, f in others.items()}
    )
    return contents | {"_toc.yml": yaml.safe_dump(toc, sort_keys=False).encode()}


def pages(home: Path, plan: dict) -> tuple[list[Page], dict[str, list[Page]]]:
    """The book's own chapters; and model -> pages of other models, what lies in runs/ before what is recorded."""
    root, others = Path(plan["root"]), {}

    def page(below: Path, key: str) -> Page:
        model, chapter = key.split("/")
        return Page(below, model, chapter, home / "book" / f"{chapter}.ipynb")

    for key in [key for key in plan["jobs"] if key not in plan["main"].values()]:
        others[key] = page(root, key)
    for path in (home / "runs").glob("*/*.ipynb"):
        key = f"{path.parent.name}/{path.stem}"
        others[key] = page(path.parents[1], key)
    by_model: dict[str, list[Page]] = {}
    for key in sorted(others):
        by_model.setdefault(others[key].home, []).append(others[key])
    return [page(root, key) for key in plan["main"].values()], by_model


def assemble(home: Path, stage: Path, plan: dict) -> None:
    contents = staged(home, plan)
    for old in stage.rglob("*"):
        if old.is_file() and old.relative_to(stage).as_posix() not in contents:
            old.unlink()
    for name, content in contents.items():
        target = stage / name
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    shutil.rmtree(stage / "book/_ext/__pycache__", ignore_errors=True)
