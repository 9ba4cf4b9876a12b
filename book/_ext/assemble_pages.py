"""The sources of Sphinx: Markdown pages, executed chapters, and figures as data.

Files are written only if they differ, so that Sphinx reads only changed files again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from html import escape
from pathlib import Path

import launch
import opening_page
import story
import verdict_map
import verdicts
import yaml
from towerlab.building import FAILED, failure
from towerlab.plan import listed
from twotowers import catalogue, theme
from twotowers.paths import chapter_names
from twotowers.theme import VEGA

# An empty corner of a table, which is no header
EMPTY_HEADER = re.compile(r"<th([^>]*)>(&nbsp;)?</th>")
CAPTION = re.compile(r'<p class="caption" id="(fig-[\w-]+)">')
FIGURE = re.compile(r'<div data-figure="([\d. ]+)"></div>')
MAP = re.compile(r'<div class="map" data-lit="([\w ]+)"></div>')
SOURCE = re.compile(r'(<a href="[\w-]+)\.(?:ipynb|md)(["#])')
ENTRY = re.compile(r'<span class="entry">([^<]+)</span>')
WIDGET = "application/vnd.jupyter.widget-view+json"
RUN_LIVE = (
    "*A widget is here when this chapter runs live: "
    "open it <!-- open book/{} -->in JupyterLab (`make lab`).*"
)
OPEN_LINES = 6  # maximum number of lines of a cell that a page shows unfolded
JUDGES = ("chapter.judge_claim(", "chapter.compare_with_paper(")  # in cells that are folded
EXPERIMENTS = "experiments/towerlab_experiments"
NEXT = "**Next:**"  # before the links at the end of a chapter
OWN_MODEL = (
    "*Run this chapter on [your own model](intro.ipynb#run-your-model): "
    "`papermill book/{} out.ipynb -p model path/to/model`.*"
)
COPIED = ("_config.yml", "_toc.yml", "CITATION.cff")


def code(text: str) -> str:
    """Return a text as inline code of Markdown.

    The fence is longer than any run of backticks in the text.

    Args:
        text: Any text.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if line else ""


def picture(svg: str, description: str, folder: Path) -> str:
    """Return a chart for readers without JavaScript, in an img, in which nothing can run.

    With JavaScript, browsers do not load the file.

    Args:
        svg: The chart.
        description: Alternative text.
        folder: Folder of the pictures.
    """
    path = folder / f"{hashlib.sha256(svg.encode()).hexdigest()[:20]}.svg"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(svg, "utf8")
    source = f"../_static/book/pictures/{path.name}"
    return f'<img class="chart" alt="{escape(description)}" src="{source}">'


def chart(data: dict, name: str, pictures: Path) -> str:
    """Return a chart as data, which book/_page/charts.js draws.

    Numbers have five digits, which is more than a chart shows.

    Args:
        data: Output of a cell.
        name: Name of the chart.
        pictures: Folder of the pictures.
    """
    shorter = lambda digits: float(f"{float(digits):.5g}")  # noqa: E731
    # JSON has no NaN.
    spec = json.loads(json.dumps(data[VEGA]), parse_float=shorter, parse_constant=lambda _: None)
    text = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    # A chapter that ran under a limit of memory has none.
    svg = "".join(data.get("image/svg+xml", "")) or theme.svg(data[VEGA])
    still = picture(svg, spec.get("description", ""), pictures)
    return (
        f'<div class="chart" data-name="{escape(name)}"></div>\n'
        f'<script type="application/json">{text}</script>\n<noscript>{still}</noscript>\n'
    )


def chart_name(outputs: list[dict], at: int) -> str:
    """Return the name of a chart.

    It is the name of the figure in the caption below, or of the claim above.

    Args:
        outputs: Outputs of a cell.
        at: Index of the chart.
    """
    for index, kind in ((at + 1, "fig"), (at - 1, "claim")):
        data = outputs[index].get("data", {}) if 0 <= index < len(outputs) else {}
        if match := re.search(rf'id="({kind}-[\w-]+)"', "".join(data.get("text/html", ""))):
            return match[1]
    return "chart"


def prepare_notebook(notebook: dict, pictures: Path, name: str) -> dict:
    """Return a notebook with charts as data, and with a note in place of each widget.

    The cell of papermill, cells that judge, and every longer cell are folded.

    Args:
        notebook: Executed notebook.
        pictures: Folder of the pictures.
        name: File name of the notebook.
    """
    notebook["metadata"].pop("widgets", None)
    for cell in notebook["cells"]:
        tags = cell["metadata"].setdefault("tags", [])
        lines = [line for line in "".join(cell["source"]).splitlines() if line.strip()]
        folds = {"hide-input", "hide-cell", "remove-input", "remove-cell"}.intersection(tags)
        judges = any(line.lstrip().startswith(JUDGES) for line in lines)
        is_folded = len(lines) > OPEN_LINES or judges or "injected-parameters" in tags
        if cell["cell_type"] == "code" and is_folded and not folds:
            tags.append("hide-input")
        outputs = cell.get("outputs", [])
        for at, output in enumerate(outputs):
            data = output.get("data", {})
            if VEGA in data:
                output["data"] = {"text/html": chart(data, chart_name(outputs, at), pictures)}
            elif WIDGET in data:
                output["data"] = {"text/markdown": launch.links(RUN_LIVE.format(name))}
            for kind in ("text/html", "text/markdown"):
                if text := "".join(data.get(kind, "")):
                    data[kind] = with_pages(EMPTY_HEADER.sub(r"<td\1></td>", text))
        move_names_up(outputs)
    return notebook


def with_pages(text: str) -> str:
    """Return a part of a notebook in which links of HTML lead to pages, and not to their sources.

    Main entries of the index (`!`) come first in the results of the search box.

    Args:
        text: HTML or Markdown.
    """
    return ENTRY.sub(r"{index}`\1 <!\1>`", SOURCE.sub(r"\1.html\2", text))


def move_names_up(outputs: list[dict]) -> None:
    """Move the name of each figure from its caption to its top, where links to it then lead.

    Args:
        outputs: Outputs of a cell.
    """
    for shown, caption in itertools.pairwise(outputs):
        html = caption.get("data", {}).get("text/html", "")
        name = CAPTION.search(html)
        if name and "text/html" in shown.get("data", {}):
            top = f'<div class="figure-top" id="{name[1]}"></div>'
            shown["data"]["text/html"] = top + shown["data"]["text/html"]
            caption["data"]["text/html"] = html.replace(f' id="{name[1]}"', "")


def drawing(svg: str, parts: str) -> str:
    """Return the drawing of one step and relay with some of its parts lit.

    It is not read aloud, since pages say the same in words.

    Args:
        svg: The drawing.
        parts: Names of lit parts, with spaces between them.

    Raises:
        ValueError: If the drawing lacks a part.
    """
    for part in parts.split():
        if f'class="{part}"' not in svg:
            raise ValueError(f"unknown part '{part}': expected a class in book/map.svg")
        svg = svg.replace(f'class="{part}"', f'class="{part} lit"')
    legend = (
        "In colour: the part of a prompt's way to its answer that this chapter is about. "
        "Thick: more attention. Dashed: values. Blunt end: lowers the answer."
    )
    return f'<div class="map" aria-hidden="true">{svg.strip()}<p>{legend}</p></div>'


def chapter_figure(home: Path, numbers: str) -> str:
    """Return a chart of an executed chapter with its caption, for another page.

    Args:
        home: Folder of the book.
        numbers: Numbers of figures, such as "13.1 4.5". The first one that was made is shown.
    """
    for number in numbers.split():
        name = f"fig-{number.replace('.', '-')}"
        stem = chapter_names().get(number.partition(".")[0], "")
        executed = home / f"_build/chapters/{stem}.ipynb"
        cells = json.loads(executed.read_text("utf8"))["cells"] if executed.is_file() else []
        for shown, below in (
            pair for cell in cells for pair in itertools.pairwise(cell.get("outputs", []))
        ):
            html = "".join(below.get("data", {}).get("text/html", ""))
            if f'id="{name}"' in html and VEGA in shown["data"]:
                link = f'<a href="{stem}.html#{name}">Figure {number}</a>'
                caption = html.replace(f' id="{name}"', "").replace(f"Figure {number}", link)
                return chart(shown["data"], name, home / "_build/pictures") + caption
    return "<p>This figure was not made.</p>"


def filled(text: str, home: Path) -> str:
    """Return Markdown with drawings, charts and pictures in place of their marks.

    Args:
        text: Markdown.
        home: Folder of the book.
    """
    svg = (home / "book/map.svg").read_text("utf8") if MAP.search(text) else ""
    text = launch.links(MAP.sub(lambda match: drawing(svg, match[1]), text), home)
    text = FIGURE.sub(lambda match: chapter_figure(home, match[1]), text)
    for module in (opening_page, verdict_map, verdicts, story):
        text = module.MARK.sub(
            lambda match, made=module: made.drawn(home / "_build", *match.groups()), text
        )
    return text


def experiments_of(notebook: dict) -> str:
    """Return a line that names the modules of a chapter's measurements, or "".

    Args:
        notebook: Notebook of the chapter.
    """
    names = notebook["metadata"].get("twotowers", {}).get("measurements", [])
    rows = catalogue.catalogue()
    # The last good run of a chapter may name a measurement that is gone.
    modules = dict.fromkeys(rows[name].module for name in names if name in rows)
    linked = [launch.source(f"{EXPERIMENTS}/{module}.py", module) for module in modules]
    return f"*Measured by: {', '.join(linked)} (`{EXPERIMENTS}`).*" if linked else ""


def page(home: Path, source: Path) -> bytes:
    """Return a chapter as it was last executed without a failure, otherwise its source.

    A note reports a failure of the last run.

    Args:
        home: Folder of the book.
        source: Notebook of the chapter.
    """
    chapters = home / "_build/chapters"
    good = chapters / source.name
    path = good if good.is_file() else source
    notebook = json.loads(path.read_text("utf8"))
    notebook = prepare_notebook(notebook, home / "_build/pictures", source.name)

    words = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    for cell in words:
        cell["source"] = with_pages(filled("".join(cell["source"]), home))
    if (chapters / f"{source.stem}{FAILED}").is_file():
        older = "this page is of the last run that did not" if path == good else "it has no figures"
        why = code(failure(home / f"_build/log/{source.stem}.txt"))
        text = f"**This chapter failed when it was last run**, so {older}: {why}"
        words[0]["source"] += f"\n\n{text}"
    before_next = [experiments_of(notebook), OWN_MODEL.format(source.name), NEXT]
    words[-1]["source"] = words[-1]["source"].replace(NEXT, "\n\n".join(before_next))
    return json.dumps(notebook, indent=1, ensure_ascii=False).encode()


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the files of a folder, without subfolders and hidden files of other programs.

    Args:
        folder: Folder.
        pattern: Pattern of their names.
    """
    visible = (path for path in folder.glob(pattern) if not path.name.startswith("."))
    return sorted(path for path in visible if path.is_file())


def assemble_pages(home: Path, target: Path) -> None:
    """Write all sources of Sphinx into a folder, and remove old ones.

    Args:
        home: Folder of the book.
        target: Folder of the sources.
    """
    toc = yaml.safe_load((home / "_toc.yml").read_text("utf8"))
    contents = {name: (home / name).read_bytes() for name in COPIED if (home / name).is_file()}
    for name in listed(toc):
        markdown, notebook = home / f"{name}.md", home / f"{name}.ipynb"
        if notebook.is_file():
            contents[f"{name}.ipynb"] = page(home, notebook)
        else:
            contents[f"{name}.md"] = filled(markdown.read_text("utf8"), home).encode()
    for source in (
        *files_in(home / "book", "*.svg"),
        *files_in(home / "book/_ext", "*.py"),
        *files_in(home / "book/_page"),
    ):
        contents[source.relative_to(home).as_posix()] = source.read_bytes()
    pictures = {
        name
        for text in contents.values()
        for name in re.findall(rb"_static/book/(pictures/\w+\.svg)", text)
    }
    contents |= {name.decode(): (home / "_build" / name.decode()).read_bytes() for name in pictures}
    for old in target.rglob("*"):
        if old.is_file() and old.relative_to(target).as_posix() not in contents:
            old.unlink()
    for name, content in contents.items():
        path = target / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
