"""The house rules: folders import only from below, no circle, no long file, short chapters without outputs."""

import ast
import importlib
import json
import subprocess
import sys

import numpy as np
import pytest
import typechecker
from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
from conftest import ROOT
from jaxtyping import Float
from twotowers.exhibits.claim import Claim

LIB = ROOT / "lib" / "twotowers"
FLOORS = (  # bottom first; CONTRIBUTING.md says what each holds
    "errors", "paths", "heads", "stats", "prompts", "parameters", "model", "analysis", "paper", "studies", "exhibits",
    "chapters", "cli",
)  # fmt: skip
WITHOUT_TORCH = ("stats", "prompts", "parameters", "exhibits", "heads", "paths")
FILES = sorted(path for path in LIB.rglob("*.py"))


def module_of(path) -> str:
    return ".".join(path.relative_to(LIB.parent).with_suffix("").parts).removesuffix(".__init__")


def imports(path) -> set[str]:
    """Modules of the package that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "twotowers":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            known = {module_of(one) for one in FILES}
            found |= (names & known) or {node.module}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("twotowers.")}
    return found


def floor(module: str) -> int:
    return FLOORS.index(module.split(".")[1])


@pytest.mark.parametrize("path", [f for f in FILES if f.name != "__init__.py"], ids=module_of)
def test_a_module_imports_only_from_its_folder_and_from_below(path):
    own = floor(module_of(path))
    above = {name for name in imports(path) if name != "twotowers" and floor(name) > own}
    assert not above, f"imports from above: {sorted(above)}"


def test_no_imports_go_in_circles():
    graph = {module_of(path): imports(path) for path in FILES}
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, f"a circle: {' -> '.join([*open_[open_.index(name) :], name])}"
        if name not in done and name in graph:
            open_.append(name)
            for other in graph[name] - {name}:
                visit(other)
            open_.pop()
            done.add(name)

    for name in graph:
        visit(name)


@pytest.mark.parametrize("path", sorted((ROOT / "lib").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT / "lib")))
def test_no_file_of_lib_is_long(path):
    assert len(path.read_text().splitlines()) <= 350


def test_what_needs_no_torch_loads_none():
    """Nor what of scipy takes as long as all else that a page of recorded tables needs."""
    modules = [module_of(f) for f in FILES if f.relative_to(LIB).parts[0].removesuffix(".py") in WITHOUT_TORCH]
    modules += [module_of(f) for f in FILES if f.parent.name == "studies"]
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\n"
    code += "print({'torch', 'scipy.stats'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stderr[-500:]


def notebooks():
    tracked = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    return [ROOT / p for p in tracked] or sorted((ROOT / "book").glob("*.ipynb"))


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_notebooks_are_committed_without_outputs_and_with_parameters(path):
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    if path.parent.name == "book":
        assert sum("parameters" in cell.get("metadata", {}).get("tags", []) for cell in cells) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda p: p.stem)
def test_chapters_are_thin(path):
    sizes = [len("".join(cell["source"]).splitlines()) for cell in code_cells(path)]
    assert sum(sizes) <= 200 and max(sizes) <= 25


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_what_a_notebook_uses_of_the_package_is_there(path):
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in code_cells(path)))
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "twotowers":
            package = importlib.import_module(node.module)
            for alias in node.names:
                found = getattr(package, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
                modules[alias.asname or alias.name] = found
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    for node in used:
        if type(modules.get(node.value.id)).__name__ == "module":
            assert hasattr(modules[node.value.id], node.attr), f"{node.value.id}.{node.attr}"


def test_ruff_finds_nothing():
    for command in (["check", "--quiet", "."], ["format", "--check", "--quiet", "lib", "tests", "benchmarks"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:]


def test_annotations_are_checked_with_shapes_and_without():
    from twotowers.stats.charts import bars
    from twotowers.stats.resample import group_sums

    assert group_sums(np.ones((2, 3)), np.array([0, 0])).tolist() == [[2, 2, 2]]
    with pytest.raises(BeartypeCallHintParamViolation):  # as many values as groups
        group_sums(np.ones(2), np.array([0, 0, 0]))

    def twice(values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        return np.tile(values, 2)

    with pytest.raises(BeartypeCallHintReturnViolation):
        typechecker.jaxtyped(twice, typechecker=typechecker.check)(np.ones(2))
    with pytest.raises(BeartypeCallHintParamViolation):
        bars("no table", x="a", y="b")
    with pytest.raises(BeartypeCallHintParamViolation):  # the initialiser of a dataclass
        Claim("holds", 3)
