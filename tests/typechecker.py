"""Annotations of the package are checked at every call while tests run, shapes too: import this before `twotowers`."""

import jaxtyping
from beartype import BeartypeConf, beartype

# As in Python's own typing, an int is a float.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
jaxtyping.install_import_hook("twotowers", "typechecker.check")
