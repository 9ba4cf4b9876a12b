"""An heir can try every larger module: it has an example in its docstrings, and each example runs
as it says."""

import doctest
import importlib

import pytest
from test_analysis import MODULES

TEXTS = {name: path.read_text() for path, name in MODULES.items()}
NAMES = [name for name, text in TEXTS.items() if ">>>" in text or text.count("\n") > 150]


@pytest.mark.parametrize("name", [*NAMES, "training.word_similarity"])
def test_a_module_has_an_example_that_runs(name):
    ran = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert ran.attempted and not ran.failed
