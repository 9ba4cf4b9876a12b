"""What the command line refuses, in one line before anything is measured; and what notebooks and
progress say to it."""

import errno
import importlib
import io
import json
import os
import re
import shutil
import signal
import sys
from functools import partial

import numpy as np
import pytest
import towerlab
import xarray as xr
from conftest import ROOT, python, refused, sources
from towerlab import cli
from towerlab.measure import pipeline
from twotowers.settings import Settings

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
    (["measure", "--out", r"a\b"], r"out 'a\\b': expected a path in utf-8 without backslashes"),
    (["measure", "--out", os.fsdecode(b"\xff")], r"out '\udcff': expected a path in utf-8"),
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


@pytest.mark.parametrize(
    "options, words",
    [
        ("--k 50", "too few texts of the class .*: expected 52 .*choose a smaller k"),
        ("--top-k 33", "top_k '33': expected at most 32, the number of heads of 'mini-gpt2'"),
    ],
)
def test_more_demonstrations_or_heads_than_there_are_is_refused_before_anything_is_measured(
    options, words, tmp_path, capsys
):
    line = error_of(["measure", "paper", "--out", str(tmp_path), *options.split()], capsys)
    assert re.search(words, line), line
    assert not [*tmp_path.iterdir()]


def error_of(arguments, capsys):
    """The one line with which the command line refuses."""
    assert cli.main(arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith("twotowers: ") and line.count("\n") == 1
    return line


def test_output_that_nobody_reads_ends_the_command_without_a_word(monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)  # as `| head` does
    with open(writer, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert cli.main(["measure", "--list"]) == 141
    assert capsys.readouterr().err == ""


def test_a_folder_with_letters_that_the_terminal_lacks_is_named_with_escapes(tmp_path, monkeypatch):
    options = ["--selection-blocks", "2", "--k", "1", "--separator", "space", "--out"]
    folder, out = tmp_path / "mesures-é", io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr("sys.stdout", out)
    assert cli.main(["measure", "templates", *options, str(folder)]) == 0
    assert rb"mesures-\xe9" in out.buffer.getvalue() and [*folder.rglob("templates.nc")]


def test_memory_that_is_short_is_one_line(capsys):
    def allocate():
        raise np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype(float))

    assert cli.guarded(allocate) == 2
    line = capsys.readouterr().err
    assert re.fullmatch("twotowers: not enough memory: .*8.00 TiB.*; use fewer blocks.*\n", line)


@pytest.mark.parametrize(
    "words", ["heads answers --seed 1", "heads --seed 1 answers", "--seed 1 heads answers"]
)
@pytest.mark.parametrize("command", ["measure", "precompute mini-gpt2"])
def test_names_may_stand_before_and_after_options(command, words, monkeypatch):
    measured = []
    monkeypatch.setattr(cli, "_measure", lambda options, _: measured.append(options) or 0)
    before = [signal.getsignal(kind) for kind in cli.SIGNALS]
    assert cli.main([*command.split(), *words.split()]) == 0
    assert (measured[0].names, measured[0].seed) == (["heads", "answers"], "1")
    assert [signal.getsignal(kind) for kind in cli.SIGNALS] == before  # as `kill` needs them


def test_a_measurement_names_the_folder_of_a_model_not_its_place(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(cli, "_measure", lambda _, command: commands.append(command) or 0)
    (tmp_path / "final").mkdir()
    assert cli.main(["precompute", f"{tmp_path}/final", "heads"]) == 0
    assert cli.main(["measure", f"--model={tmp_path}/final/", "heads", "--seed=1"]) == 0
    assert cli.main(["measure", "--model", "huggyllama/llama-7b", "heads"]) == 0
    assert commands == ["twotowers precompute final heads",
                        "twotowers measure --model=final heads --seed=1",
                        "twotowers measure --model huggyllama/llama-7b heads"]  # fmt: skip


def test_the_build_of_a_folder_knows_where_it_is(tmp_path, monkeypatch):
    """It runs in the root of the repository, wherever it was called."""
    shutil.copytree(ROOT / "data/models/mini-gpt2", tmp_path / "final")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "chdir", lambda _: sys.exit())
    checked = []
    settings = Settings.from_values
    monkeypatch.setattr(
        Settings, "from_values", lambda x: checked.append(x["model"]) or settings(x)
    )
    with pytest.raises(SystemExit):
        cli.main(["book", "--model", "final"])
    assert checked[-1] == str(tmp_path / "final")


@pytest.mark.nightly
def test_help_needs_no_docstrings():
    ran = python("from towerlab import cli; cli.main(['--help'])", PYTHONOPTIMIZE="2")
    assert ran.returncode == 0 and "COMMAND" in ran.stdout


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
        assert path.name != "x.nc"  # a process that is killed here leaves no file of this name
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
    for names in re.findall(r"map\(chapter\.measured, \((.*?)\)", code, re.DOTALL):
        reads |= set(re.findall(r"\w+", names))
    reads |= {"paper_balance"} if "chapter.compare_with_paper(" in code else set()  # for its mark
    reads |= {"heads"} if re.search(r"chapter\.(judge_claim|controls)", code) else set()
    reads |= {"selection"} if re.search(r'chapter\.(sets|controls)|, head_set="', code) else set()
    about = json.loads(path.read_text("utf8"))["metadata"].get("twotowers", {})
    others = set(about.get("measurements", [])) - reads
    assert reads <= set(about.get("measurements", []))
    others -= {"selection"} if "chapter.judge_claim(" in code else set()  # for random sets
    # `stored` reads a measurement without making it; its name may be in a table of the chapter.
    assert not others or ("chapter.stored(" in code and all(f'"{name}"' in code for name in others))
    assert set(re.findall(r'suite="(\w+)"', code)) <= set(about.get("suites", []))


@pytest.mark.parametrize("policy", [None, "active"])
def test_threads_wait_without_spinning_unless_the_user_wants_it(policy, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    importlib.reload(towerlab)  # which comes before torch: test_loading.py
    assert os.environ["OMP_WAIT_POLICY"] == (policy or "passive")
