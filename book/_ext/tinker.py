"""What the playground in the page reads: the shipped model's own files, and which heads chapter 1 located in it.

A page opened from a file may not fetch other files. So the build copies the files, as base64, into a script; there is
no exported form of the model that could go stale.
"""

import base64
import csv
import json
from collections import defaultdict
from pathlib import Path

from twotowers.paths import data_folder

MODEL = "mini-gpt2"
FILES = ("config.json", "tokenizer.json", "model.safetensors")
SCRIPTS = ("tinker-data.js", "tinker-engine.js", "tinker-prompt.js", "tinker-draw.js", "tinker.js")
MOST = 5  # heads shown, as `top_k` of the chapters


def located(tables: Path) -> list[str]:
    """Heads such as "2-5" with the largest increase from label positions, mean over the sets of chapter 1's table.

    At most MOST, largest first, only those above zero; none when the chapter left no table.
    """
    margins = defaultdict(list)
    for path in sorted(tables.glob("01-locate-heads*.csv"))[:1]:
        lines = [line for line in path.read_text("utf8").splitlines() if not line.startswith("#")]
        for row in csv.DictReader(lines):
            margins[row["name"]].append(float(row["label_margin"]))
    means = {name: sum(values) / len(values) for name, values in margins.items()}
    return [name for name in sorted(means, key=means.get, reverse=True)[:MOST] if means[name] > 0]


def script(folder: Path, heads: list[str]) -> str:
    """The files of a model and its located heads as a script."""
    files = {name: base64.b64encode((folder / name).read_bytes()).decode() for name in FILES}
    return f"window.twotowersData = {json.dumps({'model': folder.name, 'located': heads, 'files': files})};\n"


def write_data(stage: Path, target: Path) -> None:
    """`tinker-data.js`, where the built book keeps its scripts."""
    folder = data_folder() / "models" / MODEL
    if folder.exists():
        (target / SCRIPTS[0]).write_text(script(folder, located(stage / "tables" / MODEL)), "utf8")


def add_scripts(app, pagename, templatename, context, doctree) -> None:
    """Only the playground's page loads the model (3.7 MB)."""
    if 'id="tinker"' in (context.get("body") or ""):
        app.add_css_file("book/tinker.css")
        for name in SCRIPTS:
            app.add_js_file(f"book/{name}", loading_method="defer")
