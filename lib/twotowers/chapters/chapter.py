"""What every chapter does alike: check its parameters, open the model, state a claim, save a table.

chapter = open_chapter("01-locate", globals())     # right after the parameters cell, before other names exist
encoded = chapter.encoded("animal/country")
chapter.here(f"the top head raises the true label by {increase} nats")
chapter.save(table, "heads")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import altair as alt
import pandas as pd
from IPython.display import Markdown, display

from twotowers.analysis import locate
from twotowers.analysis.biases import CONTENT_FREE
from twotowers.analysis.edit_heads import Head, check_heads
from twotowers.chapters.parameters import CHECKS, at_least_two, check_parameters, yes_or_no
from twotowers.errors import TwoTowersError
from twotowers.model import loading
from twotowers.model.model import Model
from twotowers.prompts import datasets, sentences
from twotowers.prompts.prompt import Encoded, Prompt, encode_all
from twotowers.stats import tables

__all__ = ["CHECKS", "Chapter", "at_least_two", "check_parameters", "counted", "open_chapter", "yes_or_no"]
HEADS_TABLE = "01-locate-heads"  # what chapter 1 saves, and what later chapters take their heads from
_IPYTHON = {"In", "Out", "exit", "quit", "get_ipython", "open"}


def _parameters_in(scope: dict[str, Any]) -> dict[str, Any]:
    """What a notebook's parameter cells defined: every plain name in its globals so far."""
    plain = {n: v for n, v in scope.items() if not n.startswith("_") and n not in _IPYTHON}
    return {n: v for n, v in plain.items() if not isinstance(v, ModuleType) and not callable(v)}


def length_variants(prompt: Prompt) -> list[Prompt]:
    """The forms of a prompt that may differ in length: either class first, either label true, no content asked about.

    Shorter ones, with a demonstration fewer, need no look. A text has other tokens where it stands first, so which
    class stands first is all that matters of an order, but for tokenizers that join words.
    """
    orders = (prompt, datasets.reordered(prompt))
    asked = [replace(one, query=query) for one in orders for query in (prompt.query, *CONTENT_FREE)]
    return [form for one in asked for form in (one, datasets.swapped_labels(one))]


def counted(values: Iterable[int]) -> str:
    """One n, or the smallest and the largest where they differ: "20", "17 to 20"."""
    low, high = min(values := [int(value) for value in values]), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass
class Chapter:
    """One run of one chapter: its parameters, its model, where its tables go, how many prompts a set it needs."""

    name: str
    parameters: dict[str, Any]
    least: int = 2
    _announced: set[str] = field(default_factory=set, repr=False)

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
        return loading.load(
            p["model"],
            dtype=p.get("dtype", "float32"),
            device=p.get("device", "cpu"),
            device_map=p.get("device_map"),
        )

    def on(self, model: str) -> Chapter:
        """This chapter on another model, loaded when it is first used; let go of it to have its memory back."""
        return Chapter(self.name, self.parameters | {"model": model}, self.least)

    @property
    def out_folder(self) -> Path:
        return Path(self.parameters["out"])

    def prompts(self, dataset: str, true_label: str | None = None, n: int | None = None) -> list[Prompt]:
        """Prompts of a named dataset under this chapter's labels and seed; the first label is true by default.

        Those that the model cannot read, in any order of their demonstrations or with either label true, are left out
        or cut (`long`) here, before variants are made of them: so variants of a prompt stay paired. What was left out
        or cut is said, once a dataset. Raises TwoTowersError when fewer than the chapter needs are left.
        """
        p, lm = self.parameters, self.loaded
        labels, asked = tuple(p["labels"]), n or p["n_prompts"]
        drawn = datasets.draw(dataset, asked, seed=p["seed"], labels=labels, true_label=true_label, k=p.get("k", 2))
        kept, counts = sentences.fit(drawn, lm.tokenizer, lm.context, p.get("long", "drop"), length_variants)
        count = counts.set_index("what")["prompts"]
        said = [f"{count[what]} {text}" for what, text in self._drop_reasons.items() if count[what]]
        if len(kept) < min(self.least, asked):
            cut = "" if p.get("long") == "truncate" else "long=truncate, "
            raise TwoTowersError(
                f"{dataset}: of {asked} prompts {len(kept)} are left and {self.least} needed, {'; '.join(said)}: "
                f"take {cut}a smaller k, more n_prompts or a model that reads more tokens"
            )
        if said and dataset not in self._announced:
            self._announced.add(dataset)
            self.here(f"{dataset}: {asked:,} prompts asked for, {len(kept):,} used: {'; '.join(said)}.")
        return kept

    @property
    def _drop_reasons(self) -> dict[str, str]:
        size = f"longer than the {self.loaded.context:,} tokens that this model reads"
        return {
            "too long, left out": f"left out, {size}",
            "too long, truncated": f"{size}, their longest texts cut at the end",
            "special token, left out": "left out, a special token of the tokenizer stands in a text",
        }

    def encode(self, prompts: list[Prompt]) -> list[Encoded]:
        """Token ids and label positions of prompts under this chapter's model; all of them, or TwoTowersError."""
        return encode_all(prompts, self.loaded.tokenizer, self.loaded.context)

    def fits(self, prompt: Prompt) -> bool:
        """Whether the model can read a prompt as it is."""
        return sentences.lengths([prompt.text], self.loaded.tokenizer)[0] <= self.loaded.context

    def together(self, *forms: list[Prompt]) -> list[list[Encoded]]:
        """`encode` for lists of the same prompts in several forms: one too long in any form is left out of all.

        For forms that have texts of other prompts, and may so be longer than what `prompts` gave.
        """
        lengths = [sentences.lengths([p.text for p in prompts], self.loaded.tokenizer) for prompts in forms]
        keep = [max(row) <= self.loaded.context for row in zip(*lengths, strict=True)]
        if not any(keep):
            raise TwoTowersError(
                f"no prompt is short enough in all {len(forms)} forms for the {self.loaded.context} tokens that this "
                "model reads: take a smaller k, other datasets or a model that reads more tokens"
            )
        if not all(keep):
            self.here(
                f"{len(keep):,} prompts are compared in {len(forms)} forms, {sum(keep):,} of them used: the others are "
                f"{self._drop_reasons['too long, left out'].removeprefix('left out, ')} in at least one form."
            )
        return [self.encode([p for p, kept in zip(prompts, keep, strict=True) if kept]) for prompts in forms]

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
        shipped = p["model"] in loading.shipped_models()
        kind = (
            "a miniature trained for this book, on what its card says; it is not one of the paper's models"
            if shipped
            else "the model named when this page was made"
        )
        display(
            Markdown(
                f"**Every figure on this page was computed from `{m.name}`**, {kind}: {m.config.model_type}, "
                f"{m.n_layers} layers of {m.n_heads} heads, {m.unembedding.vocabulary:,} words, fingerprint "
                f"`{m.fingerprint}`. {p['n_prompts']:,} prompts a set, {p.get('k', 2)} demonstrations of each class, "
                f"seed {p['seed']}, norm {p.get('norm', 'frozen')}."
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


def open_chapter(name: str, scope: dict[str, Any], own: dict[str, Any] | None = None, least: int = 2) -> Chapter:
    """Check the parameters that a notebook's first cells set, and make its `out` folder.

    Call it with `globals()` before the notebook defines anything else. `least`: prompts a set that the chapter needs,
    two for an interval. Raises TwoTowersError, in one line, on an unknown name, a value out of range, an unknown
    dataset, or a folder that cannot be written.
    """
    chapter = Chapter(name, check_parameters(_parameters_in(scope), own), least)
    if (n := chapter.parameters.get("n_prompts", least)) < least:
        raise TwoTowersError(f"n_prompts={n}: this chapter needs at least {least} prompts a set")
    for dataset in chapter.parameters.get("datasets", []):
        datasets.check_name(dataset)
    tables.writable(chapter.out_folder)
    return chapter
