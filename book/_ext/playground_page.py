"""Data of the playground: files of the included model, classes of words, prompts, and heads.

The page runs two kinds of prompts: the ones that select heads for the direction between two classes
(`measure.tower_grid.class_directions`), and others for the cloud of queries and keys.

A page that is opened from a file may not fetch other files. So the build copies the files, as
base64, into a script. There is no exported form of the model that could become outdated.
"""

import base64
import json
from pathlib import Path

import xarray as xr
from towerlab.measure.design import SELECTION
from towerlab.prompts.blocks import class_pairs, class_words, draw_blocks
from towerlab_experiments.tower_grid import BLOCKS
from twotowers import head_selection
from twotowers.paths import data_folder
from twotowers.settings import Template, read_label_pairs

MODEL = "mini-gpt2"
FILES = ("config.json", "tokenizer.json", "model.safetensors")
SCRIPTS = (
    "playground-data.js",
    "playground-engine.js",
    "playground-prompt.js",
    "playground-scenes.js",
    "playground-draw.js",
)
SCRIPTS += (
    "playground-towers.js",
    "playground-play.js",
    "playground-panels.js",
    "playground-page.js",
)
MEASURED = "measurements/mini-gpt2/words*/selection.nc"
MAX_HEADS = 5  # maximum number of heads with arcs: `top_k` of the chapters, and number of colours


def latest(build: Path) -> Path:
    """Return the included model's newest measurement on selection blocks.

    Args:
        build: Folder of built files.

    Returns:
        Path of the file, or an empty path if there is none.
    """
    return max(build.glob(MEASURED), key=lambda path: path.stat().st_mtime, default=Path())


def heads(selection: Path) -> tuple[list[str], list[str]]:
    """Return the heads that write a label, such as "3-1", and the heads that chapter 11 steers.

    Best heads come first. Both lists are empty without a measurement.

    Args:
        selection: Measurement on selection blocks.
    """
    if not selection.is_file():
        return [], []
    with xr.open_dataset(selection) as data:
        sets = head_selection.head_sets(
            data.assign_coords(is_true_label=data["is_true_label"].astype(bool)), MAX_HEADS
        )
    return list(map(str, sets["by written logit difference"])), list(map(str, sets["by attention"]))


def prompts() -> dict[str, list[str]]:
    """Return the prompts of the playground.

    Returns:
        `selection`: prompts of chapter 11's directions. `cloud`: one prompt of each of ten other
            blocks of every class pair.
    """
    selection, others = (
        draw_blocks(
            n * len(class_pairs()),
            Template(2, "space"),
            seed=[0, seed],
            label_pairs=read_label_pairs(("nonsense",)),
        )
        for n, seed in ((BLOCKS, SELECTION), (10, 3))
    )
    return {
        "selection": [prompt.text for prompt in selection],
        "cloud": [prompt.text for prompt in others[::4]],
    }


def script(folder: Path, writers: list[str], steered: list[str]) -> str:
    """Return the data of the playground as a script.

    Args:
        folder: Folder of the model.
        writers: Heads with arcs.
        steered: Heads that are steered.
    """
    files = {name: base64.b64encode((folder / name).read_bytes()).decode() for name in FILES}
    paired = [cls for pair in class_pairs() for cls in pair.split("/")]
    words = class_words()
    order = [*paired, *(cls for cls in words if cls not in paired)]
    classes = {word: cls for cls in order for word in words.get(cls, ())}
    labels = [label for pair in read_label_pairs(("nonsense",)) for label in pair.split("/")]
    data = {"writers": writers, "steered": steered, "classes": classes, "labels": labels}
    data |= {"prompts": prompts(), "files": files}
    return f"window.twotowersData = {json.dumps(data)};\n"


def write_data(source: Path, target: Path) -> None:
    """Write `playground-data.js` into the folder of the built book's scripts.

    Args:
        source: Folder of the sources.
        target: Folder of the scripts.
    """
    folder = data_folder() / "models" / MODEL
    if folder.exists():
        (target / SCRIPTS[0]).write_text(script(folder, *heads(latest(source.parent))), "utf8")


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Add the model (3.7 MB) to the playground's page only."""
    if 'id="playground-page"' in (context.get("body") or ""):
        app.add_css_file("book/playground-page.css")
        for name in SCRIPTS:
            app.add_js_file(f"book/{name}", loading_method="defer")
