"""Every chapter runs by itself under papermill with 20 prompts, leaves its tables, and refuses what it must."""

import os
import re
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
from conftest import ROOT

CHAPTERS = sorted(p.stem for p in (ROOT / "book").glob("[0-9]*.ipynb"))


def papermill(notebook, output, **parameters):
    command = [sys.executable, "-m", "papermill", str(notebook), str(output), "--no-progress-bar"]
    for name, value in parameters.items():
        command += ["-p", name, str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=600)


def default_model(chapter):
    cells = nbformat.read(ROOT / f"book/{chapter}.ipynb", 4).cells
    (source,) = (c.source for c in cells if "parameters" in c.metadata.get("tags", []))
    return re.search(r'^model = "(.+?)"', source, re.MULTILINE)[1]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_runs_with_few_prompts_and_leaves_stamped_tables(chapter, tmp_path):
    done = papermill(f"book/{chapter}.ipynb", tmp_path / "out.ipynb", n_prompts=20, out=tmp_path / "tables")
    assert done.returncode == 0, done.stderr[-3000:]
    tables, model = sorted((tmp_path / "tables").glob(f"{chapter}-*.csv")), default_model(chapter)
    assert tables
    for path in tables:
        assert pd.read_csv(path)["model_fingerprint"].str.startswith(f"{model}@").all(), path.name
    cells = nbformat.read(tmp_path / "out.ipynb", 4).cells
    said = "\n".join(o["data"].get("text/markdown", "") for c in cells for o in c.get("outputs", []) if "data" in o)
    assert f"**Here** (`{model}`)" in said and "**The paper**" in said
    assert "nan" not in said.lower().split(), "a sentence says nan"


def test_an_unknown_parameter_fails_in_one_line_and_leaves_no_table(tmp_path):
    done = papermill("book/01-locate.ipynb", tmp_path / "out.ipynb", n_promts=20, out=tmp_path / "tables")
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("TwoTowersError: unknown parameter 'n_promts': did you mean")
    assert not list((tmp_path / "tables").glob("*.csv"))
