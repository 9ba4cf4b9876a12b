"""What the command line refuses, in one line before anything is measured; and what notebooks and
progress say to it."""

import errno
import json
import os
import re
import subprocess
import sys
from functools import partial

import pytest
import xarray as xr
from conftest import ROOT, refused, sources
from towerlab import cli
from towerlab.measure import pipeline

BAD = [
    (["measure", "--evaluation-blocks", "0"], "greater than or equal to 1"),
    (
        ["measure", "--evaluation-blocks", "1000000000"],
        "blocks '1000000000': expected less than or equal to 100000",
    ),
    (["measure", "--device-map", "banana"], "device_map 'banana': expected 'auto'"),
    (["measure", "--label-pairs", "foo"], "such as foo/bar, got 'foo'"),
    (["measure", "haeds"], "unknown measurement 'haeds': expected one of"),
    (["measure", "--device", "cuda:99"], "cuda:99"),
    (["measure", "--model", "no/such/x"], "no/such/x"),
    (["measure", "--model", "a\nb"], "a\\nb"),
    (["book", "--set", "seeed=2"], "unknown parameter 'seeed': expected one of model, "),
    (["book", "--set", "a='"], "a quote is missing"),
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


@pytest.mark.parametrize("option", ["--modle", "--jobs"])
def test_a_mistyped_option_shows_the_usage_of_its_command(option, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["book", option, "0"])
    assert capsys.readouterr().err.startswith("usage: twotowers book")


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
    write = partial(pipeline.write, xr.Dataset(), tmp_path / "x.nc")
    refused(r"cannot write .*x\.nc.*free some space", write)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("pathlib.Path.unlink", read_only)
    refused("cannot write", write)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_names_what_it_reads(path):
    """Its metadata tell Snakemake: what is missing there would be measured by several chapters at
    once."""
    code = "\n".join(sources(path.stem))
    reads = set(re.findall(r'(?:measured|control)\("(\w+)"', code))
    for names in re.findall(r"map\(chapter\.measured, \((.*?)\)", code):
        reads |= set(re.findall(r"\w+", names))
    reads |= {"paper_changes"} if "chapter.compare_with_paper(" in code else set()  # for its mark
    reads |= {"heads"} if re.search(r"chapter\.(judge_claim|controls)", code) else set()
    reads |= {"selection"} if re.search(r'chapter\.(sets|controls)|, head_set="', code) else set()
    about = json.loads(path.read_text("utf8"))["metadata"].get("twotowers", {})
    assert set(about.get("measurements", [])) == reads
    assert set(re.findall(r'suite="(\w+)"', code)) <= set(about.get("suites", []))
