"""A Sphinx extension that turns the docstrings of the package into reStructuredText.

They are plain text, with code in single backticks.
"""

from __future__ import annotations

import re

from twotowers import catalogue

SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):$")
ITEM = re.compile(r"(-|\d+\.) ")  # of a list; its further lines are indented
ENTRY = re.compile(r"(\*{0,2}\w+(, \w+)*|`[^:]*): ")  # "name: Description.", or several names


def plain(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText.

    Lists and sections become lists, other indented blocks become code, and single backticks become
    code. Nothing else has a meaning.

    Args:
        lines: Lines of the docstring.
    """
    out: list[str] = []
    in_section = in_list = False
    for line in lines:
        in_list = bool(ITEM.match(line)) or (in_list and line[:1].isspace())
        if in_list:
            out.append(line[: len(line) - len(line.lstrip())] + text(line.lstrip()))
        elif line and not line[0].isspace():
            if in_section or (out and out[-1][:1].isspace()):
                out.append("")
            in_section = bool(SECTION.match(line))
            out += [text(line), ""] if in_section else [text(line)]
        elif in_section and line.strip():
            # The first line of a section is also an entry. Continued lines are indented below it.
            begins = out[-1] == "" or ENTRY.match(line.strip())
            out.append(f"{'* ' if begins else '  '}{text(line.strip())}")
        elif not in_section and line.strip():
            if out and not out[-1][:1].isspace() and out[-1:] != [""]:
                out.append("")
            if not next((before for before in reversed(out) if before), "").startswith(("::", " ")):
                out += ["::", ""]
            out.append(line)
        elif not in_section:
            out.append(line)
    return out


def text(line: str) -> str:
    """Return a line with words in single backticks as code, and all other signs escaped.

    Args:
        line: Line of a docstring.
    """
    parts = re.split(r"`+([^`]*)`+", line)
    parts[::2] = [re.sub(r"([\\*_|])", r"\\\1", part) for part in parts[::2]]
    return "``".join(parts)


def variables() -> list[str]:
    """Return a line for every variable of every measurement, indented as code for a page."""
    rows = [
        (row.measurement, row.variable, f"({', '.join(row.dims)})", row.units)
        for of_measurement in catalogue.variables().values()
        for row in of_measurement.values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["    " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def setup(app) -> dict:
    """Register the extension, which also adds all variables to `twotowers.catalogue`.

    Args:
        app: Application of Sphinx.
    """

    def process(app, what, name, obj, options, lines):
        more = variables() if name == "twotowers.catalogue" else []
        lines[:] = [*plain([*lines, *more]), ""]

    def skips(app, what, name, obj, skip, options):
        return name == "model_config" or None  # of every pydantic class, and of no use here

    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skips)
    return {"parallel_read_safe": True}
