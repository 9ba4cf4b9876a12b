"""The pipeline of measurements of one model, with their inputs and their files.

Answers on a grid of templates -> the template -> heads on selection blocks -> sets of heads ->
everything else, on evaluation blocks. Files in `out` are a cache: a measurement with another
identity is made again. torch is loaded when something is measured.

    >>> pipeline = Pipeline(Settings(model="mini-gpt2", evaluation_blocks=200))
    >>> pipeline.path("heads").name             # `pipeline.measured("heads")` opens or makes it
    'heads.nc'
    >>> pipeline.part_size("heads"), pipeline.part_size("head_effects")
    (852, 28)
"""

from __future__ import annotations

import importlib
import os
import platform
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr
from twotowers import catalogue, files, head_selection, identity
from twotowers.catalogue import NOT_TESTABLE
from twotowers.errors import NotTestable, TwoTowersError, Unavailable
from twotowers.heads import Head
from twotowers.names import is_local, slug
from twotowers.paths import included_models
from twotowers.settings import Settings, Template

from towerlab.measure.design import SELECTION, Design
from towerlab.measure.recipe import Recipe, joined
from towerlab.model import checkpoint, loading
from towerlab.progress import progress, say

if TYPE_CHECKING:
    from towerlab.model.model import Model

PASSES = 64
"""Cost of a part of a measurement, in plain passes of a prompt (about), for a model of LARGE
parameters or more"""
LARGE = 1e9
SMALLEST = 1 / 16
"""Share of LARGE from which on a smaller model has no larger parts"""
BLOCK = 4
"""Number of prompts of a block"""
AGAIN = "again"
"""Attribute of a file without variables: an input was missing, and the next run tries again"""
SMALL = {"zlib": True, "complevel": 6}
ROUNDED = {"significant_digits": 9, "quantize_mode": "BitRound"}
"""Nine bits of a float's mantissa are one part in 1,024"""
OPTIONAL = {"query", "text"}
"""Coordinates that are left out if we may not pass on the texts"""


def write(data: xr.Dataset, path: Path) -> None:
    """Write a dataset: floats as float32, rounded to nine bits if they have three dimensions.

    Args:
        data: Dataset.
        path: File, which is replaced when it is complete.
    """

    def encoding(array: xr.Variable) -> dict[str, Any]:
        # Texts are stored as characters, which compress; strings of varying length do not.
        if array.dtype.kind in "UO":
            return SMALL | {"dtype": "S1"}
        if array.dtype.kind != "f":
            return SMALL
        return SMALL | {"dtype": "float32"} | (ROUNDED if array.ndim > 2 else {})

    encodings: dict[Hashable, Any] = {
        name: encoding(array) for name, array in data.variables.items()
    }
    with files.deferred_signals(), files.atomic_write(path) as scratch:
        data.to_netcdf(scratch, engine="netcdf4", encoding=encodings)


def save(name: str, data: xr.Dataset, path: Path, attributes: Mapping[str, Any]) -> None:
    """Write the variables of a measurement with their units.

    Args:
        name: Measurement.
        data: Dataset of its variables. Other variables are left out.
        path: File.
        attributes: Origin of the measurement.

    Raises:
        TwoTowersError: If the file cannot be written.
    """
    rows = [row for row in catalogue.variables()[name].values() if row.variable in data]
    variables = {row.variable: data[row.variable].assign_attrs(units=row.units) for row in rows}
    write(data[[*variables]].assign(variables).assign_attrs(attributes, measurement=name), path)


def recipe_of(name: str) -> Callable[[Pipeline], Recipe | xr.Dataset]:
    """Return the function that makes a measurement; its docstring describes the measurement.

    Args:
        name: Measurement.

    Returns:
        Function of a pipeline.
    """
    module = importlib.import_module(f"towerlab_experiments.{catalogue.row_of(name).module}")
    return module.RECIPES[name]


@dataclass(frozen=True)
class Pipeline:
    """The measurements of one model under one setting, opened from files or made."""

    settings: Settings
    command: str = ""
    """Command line, for the attributes of files"""
    named: frozenset[str] | None = None
    """Measurements that a command names. A file of another one is used also if it has its own
    numbers of blocks and prompts. None: it must have those of the settings"""

    @cached_property
    def name(self) -> str:
        """Name of the model among measurements.

        The name of a folder contains digits of its fingerprint, because folders may share a name. A
        copy of an included or precomputed model has the name of that model.
        """
        name = slug(self.settings.model)
        if not is_local(self.settings.model):
            return name
        folder = included_models().get(name)
        included = checkpoint.fingerprint_of_folder(folder, name) if folder else None
        if self.fingerprint in (included, files.precomputed_fingerprint(name)):
            return name
        return f"{name}--{self.fingerprint.partition('@')[2][: identity.DIGITS_OF_NAMES]}"

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the model: see `checkpoint.fingerprint`."""
        return checkpoint.fingerprint(self.settings.model)

    @cached_property
    def model(self) -> Model:
        """The model, whose weights are read when a measurement is first made.

        Raises:
            TwoTowersError: If it cannot be loaded, or if its files are other than the fingerprint
                says: they changed, or a precomputed model has other weights by now.
        """
        options = self.settings.model_dump(include={"dtype", "device", "device_map"})
        model = loading.load(self.settings.model, **options)
        expected, found = (x.partition("@")[2] for x in (self.fingerprint, model.fingerprint))
        if found != expected:
            raise TwoTowersError(
                f"cannot use the weights of '{self.settings.model}': expected those of the "
                f"fingerprint {expected}, got {found}; run the same command again, and if the "
                f"model is precomputed, delete data/measurements/{self.name} first"
            )
        return model

    @cached_property
    def design(self) -> Design:
        """The prompts of the setting.

        Raises:
            TwoTowersError: If the texts are too few for k, or the heads for top_k, before anything
                is measured.
        """
        n_heads = self.model.n_layers * self.model.n_heads
        if self.settings.top_k > max(n_heads, head_selection.HEADS_PER_SET):
            raise TwoTowersError(
                f"cannot use top_k '{self.settings.top_k}': expected at most {n_heads}, the number "
                f"of heads of '{self.name}'; choose a smaller top_k"
            )
        design = Design(
            self.settings,
            self.model.tokenizer,
            self.model.context,
            lambda: self.measured("templates"),
            self.name,
        )
        if self.settings.k:
            template = Template(self.settings.k, self.settings.separator or "space")
            with suppress(Unavailable):  # a published set is missing, and others may be measured
                design.encode(design.blocks(1, SELECTION, template))
        return design

    @cached_property
    def head_sets(self) -> Mapping[str, list[Head]]:
        """Sets of heads by the rules of `head_selection`, from the selection blocks."""
        return head_selection.head_sets(self.measured("selection"), self.settings.top_k)

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Values by name that several recipes need, kept in memory.

        A recipe may leave here what its passes give another one (`recipe_selection_increases`).
        """
        return {}

    def path(self, name: str) -> Path:
        """Return the file of a measurement.

        Args:
            name: Measurement.

        Returns:
            Path, whether or not the file exists.
        """
        return identity.folder_of(self.settings, self.name, name) / f"{name}.nc"

    def identity(self, name: str) -> str:
        """Return the identity of a measurement: see `identity.identity_of`.

        Args:
            name: Measurement.

        Returns:
            Text of all inputs that decide its numbers.
        """
        return identity.identity_of(name, self.settings, self.fingerprint)

    def stored(self, name: str) -> xr.Dataset | None:
        """Return a measurement from its file, or None if the file is missing or stale.

        Args:
            name: Measurement.
        """
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            data = files.load(path)
        except files.UnexpectedVariables:  # other code wrote it
            return None
        is_current = data.attrs["identity"] == self.identity(name)
        if self.named is not None and name not in self.named:
            is_current = identity.differs_only_in_numbers(data, self.identity(name))
        return data if is_current and AGAIN not in data.attrs else None

    def measured(self, name: str) -> xr.Dataset:
        """Return a measurement from its file if that has the current identity, or measure it.

        Args:
            name: Measurement.

        Returns:
            The measurement. If it has no meaning for the model, it has no variables, and its
            attribute NOT_TESTABLE contains the reason.
        """
        if (data := self.stored(name)) is not None:
            return data
        needs = [self.measured(need) for need in catalogue.row_of(name).needs]
        missing = [need for need in needs if NOT_TESTABLE in need.attrs]
        start = time.monotonic()
        data = missing[0] if missing else self.computed(name)
        seconds = time.monotonic() - start
        if self.settings.suite == "published":  # we may not pass on the sentences
            data = data.drop_vars(OPTIONAL, errors="ignore")
        path = self.path(name)
        save(name, data, path, self._attributes(name, seconds))
        for file in path.parent.glob(f".{name}.*.part"):
            file.unlink(missing_ok=True)
        reason = data.attrs.get(NOT_TESTABLE)
        result = f"is not testable: {reason}" if reason else f"measured in {seconds:.0f} s"
        say(f"{self.name}: {name} {result}")
        return files.load(path)

    def computed(self, name: str) -> xr.Dataset:
        """Compute a measurement again, without its file.

        Args:
            name: Measurement.

        Returns:
            The measurement, without variables if it has no meaning for the model.
        """
        try:
            result = recipe_of(name)(self)
            return self.run(name, result) if isinstance(result, Recipe) else result
        except NotTestable as error:
            again = {AGAIN: 1} if isinstance(error, Unavailable) else {}
            return xr.Dataset(attrs={NOT_TESTABLE: str(error), **again})

    def run(self, name: str, recipe: Recipe) -> xr.Dataset:
        """Run a recipe, or one of the stages of a measurement.

        The result is computed part by part. A finished part is kept until the measurement is saved,
        so an interrupted measurement continues after its last part, with equal numbers.

        Args:
            name: Measurement.
            recipe: Recipe of the measurement or of a stage.

        Returns:
            Dataset of all parts, with the coordinates `matched_set` and `control` if it has sets.
        """
        made_from = self.identity(name)
        size = recipe.part or self.part_size(name)
        n = len(recipe.items)
        stage, parts = recipe.stage or recipe.measure.__name__, []
        sets = [recipe.all_sets] if recipe.sets else []
        with progress(f"{name}, all", n) as bar:
            for start in range(0, n, size):
                path = self.path(name).with_name(f".{name}.{stage}.{start}+{size}.part")
                try:
                    data = files.read_dataset(path)
                except TwoTowersError:  # missing, or of a process that was killed
                    data = xr.Dataset()
                if data.attrs.get("identity") != made_from:
                    some = recipe.items[start : start + size]
                    data = recipe.measure(self.model, some, *sets, *recipe.arguments)
                    if n > size:
                        write(data.assign_attrs(identity=made_from), path)
                        data = files.read_dataset(path)
                parts.append(data.drop_attrs())
                bar.update(size)
        return recipe.with_matched_sets(joined(parts))

    def part_size(self, name: str) -> int:
        """Return the number of prompts of a part: whole blocks, of about a minute on two cores.

        Larger parts would be faster, since more prompts have equal lengths.

        Args:
            name: Measurement.

        Returns:
            Number of prompts.
        """
        row = catalogue.row_of(name)
        passes = row.passes if self.settings.suite == "words" else row.sentences or row.passes
        size = min(1, max(SMALLEST, self.model.n_parameters / LARGE))
        n_blocks = round(PASSES / size / passes / BLOCK)
        return BLOCK * max(1, n_blocks)

    def _attributes(self, name: str, seconds: float) -> dict[str, str | int | float]:
        """Return the attributes of the file of a measurement."""
        model = self.model
        return {
            "identity": self.identity(name), "model": self.name, "fingerprint": self.fingerprint,
            "quantisation": getattr(model.config, "made_from", {}).get("quantisation", ""),
            "parameters": model.n_parameters, "layers": model.n_layers,
            "heads": model.n_heads, "key_value_heads": model.n_key_value_heads,
            "vocabulary": model.unembedding.vocabulary, "suite": self.settings.suite,
            "command": self.command, "seconds": round(seconds, 1), "date": date.today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
                       f"{self.settings.device}",
            "libraries": f"torch {version('torch')}, transformers {version('transformers')}",
            "licence": "MIT",
        }  # fmt: skip
