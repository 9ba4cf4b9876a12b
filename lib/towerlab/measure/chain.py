"""The chain of measurements of one model: what each is made from, and its file.

Answers on a grid of forms -> the form -> heads on locating blocks -> sets of heads -> everything
else, on other blocks. A file says in its attributes what made it. Files below `out` are a cache:
what was made otherwise is made again. No torch until something is measured.

    >>> run = Run(Settings(model="mini-gpt2", blocks=200))
    >>> run.path("heads").name                  # `run.measured("heads")` opens or makes it
    'heads.nc'
    >>> run.n_few, run.passes("heads")
    (50, 960.0)
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr
from twotowers import catalogue, choose, files
from twotowers.catalogue import NOT_TESTABLE
from twotowers.errors import NotTestable, TwoTowersError, Unavailable
from twotowers.heads import Head
from twotowers.paths import data_folder, is_own, shipped_models, slug
from twotowers.settings import SEPARATORS, Form, Settings, label_pairs

from towerlab.measure.recipe import Recipe, load_made, make, read_part
from towerlab.model import loading
from towerlab.progress import say
from towerlab.prompts import sentences
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.paper_sets import paper_prompts, sentence_sets
from towerlab.prompts.prompt import Encoded, Prompt, encode_all

if TYPE_CHECKING:
    from towerlab.model.model import Model

LOCATING, JUDGING = 1, 2
"""Seeds of the blocks on which forms and heads are chosen, and of those that judge"""
OPERATIONS, ON_GPU = 1e13, 100
"""What a part of a measurement takes: about a minute of two cores; on a GPU so many times as
much"""
AGAIN = "again"
"""Attribute of a file that holds nothing since what it needs could not be had: the next run asks
again"""
QUICK_PROMPTS = 20
"""Prompts of each of the paper's sets for a first look at a model of one's own"""


def recipe(name: str) -> Callable[[Run], Recipe | xr.Dataset]:
    """What makes a measurement: the function that data/versions.csv names. The first paragraph of
    its docstring says what it measures."""
    return getattr(
        importlib.import_module(f"towerlab.measure.{catalogue.row_of(name).module}"), f"_{name}"
    )


@dataclass(frozen=True)
class Run:
    """One model under one setting. Weights are read when a measurement is first made."""

    settings: Settings
    command: str = ""
    """what was typed, for the attributes of what is measured"""

    @cached_property
    def name(self) -> str:
        """The model's name among measurements: with digits of its fingerprint where another model
        has that name already."""
        name = slug(self.settings.model)
        if not is_own(self.settings.model):
            return name
        fingerprints = {loading.fingerprint(name)} if name in shipped_models() else set()
        for out in (data_folder() / "measurements", Path(self.settings.out)):
            first = sorted((out / name).glob("*/*.nc"))[:1]
            fingerprints |= {
                str(of.attrs.get("fingerprint"))
                for path in first
                if (of := load_made(path)) is not None
            }
        digits = self.fingerprint.partition("@")[2][: files.DIGITS_OF_NAMES]
        return name if fingerprints <= {self.fingerprint} else f"{name}--{digits}"

    @cached_property
    def model(self) -> Model:
        import torch  # where every measurement is there, its seconds are saved

        s = self.settings
        torch.manual_seed(0)
        return loading.load(s.model, dtype=s.dtype, device=s.device, device_map=s.device_map)

    @cached_property
    def fingerprint(self) -> str:
        return loading.fingerprint(self.settings.model)

    def path(self, name: str) -> Path:
        return files.folder(self.settings, self.name, name) / f"{name}.nc"

    def there(self, name: str) -> bool:
        """Whether its file is of this setting."""
        return load_made(self.path(name), self.identity(name)) is not None

    def measured(self, name: str) -> xr.Dataset:
        """The measurement, from its file where that is of this setting, else made and saved.

        Where it has no meaning for the model it is empty, and its attribute NOT_TESTABLE says why.
        """
        path, identity = self.path(name), self.identity(name)
        before = load_made(path, identity)
        if before is not None and AGAIN not in before.attrs:
            self._remove_parts(name)
            return before
        files.check_writable(path)
        # What it needs is made before the clock starts.
        needs = [self.measured(need) for need in catalogue.row_of(name).needs]
        # These were made before an interruption.
        parts = [read_part(part, identity) for part in self._parts(name)]
        start = time.monotonic() - sum(part.attrs["seconds"] for part in parts if part is not None)
        try:
            for lacking in (need.attrs for need in needs if NOT_TESTABLE in need.attrs):
                raise (Unavailable if AGAIN in lacking else NotTestable)(lacking[NOT_TESTABLE])
            data = self.made(name)
        except NotTestable as error:
            again = {AGAIN: 1} if isinstance(error, Unavailable) else {}
            data = xr.Dataset(attrs={NOT_TESTABLE: str(error), **again})
        seconds = time.monotonic() - start
        if self.settings.suite == "published":  # the sentences are not ours to pass on
            data = data.drop_vars(files.OPTIONAL, errors="ignore")
        files.save(name, data, path, self._provenance(name, identity, seconds))
        self._remove_parts(name)
        why = data.attrs.get(NOT_TESTABLE)
        say(
            f"{self.name}: {name} "
            + (f"is not testable: {why}" if why else f"measured in {seconds:.0f} s")
        )
        return files.load(path)

    def make(self, name: str, recipe: Recipe) -> xr.Dataset:
        """What a recipe of this measurement, or of a stage of it, makes."""
        return make(self, name, recipe)

    def made(self, name: str) -> xr.Dataset:
        """The measurement, made anew."""
        result = recipe(name)(self)
        return self.make(name, result) if isinstance(result, Recipe) else result

    def n_parts(self, name: str) -> int:
        """Parts of about a minute each. More parts cost more where a model is large: see
        `model.increase`."""
        parameters = sum(p.numel() for p in self.model.hf.parameters())
        most = OPERATIONS * (1 if self.model.device.type == "cpu" else ON_GPU)
        return max(
            1, round(2 * parameters * len(self.sample([name])[0].ids) * self.passes(name) / most)
        )

    def sample(self, names: Iterable[str]) -> list[Encoded]:
        """Some prompts of these measurements: a block as long as it may be chosen to be, or the
        paper's sentences, longest first."""
        if self.settings.suite != "words" and all(
            catalogue.row_of(name).on == "prompts" for name in names
        ):
            sets = sentence_sets(self.settings.suite).items()
            prompts = [p for name, texts in sets for p in paper_prompts(name, 2, texts=texts)]
            return sorted(encode_all(prompts, self.model.tokenizer), key=lambda e: -len(e.ids))
        form = Form(self.settings.k or choose.MOST_K, self.settings.separator or "space")
        return encode_all(self.blocks(1, LOCATING, form), self.model.tokenizer)

    def _parts(self, name: str) -> list[Path]:
        return sorted(self.path(name).parent.glob(f".{name}.*.part"))

    def _remove_parts(self, name: str) -> None:
        for path in self._parts(name):
            path.unlink(missing_ok=True)

    def identity(self, name: str) -> str:
        """What decides a measurement's numbers: see `files.identity`."""
        return files.identity(name, self.settings, self.fingerprint)

    def _provenance(self, name: str, identity: str, seconds: float) -> dict[str, str | int | float]:
        model, row = self.model, catalogue.row_of(name)
        return {
            "identity": identity, "model": self.name, "fingerprint": self.fingerprint,
            "quantisation": model.quantisation,
            "parameters": sum(p.numel() for p in model.hf.parameters()), "layers": model.n_layers,
            "heads": model.n_heads, "key_value_heads": model.n_key_value_heads,
            "vocabulary": model.unembedding.vocabulary, "suite": self.settings.suite,
            "command": self.command, "seconds": round(seconds, 1), "date": date.today().isoformat(),
            "machine": ", ".join([f"{platform.system()} {platform.machine()}",
                                  f"{os.cpu_count()} cores", self.settings.device]),
            "libraries": ", ".join(f"{of} {version(of)}" for of in ("torch", "transformers")),
            "labels_left_out": ", ".join(() if row.on == "prompts" else self.unsayable),
            "licence": "MIT",
        }  # fmt: skip

    @property
    def labels(self) -> tuple[str, ...]:
        """The label pairs in use: those given, else all that the tokenizer can say."""
        return tuple(
            self.settings.labels
            or (pair for pair in self._by_default if pair not in self.unsayable)
        )

    @property
    def _by_default(self) -> tuple[str, ...]:
        """A shipped miniature has the label pairs that it was trained on."""
        if self.settings.model in shipped_models():
            return label_pairs(("nonsense",))
        words = self.settings.suite == "words"
        return label_pairs() if words else label_pairs(("nonsense", "plain"))

    @cached_property
    def unsayable(self) -> Mapping[str, str]:
        """Label pairs that are left out, since the tokenizer does not say them as labels -> why.

        Raises TwoTowersError where it can say none; pairs that were given are not tried here.
        """
        out: dict[str, str] = {}
        arguments: dict[str, Any] = {"seed": 0, "pairs": self.pairs, "texts": self.texts}
        tokenizer = self.model.tokenizer  # a model that cannot be read is not the tokenizer's fault
        for pair in () if self.settings.labels else self._by_default:
            try:
                # A block of each class pair is tried, since classes may be the labels.
                for separator in SEPARATORS:
                    prompts = draw_blocks(
                        len(self.pairs), Form(1, separator), labels=[pair], **arguments
                    )
                    encode_all(prompts, tokenizer)
            except TwoTowersError as error:
                out[pair] = str(error)
        if out and len(out) == len(self._by_default):
            raise TwoTowersError(
                f"the tokenizer of {self.name} can say no label pair ({next(iter(out.values()))}); "
                "see labels=..."
            )
        if out:
            say(
                f"{self.name}: label pairs left out, which its tokenizer cannot say: "
                f"{', '.join(out)}"
            )
        return out

    @cached_property
    def pairs(self) -> tuple[str, ...]:
        """The class pairs of the suite."""
        return sentences.class_pairs(self.settings.suite)

    @cached_property
    def texts(self) -> Mapping[str, list[str]]:
        """Class -> texts of the suite."""
        return sentences.class_texts(self.settings.suite)

    @cached_property
    def form(self) -> Form:
        """The form of prompts: what is given, else the best-learned one of the grid."""
        k, separator = self.settings.k, self.settings.separator
        if k and separator:
            return Form(k, separator)
        grid = self.measured("forms")
        keep = (grid["k"] == (k or grid["k"])) & (
            grid["separator"] == (separator or grid["separator"])
        )
        return choose.form(grid.isel(prompt=keep.values))

    def blocks(self, n: int, seed: int, form: Form | None = None, **of: Any) -> list[Prompt]:
        """n blocks, of all class pairs, label pairs and texts, or of some: as of `draw_blocks`."""
        of = {"pairs": self.pairs, "labels": self.labels, "texts": self.texts} | of
        return draw_blocks(n, form or self.form, seed=[self.settings.seed, seed], **of)

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        return encode_all(prompts, self.model.tokenizer, self.model.context)

    @property
    def n_few(self) -> int:
        """Blocks on which interventions are judged, which run a prompt many times: two of every
        class pair, or a quarter of all blocks where that is more; in a quick look, which has fewer,
        all that there are."""
        return min(self.settings.blocks, max(2 * len(self.pairs), round(self.settings.blocks / 4)))

    @property
    def n_prompts(self) -> int:
        """Prompts of each of the paper's own sets."""
        return self.settings.prompts or (
            200 if self.settings.model in shipped_models() else QUICK_PROMPTS
        )

    @property
    def pairs_of_few(self) -> Sequence[str]:
        """The class pairs of those blocks."""
        return self.pairs[: self.n_few]

    def repeatable(self, pairs: Sequence[str]) -> Sequence[str]:
        """As many of these class pairs as so many blocks ask twice, at least one: for what takes a
        text of the other class from another block of the same pair."""
        return pairs[: max(1, self.n_few // 2)]

    def passes(self, name: str) -> float:
        """About how many plain passes of a prompt a measurement costs."""
        about = catalogue.row_of(name)
        n_blocks = {
            "locate": self.settings.locate,
            "blocks": self.settings.blocks,
            "few": self.n_few,
            "prompts": self.n_prompts,
        }
        each = about.passes if self.settings.suite == "words" else about.sentences or about.passes
        return each * 4 * n_blocks[about.on]  # four prompts a block, four sets of the paper

    def few(self) -> list[Encoded]:
        """Prompts of the first blocks that judge, `n_few` of them."""
        return self.encode(self.blocks(self.n_few, JUDGING))

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
