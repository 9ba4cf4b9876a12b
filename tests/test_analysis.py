"""The analysis stands by itself: twotowers needs neither torch nor the laboratory, and no room
imports one above it."""

import ast
import graphlib
import json

import pytest
from conftest import ROOT, python, sources


def modules_of(home) -> dict:
    """Name of each module of lib and experiments, by its path."""
    return {
        path: ".".join(path.relative_to(home / top).with_suffix("").parts)
        for top in ("lib", "experiments")
        for path in sorted((home / top).rglob("*.py"))
    }


MODULES = modules_of(ROOT)
ROOMS = (
    "twotowers",
    "towerlab.progress",
    "towerlab.prompts",
    "towerlab.model",
    "towerlab.measure",
    "towerlab",
    "towerlab_experiments",
)
"""Each imports from itself and from those before it; "towerlab" is all the rest of it"""

WITHOUT = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):  # any import of these fails
        absent = "towerlab towerlab_experiments torch transformers jaxtyping tqdm pooch".split()
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"no {name}", name=name)

sys.meta_path.insert(0, Absent())
import altair, twotowers
for module in pkgutil.iter_modules(twotowers.__path__):
    importlib.import_module(f"twotowers.{module.name}")
from twotowers import book, head_selection, files
assert altair.renderers.active == "twotowers"
from twotowers.errors import TwoTowersError
chapter = book.open({"model": "smollm2-135m"})
heads = chapter.measured("heads")
assert {"smollm2-135m"} < set(heads) <= {*files.precomputed_models()}
assert head_selection.head_sets(heads["smollm2-135m"], 5)
book.display = lambda _: None
chapter.explore("heads", "attention")
measured = 'book.open({"model": model, "out": "/nowhere"}).measured("heads")'
for code in [measured, *sys.argv[1:]]:
    try:
        exec(code, {"book": book, "model": "mini-gpt2"})
    except TwoTowersError as error:
        print(error)
"""
NEEDS_PACKAGES = (
    "cannot run 'mini-gpt2': towerlab is not installed; run `pip install -e .[measure]`"
)


def test_the_analysis_runs_where_neither_torch_nor_the_laboratory_can_be_imported():
    """Cells of notebooks that need them say so."""
    cells = [*sources("01-locate"), *sources("playground")]
    cells = [cell for cell in cells if "from towerlab" in cell]
    process = python(WITHOUT, *cells)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.replace("towerlab_experiments", "towerlab").splitlines()
    assert lines == [NEEDS_PACKAGES] * 3 and len(cells) == 2


def room(module: str) -> int:
    """The place of a module in ROOMS; -1 for one of other packages."""
    return max(
        (i for i, name in enumerate(ROOMS) if f"{module}.".startswith(f"{name}.")),
        default=-1,
        key=lambda i: len(ROOMS[i]),
    )


def imported(text: str) -> set[str]:
    """Modules of a file's import statements, also of those within functions."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_no_room_imports_from_one_above_it():
    of = [(name, other) for path, name in MODULES.items() for other in imported(path.read_text())]
    assert [(name, other) for name, other in of if room(other) > room(name)] == []


def test_no_modules_import_each_other_in_a_circle():
    """Imports for types count, too."""
    graph = {}
    for path, name in MODULES.items():
        names = {f"{x}." for x in imported(path.read_text())}
        graph[name] = {
            other
            for other in MODULES.values()
            if other != name and any(x.startswith(f"{other}.") for x in names)
        }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_map_has_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf8")
    stems = {path.stem for path in MODULES} - {"__init__"}
    assert [stem for stem in stems if f"`{stem}`" not in text] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_cell_fits_one_look(path):
    cells = json.loads(path.read_text("utf8"))["cells"]
    lines = [len(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert max(lines, default=0) <= 20
