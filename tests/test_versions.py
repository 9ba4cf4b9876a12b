"""data/versions.csv says of every measurement what its code was when its version was pinned.
Whoever changes that code says whether numbers change: if so, raise `version` in its line; in any
case:  pytest tests/test_versions.py --pin

The code of a measurement: its module and what that imports of the laboratory, of `head_selection`
and of `random_heads`, except for what only brings weights and texts here or tells how far it is;
without comments and docstrings.
"""

import ast
import csv
import hashlib
import io
import shutil
import tokenize
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, make_home, replace_in
from test_analysis import imported, modules_of
from twotowers import catalogue
from twotowers.identity import identity_of as identity
from twotowers.paths import HOME
from twotowers.settings import Settings

LEFT_OUT = {
    "towerlab.model.architectures",
    "towerlab.model.checkpoint",
    "towerlab.model.hub",
    "towerlab.model.loading",
    "towerlab.model.proof",
    "towerlab.progress",
}


@cache
def imports(text: str) -> set[str]:
    """What a module imports of what counts."""
    names = imported(text)
    names |= {name.rpartition(".")[0] for name in names}
    return {
        name
        for name in names - LEFT_OUT
        if name.startswith(("towerlab.", "towerlab_experiments."))
        or name in ("twotowers.head_selection", "twotowers.random_heads")
    }


@cache
def code(text: str) -> str:
    """Without comments, docstrings and empty lines."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def sources(home: Path) -> dict[str, str]:
    """Measurement -> 16 hexadecimal digits of the SHA-256 over the modules that it rests on."""
    out = {}
    texts = {name: path.read_text("utf8") for path, name in modules_of(home).items()}
    for name, row in catalogue.catalogue().items():
        modules = [f"towerlab_experiments.{row.module}"]
        for module in modules:
            modules += sorted((imports(texts[module]) & texts.keys()) - {*modules})
        text = "".join(f"{module}\n{code(texts[module])}\n" for module in sorted(modules))
        out[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return out


def changed(before: dict[str, str], home: Path) -> set[str]:
    return {name for name, digits in sources(home).items() if digits != before[name]}


def test_whoever_changes_what_measures_says_whether_numbers_change(request):
    if request.config.getoption("--pin"):
        digits = sources(ROOT)
        rows = [
            row.model_dump() | {"sources": digits[name]}
            for name, row in catalogue.catalogue().items()
        ]
        with (ROOT / "data/versions.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, list(catalogue.Version.model_fields), lineterminator="\n")
            table.writeheader()
            table.writerows(
                row | {"needs": " ".join(row["needs"]), "passes": f"{row['passes']:g}"}
                for row in rows
            )
        catalogue.catalogue.cache_clear()
    assert {name: row.sources for name, row in catalogue.catalogue().items()} == sources(ROOT), (
        __doc__
    )


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A copy of the sources, to change; and data/versions.csv to write."""
    for folder in ("lib", "experiments"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    make_home(tmp_path, "words", "versions.csv")
    monkeypatch.setenv(HOME, str(tmp_path))
    catalogue.catalogue.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    catalogue.catalogue.cache_clear()


def change(path, old, new):
    replace_in(path, old, new)
    catalogue.catalogue.cache_clear()


def test_comments_and_docstrings_do_not_count_but_code_does(home):
    reads, before = home / "experiments/towerlab_experiments/label_reads.py", sources(home)
    change(reads, '"""Output of some heads', '"""Output\n\nof heads')
    change(reads, "    layers, numbers = np.", "    # now\n\n    layers, numbers = np.")
    assert changed(before, home) == set()
    change(reads, "stream[:, -1]", "stream[:, -2]")
    assert changed(before, home) >= {"query_key_vectors", "label_reads"}


def test_what_a_measurement_rests_on_counts_and_what_only_loads_does_not(home):
    before = sources(home)
    change(home / "lib/towerlab/model/loading.py", "import ", "import antigravity, ")
    assert changed(before, home) == set()
    change(home / "lib/towerlab/model/routes.py", "import torch\n", "import torch\nTWO = 2\n")
    assert changed(before, home) == {"head_effects"}  # which import it
    change(home / "lib/towerlab/prompts/blocks.py", "rng.permuted(", "rng.permutation(")
    assert changed(before, home) == set(catalogue.catalogue())


def test_identity_is_model_suite_texts_and_versions(home):
    """And what test_settings.py lists."""

    def identity_of(model="m@0", **settings):
        return identity("heads", Settings.from_values(settings), model)

    before = identity_of()
    assert len({before, identity_of("n@0"), identity_of(suite="sentences")}) == 3
    change(home / "data/words/words.csv", "cat,", "tomcat,")
    assert (other := identity_of()) != before
    change(home / "data/versions.csv", "templates,answers,1,", "templates,answers,2,")
    assert identity_of() != other  # heads need templates
