"""Plan of a build: what each chapter reads, and which measurements are missing.

    >>> plan = Plan(Settings(), has_chosen_model=False)
    >>> any(path.endswith("paper.nc") for path in plan.inputs("04-attention-weights"))
    True

`Plan.rests_on` returns the model, texts, versions and rows of data tables that decide a chapter,
and `Plan.missing` the measurements without a current file.

The metadata of a notebook name its measurements: `"twotowers": {"measurements": ["heads", ...]}`.
With `"evidence": true` it reads the evidence of all other chapters.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from twotowers import catalogue, claims, files, identity
from twotowers.judged_model import LEARNED
from twotowers.paths import book_folder, chapter_number, data_folder
from twotowers.settings import Settings
from twotowers.tables import read_csv, read_text

from towerlab.measure.pipeline import Pipeline

OF_ALL = {"claims": (LEARNED,), "figures": claims.TASK}
"""Table of statements -> the rows that decide what every chapter says"""
SHARED_TABLES = ("models/names.csv", "solved.csv")
"""Tables that every chapter uses"""


def listed(toc: Mapping[str, Any]) -> list[str]:
    """Return every page that _toc.yml lists, without its ending, the opening page first.

    Args:
        toc: Content of _toc.yml.

    Returns:
        Pages as paths relative to the folder of _toc.yml, such as "book/intro".
    """
    return [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]


@dataclass(frozen=True)
class Plan:
    """Inputs of the notebooks of the book, under some settings."""

    settings: Settings
    has_chosen_model: bool
    """Whether the settings name a model, which then replaces a chapter's own default model"""

    @cached_property
    def notebooks(self) -> dict[str, dict[str, Any]]:
        """Metadata of each listed notebook, by its name."""
        home = book_folder().parent
        pages = listed(yaml.safe_load((home / "_toc.yml").read_text("utf8")))
        paths = [path for page in pages if (path := home / f"{page}.ipynb").is_file()]
        notebooks = {path.stem: json.loads(path.read_text("utf8")) for path in paths}
        return {name: content["metadata"]["twotowers"] for name, content in notebooks.items()}

    @cached_property
    def _pipelines(self) -> dict[str, Pipeline]:
        """Pipelines of the default model by suite, as far as they were needed."""
        return {}

    def pipeline(self, suite: str) -> Pipeline:
        """Return the pipeline of the default model for texts of a suite.

        Args:
            suite: Suite of the texts.
        """
        if suite not in self._pipelines:
            settings = self.settings.model_copy(update={"suite": suite})
            self._pipelines[suite] = Pipeline(settings)
        return self._pipelines[suite]

    def reads_evidence(self, notebook: str) -> bool:
        """Return whether a notebook reads the evidence of all other chapters.

        Args:
            notebook: Name of the notebook.
        """
        return bool(self.notebooks[notebook].get("evidence"))

    def is_own(self, notebook: str) -> bool:
        """Return whether a notebook has a default model of its own, to which no settings apply.

        Chapter 8 has a precomputed one.

        Args:
            notebook: Name of the notebook.
        """
        return "model" in self.notebooks[notebook] and not self.has_chosen_model

    def takes_settings(self, notebook: str) -> bool:
        """Return whether the settings are parameters of a notebook.

        Args:
            notebook: Name of the notebook.
        """
        return "measurements" in self.notebooks[notebook] and not self.is_own(notebook)

    def writes_evidence(self, notebook: str) -> bool:
        """Return whether a notebook judges claims or results of the paper.

        Args:
            notebook: Name of the notebook.
        """
        statements = *claims.claims().values(), *claims.paper_results().values()
        return chapter_number(notebook) in {row.chapter for row in statements}

    def measurements(self, notebook: str) -> Iterator[tuple[str, str]]:
        """Yield suite and name of each measurement that a notebook reads.

        Args:
            notebook: Name of the notebook.

        Yields:
            Suite of the texts, and measurement.
        """
        about = self.notebooks[notebook]
        for suite in about.get("suites", [self.settings.suite]):
            for name in about.get("measurements", []):
                yield suite, name

    def to_measure(self, notebook: str) -> list[tuple[str, str]]:
        """Return suites and names of the files of the default model that a notebook reads.

        Files that are precomputed for that model under these settings are not among them.

        Args:
            notebook: Name of the notebook.
        """
        if self.is_own(notebook):
            return []
        pairs = ((self.pipeline(suite), suite, name) for suite, name in self.measurements(notebook))
        return [
            (suite, name)
            for pipeline, suite, name in pairs
            if not files.is_served(pipeline.name, suite, name, self.settings)
        ]

    def inputs(self, notebook: str) -> list[str]:
        """Return the files of all measurements that a notebook reads, precomputed ones first.

        Args:
            notebook: Name of the notebook.

        Returns:
            Paths; a file of the default model may be missing.
        """
        wanted = {*self.measurements(notebook)}
        found = files.precomputed_files()
        paths = [path for (_, *which), path in found.items() if tuple(which) in wanted]
        paths += [self.pipeline(suite).path(name) for suite, name in self.to_measure(notebook)]
        return [*map(str, paths)]

    def missing(self) -> dict[str, list[str]]:
        """Return what has to be measured before the chapters can run, by suite.

        Returns:
            Names of measurements whose file is missing or stale, in the order of the catalogue.
        """
        wanted = {pair for notebook in self.notebooks for pair in self.to_measure(notebook)}
        for name, row in reversed(catalogue.catalogue().items()):
            suites = {suite for suite, of_chapter in wanted if of_chapter == name}
            wanted |= {*itertools.product(suites, row.needs)}
        missing: dict[str, list[str]] = {}
        for suite in sorted({suite for suite, _ in wanted}):
            pipeline = self.pipeline(suite)
            names = (name for name in catalogue.catalogue() if (suite, name) in wanted)
            stale = [
                name
                for name in names
                if not identity.is_current(pipeline.path(name), pipeline.identity(name))
            ]
            if stale:
                missing[suite] = stale
        return missing

    def paths(self, names: Mapping[str, Sequence[str]]) -> list[Path]:
        """Return the files of measurements of the default model.

        Args:
            names: Names of measurements by suite.
        """
        return [self.pipeline(suite).path(name) for suite in names for name in names[suite]]

    def rests_on(self, notebook: str) -> dict[str, Any]:
        """Return what decides the numbers and words of a notebook, apart from files and code.

        Args:
            notebook: Name of the notebook.

        Returns:
            Model, texts and versions of its measurements, and digests of the tables that it uses.
        """
        measurements = [
            (
                suite,
                self.pipeline(suite).fingerprint,
                identity.text_digest(suite),
                catalogue.versions(m),
            )
            for suite, m in self.measurements(notebook)
        ]
        return {"measurements": measurements, "tables": self.tables(notebook)}

    def tables(self, notebook: str) -> dict[str, str]:
        """Return digests of the data tables that a notebook uses.

        A notebook uses every table that it names. Of claims, of results of the paper and of
        variables it uses the rows of its own; pages that read all evidence use all rows of all
        tables.

        Args:
            notebook: Name of the notebook.

        Returns:
            Digests by path of the table.
        """
        if self.reads_evidence(notebook):
            return all_tables()
        text = (book_folder() / f"{notebook}.ipynb").read_text("utf8")
        used = {path: digest for path, digest in all_tables().items() if Path(path).name in text}
        of_chapter = {name: self.statements(notebook, name) for name in OF_ALL}
        variables = read_csv(data_folder() / "variables.csv", str)
        names = [name for _, name in self.measurements(notebook)]
        of_chapter["variables"] = variables[variables["measurement"].isin(names)].to_csv(
            index=False
        )
        rows = {f"{name}.csv": text for name, text in of_chapter.items()}
        rows |= {path: read_text(data_folder() / path) for path in SHARED_TABLES}
        return used | {path: identity.digits(text) for path, text in rows.items()}

    def statements(self, notebook: str, table: str) -> str:
        """Return the rows of a table of statements that a notebook uses, as CSV.

        Args:
            notebook: Name of the notebook.
            table: "claims" or "figures".
        """
        rows = read_csv(data_folder() / f"{table}.csv", str)
        is_own = rows["chapter"] == chapter_number(notebook)
        return rows[is_own | rows["id"].isin(OF_ALL[table])].to_csv(index=False)


def all_tables() -> dict[str, str]:
    """Return a digest of every data table except versions, by its path in the data folder.

    The identity of measurements has all that decides them.
    """
    data = data_folder()
    found = [*data.glob("*.csv"), *data.glob("*/*.csv")]  # a folder may be a link
    paths = (path for path in sorted(found) if not path.name.startswith("."))
    tables = {path.relative_to(data).as_posix(): read_text(path) for path in paths}
    return {path: identity.digits(text) for path, text in tables.items() if path != "versions.csv"}


def shares(names: Sequence[str], n: int) -> list[list[list[str]]]:
    """Return measurements in two stages, each dealt out to processes.

    First come those that others of them need, in one process. The rest is dealt out to `n`
    processes, so that no measurement is made twice.

    Args:
        names: Measurements.
        n: Maximum number of processes.

    Returns:
        Stages of lists of names. No list is empty.
    """
    rows = {name: catalogue.row_of(name) for name in names}
    needed = {need for row in rows.values() for need in row.needs}
    first = [name for name in names if name in needed]
    rest = sorted((name for name in names if name not in needed), key=lambda x: -rows[x].passes)
    stages = [[first], [rest[i::n] for i in range(n)]]
    return [[share for share in stage if share] for stage in stages]
