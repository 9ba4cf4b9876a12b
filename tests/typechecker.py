"""Annotations of the packages are checked at every call while tests run, shapes too: import this
before they are."""

import jaxtyping
from beartype import BeartypeConf, beartype

# as in Python's own typing, an int is a float
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
jaxtyping.install_import_hook(
    ["twotowers", "towerlab", "towerlab_experiments"], "typechecker.check"
)
