"""data/versions.csv: the version of every measurement, so that files are judged without torch, and what the code was then.

    changed()      # measurements whose sources are others than when they were pinned
    pin()          # writes the table anew

Sources are the modules that a measurement rests on: its own, and what that imports of this package and of `choose`, but for
what only brings weights and texts here, or tells how far it is. Comments and docstrings do not count. Who changes sources
says whether numbers change: if so, raise `version` beside the recipe; then `twotowers versions --pin`. A test asks for it.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd
from twotowers import store
from twotowers.paths import data_folder

from towerlab.measure.registry import measurements

LIB = Path(__file__).parents[2]
# What loads a model, whose bytes an identity names and whose row of the table of architectures is proven at each load;
# what fetches; what shows progress.
LEFT_OUT = {
    *(f"towerlab.model.{name}" for name in ("architectures", "files", "gguf_header", "loading", "packages", "proof")),
    "towerlab.cache", "towerlab.measure.registry", "towerlab.progress", "towerlab.prompts.download",
}  # fmt: skip


def sources(name: str) -> str:
    """16 hexadecimal digits of the SHA-256 over the modules that a measurement rests on."""
    modules = [measurements()[name].make.__module__]
    for module in modules:
        modules += sorted(_imports(module) - {*modules, *LEFT_OUT})
    digest = hashlib.sha256()
    for module in sorted(modules):
        digest.update(f"{module}\n{_code(_path(module))}\n".encode())
    return digest.hexdigest()[:16]


def table() -> pd.DataFrame:
    """The rows of data/versions.csv as the code is now, in the order that they have there, new ones last."""
    names = [name for name in store.catalogue() if name in measurements()]
    rows = [(name, measurements()[name]) for name in dict.fromkeys([*names, *sorted(measurements())])]
    return pd.DataFrame(
        [(name, m.version, " ".join(m.needs), "yes" if m.judges else "no", sources(name)) for name, m in rows],
        columns=list(store.Version.model_fields),
    )


def changed() -> dict[str, str]:
    """Measurement -> what differs from data/versions.csv: "new", "version 1 -> 2", "needs", or "sources"."""
    catalogue, out = store.catalogue(), {}
    for now in (store.Version(**row) for row in table().to_dict("records")):
        old = catalogue.get(now.measurement)
        if old is None:
            out[now.measurement] = "new"
        elif old.version != now.version:
            out[now.measurement] = f"version {old.version} -> {now.version}"
        elif old != now:
            out[now.measurement] = "sources" if (old.needs, old.judges) == (now.needs, now.judges) else "needs"
    return out | dict.fromkeys(catalogue.keys() - measurements().keys(), "gone")


def pin() -> None:
    """Write data/versions.csv."""
    table().to_csv(data_folder() / "versions.csv", index=False)
    store.catalogue.cache_clear()


def _path(module: str) -> Path:
    return LIB / f"{module.replace('.', '/')}.py"


@cache
def _imports(module: str) -> set[str]:
    """Modules of this package, and `choose`, that a module imports, also within functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(_path(module).read_text("utf8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    ours = {name for name in names if name.startswith("towerlab.") or name == "twotowers.choose"}
    return {name for name in ours if _path(name).is_file()}


@cache
def _code(path: Path) -> str:
    """The lines of a file that say something to Python: without comments, docstrings and empty lines."""
    text = path.read_text("utf8")
    lines = text.splitlines()
    for at, start in _comments(text):
        lines[at - 1] = lines[at - 1][:start]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _comments(text: str) -> Iterator[tuple[int, int]]:
    """Line and column at which each comment begins."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start
