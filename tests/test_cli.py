"""What the command line refuses, in one line before anything is measured; and what notebooks and
progress say to it."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import nbformat
import pytest
import xarray as xr
from conftest import ROOT, refused
from towerlab import cli
from towerlab.progress import progress
from twotowers import files


@pytest.fixture(autouse=True)
def handlers():
    """Those of signals, which the command line takes over."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for kind, handler in before.items():
        signal.signal(kind, handler)


BAD = [
    (["measure", "--blocks", "0"], "greater than or equal to 1"),
    (["measure", "--blocks", "many"], "a valid integer"),
    (
        ["measure", "--blocks", "1000000000"],
        "blocks '1000000000': Input should be less than or equal to 100000",
    ),
    (["measure", "--device-map", "banana"], "device_map 'banana': Input should be 'auto'"),
    (["measure", "--model", ""], "model '': Value should have at least 1 item"),
    (["measure", "--labels", "foo"], "'foo' is no label pair"),
    (["measure", "--labels", "foo/bar,bar/foo"], "a label pair is there twice"),
    (["measure", "--separator", "comma"], "should be 'space' or"),
    (["measure", "--k=-1"], "greater than or equal to 1"),
    (["measure", "haeds"], "no measurement 'haeds': choose one of"),
    (["measure", "--dtype", "int8"], "should be 'float32'"),
    (["measure", "--device", "cuda:99"], "cuda:99"),
    (["measure", "--model", "no/such/x"], "no/such/x"),
    (["measure", "--model", "a\nb"], "a\\nb"),
    (["record", "no/such/x", "heads"], "no/such/x"),
    (["book", "--set", "blocks=x"], "a valid integer"),
    (["book", "--set", "block=2"], "did you mean 'blocks'?"),
    (["book", "--set", "a='"], "open quote"),
    (["book", "--jobs", "0"], "at least 1"),
    (["book", "--model", "no/such/x"], "no/such/x"),
]


@pytest.mark.parametrize(("arguments", "remedy"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_refused_in_one_line_before_weights_are_read(
    arguments, remedy, capsys, monkeypatch
):
    monkeypatch.setattr("towerlab.model.loading.load", None)
    assert remedy in error_of(arguments, capsys)


def error_of(arguments, capsys):
    """The one line with which the command line refuses."""
    assert cli.main(arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith("twotowers: ") and line.count("\n") == 1
    return line


def test_help_needs_no_docstrings():
    command = [sys.executable, "-m", "towerlab.cli", "--help"]
    ran = subprocess.run(command, env=os.environ | {"PYTHONOPTIMIZE": "2"}, capture_output=True)
    assert ran.returncode == 0 and b"COMMAND" in ran.stdout


def read_only(path, *_, **__):
    raise OSError(errno.EROFS, "Read-only file system", str(path))


@pytest.mark.parametrize(
    "error", [RuntimeError("NetCDF: HDF error"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_a_disk_that_fills_is_told_in_one_line_and_leaves_nothing_half_written(
    error, tmp_path, monkeypatch
):
    def fills(data, path, **_):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(xr.Dataset, "to_netcdf", fills)
    write = partial(files.write, xr.Dataset(), tmp_path / "x.nc")
    refused(r"cannot write .*x\.nc.* make room", write)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("pathlib.Path.unlink", read_only)
    refused("cannot write", write)


@pytest.mark.parametrize("out", ["/dev/null/x", "/proc/x"])
def test_a_folder_that_cannot_be_written_is_refused_before_weights_are_read(
    out, capsys, monkeypatch
):
    monkeypatch.setattr("towerlab.model.loading.load", None)
    assert error_of(["measure", "forms", "--out", out], capsys).startswith(
        "twotowers: cannot write"
    )


def test_a_disk_that_can_only_be_read_is_told_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("pathlib.Path.mkdir", read_only)
    line = error_of(["book"], capsys)
    assert line.startswith("twotowers: cannot write") and "Read-only" in line


def test_progress_in_a_file_is_a_line_a_minute_of_whichever_bar_moves(capfd, monkeypatch):
    monkeypatch.setattr("towerlab.progress.SECONDS", 0)
    with progress("all parts", 8) as whole, progress("heads", 4) as bar:
        time.sleep(0.2)  # more than tqdm's own shortest time between two
        bar.update(2)
        monkeypatch.setattr("towerlab.progress.SECONDS", 60)
        whole.update(4)
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith("heads:  50%") and all(lines)


def test_whoever_runs_papermill_sees_progress(tmp_path):
    """A kernel keeps what its cells write for the notebook."""
    cell = "from towerlab.progress import say\nsay('heads: 2 of 4')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbformat.write(notebook, tmp_path / "x.ipynb")
    command = [sys.executable, "-m", "papermill", "-k", "python3", "x.ipynb", "out.ipynb"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert "heads: 2 of 4\n" in ran.stderr and not ran.returncode
    (output,) = nbformat.read(tmp_path / "out.ipynb", 4).cells[-1].outputs
    assert output.text == "heads: 2 of 4\n"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_names_what_it_reads(path):
    """Its metadata tell Snakemake: what is missing there would be measured by several chapters at
    once."""
    notebook = json.loads(path.read_text("utf8"))
    code = "\n".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"
    )
    reads = set(re.findall(r'(?:measured|control)\("(\w+)"', code))
    for names in re.findall(r"map\(chapter\.measured, \((.*?)\)", code):
        reads |= set(re.findall(r"\w+", names))
    reads |= {"paper_changes"} if "chapter.beside_paper(" in code else set()  # for its mark
    reads |= {"heads"} if re.search(r"chapter\.(compare|controls)", code) else set()
    reads |= {"locating"} if re.search(r'chapter\.(sets|controls)|, head_set="', code) else set()
    about = notebook["metadata"].get("twotowers", {})
    assert set(about.get("measurements", [])) == reads
    assert set(re.findall(r'suite="(\w+)"', code)) <= set(about.get("suites", []))
