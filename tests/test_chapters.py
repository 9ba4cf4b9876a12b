"""Every chapter runs by itself under papermill with 20 prompts, leaves its tables, and refuses what it must."""

import os
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
from conftest import ROOT, shared

CHAPTERS = sorted(p.stem for p in (ROOT / "book").glob("[0-9]*.ipynb"))


def said_in(notebook):
    cells = nbformat.read(notebook, 4).cells
    return "\n".join(o["data"].get("text/markdown", "") for c in cells for o in c.get("outputs", []) if "data" in o)


def papermill(notebook, output, **parameters):
    command = [sys.executable, "-m", "papermill", str(notebook), str(output), "--no-progress-bar"]
    for name, value in parameters.items():
        command += ["-p", name, str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=600)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_runs_with_few_prompts_and_leaves_stamped_tables(chapter, tmp_path):
    done = papermill(f"book/{chapter}.ipynb", tmp_path / "out.ipynb", n_prompts=20, out=tmp_path / "tables")
    assert done.returncode == 0, done.stderr[-3000:]
    tables = sorted((tmp_path / "tables").glob(f"{chapter}-*.csv"))
    assert tables
    for path in tables:
        assert pd.read_csv(path)["model_fingerprint"].str.startswith("mini-gpt2@").all(), path.name
    said = said_in(tmp_path / "out.ipynb")
    assert "**Here** (`mini-gpt2`)" in said and "**The paper**" in said
    assert "nan" not in said.lower().split(), "a sentence says nan"


def test_an_unknown_parameter_fails_in_one_line_and_leaves_no_table(tmp_path):
    done = papermill("book/01-locate.ipynb", tmp_path / "out.ipynb", n_promts=20, out=tmp_path / "tables")
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("TwoTowersError: unknown parameter 'n_promts': did you mean")
    assert not list((tmp_path / "tables").glob("*.csv"))


def test_words_and_sentences_run_side_by_side_and_what_was_cut_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_DATA", str(shared("datasets")))
    given = {"datasets": "sst2,trec:location/human,animal/country", "n_prompts": 8, "long": "truncate"}
    done = papermill(
        "book/04-attention-weights.ipynb", tmp_path / "out.ipynb", model="mini-llama", out=tmp_path / "tables", **given
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = said_in(tmp_path / "out.ipynb")
    assert said.count("sst2: 8 prompts asked for, 8 used: ") == 1 and "their longest texts cut at the end" in said
    assert "animal/country: 8 prompts asked" not in said
    table = pd.read_csv(tmp_path / "tables/04-attention-weights-differences.csv")
    assert set(table["dataset"]) == set(given["datasets"].split(",")) and set(table["n"]) == {8}
