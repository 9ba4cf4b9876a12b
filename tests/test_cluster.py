"""The book on a Slurm cluster of one node, this machine: killed once, taken up, and as it is
without one."""

import importlib.util
import os
import shutil
import subprocess

import nbformat
import pytest
import tiny_book
import xarray as xr
from conftest import ROOT

PATH = f"{os.environ['PATH']}:/usr/sbin"  # where Debian has the daemons
HERE = all(shutil.which(name, path=PATH) for name in ("slurmctld", "slurmd", "munged"))
PLUGIN = importlib.util.find_spec("snakemake_executor_plugin_slurm")
pytestmark = pytest.mark.skipif(
    not (HERE and PLUGIN),
    reason="a cluster needs Debian's slurm-wlm and munge, and pip install .[slurm]",
)


@pytest.fixture(scope="module")
def cluster():
    """The environment in which Slurm's commands reach the node."""
    command = [
        ROOT / "tests/slurm_node.sh",
        "sh",
        "-c",
        'echo "$SLURM_CONF"; echo "$PATH"; read end',
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:
        yield {name: node.stdout.readline().strip() for name in ("SLURM_CONF", "PATH")}
        node.stdin.close()  # it stops what it started


def result_of(home):
    """What the chapter was made from, and what it says."""
    with xr.open_dataset(
        *(home / "_build/measurements/mini-gpt2").glob("words-*/heads.nc")
    ) as data:
        cells = nbformat.read(home / "_build/chapters/91-one.ipynb", 4).cells
        return data.load().drop_attrs(), [
            output for cell in cells if cell.cell_type == "code" for output in cell.outputs
        ]


def test_a_book_on_slurm_killed_and_taken_up_is_the_book_without_it(cluster, tmp_path):
    alone, home = tiny_book.make(tmp_path / "alone"), tiny_book.make(tmp_path / "on a cluster")
    code, output = tiny_book.build(alone)
    assert code == 0, output
    command = ["book", "--profile", str(ROOT / "profiles/slurm"), "--set", tiny_book.SETTINGS]

    def running():
        command = ["squeue", "--noheader", "--states", "RUNNING"]
        return subprocess.run(
            command, env=os.environ | cluster, stdout=subprocess.PIPE, check=True
        ).stdout

    tiny_book.kill_when(tiny_book.start(home, *command, **cluster), running)
    process = tiny_book.start(home, *command, **cluster)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    (data, outputs), (without, of_alone) = result_of(home), result_of(alone)
    assert data.identical(without) and outputs == of_alone
    assert not list((home / "_build").rglob(".*.part*"))
