"""What the playground in the page reads: the shipped model's own files, and which heads chapter 1 located in it.

A page opened from a file may not fetch other files. So the build copies the files, as base64, into a script; there is
no exported form of the model that could go stale.
"""

import base64
import json
from pathlib import Path

from twotowers.paths import data_folder
from twotowers.stats import tables
from twotowers.studies import located

MODEL = "mini-gpt2"
FILES = ("config.json", "tokenizer.json", "model.safetensors")
SCRIPTS = ("tinker-data.js", "tinker-engine.js", "tinker-prompt.js", "tinker-draw.js", "tinker.js")
TABLE = "01-locate-heads"
MOST = 5  # heads shown, as `top_k` of the chapters


def heads(folder: Path) -> list[str]:
    """Heads such as "2-5" that chapter 1 located on its first set, as the chapters take them: MOST, highest first.

    None when the chapter left no table, or no head above zero. Raises TwoTowersError for a table that is damaged.
    """
    if not (folder / f"{TABLE}.csv").exists():
        return []
    table = tables.load(folder, TABLE)
    if not (table["label_margin"] > 0).any():
        return []
    return list(map(str, located.top(table, table["dataset"].iloc[0], "label", MOST)))


def script(folder: Path, marked: list[str]) -> str:
    """The files of a model and its located heads as a script."""
    files = {name: base64.b64encode((folder / name).read_bytes()).decode() for name in FILES}
    return f"window.twotowersData = {json.dumps({'model': folder.name, 'located': marked, 'files': files})};\n"


def write_data(stage: Path, target: Path) -> None:
    """`tinker-data.js`, where the built book keeps its scripts."""
    folder = data_folder() / "models" / MODEL
    if folder.exists():
        (target / SCRIPTS[0]).write_text(script(folder, heads(stage / "tables" / MODEL)), "utf8")


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Only the playground's page loads the model (3.7 MB)."""
    if 'id="tinker"' in (context.get("body") or ""):
        app.add_css_file("book/tinker.css")
        for name in SCRIPTS:
            app.add_js_file(f"book/{name}", loading_method="defer")
