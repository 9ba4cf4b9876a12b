"""What studies share: parameters, the model, prompts that it can read, and tables made once.

    study = chapter_studies("03-mrr")

    @study                                  # or @study(version=2, uses=("datasets", "seed"))
    def by_head(run) -> pd.DataFrame:       # saved as 03-mrr-by-head.csv
        ...

    run.table(by_head)                      # from `out`, from the recorded results, or computed and saved

A table is shown again only when model, data, parameters and the study's version are the same; `version` goes up when a
study's numbers change (golden tables in the tests notice). What cannot be made is saved too, with its reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pandas as pd

from twotowers.errors import NotRecorded, TwoTowersError, is_out_of_memory
from twotowers.heads import named
from twotowers.parameters import Parameters
from twotowers.paths import data_folder, results_folder
from twotowers.prompts import datasets, sentences
from twotowers.prompts.prompt import Encoded, Prompt, encode_all
from twotowers.stats import tables

NOT_IN_TABLES = {"model", "out", "recorded", "device", "device_map"}  # parameters that change no number
SINCE = "TWOTOWERS_SINCE"  # set by the engine: when this command began, seconds
SHARDS = "TWOTOWERS_SHARDS"  # set by the engine for a chapter whose work is cut into parts: see `parts.Store`
LOCATING_SEED = 1_000_003  # heads are located on prompts of another draw than those that judge them
CHAPTERS: dict[str, list[Study]] = {}


@dataclass(frozen=True)
class Study:
    """A function from a run to one tidy table. `uses` names the parameters that matter; None is all of them.

    `reads`: recorded tables of the model that it is made of, which no chapter makes.
    """

    name: str
    function: Callable[[Any], pd.DataFrame]
    version: int = 1
    uses: tuple[str, ...] | None = None
    reads: tuple[str, ...] = ()


def chapter_studies(chapter: str) -> Callable:
    """A decorator that registers the studies of one chapter; see the module."""

    def decorate(function: Callable | None = None, *, version: int = 1, uses: Sequence[str] | None = None, reads=()):
        if function is None:
            return lambda found: decorate(found, version=version, uses=uses, reads=reads)
        name = f"{chapter}-{function.__name__.replace('_', '-')}"
        made = Study(name, function, version, None if uses is None else tuple(uses), tuple(reads))
        CHAPTERS.setdefault(chapter, []).append(made)
        return made

    return decorate


@dataclass(frozen=True)
class Form:
    """How a prompt is written: demonstrations of each class, and what stands between them ("space", "line break")."""

    k: int
    separator: str

    def __str__(self) -> str:
        return f"k = {self.k}, {self.separator}"


@dataclass
class Context:
    """One model under one set of parameters, and what was already made with it. `least`: prompts a set needed."""

    parameters: Parameters
    least: int = 2
    notes: list[str] = field(default_factory=list)
    _kept: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @property
    def form(self) -> Form:
        """The form of this run's prompts. Raises TwoTowersError where a parameter leaves it open."""
        p = self.parameters
        if "auto" in (p.k, p.separator):
            raise TwoTowersError("k and separator are not chosen yet: give both")
        return Form(p.k, p.separator)

    @cached_property
    def lm(self) -> Any:
        """The model, loaded and proved once, when a study first needs it."""
        from twotowers.model import loading  # torch takes seconds, and recorded tables need none

        p = self.parameters
        return loading.load(p.model, dtype=p.dtype, device=p.device, device_map=p.device_map)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The model in words and numbers: name, fingerprint, type, layers, heads, vocabulary, quantisation.

        With recorded=only they come from a recorded table, and no model is loaded. Raises TwoTowersError without one.
        """
        if self.parameters.recorded == "only":
            for path in sorted(results_folder(self.parameters.model).glob("*.csv")):
                with suppress(TwoTowersError):  # a damaged one is named where it would be shown
                    if "about" in (told := tables.provenance_of(path)):
                        return told["about"]
            raise NotRecorded(f"nothing is recorded of {self.parameters.model}: compute it (recorded=use)")
        from twotowers.model import files  # no torch: the model itself is loaded when a table must be computed

        name = self.parameters.model
        told = files.describe(name)
        return {
            "name": name, "fingerprint": files.fingerprint(name), "type": told["model_type"],
            "layers": told["n_layers"], "heads": told["n_heads"], "vocabulary": told["vocabulary"],
            "quantisation": told["quantisation"],
        }  # fmt: skip

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """`make()`, once a run: what several studies read (captures, answers) is computed for the first of them."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    # --- tables ---

    def identity(self, study: Study) -> dict[str, Any]:
        """What must agree for a saved table to stand for one that would be computed."""
        p = self.parameters.model_dump(mode="json") | {"heads": named(self.parameters.heads)}
        names = study.uses if study.uses is not None else [name for name in p if name not in NOT_IN_TABLES]
        paths = [results_folder(self.parameters.model) / f"{name}.csv" for name in study.reads]
        read = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in paths if path.is_file()}
        return {
            "study": study.name, "version": study.version, "model": self.about["fingerprint"],
            "data": data_fingerprint(self.parameters.datasets), "parameters": {name: p[name] for name in names},
        } | ({"read": read} if study.reads else {})  # fmt: skip

    def file_of(self, study: Study) -> str:
        """The name under which a table is saved; those that chapters share: one for each choice of sets and `n_locate`."""
        p, usual = self.parameters, Parameters.model_fields["n_locate"].default
        apart = [] if study.uses is None or p.datasets == list(datasets.WORD_SETS) else list(p.datasets)
        apart += [f"n_locate={p.n_locate}"] if "n_locate" in (study.uses or ()) and p.n_locate != usual else []
        return f"{study.name}-{hashlib.sha256('|'.join(apart).encode()).hexdigest()[:6]}" if apart else study.name

    def saved(self, study: Study) -> pd.DataFrame | None:
        """The table as it was saved in `out`, or recorded, when its identity agrees; a damaged one is named.

        With recorded=never, only what the same `twotowers` command has just made in `out`. What could not be made is
        tried again, but for recorded=only.
        """
        p, wanted = self.parameters, self.identity(study)
        never, only = p.recorded == "never", p.recorded == "only"
        since = float(os.environ.get(SINCE, "inf")) if never else 0.0
        for folder in [Path(p.out)] if never else [Path(p.out), results_folder(p.model)]:
            path = folder / f"{self.file_of(study)}.csv"
            if not path.is_file() or path.stat().st_mtime < since:
                continue
            try:
                found = tables.load(folder, self.file_of(study))
            except TwoTowersError as error:
                self.notes.append(str(error))
                continue
            told = found.attrs["provenance"]
            if told.get("identity") == wanted and (only or not told.get("unavailable")):
                found.attrs["path"] = str(path)
                return found
        return None

    def table(self, study: Study) -> pd.DataFrame:
        """The study's table. Raises TwoTowersError with the reason when it cannot be made here."""
        table = self.keep(("table", study.name), lambda: self._table(study))
        if reason := table.attrs["provenance"].get("unavailable"):
            raise TwoTowersError(reason)
        return table.copy()

    def _table(self, study: Study) -> pd.DataFrame:
        p, noted = self.parameters, len(self.notes)
        found = self.saved(study)
        if found is not None:
            path = Path(found.attrs["path"])
            if path.parent != Path(p.out):  # the tables of a page lie together, in `out`
                tables.write(Path(p.out) / path.name, path.read_bytes())
            return tables.load(p.out, path.stem)
        if p.recorded == "only":
            if damaged := "; ".join(self.notes[noted:]):
                raise TwoTowersError(f"{damaged}: compute it (recorded=use)")
            raise NotRecorded(
                f"no table {study.name} of {p.model} is recorded with these parameters: compute it (recorded=use)"
            )
        start, before, unavailable = time.monotonic(), len(self.notes), ""
        try:
            table = study.function(self)
        except TwoTowersError as error:
            table, unavailable = pd.DataFrame(), str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            table, unavailable = pd.DataFrame(), "memory ran out: take fewer prompts, another device or a smaller model"
        provenance = {
            "identity": self.identity(study), "about": self.about, "device": p.device, "machine": machine(p.device),
            "seconds": round(time.monotonic() - start, 1), "date": date.today().isoformat(),
            "libraries": {name: version_of(name) for name in ("torch", "transformers", "numpy", "scipy")},
            "notes": list(dict.fromkeys(self.notes[before:])), "unavailable": unavailable,
        } | ({"shards": json.loads(os.environ[SHARDS])["of"]} if SHARDS in os.environ else {})  # fmt: skip
        tables.save(table, p.out, self.file_of(study), provenance)
        return tables.load(p.out, self.file_of(study))

    # --- prompts ---

    def drawn(self, dataset: str, true_label: str | None, n: int, form: Form, seed: int) -> list[Prompt]:
        """n prompts of a set in a form that this model can read, in any order of their demonstrations.

        Those that are too long with either label true are left out or cut (`long`) here, before variants are made of
        them, so variants of a prompt stay paired. Raises TwoTowersError when fewer than `least` are left.
        """
        p, lm = self.parameters, self.lm
        drawn = datasets.draw(
            dataset, n, seed=seed, labels=tuple(p.labels), true_label=true_label, k=form.k, separator=form.separator
        )
        kept, counts = sentences.fit(drawn, lm.tokenizer, lm.context, p.long, length_variants)
        count = counts.set_index("what")["prompts"]
        said = [f"{count[what]} {text}" for what, text in self._drop_reasons.items() if count[what]]
        if len(kept) < min(self.least, n):
            cut = "" if p.long == "truncate" else "long=truncate, "
            raise TwoTowersError(
                f"{dataset}: of {n} prompts {len(kept)} are left and {self.least} needed, {'; '.join(said)}: "
                f"take {cut}a smaller k, more n_prompts or a model that reads more tokens"
            )
        if said:
            self.notes.append(f"{dataset}: {n:,} prompts asked for, {len(kept):,} used: {'; '.join(said)}.")
        return kept

    def prompts(self, dataset: str, true_label: str | None = None, n: int | None = None) -> list[Prompt]:
        """Prompts of a set to judge on, in the paper's order; none of them was used to locate heads.

        The first label is true by default; the same texts come with either label.
        """
        n, p = n or self.parameters.n_prompts, self.parameters
        key = ("prompts", dataset, true_label, n)
        return self.keep(key, lambda: self._judged(dataset, true_label or p.labels[0], n))

    def _judged(self, dataset: str, true_label: str, n: int) -> list[Prompt]:
        p = self.parameters
        used = {_texts(prompt) for prompt in self.locating(dataset)}
        drawn = self.drawn(dataset, true_label, n + len(used), self.form, p.seed)
        return [prompt for prompt in drawn if _texts(prompt) not in used][:n]

    def locating(self, dataset: str, true_label: str | None = None) -> list[Prompt]:
        """The prompts on which forms are chosen and heads located; none of them judges anything."""
        p = self.parameters
        key, label = ("locating", dataset, true_label), true_label or p.labels[0]
        return self.keep(key, lambda: self.drawn(dataset, label, p.n_locate, self.form, p.seed + LOCATING_SEED))

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        """Token ids and label positions of prompts under this run's model; all of them, or TwoTowersError."""
        return encode_all(prompts, self.lm.tokenizer, self.lm.context)

    def encoded(self, dataset: str, true_label: str | None = None, n: int | None = None) -> list[Encoded]:
        """`prompts`, encoded once a run."""
        key = ("encoded", dataset, true_label, n)
        return self.keep(key, lambda: self.encode(self.prompts(dataset, true_label, n)))

    def balanced(self, dataset: str, n: int | None = None) -> list[Encoded]:
        """`prompts` with all orders and both labels in turn, encoded once: place and label word say nothing there."""
        key = ("balanced", dataset, n)
        return self.keep(key, lambda: self.encode(datasets.counterbalanced(self.prompts(dataset, None, n))))

    def encode_paired(self, *forms: Sequence[Prompt]) -> list[list[Encoded]]:
        """`encode` for lists of the same prompts in several forms: one too long in any form is left out of all.

        For forms that have texts of other prompts, and may so be longer than what `prompts` gave.
        """
        lm = self.lm
        lengths = [sentences.lengths([p.text for p in prompts], lm.tokenizer) for prompts in forms]
        keep = [max(row) <= lm.context for row in zip(*lengths, strict=True)]
        if not any(keep):
            raise TwoTowersError(
                f"no prompt is short enough in all {len(forms)} forms for the {lm.context} tokens that this "
                "model reads: take a smaller k, other datasets or a model that reads more tokens"
            )
        if not all(keep):
            reason = self._drop_reasons["too long, left out"].removeprefix("left out, ")
            self.notes.append(
                f"{len(keep):,} prompts are compared in {len(forms)} forms, {sum(keep):,} of them used: the others are "
                f"{reason} in at least one form."
            )
        return [self.encode([p for p, kept in zip(prompts, keep, strict=True) if kept]) for prompts in forms]

    def fits(self, prompt: Prompt) -> bool:
        """Whether the model can read a prompt as it is."""
        return sentences.lengths([prompt.text], self.lm.tokenizer)[0] <= self.lm.context

    @property
    def _drop_reasons(self) -> dict[str, str]:
        size = f"longer than the {self.lm.context:,} tokens that this model reads"
        return {
            "too long, left out": f"left out, {size}",
            "too long, truncated": f"{size}, their longest texts cut at the end",
            "special token, left out": "left out, a special token of the tokenizer stands in a text",
        }


def _texts(prompt: Prompt) -> frozenset[str]:
    """What is said in a prompt, whatever the order and the labels."""
    return frozenset([f"query {prompt.query}", *(d.text for d in prompt.demonstrations)])


def length_variants(prompt: Prompt) -> list[Prompt]:
    """The variants of a prompt that may differ in length: either class first, either label true, no content.

    Shorter ones, with a demonstration fewer, need no look. A text has other tokens where it stands first, so which
    class stands first is all that matters of an order, but for tokenizers that join words.
    """
    orders = (prompt, datasets.reordered(prompt))
    asked = [replace(one, query=query) for one in orders for query in (prompt.query, *datasets.CONTENT_FREE)]
    return [form for one in asked for form in (one, datasets.swapped_labels(one))]


def data_fingerprint(names: Sequence[str]) -> str:
    """12 hexadecimal digits over the word lists, or the pinned files, that the named sets are drawn from."""
    files = {"words/words.csv" if datasets.is_word_set(name) else "sentences/files.csv" for name in names}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update((data_folder() / file).read_bytes())
    return digest.hexdigest()[:12]


def machine(device: str = "cpu") -> str:
    """The machine in a few words, with the GPU that was used; no host name."""
    found = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if not device.startswith("cuda"):
        return found
    import torch

    return f"{found}, {torch.cuda.get_device_name(device)}"
