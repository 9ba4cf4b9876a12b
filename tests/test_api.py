"""The page of functions: it lists every name of the packages that a chapter uses, all of them
exist, and those that chapters use most have an example."""

import ast
import pkgutil
import re
from collections import Counter

from conftest import ROOT, sources

PACKAGES = ("twotowers", "towerlab", "towerlab_experiments")
PAGE = (ROOT / "book/api.md").read_text("utf8")
DIRECTIVES = re.findall(r"(?:automodule|autoclass):: (\S+)\n(?:   :members:(.*)\n)?", PAGE)
OFTEN = 10
"""Number of uses from which on a function has an example"""


def used_names() -> Counter[tuple[str, str]]:
    """Return how often chapters use each name of a module."""
    uses = Counter()
    for path in (ROOT / "book").glob("*.ipynb"):
        tree = ast.parse("\n".join(sources(path.stem)))
        names = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(PACKAGES):
                names |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        modules = {name: ".".join(of) for name, of in names.items() if is_module(".".join(of))}
        modules["chapter"] = "twotowers.book.Chapter"
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in names.keys() - modules.keys():
                uses[names[node.id]] += 1
            if isinstance(node, ast.Attribute):
                where = modules.get(getattr(node.value, "id", ""))
                uses.update([(where, node.attr)] if where else [])
    return uses


def is_module(name: str) -> bool:
    return type(pkgutil.resolve_name(name)).__name__ == "module"


USED = used_names()


def test_every_name_of_the_page_exists():
    missing = [
        f"{where}.{name}"
        for where, names in DIRECTIVES
        for name in filter(None, (part.strip() for part in names.split(",")))
        if not hasattr(pkgutil.resolve_name(where), name)
    ]
    missing += [name for name in re.findall(r"`(t\w+\.[\w.]+)`", PAGE) if not resolves(name)]
    assert DIRECTIVES and missing == []


def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except AttributeError:
        return False
    return True


def test_the_page_lists_every_name_that_a_chapter_uses():
    listed = {where: names.replace(",", " ").split() for where, names in DIRECTIVES}
    assert len(USED) > 80
    missing = []
    for where, name in USED:
        of_module = listed.get(where)
        is_listed = of_module is not None and (name in of_module or not of_module)
        is_alone = f"{where}.{name}" in listed or f"`{where}.{name}`" in PAGE
        if not (is_listed or is_alone or where == "twotowers.book.Chapter"):
            missing.append(f"{where}.{name}")
    assert missing == []


def test_what_chapters_use_most_has_an_example():
    functions = {
        f"{where}.{name}": pkgutil.resolve_name(f"{where}.{name}")
        for (where, name), n in USED.items()
        if n >= OFTEN and (where, name) != ("twotowers.book.Chapter", "close")  # returns nothing
    }
    without = [
        name
        for name, of in functions.items()
        if callable(of) and not isinstance(of, type) and ">>>" not in of.__doc__
    ]
    assert len(functions) >= 15 and without == []
