"""Build a book somewhere else than in the repository, the way `make book` does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TRIAL = ROOT / "tests/data/trial"
MACHINERY = (
    "Snakefile",
    "_config.yml",
    "requirements.lock",
    "book/_ext",
    "book/_page",
    "book/references.bib",
)
CONTENT = ("_toc.yml", "book", "lib", "data", "benchmarks/results")


def copy(name: str, source: Path, target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.egg-info")
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    if (source / name).is_dir():
        shutil.copytree(source / name, target / name, ignore=ignore, dirs_exist_ok=True)
    else:
        shutil.copy(source / name, target / name)


def lay_out(target: Path, *, trial: bool) -> Path:
    """A folder with the repository's machinery and the chapters of the trial book or of the real one."""
    for name in MACHINERY if trial else (*MACHINERY, *CONTENT):
        copy(name, ROOT, target)
    if trial:
        shutil.copytree(TRIAL, target, dirs_exist_ok=True)
    return target


def build(folder: Path, **config) -> subprocess.CompletedProcess:
    """Run the workflow; its output is in `.stdout`."""
    settings = [f"{name}={value}" for name, value in config.items()]
    flags = ["--cores", "2", "--nolock", "--rerun-incomplete", "--quiet", "all"]
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *flags, "--config", "n_prompts=20", *settings],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
