"""The chain of measurements of one model: what each is made from, and its file.

    run = Run(Settings(model="smollm2-135m", blocks=200))
    run.measured("heads")        # opened where it stands, else measured, with all that it needs, and saved

    answers on a grid of forms -> the form -> heads on locating blocks -> sets of heads -> everything else, on other blocks

A file says in its attributes what made it. Recorded files (data/measurements) are shown as they are; one that an older
version of its code made is refused by name. Files below `out` are a cache: what was made otherwise is made again.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
import xarray as xr

from twotowers import choose
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.heads import Head
from twotowers.measure import observations
from twotowers.measure.settings import Settings
from twotowers.model import files
from twotowers.model.loading import load
from twotowers.model.model import Model
from twotowers.paths import data_folder, shipped_models, slug
from twotowers.progress import say
from twotowers.prompts import sentences
from twotowers.prompts.blocks import Form, class_pairs, draw_blocks, label_pairs
from twotowers.prompts.prompt import Encoded, Prompt, encode_all

LOCATING, JUDGING = 1, 2
"""Seeds of the blocks on which forms and heads are chosen, and of those that judge"""


NOT_TESTABLE = "not_testable"


class Measurement(NamedTuple):
    """`make(run)` gives the dataset; `needs` are measurements it reads; a change of what it computes raises `version`."""

    make: Callable[[Run], xr.Dataset]
    needs: tuple[str, ...] = ()
    version: int = 1
    judges: bool = True
    """False: made from locating blocks alone, so that more judging blocks leave it as it is"""


MEASUREMENTS: dict[str, Measurement] = {}
"""Name -> measurement, filled by `measure.suite`"""


@dataclass(frozen=True)
class Run:
    """One model under one setting. Weights are read when a measurement is first made."""

    settings: Settings
    command: str = ""
    """what was typed, for the attributes of what is measured"""

    @cached_property
    def name(self) -> str:
        return slug(self.settings.model)

    @cached_property
    def model(self) -> Model:
        s = self.settings
        torch.manual_seed(0)
        return load(s.model, dtype=s.dtype, device=s.device, device_map=s.device_map)

    @cached_property
    def fingerprint(self) -> str:
        return files.fingerprint(self.settings.model)

    def path(self, name: str) -> Path:
        return Path(self.settings.out) / self.name / self.settings.suite / f"{name}.nc"

    def measured(self, name: str, again: bool = False) -> xr.Dataset:
        """The measurement, from its file where that is of this setting, else made and saved.

        Where it has no meaning for the model it is empty, and its attribute NOT_TESTABLE says why.
        """
        if name not in MEASUREMENTS:
            raise TwoTowersError(f"no measurement '{name}': choose one of {', '.join(MEASUREMENTS)}")
        path, identity = self.path(name), self.identity(name)
        if path.is_file() and not again:
            found = observations.load(path)
            if found.attrs.get("identity") == identity:
                return found
        for need in MEASUREMENTS[name].needs:
            self.measured(need)  # before the clock starts
        started = time.monotonic()
        try:
            found = MEASUREMENTS[name].make(self)
        except NotTestable as error:
            found = xr.Dataset(attrs={NOT_TESTABLE: str(error)})
        seconds = time.monotonic() - started
        if self.settings.suite == "published":  # the sentences are not ours to pass on
            found = found.drop_vars(["query", "text", "source_text"], errors="ignore")
        observations.save(found, path, self._provenance(name, identity, seconds))
        why = found.attrs.get(NOT_TESTABLE)
        say(f"{self.name}: {name} " + (f"is not testable: {why}" if why else f"measured in {seconds:.0f} s"))
        return observations.load(path)

    def identity(self, name: str) -> str:
        """What decides a measurement's numbers: model, settings, and the versions of its code and of all it needs."""
        deciding = self.settings.deciding()
        if not MEASUREMENTS[name].judges:
            del deciding["blocks"]
        return json.dumps({"model": self.fingerprint, **deciding, "versions": _versions(name)}, sort_keys=True)

    def _provenance(self, name: str, identity: str, seconds: float) -> dict[str, str | int | float]:
        model = self.model
        return {
            "measurement": name, "version": MEASUREMENTS[name].version, "identity": identity,
            "model": self.name, "fingerprint": self.fingerprint, "quantisation": model.quantisation,
            "parameters": sum(p.numel() for p in model.hf.parameters()), "layers": model.n_layers, "heads": model.n_heads,
            "key_value_heads": model.n_key_value_heads, "vocabulary": model.unembedding.vocabulary,
            "suite": self.settings.suite, "command": self.command, "seconds": round(seconds, 1), "date": date.today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {self.settings.device}",
            "libraries": f"torch {torch.__version__}, transformers {transformers.__version__}",
            "licence": "MIT",
        }  # fmt: skip

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label pairs in use: those given, else all; a shipped miniature has those it was trained on."""
        given = self.settings.labels
        if given:
            return tuple(given)
        if self.settings.model in shipped_models():
            return label_pairs(("nonsense",))
        return label_pairs() if self.settings.suite == "words" else label_pairs(("nonsense", "plain"))

    @cached_property
    def pairs(self) -> tuple[str, ...]:
        """The class pairs of the suite."""
        return class_pairs() if self.settings.suite == "words" else sentences.PAIRS[self.settings.suite]

    @cached_property
    def texts(self) -> Mapping[str, list[str]] | None:
        """Class -> texts of the suite; None: the word lists."""
        return None if self.settings.suite == "words" else sentences.class_texts(self.settings.suite)

    @cached_property
    def form(self) -> Form:
        """The form of prompts: what is given, else the best-learned one of the grid."""
        k, separator = self.settings.k, self.settings.separator
        if k and separator:
            return Form(k, separator)
        grid = self.measured("forms")
        keep = (grid["k"] == (k or grid["k"])) & (grid["separator"] == (separator or grid["separator"]))
        return choose.form(grid.isel(prompt=keep.values))

    def blocks(self, n: int, seed: int, form: Form | None = None) -> list[Prompt]:
        seeds = [self.settings.seed, seed]
        return draw_blocks(n, form or self.form, seed=seeds, pairs=self.pairs, labels=self.labels, texts=self.texts)

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        return encode_all(prompts, self.model.tokenizer, self.model.context)

    def locating(self, form: Form | None = None) -> list[Encoded]:
        """Prompts of the blocks on which the form and the heads are chosen; they judge nothing."""
        return self.encode(self.blocks(self.settings.locate, LOCATING, form))

    def judging(self, share: float = 1.0) -> list[Encoded]:
        """Prompts of the first `share` of the blocks that judge."""
        return self.encode(self.blocks(max(1, round(share * self.settings.blocks)), JUDGING))

    @cached_property
    def sets(self) -> Mapping[str, list[Head]]:
        """Sets of heads by the rules of `choose`, from the locating blocks."""
        return choose.head_sets(self.measured("locating"), self.settings.top_k)


def _all_needs(name: str) -> list[str]:
    return sorted({name, *(part for need in MEASUREMENTS[name].needs for part in _all_needs(need))})


def recorded() -> dict[str, Path]:
    """Name -> folder of every model whose measurements are recorded in data/measurements."""
    return {path.name: path for path in sorted((data_folder() / "measurements").glob("*")) if path.is_dir()}


def open_recorded(model: str, suite: str, name: str) -> xr.Dataset | None:
    """A recorded measurement, None where there is none.

    Raises TwoTowersError for one that an older version of its code made, or of the code of a measurement that it needs.
    """
    path = data_folder() / "measurements" / model / suite / f"{name}.nc"
    if not path.is_file():
        return None
    found = observations.load(path)
    made_by = json.loads(found.attrs.get("identity", "{}")).get("versions", {})
    for part, version in _versions(name).items():
        if made_by.get(part) != version:
            raise TwoTowersError(
                f"the recorded measurement '{path.name}' of {model} rests on version {made_by.get(part)} of '{part}', "
                f"the code is of version {version}: record it again"
            )
    return found


def _versions(name: str) -> dict[str, int]:
    """Versions of the code of a measurement and of all that it needs."""
    return {part: MEASUREMENTS[part].version for part in _all_needs(name)}
