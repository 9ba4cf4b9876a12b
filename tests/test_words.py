"""Words that the book gave up for the field's: none comes back on a page, in a claim, or in what
the pages' scripts show."""

import json
import re

from conftest import ROOT

WITHDRAWN = re.compile(
    r"\b(comparers?|suppressors?|push(es|ed)? back"
    r"|hold(s|ing)? (\w+ ){0,3}down|its look|reversed look)\b",
    re.I,
)
TABLES = (
    "claims",
    "figures",
    "findings",
)  # not those that are dated records: rules, preregistration, withdrawn


def texts():
    """Path -> text of whatever a reader sees: pages, tables, scripts and drawings."""
    for path in sorted((ROOT / "book").rglob("*.*")):
        if path.suffix == ".ipynb":
            yield (
                path,
                "\n".join(
                    "".join(cell["source"]) for cell in json.loads(path.read_text("utf8"))["cells"]
                ),
            )
        elif path.suffix in (".md", ".js", ".html", ".svg", ".py"):
            yield path, path.read_text("utf8")
    for path in (*(ROOT / "data" / f"{name}.csv" for name in TABLES), ROOT / "README.md"):
        yield path, path.read_text("utf8")


def test_withdrawn_words_do_not_come_back():
    found = [
        f"{path.name}: {match[0]}" for path, text in texts() for match in WITHDRAWN.finditer(text)
    ]
    assert found == []
    assert WITHDRAWN.search("heads that hold the answer down") and WITHDRAWN.search(
        "Its look does it"
    )
