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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
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
    pages = [toc["root"]]
    for part in toc["parts"]:
        pages += [entry["file"] for entry in part["chapters"]]
    return pages


@dataclass
class Plan:
    """Inputs of the notebooks of the book, under some settings."""

    settings: Settings
    has_chosen_model: bool
    """Whether the settings name a model, which then replaces a chapter's own default model"""

    @cached_property
    def notebooks(self) -> dict[str, dict[str, Any]]:
        """Metadata of each listed notebook, by its name."""
        home = book_folder().parent
        toc = yaml.safe_load((home / "_toc.yml").read_text("utf8"))
        notebooks = {}
        for page in listed(toc):
            path = home / f"{page}.ipynb"
            if path.is_file():
                content = json.loads(path.read_text("utf8"))
                notebooks[path.stem] = content["metadata"]["twotowers"]
        return notebooks

    def __post_init__(self) -> None:
        """Open no pipeline yet, and each one once."""
        self.pipeline = cache(self._open_pipeline)

    def _open_pipeline(self, suite: str) -> Pipeline:
        """Return the pipeline of the default model for texts of a suite."""
        settings = self.settings.model_copy(update={"suite": suite})
        return Pipeline(settings)

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
        has_measurements = "measurements" in self.notebooks[notebook]
        return has_measurements and not self.is_own(notebook)

    def writes_evidence(self, notebook: str) -> bool:
        """Return whether a notebook judges claims or results of the paper.

        Args:
            notebook: Name of the notebook.
        """
        statements = *claims.claims().values(), *claims.paper_results().values()
        judging = {row.chapter for row in statements}
        return chapter_number(notebook) in judging

    def measurements(self, notebook: str) -> list[tuple[str, str]]:
        """Return suite and name of each measurement that a notebook reads.

        Args:
            notebook: Name of the notebook.
        """
        about = self.notebooks[notebook]
        suites = about.get("suites", [self.settings.suite])
        names = about.get("measurements", [])
        return list(product(suites, names))

    def to_measure(self, notebook: str) -> list[tuple[str, str]]:
        """Return suites and names of the files of the default model that a notebook reads.

        Files that are precomputed for that model under these settings are not among them.

        Args:
            notebook: Name of the notebook.
        """
        if self.is_own(notebook):
            return []
        pairs = []
        for suite, name in self.measurements(notebook):
            model = self.pipeline(suite).name
            if not files.is_served(model, suite, name, self.settings):
                pairs.append((suite, name))
        return pairs

    def inputs(self, notebook: str) -> list[str]:
        """Return the files of all measurements that a notebook reads, precomputed ones first.

        Args:
            notebook: Name of the notebook.

        Returns:
            Paths; a file of the default model may be missing.
        """
        wanted = set(self.measurements(notebook))
        paths = []
        for key, path in files.precomputed_files().items():
            _, suite, name = key
            if (suite, name) in wanted:
                paths.append(str(path))
        for suite, name in self.to_measure(notebook):
            path = self.pipeline(suite).path(name)
            paths.append(str(path))
        return paths

    def missing(self) -> dict[str, list[str]]:
        """Return what has to be measured before the chapters can run, by suite.

        Returns:
            Names of measurements whose file is missing or stale, in the order of the catalogue.
        """
        wanted: dict[str, set[str]] = {}
        for notebook in self.notebooks:
            for suite, name in self.to_measure(notebook):
                wanted.setdefault(suite, set()).add(name)
        rows = catalogue.catalogue()
        missing: dict[str, list[str]] = {}
        for suite, names in sorted(wanted.items()):
            for name, row in reversed(rows.items()):
                if name in names:
                    names.update(row.needs)
            in_order = [name for name in rows if name in names]
            stale = [name for name in in_order if self._is_stale(suite, name)]
            if stale:
                missing[suite] = stale
        return missing

    def _is_stale(self, suite: str, name: str) -> bool:
        """Return whether a measurement of the default model has no current file."""
        pipeline = self.pipeline(suite)
        expected = pipeline.identity(name)
        return not identity.is_current(pipeline.path(name), expected)

    def paths(self, names: Mapping[str, Sequence[str]]) -> list[Path]:
        """Return the files of measurements of the default model.

        Args:
            names: Names of measurements by suite.
        """
        paths = []
        for suite, of_suite in names.items():
            pipeline = self.pipeline(suite)
            paths += [pipeline.path(name) for name in of_suite]
        return paths

    def rests_on(self, notebook: str) -> dict[str, Any]:
        """Return what decides the numbers and words of a notebook, apart from files and code.

        Args:
            notebook: Name of the notebook.

        Returns:
            Model, texts and versions of its measurements, and digests of the tables that it uses.
        """
        measurements = []
        for suite, name in self.measurements(notebook):
            fingerprint = self.pipeline(suite).fingerprint
            digest = identity.text_digest(suite)
            versions = catalogue.versions(name)
            measurements.append((suite, fingerprint, digest, versions))
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
        content = (book_folder() / f"{notebook}.ipynb").read_text("utf8")
        digests = {}
        for path, digest in all_tables().items():
            if Path(path).name in content or path in SHARED_TABLES:
                digests[path] = digest
        texts = {"variables.csv": self._variables(notebook)}
        for table in OF_ALL:
            texts[f"{table}.csv"] = self.statements(notebook, table)
        for path, text in texts.items():
            digests[path] = identity.digits(text)
        return digests

    def _variables(self, notebook: str) -> str:
        """Return the rows of the measurements that a notebook reads, as CSV."""
        rows = read_csv(data_folder() / "variables.csv", str)
        names = [name for _, name in self.measurements(notebook)]
        is_read = rows["measurement"].isin(names)
        rows = rows[is_read]
        return rows.to_csv(index=False)

    def statements(self, notebook: str, table: str) -> str:
        """Return the rows of a table of statements that a notebook uses, as CSV.

        Args:
            notebook: Name of the notebook.
            table: "claims" or "figures".
        """
        rows = read_csv(data_folder() / f"{table}.csv", str)
        is_own = rows["chapter"] == chapter_number(notebook)
        is_of_all = rows["id"].isin(OF_ALL[table])
        rows = rows[is_own | is_of_all]
        return rows.to_csv(index=False)


def all_tables() -> dict[str, str]:
    """Return a digest of every data table except versions, by its path in the data folder.

    The identity of measurements has all that decides them.
    """
    data = data_folder()
    found = [*data.glob("*.csv")]
    found += data.glob("*/*.csv")  # a folder may be a link
    tables = {}
    for path in sorted(found):
        name = path.relative_to(data).as_posix()
        if name != "versions.csv" and not path.name.startswith("."):
            tables[name] = identity.digits(read_text(path))
    return tables


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
    needed = set[str]()
    for name in names:
        needed.update(catalogue.row_of(name).needs)
    first = [name for name in names if name in needed]
    rest = [name for name in names if name not in needed]
    costs = {name: catalogue.row_of(name).passes for name in rest}
    rest.sort(key=costs.__getitem__, reverse=True)
    n_shares = min(n, len(rest))
    dealt = [rest[i::n_shares] for i in range(n_shares)]
    alone = [first] if first else []
    return [alone, dealt]
