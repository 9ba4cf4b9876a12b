"""Annotations of the package are checked at every call while tests run, shapes too: import this before `twotowers`.

jaxtyping keeps a table of axes for a call, which only annotations with shapes need: other functions get beartype alone.
Within that table, beartype checks arguments and result once; jaxtyping's own way checks the arguments of every call twice.
A function made inside another is checked the first time that it is made: each making of a check takes a
millisecond.
"""

import inspect
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _decorator

# As in Python's own typing, an int is a float.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped
_made = set()


def _annotation(function, name: str):
    """One annotation of a function; Any for a name that is imported for type checkers only, as jaxtyping takes it."""
    try:
        return get_type_hints(_one(function.__annotations__[name]), function.__globals__, include_extras=True)["value"]
    except Exception:
        return Any


def _one(annotation):
    def holder(value): ...

    holder.__annotations__ = {"value": annotation}
    return holder


def _has_shape(annotation) -> bool:
    if inspect.isclass(annotation):
        return issubclass(annotation, jaxtyping.AbstractArray)
    return any(map(_has_shape, get_args(annotation)))


def jaxtyped(function=None, *, typechecker):
    """In the place of jaxtyping's decorator: the same checks, whose errors are beartype's."""
    if function is None:
        return lambda found: jaxtyped(found, typechecker=typechecker)
    if not inspect.isfunction(function):
        return _jaxtyped(function, typechecker=typechecker)  # a class or a descriptor: comes back with its functions
    if "<locals>" in function.__qualname__:
        if function.__code__ in _made:
            return function
        _made.add(function.__code__)
    found = {name: _annotation(function, name) for name in function.__annotations__}
    shaped = any(map(_has_shape, found.values()))
    if shaped and inspect.isgeneratorfunction(function):  # of these it would no more check what they give
        return _jaxtyped(function, typechecker=typechecker)
    function.__annotations__ = found
    return _jaxtyped(typechecker(function), typechecker=None) if shaped else typechecker(function)


jaxtyping.jaxtyped = _decorator.jaxtyped = jaxtyped
jaxtyping.install_import_hook(["twotowers", "towerlab"], "typechecker.check")
