"""What checks the annotations of the package while tests run: beartype, to which an int is a float as to Python's typing."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
