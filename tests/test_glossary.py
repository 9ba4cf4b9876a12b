"""The bounds that the glossary states are those of the code."""

import re

import pytest
from conftest import ROOT
from twotowers import choose

TEXT = (ROOT / "book/glossary.md").read_text("utf8")


@pytest.mark.parametrize("name", ["COMPARES", "WRITES", "LITTLE"])
def test_the_glossary_states_the_bounds_of_the_rule(name):
    stated = re.findall(rf"`{name}` \(([\d.]+)", TEXT)
    assert len(stated) >= 2  # above the terms, and in one of them
    assert {float(value) for value in stated} == {getattr(choose, name)}
