"""A Sphinx extension: docstrings of the package, which are plain text with code in single
backticks, as reStructuredText."""

from __future__ import annotations

import re


def plain(lines: list[str]) -> list[str]:
    """Indented blocks are code, single backticks too; nothing else means anything."""
    out: list[str] = []
    for line in lines:
        if line[:1].isspace() and line.strip():
            if out and not out[-1][:1].isspace() and out[-1:] != [""]:
                out.append("")
            if not next((before for before in reversed(out) if before), "").startswith(("::", " ")):
                out += ["::", ""]
            out.append(line)
        else:
            if out and out[-1][:1].isspace() and line:
                out.append("")
            parts = re.split(r"`+([^`]*)`+", line)
            parts[::2] = [re.sub(r"([\\*_|])", r"\\\1", part) for part in parts[::2]]
            out.append("``".join(parts))
    return out


def setup(app) -> dict:
    def process(app, what, name, obj, options, lines):
        more = obj.listing() if name == "twotowers.schema" else []
        lines[:] = [*plain([*lines, *more]), ""]

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
