"""Notebooks as JupyterLab opens them."""

import re

import pytest
from conftest import ROOT, sources

NOTEBOOKS = sorted(path.stem for path in (ROOT / "book").glob("*.ipynb"))
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_of_a_notebook_name_files(name):
    """JupyterLab opens `02-project.ipynb`, and nothing at `02-project`."""
    links = LINK.findall("\n".join(sources(name, "markdown")))
    assert [link for link in links if not (ROOT / "book" / link).is_file()] == []
