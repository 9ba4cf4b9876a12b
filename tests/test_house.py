"""The house rules: rooms import only from below, no circle, no long file, notebooks without outputs."""

import ast
import importlib
import json
import re
import subprocess

import pytest
from conftest import ROOT

LIB = ROOT / "lib" / "twotowers"


def rooms() -> list[str]:
    """Rooms in the order of CONTRIBUTING's table, bottom floor first."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)


def imports(path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "twotowers":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("twotowers.")}
    return found


def test_every_room_is_in_the_table_and_imports_only_from_below():
    order = rooms()
    files = {p.stem for p in LIB.glob("*.py")} - {"__init__"}
    assert files <= set(order), f"not in CONTRIBUTING's table: {sorted(files - set(order))}"
    for name in files:
        above = {i for i in imports(LIB / f"{name}.py") if order.index(i) >= order.index(name)}
        assert not above, f"{name} imports from above: {sorted(above)}"


@pytest.mark.parametrize("path", sorted(LIB.glob("*.py")), ids=lambda p: p.stem)
def test_no_file_of_lib_is_long(path):
    assert len(path.read_text().splitlines()) <= 350


def test_charts_hold_no_torch():
    assert "torch" not in (LIB / "charts.py").read_text().replace("No torch here", "")


def notebooks():
    tracked = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    return [ROOT / p for p in tracked] or sorted((ROOT / "book").glob("*.ipynb"))


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_notebooks_are_committed_without_outputs_and_with_parameters(path):
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    if path.parent.name == "book":
        assert sum("parameters" in cell.get("metadata", {}).get("tags", []) for cell in cells) == 1


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_what_a_notebook_imports_from_the_house_is_there(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    for node in ast.walk(ast.parse("\n".join("".join(cell["source"]) for cell in cells))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "twotowers":
            room = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(room, name) or importlib.import_module(f"{node.module}.{name}"), name
