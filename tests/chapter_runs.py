"""A chapter run in this process, without a kernel: what its cells judge, as a table."""

import json
from pathlib import Path

import altair as alt
import pandas as pd
from conftest import ROOT
from twotowers import book, evidence

CHAPTERS = sorted(path.stem for path in (ROOT / "book").glob("*-*.ipynb"))


def evidence_of(chapter: str, monkeypatch, folder: Path, **parameters) -> pd.DataFrame:
    """The rows of evidence of one chapter; where it judges nothing, an empty table. `folder` is
    empty before."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(folder))
    monkeypatch.setattr(
        book,
        "display",
        lambda part: part.to_dict() if isinstance(part, alt.TopLevelMixin) else None,
    )
    names = {"display": book.display}
    for cell in json.loads((ROOT / f"book/{chapter}.ipynb").read_text("utf8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
            if "parameters" in cell["metadata"].get("tags", []):
                names |= parameters
    return evidence.read(folder)
