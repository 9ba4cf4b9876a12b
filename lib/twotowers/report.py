"""What every chapter does alike: check its parameters, open the model, state a claim, save a table.

    chapter = open_chapter("01-locate", globals())     # right after the parameters cell, before other names exist
    encoded = chapter.encoded("animal/country")
    chapter.here(f"the top head raises the true label by {increase} nats")
    chapter.save(table, "heads")
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import altair as alt
import pandas as pd
from IPython.display import Markdown, display

from twotowers import datasets, locate, models, tables, vocabulary
from twotowers.architectures import Model
from twotowers.errors import TwoTowersError
from twotowers.intervene import Head, check_heads
from twotowers.prompts import Encoded, encode_all

HEADS_TABLE = "01-locate-heads"  # what chapter 1 saves, and what later chapters take their heads from
_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}


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


def _text(name: str, value: Any) -> str:
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


CHECKS = {
    "model": _text,
    "datasets": _words,
    "n_prompts": _positive,
    "labels": _labels,
    "norm": lambda name, value: vocabulary.check_norm(_text(name, value)),
    "top_k": _positive,
    "heads": _heads,
    "seed": _whole,
    "device": _text,
    "dtype": _text,
    "out": _text,
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
    return {name: checks[name](name, value) for name, value in given.items()}


def _parameters_in(scope: dict[str, Any]) -> dict[str, Any]:
    """What a notebook's parameter cells defined: every plain name in its globals so far."""
    plain = {n: v for n, v in scope.items() if not n.startswith("_") and n not in _IPYTHON}
    return {n: v for n, v in plain.items() if not isinstance(v, ModuleType) and not callable(v)}


@dataclass
class Chapter:
    """One run of one chapter: its parameters, its model, and where its tables go."""

    name: str
    parameters: dict[str, Any]
    _drawn: dict[tuple, list[Encoded]] = field(default_factory=dict, repr=False)

    def __getattr__(self, name: str) -> Any:
        """A parameter by its name: `chapter.n_prompts`."""
        parameters = self.__dict__.get("parameters", {})
        if name in parameters:
            return parameters[name]
        raise AttributeError(name)

    @cached_property
    def loaded(self) -> Model:
        """The model, loaded and proved once."""
        p = self.parameters
        return models.load(p["model"], dtype=p.get("dtype", "float32"), device=p.get("device", "cpu"))

    def on(self, model: str) -> Chapter:
        """This chapter on another model, loaded when it is first used; let go of it to have its memory back."""
        return Chapter(self.name, self.parameters | {"model": model})

    @property
    def out_folder(self) -> Path:
        return Path(self.parameters["out"])

    def prompts(self, dataset: str, true_label: str | None = None, n: int | None = None) -> list:
        """Prompts of a named dataset under this chapter's labels and seed; the first label is true by default."""
        p = self.parameters
        return datasets.draw(
            dataset, n or p["n_prompts"], seed=p["seed"], labels=tuple(p["labels"]), true_label=true_label
        )

    def encode(self, prompts: list) -> list[Encoded]:
        """Token ids and label positions of prompts under this chapter's model."""
        return encode_all(prompts, self.loaded.tokenizer, self.loaded.context)

    def encoded(self, dataset: str, true_label: str | None = None, n: int | None = None) -> list[Encoded]:
        return self.encode(self.prompts(dataset, true_label, n))

    def heads(self) -> list[Head]:
        """The heads of this chapter, the one with the largest increase first; `heads_from` says where they come from.

        The parameter `heads` when it names some; otherwise the `top_k` best of the table that chapter 1 left in `out`;
        otherwise they are located here, on the prompts chapter 1 would take. Heads that do not raise the true label
        count in neither. Raises TwoTowersError for a head outside the model, a table of another model or of another
        reading of the norm, and when no head is left.
        """
        return list(self._found_heads[0])

    @property
    def heads_from(self) -> str:
        """Where `heads()` come from, as part of a sentence."""
        return self._found_heads[1]

    @cached_property
    def _found_heads(self) -> tuple[tuple[Head, ...], str]:
        p, model = self.parameters, self.loaded
        if p.get("heads"):
            return check_heads(p["heads"], model), "given as a parameter"
        norm, dataset, k = p.get("norm", "frozen"), p["datasets"][0], p["top_k"]
        if (self.out_folder / f"{HEADS_TABLE}.csv").exists():
            table = tables.load(self.out_folder, HEADS_TABLE, fingerprint=model.fingerprint)
            if missing := {"layer", "head", "increase", "dataset", "norm"} - set(table):
                raise TwoTowersError(f"the table {HEADS_TABLE} lacks {', '.join(sorted(missing))}: run chapter 1 again")
            if others := set(table["norm"]) - {norm}:
                raise TwoTowersError(
                    f"the heads in '{self.out_folder}' were located with norm {', '.join(sorted(others))}, not {norm}: "
                    "run chapter 1 again with this norm, give another folder, or name the heads"
                )
            origin = f"the top {k} of chapter 1's table, located on {', '.join(dict.fromkeys(table['dataset']))}"
        else:
            found = locate.increases(model, self.encoded(dataset), norm=norm, progress=f"locating heads on {dataset}")
            table = found.heads_table()
            origin = f"the top {k} located here on {dataset}"
        raising = table[table["increase"] > 0]
        if raising.empty:
            raise TwoTowersError(f"no head of {model.name} raises the true label: name heads or choose another dataset")
        heads = locate.top_heads(raising, min(k, len(raising)))
        return check_heads(heads, model), origin

    def save(self, table: pd.DataFrame, name: str) -> None:
        """Write a table to `out` as <chapter>-<name>.csv, stamped with the model's fingerprint."""
        tables.save(table, self.out_folder, f"{self.name}-{name}", fingerprint=self.loaded.fingerprint)

    def banner(self) -> None:
        """Say which model the figures come from, before the first of them."""
        m, p = self.loaded, self.parameters
        shipped = p["model"] in models.shipped_models()
        kind = (
            "a miniature trained for this book on synthetic episodes; it is not one of the paper's models"
            if shipped
            else "the model named when this page was made"
        )
        display(
            Markdown(
                f"**Every figure on this page was computed from `{m.name}`**, {kind}: {m.config.model_type}, "
                f"{m.n_layers} layers of {m.n_heads} heads, {m.unembedding.vocabulary:,} words, fingerprint "
                f"`{m.fingerprint}`. {p['n_prompts']:,} prompts a set, seed {p['seed']}, "
                f"norm {p.get('norm', 'frozen')}."
            )
        )

    def here(self, text: str) -> None:
        """A finding of this run. Write it with its n, its interval and its control."""
        display(Markdown(f"**Here** (`{self.parameters['model']}`): {text}"))

    def caution(self, accuracy: float) -> None:
        """Say so when the model does worse than guessing one of the two labels; silent otherwise."""
        if accuracy < 0.5:
            self.here(
                f"**This model does not learn the task.** Its mean accuracy, {accuracy:.0%}, is below the 50% of "
                "guessing one of the two labels, so what follows is no evidence about in-context learning."
            )

    def paper(self, where: str, text: str) -> None:
        """What the paper found; `where` is its place, for example "v1, fig 2"."""
        display(Markdown(f"**The paper** ({where}): {text}"))

    def show(self, chart: alt.TopLevelMixin) -> None:
        display(chart)


def open_chapter(name: str, scope: dict[str, Any], own: dict[str, Any] | None = None) -> Chapter:
    """Check the parameters that a notebook's first cells set, and make its `out` folder.

    Call it with `globals()` before the notebook defines anything else. Raises TwoTowersError, in one line, on an
    unknown name, a value out of range, an unknown dataset, or a folder that cannot be written.
    """
    chapter = Chapter(name, check_parameters(_parameters_in(scope), own))
    for dataset in chapter.parameters.get("datasets", []):
        datasets.check_name(dataset)
    tables.writable(chapter.out_folder)
    return chapter
