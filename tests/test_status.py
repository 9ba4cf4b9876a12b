"""What `twotowers status` reads off a folder of runs."""

import fcntl
import json
from datetime import UTC, datetime, timedelta

import pytest
from twotowers.chapters import stamps, status
from twotowers.errors import TwoTowersError

JOBS = {f"m/0{i}-x": {"model": "m", "chapter": f"0{i}-x", "parameters": {}, "state": "s"} for i in range(1, 5)}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "@engine").mkdir()
    (tmp_path / "@engine/m.json").write_text(json.dumps({"jobs": JOBS}))
    for folder in ("m/.done", "m/.part"):
        (tmp_path / folder).mkdir(parents=True)
    stamp(tmp_path, "01-x", seconds=60, peak_mb=900)
    stamp(tmp_path, "02-x", status=stamps.FAILED, why="cell 3 says no", seconds=5)
    started = (datetime.now(UTC) - timedelta(seconds=30)).isoformat()
    cells = [
        {"cell_type": "code", "metadata": {"papermill": {"status": word}}}
        for word in ("completed", "running", "pending")
    ]
    (tmp_path / "m/.part/03-x.ipynb").write_text(
        json.dumps({"metadata": {"papermill": {"start_time": started}}, "cells": cells})
    )
    return tmp_path


def stamp(root, chapter, **told):
    whole = {"job": JOBS[f"m/{chapter}"], "status": stamps.DONE, "why": "", **told}
    (root / f"m/.done/{chapter}.json").write_text(json.dumps(whole))


def test_jobs_are_done_failed_running_or_waiting(root):
    with (root / "@engine/m.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table = status.status(root)
    assert table["status"].tolist() == ["done", "failed", "running", "waiting"]
    assert table["why"].tolist() == ["", "cell 3 says no", "cell 2 of 3", ""]
    assert table["peak_mb"].tolist() == [900, 0, 0, 0]
    assert status.left(table) == pytest.approx(90, abs=2)
    text = status.said(table)
    assert "01-x  m  done" in text and "60 s  900 MB" in text
    assert text.endswith("1 done, 1 failed, 1 running, 1 waiting; about 2 min of work left")


def test_what_a_killed_run_left_is_waiting_and_so_is_what_another_job_did(root):
    assert status.status(root)["status"].tolist() == ["done", "failed", "waiting", "waiting"]
    stamp(root, "01-x", job={"model": "m", "chapter": "01-x", "parameters": {"seed": 1}, "state": "s"})
    table = status.status(root)
    assert table["status"].tolist() == ["waiting", "failed", "waiting", "waiting"]
    assert status.left(table) is None and status.said(table).endswith("3 waiting, 1 failed")


def test_a_folder_without_runs_is_named(tmp_path):
    with pytest.raises(TwoTowersError, match=r"nothing was run in .*: name the folder of a run with --out"):
        status.status(tmp_path)
