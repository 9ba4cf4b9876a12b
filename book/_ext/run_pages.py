"""Pages for chapters that `twotowers run` executed: runs/MODEL/CHAPTER.ipynb -> book/runs/MODEL/CHAPTER.

A chapter names its formulas and places, and two copies of it would name them alike. So every name that a run's
chapters define gets the model as a suffix, together with the references to it; links to pages that are not part of
the run lead to the book's own.
"""

import re
from collections.abc import Iterable
from pathlib import Path

PLACES = (  # where a name is defined: (name)= above a block, after a formula, as an option, as an attribute
    r"^(\()([^()\s]+)(\)=)[ \t]*$",
    r"(\$\$[ \t]*\()([^()\s]+)(\))[ \t]*$",
    r"^([ \t]*:(?:name|label):[ \t]*)(\S+)()[ \t]*$",
    r"(\{#)([\w-]+)()",
)
ROLE = r"(\{(?:ref|eq|numref|any|doc)\}`(?:[^`<]*<)?)([^`<>]+)(>?`)"
LINK = r"(\]\()([^()\s]+)(\))"
UP = "../../"


def texts(notebook: dict) -> Iterable[tuple[dict, str]]:
    """Every Markdown text of a notebook, cells and outputs, as (its holder, its key there)."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            yield cell, "source"
        for output in cell.get("outputs", []):
            if "text/markdown" in output.get("data", {}):
                yield output["data"], "text/markdown"


def names_in(notebook: dict) -> set[str]:
    """The names that a notebook defines."""
    found = set()
    for holder, key in texts(notebook):
        text = "".join(holder[key])
        found |= {match.group(2) for place in PLACES for match in re.finditer(place, text, re.MULTILINE)}
    return found


def suffixed(text: str, model: str, names: set[str], chapters: set[str], pages: set[str]) -> str:
    """One text with its names and references moved: `chapters` are of this run, `pages` of the book."""

    def named(match: re.Match) -> str:
        return f"{match[1]}{match[2]}-{model}{match[3]}"

    def moved(match: re.Match) -> str:
        before, target, after = match.groups()
        if target.lstrip("#") in names:
            return f"{before}{target}-{model}{after}"
        page = re.sub(r"\.(ipynb|md)$", "", target.split("#")[0])
        has_suffix = "." in Path(target.split("#")[0]).name
        elsewhere = target.startswith(("/", "#")) or re.match(r"\w+:", target) or page in chapters
        if elsewhere or not (page in pages or has_suffix):
            return match[0]
        return f"{before}{UP}{target}{after}"

    for place in PLACES:
        text = re.sub(place, named, text, flags=re.MULTILINE)
    return re.sub(LINK, moved, re.sub(ROLE, moved, text))


def run_pages(notebooks: dict[str, dict], model: str, pages: set[str]) -> dict[str, dict]:
    """Chapter name -> notebook of one run, made fit to stand beside the book's own and other runs'."""
    names = set().union(*map(names_in, notebooks.values()))
    for notebook in notebooks.values():
        for holder, key in texts(notebook):
            holder[key] = suffixed("".join(holder[key]), model, names, set(notebooks), pages)
        title = next((cell for cell in notebook["cells"] if re.match(r"# ", "".join(cell["source"]))), None)
        if title:
            title["source"] = re.sub(r"\A(# [^\n]*)", rf"\1 (`{model}`)", title["source"])
    return notebooks


def index(model: str) -> str:
    return f"# Chapters run on `{model}`\n\n```{{tableofcontents}}\n```\n"


def with_runs(toc: dict, runs: dict[str, list[str]]) -> dict:
    """The table of contents with one page for each run, its chapters below."""
    added = [
        {"file": f"book/runs/{model}/index", "sections": [{"file": f"book/runs/{model}/{name}"} for name in names]}
        for model, names in runs.items()
    ]
    if added and "parts" in toc:
        return toc | {"parts": [*toc["parts"], {"caption": "Other models", "chapters": added}]}
    return toc | {"chapters": [*toc.get("chapters", []), *added]} if added else toc
