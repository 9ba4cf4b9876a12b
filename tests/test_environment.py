"""pyproject.toml, the locks and environment.yml tell the same story, and nothing is installed
without a hash."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from unittest.mock import Mock

import launch
import nbformat
import pytest
import yaml
from conftest import ROOT, sources
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = WHOLE["project"], WHOLE["dependency-groups"]
EXTRAS = PROJECT["optional-dependencies"]
CLUSTERS = ("slurm",)  # in no lock, and not in conda's list: who has a cluster installs it
LOCKS = {
    path.name: path.read_text()
    for path in [ROOT / "requirements.lock", *sorted((ROOT / "locks").glob("*.lock"))]
}
ENTRIES = {
    name: re.findall(r"(?m)^(\S.*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text)
    for name, text in LOCKS.items()
}
MAKEFILE = (ROOT / "Makefile").read_text()


def specifiers(lines, **other_names):
    """Name of a package -> versions; `other_names`: names that conda has instead."""
    parts = map(Requirement, lines)
    return {other_names.get(r.name, canonicalize_name(r.name)): str(r.specifier) for r in parts}


def requirements():
    """What `make` installs for book and tests."""
    parts = [
        PROJECT["dependencies"],
        *(lines for name, lines in EXTRAS.items() if name not in CLUSTERS),
    ]
    return [line for lines in parts for line in lines]


def same(one, other):
    return canonicalize_name(one) == canonicalize_name(other)


def test_every_lock_is_exact_and_holds_hashes_and_no_address():
    """An address would be that of the machine on which the lock was made."""
    for name, text in LOCKS.items():
        assert text == "".join(
            f"{requirement} \\\n{hashes}" for requirement, hashes in ENTRIES[name]
        ), name
        assert all(
            re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[\w.+]+( ; [^@]+)?", one)
            for one, _ in ENTRIES[name]
        ), name
    whole = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r'registry = "([^"]*)"', whole)) == {"https://pypi.org/simple"}
    assert set(re.findall(r'\w+://[^/"]*', whole)) == {
        "https://pypi.org",
        "https://files.pythonhosted.org",
    }


def test_a_lock_is_what_pyproject_asks_for():
    """A dependency that was added without `make lock`."""
    groups = [(f"{name}.lock", line) for name, lines in GROUPS.items() for line in lines]
    for name, line in [("requirements.lock", line) for line in requirements()] + groups:
        requirement = Requirement(line)
        entries = [Requirement(one) for one, _ in ENTRIES[name]]
        versions = {
            next(iter(r.specifier)).version for r in entries if same(r.name, requirement.name)
        }
        assert versions and all(requirement.specifier.contains(version) for version in versions), (
            f"{requirement}: make lock"
        )


def test_make_installs_nothing_without_a_hash():
    assert re.search(
        r"(?m)^LOCKED := .* --no-deps --no-build-isolation --require-hashes$", MAKEFILE
    )
    lines = [
        line
        for line in MAKEFILE.splitlines()
        if "pip install" in line and "--require-hashes" not in line
    ]
    assert [line.split("pip install ")[1] for line in lines] == [
        "--quiet --no-deps --no-build-isolation --editable ."
    ]
    (torch,) = re.findall(r"(?m)^torch==(\S+)", LOCKS["requirements.lock"])
    assert re.findall(r"(?m)^torch==(\S+)", LOCKS["cpu.lock"]) == [f"{torch}+cpu"]
    assert not re.search(r"(?m)^(nvidia|cuda|triton)", LOCKS["requirements.lock"])


def test_a_copied_checkout_is_not_tested_in_place_of_another(tmp_path):
    """Its installation would build and test the folder that it was made for."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed").write_text("/of/another\n")
    shutil.copy(ROOT / "Makefile", tmp_path)
    ran = make("-C", str(tmp_path), "test")
    assert ran.returncode == 2 and "recipe" not in ran.stdout
    assert "made in another folder (/of/another): remove .venv, then make again" in ran.stderr
    assert make("-C", str(tmp_path), "help").returncode == 0


def test_a_checkout_that_is_reached_by_a_link_is_the_same(tmp_path):
    """K13."""
    (tmp_path / "home/.venv").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    shutil.copy(ROOT / "Makefile", tmp_path / "home")
    for stamp, path in (("home", "link"), ("link", "home")):
        (tmp_path / "home/.venv/.installed").write_text(f"{tmp_path / stamp}\n")
        ran = make("-C", str(tmp_path / path), "--dry-run", "check")
        assert "another folder" not in ran.stderr


def test_goals_do_not_run_at_the_same_time(tmp_path):
    """K13: two would install into one folder."""
    (tmp_path / "Makefile").write_text(
        f"include {ROOT / 'Makefile'}\none:\n\t@sleep 0.3; echo one\ntwo:\n\t@echo two\n"
    )
    ran = make("-C", str(tmp_path), "-j", "2", "--no-print-directory", "one", "two")
    assert ran.stdout.split() == ["one", "two"], ran.stderr


def make(*arguments, **environment):
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=alone | environment, capture_output=True, text=True
    )


def test_choices_of_the_user_s_environment_do_not_stop_an_installation():
    """A pip that installs elsewhere refuses to install into an environment."""
    ran = make("--eval", "show: ; @env", "show", PIP_USER="1", PIP_TARGET="/x", PIP_INDEX_URL="y")
    lines = ran.stdout.splitlines()
    assert {"PIP_USER=0", "PIP_INDEX_URL=y"} <= {*lines} and "PIP_TARGET" not in ran.stdout


def test_another_project_s_environment_and_checkout_are_none_of_ours():
    """K5."""
    names = "TWOTOWERS_HOME", "TWOTOWERS_EVIDENCE", "PYTHONPATH", "VENV"
    other = dict.fromkeys(names, "/of/another")
    ran = make("--eval", "show: ; @env; echo in $(BIN)", "show", **other)
    shown = ran.stdout.splitlines()
    assert not [line for line in shown if line.startswith(tuple(f"{name}=" for name in names[:3]))]
    assert "in .venv/bin" in shown
    ran = make("--eval", "show: ; @echo in $(BIN)", "show", "VENV=elsewhere")
    assert "in elsewhere/bin" in ran.stdout


def test_a_model_that_another_program_names_is_said_to_come_from_the_environment():
    says = "Taken from the environment: MODEL."
    assert says in make("--dry-run", "book", MODEL="gpt-4o").stdout
    assert says not in make("--dry-run", "book", "MODEL=gpt-4o").stdout


@pytest.mark.parametrize(
    ("system", "macos", "libc", "python", "fits"),
    [
        ("Darwin", "15.0", "", (3, 13), True),
        ("Darwin", "14.7", "", (3, 13), False),
        ("Linux", "", "2.28", (3, 11), True),
        ("Linux", "", "2.27", (3, 11), False),
        ("Linux", "", "2.40", (3, 14), False),  # without a compiler
    ],
)
def test_a_system_without_built_packages_is_told_before_pip_starts(
    system, macos, libc, python, fits, monkeypatch
):
    """F13."""
    code = re.search(r"(?ms)^define SYSTEMS$(.*?)^endef", MAKEFILE)[1]
    machine = "arm64" if system == "Darwin" else "x86_64"
    found = {"system": system, "machine": machine, "mac_ver": (macos,), "libc_ver": ("glibc", libc)}
    for name, value in found.items():
        monkeypatch.setattr(f"platform.{name}", lambda value=value: value)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.version_info", python)
    with nullcontext() if fits else pytest.raises(SystemExit, match="needs"):
        exec(code, {})


def test_binder_installs_the_packages_of_chapters_and_playground():
    """Only `twotowers book` needs Snakemake; a notebook needs JupyterLab."""
    ours = specifiers([*PROJECT["dependencies"], *EXTRAS["measure"]], torch="pytorch-cpu")
    tests = specifiers(EXTRAS["test"])
    ours |= {name: tests[name] for name in ("jupyterlab", "jsonschema")}
    del ours["snakemake"], ours["pyyaml"]
    lines = yaml.safe_load((ROOT / ".binder/environment.yml").read_text())["dependencies"]
    assert specifiers(lines[2:]) == ours and lines[:2] == ["python=3.12", "pip"]
    assert os.access(ROOT / ".binder/postBuild", os.X_OK)


NOTEBOOKS = {
    path.stem: json.loads(path.read_text("utf8")) for path in (ROOT / "book").glob("*.ipynb")
}
RUNNABLE = [
    name
    for name, notebook in NOTEBOOKS.items()
    if not notebook["metadata"].get("twotowers", {}).get("evidence")
]


def test_colab_opens_a_copy_whose_first_cell_installs_the_book(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", "owner/name")
    launch.write_copies(ROOT / "book", tmp_path)
    copies = {path.stem: json.loads(path.read_text("utf8")) for path in tmp_path.iterdir()}
    assert sorted(copies) == sorted(RUNNABLE)
    for name, copy in copies.items():
        nbformat.validate(copy)
        install = copy["cells"].pop(0)
        assert copy == NOTEBOOKS[name]
    shell = Mock()
    monkeypatch.setattr("os.chdir", shell.chdir)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec("".join(install["source"]), {"get_ipython": lambda: shell})
    (clone,), (pip,) = (call.args for call in shell.system.call_args_list)
    assert clone == "git clone --depth=1 https://github.com/owner/name /content/two-towers"
    assert pip.endswith("--editable '/content/two-towers[measure]'")
    shell.chdir.assert_called_once_with("/content/two-towers/book")
    assert sys.path[:2] == [f"/content/two-towers/{folder}" for folder in ("lib", "experiments")]


AS_US = "-c user.name=us -c user.email=us@localhost"


def test_the_workflow_pushes_the_copies_as_a_branch_of_their_own(tmp_path, monkeypatch):
    """The job's commands, in a clone whose remote is a folder."""
    git = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    hub, checkout = tmp_path / "hub", tmp_path / "checkout"
    git(["git", "init", "--quiet", "--bare", hub])
    shutil.copytree(ROOT / "book", checkout / "book")
    for command in ("init --quiet", f"remote add origin {hub}", "add .", f"{AS_US} commit -qm all"):
        git(["git", *command.split()], cwd=checkout)
    job = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text())["jobs"]["colab"]
    assert job["permissions"] == {"contents": "write"}
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    monkeypatch.setenv("GITHUB_REPOSITORY", "owner/name")
    git(["bash", "-e", "-c", job["steps"][-1]["run"]], cwd=checkout)
    pushed = git(["git", "ls-tree", "-r", "--name-only", launch.COPIES], cwd=hub).stdout
    assert pushed.split() == [f"book/{name}.ipynb" for name in sorted(RUNNABLE)]
    assert git(["git", "rev-list", "--count", launch.COPIES], cwd=hub).stdout == "1\n"


def test_the_button_of_colab_opens_the_copy(tmp_path):
    app = Mock(srcdir=ROOT)
    place = "colab.research.google.com/github/owner/name/blob"
    context = {"header_buttons": [{"label": "launch-buttons", "buttons": [
        {"url": f"https://{place}/main/book/03-mrr.ipynb"},
        {"url": "https://mybinder.org/v2/gh/owner/name/main"}]}, {"label": "other"}]}  # fmt: skip
    launch.adapt_buttons(app, "book/03-mrr", "", context, None)
    urls = [button["url"] for button in context["header_buttons"][0]["buttons"]]
    assert urls == [f"https://{place}/colab/book/03-mrr.ipynb", urls[1]] and "main" in urls[1]
    launch.adapt_buttons(app, "book/scorecard", "", context, None)
    assert context["header_buttons"] == [{"label": "other"}]


@pytest.mark.parametrize("name", ["owner/name", ""])
def test_pages_have_launch_buttons_where_the_repository_is_known(name, monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", name)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    config = Mock(html_theme_options={})
    launch.set_repository(None, config)
    assert ("launch_buttons" in config.html_theme_options) == bool(name)


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@github.com:owner/name.git", "https://github.com/owner/name"),
        ("https://someone:secret@host.org/owner/name", "https://host.org/owner/name"),
        ("/srv/copies/name", ""),
        ("", ""),
    ],
)
def test_the_command_that_gets_the_repository_is_there_where_its_address_is_known(
    remote, address, tmp_path, monkeypatch
):
    for name in ("BOOK_REPOSITORY", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    if remote:
        subprocess.run(["git", "remote", "add", "origin", remote], cwd=tmp_path, check=True)
    assert launch.address_of(tmp_path) == address
    (cell,) = (cell for cell in sources("intro", "markdown") if launch.COPY in cell)
    made = launch.links(cell, tmp_path)
    assert (f"git clone {address} two-towers && cd" in made) == bool(address)
    assert (launch.COPY in made) != bool(address)


def test_the_playground_s_page_links_to_its_notebook(monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", "owner/name")
    page = launch.links((ROOT / "book/playground-page.md").read_text("utf8"))
    assert "blob/colab/book/playground.ipynb) or in JupyterLab" in page


def test_a_repository_of_another_form_is_refused(monkeypatch):
    monkeypatch.setenv("BOOK_REPOSITORY", "https://github.com/owner/name")
    with pytest.raises(ValueError, match=r"cannot use BOOK_REPOSITORY '.*': expected owner/name"):
        launch.links("")


def test_environment_yml_asks_for_the_same():
    *lines, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    *of_pip, last = pip["pip"]
    assert last == "--editable ."
    ours = specifiers(requirements(), torch="pytorch")
    python = {"python": PROJECT["requires-python"], "pip": "", "make": ""}
    assert specifiers(lines + of_pip) == ours | python
