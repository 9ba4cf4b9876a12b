"""A book of two tiny chapters, for tests of the way from a measurement to a page."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import nbformat
from conftest import ROOT

SETTINGS = "evaluation_blocks=2 selection_blocks=2 k=2 separator=space label_pairs="  # empty: auto
PARAMETERS = """model, evaluation_blocks, selection_blocks = "mini-gpt2", 2, 2
k, separator = 2, "space"
out = "_build/measurements"
"""
MEASURED = """heads = book.open(globals()).measured("heads")
print({name: dict(d.sizes) for name, d in heads.items()})
"""
NAME = "__run_2__ *final*--1a2b3c"
FIGURE = """
import altair as alt, pandas as pd
from IPython.display import Markdown
from twotowers import pages
chapter = book.open(globals())
table = pd.DataFrame({"x": [1.0, 2.0], "</script>": ["<b>", "b"]})
chapter.figure("2.1", alt.Chart(table).mark_bar().encode(x="x:Q"), "Bars.")
display(Markdown(f"| {pages.markdown_text(NAME)} | *b* |\\n| --- | --- |"))
""".replace("NAME", repr(NAME))


WITHOUT = """import re
MARK = re.compile("(?!)")
set_address = write_image = add_scripts = write_data = lambda *_: None
"""
"""In place of the first screen, the playground and the explorer: they load torch twice a build, and
these pages have none"""


FOLDERS = "book/_ext book/_page data/words data/sentences data/models/mini-gpt2"
FILES = """Snakefile _config.yml data/published.csv data/claims.csv data/figures.csv data/solved.csv
  data/versions.csv data/variables.csv data/models/names.csv"""


def notebook(path, *cells, **about):
    kernel = {"name": "python3", "display_name": "Python 3"}
    whole = nbformat.v4.new_notebook(
        metadata={"kernelspec": kernel, "language_info": {"name": "python"}, "twotowers": about}
    )
    whole.cells.append(nbformat.v4.new_markdown_cell(f"# {path.stem}"))
    whole.cells.append(nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}))
    whole.cells += [
        nbformat.v4.new_code_cell(f"from twotowers import book\n{cell}") for cell in cells
    ]
    nbformat.write(whole, path)


def make(home):
    """The book's folder."""
    for name in FOLDERS.split():
        shutil.copytree(ROOT / name, home / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("opening_page", "verdict_map", "story", "playground_page", "explorer"):
        (home / f"book/_ext/{name}.py").write_text(WITHOUT)
    for name in FILES.split():
        shutil.copy(ROOT / name, home / name)
    (home / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\n"
        "parts:\n- chapters:\n  - file: book/91-one\n  - file: book/92-two\n"
    )
    (home / "book/intro.md").write_text(
        "# A book\n\n```{index} kept by intro\n```\n\n$x^2$ and [one](91-one.ipynb).\n"
    )
    notebook(home / "book/91-one.ipynb", MEASURED, measurements=["heads"])
    notebook(home / "book/92-two.ipynb", FIGURE)
    return home


def start(home, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "towerlab.cli", *arguments], cwd=home, text=True,
        start_new_session=True, env=os.environ | environment | {"TWOTOWERS_HOME": str(home)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        # Tests that run in the background of a shell inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def build(home, **environment):
    process = start(home, "book", "--jobs", "2", "--set", SETTINGS, **environment)
    output, _ = process.communicate()
    return process.returncode, output


def commands_below(process):
    """The command lines of the processes that a process has started."""
    arguments = ["ps", "-o", "args=", "--ppid", str(process.pid)]
    return subprocess.run(arguments, text=True, stdout=subprocess.PIPE).stdout


def kill_when(process, ready):
    """`kill` as soon as `ready()`."""
    until = time.monotonic() + 240
    while not ready() and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[0]
    kill(process)


def kill(process):
    """kill -9 of a command and all that it started, also what has a session of its own. Each is
    stopped before its children are listed, so that it starts no other meanwhile."""
    doomed = [process.pid]
    for parent in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(parent, signal.SIGSTOP)
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(parent)], text=True, stdout=subprocess.PIPE
        ).stdout
        doomed += map(int, children.split())
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
