"""The notebooks of the book, for processes that need no torch, which `conftest` loads."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def sources(notebook: str, kind: str = "code") -> list[str]:
    """The cells of one kind of a notebook of the book."""
    cells = json.loads((ROOT / f"book/{notebook}.ipynb").read_text("utf8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]
