"""Measurements of all precomputed models and of the model of the settings.

    >>> measurements = Measurements(Settings(model="smollm2-135m"))
    >>> heads = measurements.measured("heads")       # {model: xarray.Dataset}, smallest first
    >>> random = measurements.control("ablations")   # the same of random sets of heads
    >>> random["smollm2-135m"].sizes["random_set"]
    20

The model of the settings is measured if its file is missing.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any

import xarray as xr

from twotowers import catalogue, files, head_selection, identity
from twotowers.catalogue import NOT_TESTABLE
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.names import is_local, slug
from twotowers.settings import Settings

BACKEND = "towerlab.measure.pipeline"


@contextlib.contextmanager
def needs_packages(model: str) -> Iterator[None]:
    """Run code that imports `towerlab`, and report a missing package in one line.

    Args:
        model: Name of the model that the code runs.

    Raises:
        TwoTowersError: If a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise TwoTowersError(
            f"cannot run '{model}': {error.name} is not installed; run `pip install -e .[measure]`"
        ) from None


class Measurements:
    """Open measurements of all models.

    Attributes:
        settings: All settings.
        model: Name of the model of the settings among measurements.
        left_out: Reason by model why a measurement has no meaning for it.
    """

    def __init__(self, settings: Settings, report: Callable[[str], None] = warnings.warn):
        """Open no measurement yet.

        Args:
            settings: All settings.
            report: Function that tells the reader about a file that cannot be used.
        """
        self.settings = settings
        self.report = report
        self.left_out: dict[str, str] = {}
        self._pipeline = cache(self._open_pipeline)
        self._files = cache(self._open_files)
        self.model = slug(settings.model)
        if is_local(settings.model):
            with needs_packages(settings.model):
                self.model = self._pipeline(settings.suite).name

    def _open_pipeline(self, suite: str) -> Any:
        """Return the pipeline that measures the model of the settings.

        `towerlab` is imported when it is first needed, because its packages are not needed for
        reading.
        """
        settings = self.settings.model_copy(update={"suite": suite})
        return importlib.import_module(BACKEND).Pipeline(settings)

    @cached_property
    def sets(self) -> dict[str, dict[str, list[Head]]]:
        """Sets of heads by model and name, from all selection blocks (`head_selection`)."""
        return {
            model: head_selection.head_sets(data, identity.top_k(data))
            for model, data in self.measured("selection").items()
        }

    def measured(
        self, name: str, suite: str | None = None, labels: str | None = None
    ) -> dict[str, xr.Dataset]:
        """Return a measurement of every model that has it, smallest model first.

        It is measured for the model of the settings if its file is missing. A model for which it
        has no meaning is left out, and its claims are not testable. `control` returns random sets.

            >>> measurements = Measurements(Settings(model="smollm2-135m"))
            >>> heads = measurements.measured("heads")["smollm2-135m"]
            >>> dict(heads["attribution"].sizes)
            {'prompt': 720, 'layer': 30, 'head': 9}

        Args:
            name: Measurement.
            suite: Another suite than the one of the settings, such as "sentences".
            labels: Prompts with "arbitrary" labels, with "names" of classes, or "all". By default
                arbitrary for evaluation blocks, and all for blocks that select heads and templates.

        Raises:
            TwoTowersError: If it has to be measured, and `towerlab` is not installed.
        """
        datasets = self._datasets(name, suite, labels)
        return {model: files.select_named_sets(data) for model, data in datasets.items()}

    def stored(self, name: str, suite: str | None = None) -> dict[str, xr.Dataset]:
        """Return a measurement of every model that has it already, smallest model first.

        Nothing is measured. So a chapter can show expensive numbers if there are any.

        Args:
            name: Measurement.
            suite: Another suite than the one of the settings, such as "sentences".
        """
        datasets = self._files(name, suite or self.settings.suite, False)
        return {model: files.select_labels(data, "arbitrary") for model, data in datasets.items()}

    def control(self, name: str) -> dict[str, xr.Dataset]:
        """Return a measurement of random sets of every model, over (head_set, random_set, ...).

            >>> measurements = Measurements(Settings(model="smollm2-135m"))
            >>> random = measurements.control("ablations")["smollm2-135m"]
            >>> dict(random["logit_difference"].sizes)
            {'head_set': 1, 'random_set': 20, 'prompt': 184}

        Args:
            name: Measurement.
        """
        return {
            model: random
            for model, data in self._datasets(name).items()
            if (random := files.select_random_sets(data)) is not None
        }

    def _datasets(
        self, name: str, suite: str | None = None, labels: str | None = None
    ) -> dict[str, xr.Dataset]:
        """Return a measurement of every model with its random sets."""
        suite = suite or self.settings.suite
        labels = labels or ("arbitrary" if catalogue.row_of(name).is_evaluation else "all")
        datasets = self._files(name, suite, True)
        return {model: files.select_labels(data, labels) for model, data in datasets.items()}

    def _open_files(self, name: str, suite: str, measures: bool) -> dict[str, xr.Dataset]:
        """Return the files of a measurement by model, and note its reasons in `left_out`."""
        found = {}
        for model in files.precomputed_models():
            try:
                if (data := files.open_precomputed(model, suite, name)) is not None:
                    found[model] = data
            except TwoTowersError as error:
                self.report(f"Left out: {error}.")
        model = self.model
        if not files.is_served(model, suite, name, self.settings):
            found.pop(model, None)  # a precomputed one has other settings
            with needs_packages(model):
                pipeline = self._pipeline(suite)
                data = pipeline.measured(name) if measures else pipeline.stored(name)
                if data is not None:
                    found[model] = data
        for model, data in found.items():
            if NOT_TESTABLE in data.attrs:
                self.left_out[model] = data.attrs[NOT_TESTABLE]
        by_size = sorted(found.items(), key=lambda item: item[1].attrs["parameters"])
        return {model: data for model, data in by_size if NOT_TESTABLE not in data.attrs}
