"""The benchmark of first figures reads the times of papermill's cells."""

import json

import nbformat
import pytest
from conftest import refused
from towerlab.measure.pipeline import Pipeline
from twotowers.settings import Settings

from benchmarks import first_figure

CAPTION = '<p class="caption" id="fig-4-1"><b>Figure 4.1.</b> Attention</p>'


def cell(start: int, end: int, html: str = "", kind: str = "code") -> dict:
    stamp = "2026-11-28T18:{:02}:{:02}.5+00:00"
    outputs = [{"output_type": "display_data", "data": {"text/html": [html]}}] if html else []
    papermill = {"start_time": stamp.format(*divmod(start, 60)),
                 "end_time": stamp.format(*divmod(end, 60))}  # fmt: skip
    return {"cell_type": kind, "metadata": {"papermill": papermill}, "outputs": outputs}


def test_times_are_from_the_first_cell_to_the_first_caption_and_to_the_end():
    cells = [cell(10, 12), cell(0, 99, CAPTION, "markdown"), cell(12, 20, "<p>no figure</p>"),
             cell(20, 65, CAPTION), cell(65, 130, CAPTION.replace("4-1", "4-2"))]  # fmt: skip
    assert first_figure.times({"cells": cells}) == ("4.1", 55.0, 120.0)
    refused("expected a figure", first_figure.times, {"cells": cells[:1]})
    del cells[-1]["metadata"]["papermill"]["end_time"]
    refused("run it with papermill", first_figure.times, {"cells": cells})


def test_a_row_has_medians_in_seconds_and_in_plain_passes():
    runs = [("4.1", 30.0, 90.0), ("4.1", 20.0, 100.0), ("4.1", 22.0, 80.0)]
    assert first_figure.row("04", runs, 2.0) == ["04", "4.1", "22", "11×", "90", "45×"]
    lines = first_figure.markdown([first_figure.row("04", runs, 2.0)], "here").splitlines()
    assert lines[2] == "| 04 | 4.1 | 22 | 11× | 90 | 45× |" and lines[-1] == "here."


def test_a_notebook_that_papermill_ran_is_timed(tmp_path, capsys):
    path = tmp_path / "out.ipynb"
    path.write_text(json.dumps({"cells": [cell(0, 2), cell(2, 8, CAPTION), cell(8, 9)]}))
    assert first_figure.main("mini-gpt2", str(path)) == 0
    assert "| out.ipynb | 4.1 | 8 |" in capsys.readouterr().out


def test_a_chapter_runs_in_a_folder_that_does_not_exist_yet(tmp_path, monkeypatch):
    parameters = nbformat.v4.new_code_cell("model = out = ''", metadata={"tags": ["parameters"]})
    shows = nbformat.v4.new_code_cell("print(model, out)")
    notebook = nbformat.v4.new_notebook(cells=[parameters, shows])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    nbformat.write(notebook, tmp_path / "04-short.ipynb")
    monkeypatch.setattr(first_figure, "BOOK", tmp_path)
    out = str(tmp_path / "new" / "0")
    ran = first_figure.run("04", "mini-gpt2", out)
    assert ran["cells"][-1]["outputs"][0]["text"] == [f"mini-gpt2 {out}\n"]


@pytest.mark.parametrize(("chapter", "n"), [("04", 40), ("11", 16)])
def test_the_unit_is_a_pass_over_the_prompts_of_the_first_figure(chapter, n, tmp_path):
    settings = Settings(k=2, separator="space", evaluation_blocks=4, prompts=20, out=str(tmp_path))
    encoded = first_figure.prompts_of(chapter, Pipeline(settings))
    assert len(encoded) == n
    refused("unknown chapter '99'", first_figure.run, "99", "mini-gpt2", str(tmp_path))
