"""Measurements of every model at hand: recorded ones, and those of the model of the settings.

every = Measurements(Settings(model="mini-gpt2"))
every.measured("heads")             # {model: xarray.Dataset}, smallest model first
every.control("ablations")          # the same of random sets of heads
every.lacking()                     # {model: the commands that record what it lacks of that}
"""

from __future__ import annotations

from typing import Any

import xarray as xr

from twotowers import pages, recorded, store
from twotowers.errors import TwoTowersError
from twotowers.recording import Recording, of_labels
from twotowers.settings import Settings
from twotowers.store import Laboratory


class Measurements:
    """What is opened stays open. `left_out`: model -> why a measurement has no meaning for it."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.left_out: dict[str, str] = {}
        self.not_recorded: dict[str, dict[str, list[str]]] = {}
        self._laboratories: dict[str, Laboratory] = {settings.suite: Laboratory(settings)}
        self.model = self._laboratories[settings.suite].name
        self._open: dict[tuple[str, str, str], dict[str, Recording]] = {}
        self._settings_of: dict[tuple[str, str, str], Any] = {}
        self._told: set[tuple[str, str]] = set()

    def measured(
        self, name: str, suite: str | None = None, labels: str | None = None
    ) -> dict[str, xr.Dataset]:
        """Model -> measurement, smallest model first. Measures what is not there.

        Models for which it has no meaning are left out, and their claims not testable. Random sets
        are left to `control`.

        Args:
            name: of the measurement.
            suite: another than the settings', such as "sentences".
            labels: prompts with "arbitrary" labels, those with "names" of classes, or "all"; by
                default arbitrary ones on blocks that judge, all on those that choose heads and
                forms.
        """
        return {model: of.data for model, of in self._recordings(name, suite, labels).items()}

    def control(self, name: str) -> dict[str, xr.Dataset]:
        """Model -> the same of random sets or directions: variables over (heads, draw, prompt)."""
        return {
            model: of.control
            for model, of in self._recordings(name).items()
            if of.control is not None
        }

    def _recordings(
        self, name: str, suite: str | None = None, labels: str | None = None
    ) -> dict[str, Recording]:
        suite = suite or self.settings.suite
        labels = labels or ("arbitrary" if store.about(name).judges else "all")
        key = suite, name, labels
        if key not in self._open and labels == "all":
            self._open[key] = self._files(name, suite)
        elif key not in self._open:
            self._open[key] = {
                model: of_labels(every, labels)
                for model, every in self._recordings(name, suite, "all").items()
            }
        return self._open[key]

    def _files(self, name: str, suite: str) -> dict[str, Recording]:
        files = {}
        for model in recorded.recorded_models():
            try:
                recording = recorded.open_recorded(model, suite, name)
                if recording is not None:
                    self._check_settings(recording, model, suite, name)
                    files[model] = recording
                elif model != self.model:
                    self.not_recorded.setdefault(model, {}).setdefault(suite, []).append(name)
            except TwoTowersError as error:
                # The same is wrong with many files of a model where its texts are gone.
                reason = model, str(error).partition(": ")[2]
                if reason not in self._told:
                    pages.note(f"Left out: {error}.")
                self._told.add(reason)
        settings = self.settings.model_copy(update={"suite": suite})
        if self.model not in files or not store.serves(files[self.model], settings):
            files[self.model] = self._laboratories.setdefault(
                suite, Laboratory(settings)
            ).recording(name)
        for model, of in files.items():
            if store.NOT_TESTABLE in of.data.attrs:
                self.left_out[model] = of.data.attrs[store.NOT_TESTABLE]
        by_size = sorted(files, key=lambda model: files[model].data.attrs["parameters"])
        return {
            model: files[model]
            for model in by_size
            if store.NOT_TESTABLE not in files[model].data.attrs
        }

    def _check_settings(self, recording: Recording, model: str, suite: str, name: str) -> None:
        """Raises TwoTowersError where a recorded file is of other settings than those before it."""
        for key, value in recorded.settings_of(recording).items():
            first = self._settings_of.setdefault((model, suite, key), value)
            if value != first:
                raise TwoTowersError(
                    f"'{model}/{suite}/{name}.nc': its {key} is {value}, that of others {first}"
                )

    def is_open(self, name: str) -> bool:
        """Whether a measurement of the settings' suite was asked for."""
        return (self.settings.suite, name, "all") in self._open

    def lacking(self) -> dict[str, str]:
        """Model -> what would record all that it lacks of what was asked for."""
        lacks = self.not_recorded.items()
        return {
            m: "; ".join(recorded.command(m, suite, names) for suite, names in of.items())
            for m, of in lacks
        }
