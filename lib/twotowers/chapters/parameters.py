"""The parameters of chapters: what each may be, checked and cleaned before a model loads.

check_parameters({"n_prompts": 200, "labels": "foo,bar"})      # {"n_prompts": 200, "labels": ["foo", "bar"]}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from twotowers.analysis.edit_heads import Head
from twotowers.errors import TwoTowersError
from twotowers.model import loading, unembed
from twotowers.prompts import sentences


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise TwoTowersError(f"{name}={value!r}: give a whole number of at least 1")
    return value


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TwoTowersError(f"{name}={value!r}: give a whole number of at least 0")
    return value


def _words(name: str, value: Any) -> list[str]:
    """A list, or a comma-separated string: `papermill -p` passes lists as strings."""
    items = value.strip("[]").split(",") if isinstance(value, str) else value
    items = [str(item).strip().strip("'\"") for item in items]
    if not items or not all(items):
        raise TwoTowersError(f"{name}={value!r}: give one or more words, separated by commas")
    return items


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TwoTowersError(f"{name}={value!r}: give a word")
    return value.strip()


def _labels(name: str, value: Any) -> list[str]:
    labels = _words(name, value)
    if len(labels) != 2 or labels[0] == labels[1]:
        raise TwoTowersError(f"{name}={value!r}: give two different label words, such as foo,bar")
    return labels


def _heads(name: str, value: Any) -> list[Head]:
    """[(22, 0), (19, 11)] from "22-0,19-11" or a list of such words; empty when the heads are to be found."""
    words = [] if value is None or value in ("", [], "[]") else _words(name, value)
    for word in words:
        if not re.fullmatch(r"\d+-\d+", word):
            raise TwoTowersError(f"{name}: '{word}' is no head: write layer-head, such as 2-5, separated by commas")
    return list(dict.fromkeys(tuple(int(part) for part in word.split("-")) for word in words))


def yes_or_no(name: str, value: Any) -> bool:
    """True or False, or these words: `papermill -p` passes them as text."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    found = value if isinstance(value, bool) else words.get(str(value).strip().lower())
    if found is None:
        raise TwoTowersError(f"{name}={value!r}: give True or False")
    return found


def _device_map(name: str, value: Any) -> str | None:
    """One of transformers' words, or None: nothing, "" and "none" all mean the one device."""
    word = None if value is None or str(value).strip().lower() in ("", "none") else str(value).strip()
    if word is not None:
        loading.check_device_map(word)
    return word


CHECKS = {
    "model": text,
    "datasets": _words,
    "n_prompts": _positive,
    "labels": _labels,
    "norm": lambda name, value: unembed.check_norm(text(name, value)),
    "k": _positive,
    "long": lambda name, value: sentences.check_long(text(name, value)),
    "top_k": _positive,
    "heads": _heads,
    "seed": _whole,
    "device": text,
    "dtype": text,
    "device_map": _device_map,
    "out": text,
}

# Parameters of one chapter alone that `twotowers run` takes as well; the chapter adds them by `own`.
ONE_CHAPTERS = {
    "more_models": lambda name, value: [] if value is None or value in ("", [], "[]") else _words(name, value),
    "chat_model": lambda name, value: str(value or "").strip(),
}


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not among the known ones."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"


def check_parameters(given: dict[str, Any], own: dict[str, Any] | None = None) -> dict[str, Any]:
    """Names and values of a chapter's parameters, cleaned. `own` adds a chapter's own checks (name -> function).

    papermill only warns of a name it does not know, so an unknown one is refused here, with the nearest known.
    """
    checks = CHECKS | (own or {})
    for name in given:
        if name not in checks:
            raise TwoTowersError(f"unknown parameter '{name}': {nearest(name, checks)}")
    checked = {name: checks[name](name, value) for name, value in given.items()}
    if checked.get("device_map") and checked.get("device", "cpu") != "cpu":
        raise TwoTowersError(
            f"device={checked['device']} and device_map={checked['device_map']}: the map places the model, give one"
        )
    return checked


def at_least_two(name: str, value: Any) -> int:
    """`k` of a chapter that takes a demonstration away and puts the others in all orders: 2 to 4."""
    if (k := _positive(name, value)) not in range(2, 5):
        raise TwoTowersError(f"{name}={k}: this chapter takes one away and needs all orders of them, give 2 to 4")
    return k
