"""The chain of measurements of one model: what each is made from, and its file.

    run = Run(Settings(model="smollm2-135m", blocks=200))
    run.measured("heads")        # opened where it stands, else measured, with all that it needs, and saved

    answers on a grid of forms -> the form -> heads on locating blocks -> sets of heads -> everything else, on other blocks

A file says in its attributes what made it. Files below `out` are a cache: what was made otherwise is made again. No torch
until something is measured.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr
from twotowers import choose, recorded
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.forms import SEPARATORS, Form, label_pairs
from twotowers.heads import Head
from twotowers.opened import Opened, each_part
from twotowers.paths import data_folder, is_own, shipped_models, slug
from twotowers.recorded import NOT_TESTABLE
from twotowers.schema import OtherForm
from twotowers.settings import Settings

from towerlab.model import files, named
from towerlab.progress import say
from towerlab.prompts import sentences
from towerlab.prompts.blocks import class_pairs, draw_blocks
from towerlab.prompts.prompt import Encoded, Prompt, encode_all

if TYPE_CHECKING:
    from towerlab.model.model import Model

LOCATING, JUDGING = 1, 2
"""Seeds of the blocks on which forms and heads are chosen, and of those that judge"""


def _load(path: Path) -> Opened | None:
    """A file, None for one of another form: older code wrote it."""
    try:
        return recorded.load(path)
    except OtherForm:
        return None


@dataclass(frozen=True)
class Run:
    """One model under one setting. Weights are read when a measurement is first made."""

    settings: Settings
    command: str = ""
    """what was typed, for the attributes of what is measured"""

    @cached_property
    def name(self) -> str:
        """The model's name among measurements: with digits of its fingerprint where another model has that name already."""
        name = slug(self.settings.model)
        if not is_own(self.settings.model):
            return name
        known = {files.fingerprint(name)} if name in (*shipped_models(), *named.catalogue()) else set()
        for out in (data_folder() / "measurements", Path(self.settings.out)):
            first = sorted((out / name).glob("*/*.nc"))[:1]
            known |= {str(of.data.attrs.get("fingerprint")) for path in first if (of := _load(path))}
        digits = self.fingerprint.partition("@")[2][: recorded.DIGITS_OF_NAMES]
        return name if known <= {self.fingerprint} else f"{name}--{digits}"

    @cached_property
    def model(self) -> Model:
        import torch  # where every measurement is there, its seconds are saved

        from towerlab.model.loading import load

        s = self.settings
        torch.manual_seed(0)
        return load(s.model, dtype=s.dtype, device=s.device, device_map=s.device_map)

    @cached_property
    def fingerprint(self) -> str:
        return files.fingerprint(self.settings.model)

    def path(self, name: str) -> Path:
        return recorded.folder(self.settings, self.name, recorded.about(name).judges) / f"{name}.nc"

    def measured(self, name: str, again: bool = False) -> xr.Dataset:
        """The measurement, from its file where that is of this setting, else made and saved.

        Where it has no meaning for the model it is empty, and its attribute NOT_TESTABLE says why.
        """
        return self.opened(name, again).data

    def opened(self, name: str, again: bool = False) -> Opened:
        """The same with its control, of random sets of heads or random directions."""
        path, identity = self.path(name), self.identity(name)
        if path.is_file() and not again and (before := _load(path)) and before.data.attrs.get("identity") == identity:
            return before
        recorded.check_writable(path)
        for need in recorded.about(name).needs:
            self.measured(need)  # before the clock starts
        from towerlab.measure.registry import measurements

        started = time.monotonic()
        try:
            made = measurements()[name].make(self)
        except NotTestable as error:
            made = xr.Dataset(attrs={NOT_TESTABLE: str(error)})
        opened = made if isinstance(made, Opened) else Opened(made)
        seconds = time.monotonic() - started
        if self.settings.suite == "published":  # the sentences are not ours to pass on
            texts = ["query", "text", "source_text"]
            opened = each_part(opened, lambda part: part.drop_vars(texts, errors="ignore"))
        recorded.save(opened, path, self._provenance(name, identity, seconds))
        why = opened.data.attrs.get(NOT_TESTABLE)
        say(f"{self.name}: {name} " + (f"is not testable: {why}" if why else f"measured in {seconds:.0f} s"))
        return recorded.load(path)

    def identity(self, name: str) -> str:
        """What decides a measurement's numbers: see `recorded.identity`."""
        return recorded.identity(name, self.settings, self.fingerprint)

    def _provenance(self, name: str, identity: str, seconds: float) -> dict[str, str | int | float]:
        model = self.model
        return {
            "measurement": name, "version": recorded.about(name).version, "identity": identity,
            "model": self.name, "fingerprint": self.fingerprint, "quantisation": model.quantisation,
            "parameters": sum(p.numel() for p in model.hf.parameters()), "layers": model.n_layers, "heads": model.n_heads,
            "key_value_heads": model.n_key_value_heads, "vocabulary": model.unembedding.vocabulary,
            "suite": self.settings.suite, "command": self.command, "seconds": round(seconds, 1), "date": date.today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {self.settings.device}",
            "libraries": ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers")),
            "labels_left_out": ", ".join(self.unsayable), "licence": "MIT",
        }  # fmt: skip

    @property
    def labels(self) -> tuple[str, ...]:
        """The label pairs in use: those given, else all that the tokenizer can say."""
        return tuple(self.settings.labels or (pair for pair in self._by_default if pair not in self.unsayable))

    @property
    def _by_default(self) -> tuple[str, ...]:
        """A shipped miniature has the label pairs that it was trained on."""
        if self.settings.model in shipped_models():
            return label_pairs(("nonsense",))
        return label_pairs() if self.settings.suite == "words" else label_pairs(("nonsense", "plain"))

    @cached_property
    def unsayable(self) -> Mapping[str, str]:
        """Label pairs that are left out, since the tokenizer does not say them as labels -> why.

        Raises TwoTowersError where it can say none; pairs that were given are not tried here.
        """
        out: dict[str, str] = {}
        drawn: dict[str, Any] = {"seed": 0, "pairs": self.pairs, "texts": self.texts}
        tokenizer = self.model.tokenizer  # a model that cannot be read is not the tokenizer's fault
        for pair in () if self.settings.labels else self._by_default:
            try:
                for separator in SEPARATORS:  # a block of each class pair, since classes may be the labels
                    prompts = draw_blocks(len(self.pairs), Form(1, separator), labels=[pair], **drawn)
                    encode_all(prompts, tokenizer)
            except TwoTowersError as error:
                out[pair] = str(error)
        if out and len(out) == len(self._by_default):
            raise TwoTowersError(f"the tokenizer of {self.name} can say no label pair ({next(iter(out.values()))}); see labels=...")
        if out:
            say(f"{self.name}: label pairs left out, which its tokenizer cannot say: {', '.join(out)}")
        return out

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

    @property
    def fewest(self) -> int:
        """Blocks: two of every class pair."""
        return 2 * len(self.pairs)

    @property
    def n_few(self) -> int:
        """Blocks on which interventions are judged, which run a prompt many times: a quarter, but not less than `fewest`."""
        return max(self.fewest, round(self.settings.blocks / 4))

    def few(self) -> list[Prompt]:
        """Prompts of the first blocks that judge, `n_few` of them."""
        return self.blocks(self.n_few, JUDGING)

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
