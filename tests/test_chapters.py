"""Every chapter runs by itself under papermill with 20 prompts, leaves its tables, and refuses what it must."""

import os
import re
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
from conftest import ROOT, shared

CHAPTERS = sorted(p.stem for p in (ROOT / "book").glob("[0-9]*.ipynb"))


def said_in(notebook):
    outputs = [o["data"] for c in nbformat.read(notebook, 4).cells for o in c.get("outputs", []) if "data" in o]
    return "\n".join(o.get("text/markdown", "") for o in outputs)


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
    said = said_in(tmp_path / "out.ipynb")
    assert f"**Here** (`{model}`)" in said and "**The paper**" in said
    assert "nan" not in said.lower().split(), "a sentence says nan"


def test_an_unknown_parameter_fails_in_one_line_and_leaves_no_table(tmp_path):
    done = papermill("book/01-locate.ipynb", tmp_path / "out.ipynb", n_promts=20, out=tmp_path / "tables")
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("TwoTowersError: unknown parameter 'n_promts': did you mean")
    assert not list((tmp_path / "tables").glob("*.csv"))


def test_chapter_8_puts_models_side_by_side_and_says_that_sentences_are_missing(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("TWOTOWERS_DATA", str(tmp_path / "empty"))
    given = {"model": "mini-llama", "more_models": "mini-gpt2", "n_prompts": 20, "out": tmp_path / "tables"}
    done = papermill("book/08-llama.ipynb", tmp_path / "out.ipynb", **given)
    assert done.returncode == 0, done.stderr[-3000:]
    said = said_in(tmp_path / "out.ipynb")
    assert said.count("**The sentence figures were not run.**") == 2
    assert said.count("lacks sst2-sentences/train.tsv") == 2
    assert "**Here** (`mini-llama`): the best head is" in said and "**Here** (`mini-gpt2`): the best head is" in said
    for name in ("mrr", "attention"):
        for file, model in ((name, "mini-llama"), (f"{name}@mini-gpt2", "mini-gpt2")):
            table = pd.read_csv(tmp_path / f"tables/08-llama-{file}.csv")
            assert table["model_fingerprint"].str.startswith(f"{model}@").all() and len(table) >= 8
            assert set(table["source"]) == {"best head", "random heads"}


def test_chapter_9_asks_a_chat_model_and_keeps_no_text(tmp_path, chat_folder):
    given = {"chat_model": chat_folder, "max_new_tokens": 5, "n_prompts": 20, "out": tmp_path / "tables"}
    done = papermill("book/09-sentence-case.ipynb", tmp_path / "out.ipynb", datasets="animal/country", **given)
    assert done.returncode == 0, done.stderr[-3000:]
    said = said_in(tmp_path / "out.ipynb")
    assert f"`{chat_folder}` finds a relation in" in said and "not run" not in said
    table = pd.read_csv(tmp_path / "tables/09-sentence-case-chat.csv")
    assert list(table)[1:] == ["demonstration", "class", "words of", "verdict", "chat_model"] and len(table) == 8


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
