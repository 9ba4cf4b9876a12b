"""pyproject.toml, requirements.lock and environment.yml tell the same story."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
LOCK = (ROOT / "requirements.lock").read_text()
LOCK_LINES = [line for line in LOCK.splitlines() if not line.startswith("#")]
LOCKED = [Requirement(line) for line in LOCK_LINES]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def pinned(name: str) -> list[str]:
    """The versions in the lock; there may be one for each Python."""
    name = canonicalize_name(name)
    return [next(iter(r.specifier)).version for r in LOCKED if canonicalize_name(r.name) == name]


def test_the_lock_pins_every_package_exactly():
    assert [str(r) for r in LOCKED if [s.operator for s in r.specifier] != ["=="]] == []


def test_the_lock_holds_every_dependency_within_its_range():
    for asked in ASKED:
        versions = pinned(asked.name)
        assert versions, f"{asked.name} is not in requirements.lock: make lock"
        outside = [v for v in versions if not asked.specifier.contains(v)]
        assert outside == [], f"{asked}, but requirements.lock has {outside}: make lock"


def test_the_lock_has_neither_cuda_libraries_nor_addresses():
    text = "\n".join(LOCK_LINES)
    assert re.findall(r"(?m)^(?:nvidia|cuda|triton).*", text) == []
    assert re.findall(r"https?:|file:|^-|@", text) == []


def test_the_makefile_installs_the_pytorch_of_the_lock():
    version = re.search(r"(?m)^TORCH_VERSION := (\S+)", (ROOT / "Makefile").read_text()).group(1)
    assert pinned("torch") == [version]


def test_environment_yml_asks_for_the_same():
    conda = [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]
    pip = next(entry["pip"] for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict))
    theirs = {canonicalize_name(r.name): r.specifier for r in map(Requirement, conda)}
    assert str(theirs.pop("python")) == PROJECT["requires-python"]
    assert "pip" in theirs and theirs.pop("pip") is not None
    assert "make" in theirs and theirs.pop("make") is not None
    names = {"pytorch": "torch"}  # conda's own name
    theirs = {names.get(name, name): specifier for name, specifier in theirs.items()}
    rest = [Requirement(line) for line in pip if not line.startswith("-")]
    theirs |= {canonicalize_name(r.name): r.specifier for r in rest}
    peers = {canonicalize_name(Requirement(line).name) for line in EXTRAS["peers"]}  # for benchmarks/ alone
    ours = {canonicalize_name(r.name): r.specifier for r in ASKED if canonicalize_name(r.name) not in peers}
    assert {name: str(s) for name, s in theirs.items()} == {name: str(s) for name, s in ours.items()}
    assert "--editable ." in pip
