"""What a chapter opens: measurements of all models at hand, and the one place where claims are judged and figures shown.

    chapter = book.open(globals())                    # checks the parameters cell
    heads = chapter.measured("heads")                 # {model: xarray.Dataset}, the parameter's model and every recorded one
    chapter.compare("located-prefer", {m: choose.attention_difference(d) for m, d in heads.items()})
    chapter.figure("4.1", chart, "What to see. How it was made.")

`chapter.close()` writes the rows of evidence.
"""

from __future__ import annotations

import ast
import html
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import xarray as xr
from IPython.display import HTML, display
from pandas.io.formats.style import Styler

from twotowers import choose, claims, evidence, exhibits, explore, figures, intervals, pages, recorded, store
from twotowers.claims import Claim
from twotowers.data_files import shown_name
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.evidence import EvidenceRow
from twotowers.forms import Form
from twotowers.heads import Head, Heads
from twotowers.intervals import Interval
from twotowers.recording import Recording, of_labels
from twotowers.settings import Settings
from twotowers.store import Laboratory

DRAWS = 1000


def open(cells: Mapping[str, Any], own: Sequence[str] = ()) -> Chapter:
    """The chapter of a notebook, from its `globals()`; `own`: parameters of this notebook alone.

    Raises TwoTowersError, in one line, for a wrong parameter, and for one that papermill was given and nobody knows.
    """
    settings = {name: cells[name] for name in Settings.model_fields if name in cells}
    unknown = {name: None for name in _papermill_names(cells) if name not in (*settings, *own)}
    return Chapter(Settings.of(settings | unknown))


def _papermill_names(cells: Mapping[str, Any]) -> list[str]:
    """Names that papermill's own cell assigns: it puts one after the parameters cell, with this comment in its first line."""
    sources = [source for source in cells.get("In", []) if source.startswith("# Parameters\n")]
    statements = [statement for source in sources for statement in ast.parse(source).body if isinstance(statement, ast.Assign)]
    return [target.id for statement in statements for target in statement.targets if isinstance(target, ast.Name)]


class Chapter:
    """Measurements of all models, claims and figures of one notebook."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.rows: list[EvidenceRow] = []
        self.exhibits: dict[str, list[dict]] = {}
        self.left_out: dict[str, str] = {}
        self.not_recorded: dict[str, list[str]] = {}
        self._laboratories: dict[str, Laboratory] = {settings.suite: Laboratory(settings)}
        self.model = self._laboratories[settings.suite].name
        if settings.blocks < pages.QUICK and self.model not in recorded.recorded_models():
            pages.quick_look(self.model, settings.blocks)
        self._open: dict[tuple[str, str], dict[str, Recording]] = {}
        self._views: dict[tuple[str, str, str], dict[str, Recording]] = {}
        self._settings_of: dict[tuple[str, str], dict[str, Any]] = {}

    def measured(self, name: str, suite: str | None = None, labels: str | None = None) -> dict[str, xr.Dataset]:
        """Model -> measurement, every recorded model and the parameter's, smallest first. Measures what is not there.

        Models for which it has no meaning are left out, and their claims not testable. `suite`: another than the chapter's,
        such as "sentences". `labels`: prompts with arbitrary labels, those with names of classes, or all; default: arbitrary
        ones on blocks that judge, all on those that choose heads and forms. Random sets are left to `control`.
        """
        return {model: of.data for model, of in self._recording(name, suite, labels).items()}

    def control(self, name: str, suite: str | None = None) -> dict[str, xr.Dataset]:
        """Model -> the same measurement of random sets or directions: variables over (heads, draw, prompt)."""
        return {model: of.control for model, of in self._recording(name, suite, None).items() if of.control is not None}

    def _recording(self, name: str, suite: str | None, labels: str | None) -> dict[str, Recording]:
        key = (suite or self.settings.suite, name, labels := labels or ("arbitrary" if store.about(name).judges else "all"))
        if key not in self._views:
            self._views[key] = {model: of_labels(every, labels) for model, every in self._files(name, suite).items()}
        return self._views[key]

    def _files(self, name: str, suite: str | None = None) -> dict[str, Recording]:
        suite = suite or self.settings.suite
        if (suite, name) not in self._open:
            every = {model: of for model in recorded.recorded_models() for of in self._opened(model, suite, name)}
            files = {model: measurement for model, measurement in every.items() if measurement is not None}
            settings = self.settings.model_copy(update={"suite": suite})
            if self.model not in files or not store.serves(files[self.model], settings):
                files[self.model] = self._laboratories.setdefault(suite, Laboratory(settings)).recording(name)
            for model in sorted(every.keys() - files.keys()):
                self.not_recorded.setdefault(model, []).append(recorded.command(model, suite, name))
            why = store.NOT_TESTABLE
            self.left_out |= {m: of.data.attrs[why] for m, of in files.items() if why in of.data.attrs}
            files = {m: of for m, of in files.items() if why not in of.data.attrs}
            self._open[suite, name] = dict(sorted(files.items(), key=lambda item: item[1].data.attrs["parameters"]))
        return self._open[suite, name]

    def _opened(self, model: str, suite: str, name: str) -> list[Recording | None]:
        """The recorded file, or None; nothing where it is odd or of other settings than those before it: a line says so."""
        try:
            recording = recorded.open_recorded(model, suite, name)
            if recording is not None:
                of = recorded.settings_of(recording)
                first = self._settings_of.setdefault((model, suite), of)
                for other in (key for key in of if of[key] != first.get(key, of[key])):
                    raise TwoTowersError(f"'{model}/{suite}/{name}.nc': its {other} is {of[other]}, that of others {first[other]}")
        except TwoTowersError as error:
            pages.note(f"Left out: {error}.")
            return []
        return [recording]

    @cached_property
    def sets(self) -> dict[str, dict[str, list[Head]]]:
        """Model -> name -> heads, by the rules of `choose`, from all locating blocks."""
        return {m: choose.head_sets(d, self.settings.top_k) for m, d in self.measured("locating").items()}

    @cached_property
    def by_increase(self) -> dict[str, list[Head]]:
        """Model -> the `top_k` heads with the largest mean increase on the locating blocks."""
        return {m: choose.top(of, self.settings.top_k) for m, of in self._increases.items()}

    @cached_property
    def in_context(self) -> dict[str, list[Head]]:
        """Model -> the paper's in-context heads: the twenty with the largest mean increase, five in a model of fewer than 200."""
        return {m: choose.top(of, 20 if of.size >= 200 else 5) for m, of in self._increases.items()}

    @cached_property
    def _increases(self) -> dict[str, xr.DataArray]:
        """Model -> mean increase of every head on the locating blocks: (layer, head)."""
        return {m: d["increase"].sel(norm="frozen").mean("prompt") for m, d in self.measured("norms").items()}

    def turns(self, model: str, target: xr.DataArray) -> Iterator[tuple[dict[str, list[Head]], xr.DataArray]]:
        """(sets, prompts that they judge): by the same rules, from locating blocks of other class pairs and label pairs."""
        locating = self.measured("locating", labels="arbitrary")[model]
        for chooses, judges in choose.turns(locating, target):
            if not chooses.sizes["prompt"]:
                raise NotTestable("no locating block has other classes and other labels: give more (locate)")
            yield choose.head_sets(chooses, self.settings.top_k), judges

    @property
    def learned(self) -> dict[str, Interval]:
        """Model -> accuracy between the two labels on judging blocks."""
        return {m: intervals.mean(d["logit_difference"] > 0) for m, d in self.measured("heads").items()}

    @property
    def choice(self) -> dict[str, Interval]:
        """Model -> mean logit difference on judging blocks (nats)."""
        return {m: intervals.mean(d["logit_difference"]) for m, d in self.measured("heads").items()}

    @property
    def forms(self) -> dict[str, Form]:
        """Model -> the form of its prompts: what its measurements were given, else the best-learned one."""
        out = {}
        for model, of in self._files("heads").items():
            settings = json.loads(of.data.attrs["identity"])
            both = settings["k"] and settings["separator"]
            out[model] = Form(settings["k"], settings["separator"]) if both else choose.form(self._files("forms")[model].data)
        return out

    def compare(
        self,
        claim: str,
        values: Mapping[str, xr.DataArray],
        *,
        whole: Mapping[str, xr.DataArray] | None = None,
        control: Mapping[str, xr.DataArray] | None = None,
        gate: bool = True,
        untestable: Mapping[str, str] | None = None,
    ) -> None:
        """Judge one claim for every model: shows its sentence, and a forest plot where there is a control or a threshold to draw,
        and keeps its rows of evidence.

        values: model -> values of every prompt, over the dimensions that the claim's line in data/claims.csv wants
        (`evidence.of_set`). whole: model -> (prompt,), what they are a share of. control: model -> the same values of random
        sets, with a dimension `draw` more. gate: a model that does not learn the task is "not testable"; False for the claim
        that it learns. untestable: model -> why the claim has no meaning there; a model in it needs no values.
        """
        line = claims.claims().get(claim)
        if line is None:
            raise TwoTowersError(f"no claim '{claim}' in data/claims.csv: add a line with its rule and date")
        why = {m: reason for m, reason in self.left_out.items() if m not in values} | dict(untestable or {})
        rows = []
        for model in (model for model in values if model not in why):
            try:
                self._check_learned(model, gate)
                rows.append(self._row(line, model, values, whole, control))
            except NotTestable as error:
                why[model] = str(error)
        rows += [evidence.not_testable(line, model, reason) for model, reason in why.items()]
        order = [*values, *why]
        rows.sort(key=lambda row: order.index(row.model))
        self.rows = [row for row in self.rows if row.claim != claim] + rows
        table = evidence.check_rows(rows)
        missing = {m: commands for m, commands in self.not_recorded.items() if m not in order}
        shared = [m for m, of in self._files("heads").items() if of.data.attrs["key_value_heads"] == 1]
        display(HTML(pages.sentence(line, table, missing, shared if line.control == "random sets" else ())))
        with_effect = table.dropna(subset="effect").assign(row=lambda t: t["model"].map(shown_name))
        if with_effect["draws"].any() or (line.null and len(with_effect)):  # else a chart would repeat the sentence
            unit = "" if line.measure.endswith(f"({line.unit})") else f" ({line.unit})"
            chart = figures.forest(with_effect, title=line.measure + unit, null=line.null)
            display(chart.properties(description=line.statement))

    def _check_learned(self, model: str, gate: bool) -> None:
        if model not in self.learned:
            raise NotTestable(f"what it learns is not recorded; {recorded.command(model, self.settings.suite, 'heads')} does it")
        if gate and not self.learned[model].low > pages.CHANCE:
            raise NotTestable(pages.not_learned(self.learned[model]))

    def _row(self, claim: Claim, model: str, values, whole, control) -> EvidenceRow:
        if whole is not None and model not in whole:
            raise TwoTowersError(f"claim '{claim.id}', {model}: give whole= for this model, too")
        sets = self.sets[model] if claim.heads else {}
        random = None if control is None else control.get(model)
        turns, draw = partial(self.turns, model), partial(self._drawn, model)
        effect, control = evidence.of_set(claim, values[model], random, sets, turns, draw)
        if random is not None and "random sets" in claim.control and claim.heads in sets:  # files hold those that this rule draws
            draws = random.sizes["draw"]
            n_sets = draws // 2 if "directions" in claim.control else draws
            names = [*map(str, map(sorted, draw(sets[claim.heads], n_sets))), *map(str, range(n_sets, draws))]
            control = control.assign_coords(sets=("draw", names))
        of, choice, form = whole and whole[model], self.choice[model].estimate, str(self.forms[model])
        return evidence.compare(claim, model, effect, whole=of, control=control, choice=choice, form=form)

    def matched(self, model: str, heads: str | Heads, draws: int = DRAWS) -> list[list[Head]]:
        """Random sets matched to a named set, or to some heads: same layers, other key-value groups; different ones among so many
        draws. Where there is none, or the set has no heads, a note says so."""
        name, these = (heads, self.sets[model][heads]) if isinstance(heads, str) else ("such", heads)
        try:
            sets = self._drawn(model, these, draws) if these else []
            why = f"the rule names no {name} heads"
        except NotTestable as error:
            sets, why = [], str(error)
        if not sets:
            pages.note(f"{model}: no other heads beside these: {why}.")
        return list({frozenset(of): of for of in reversed(sets)}.values())[::-1]

    def _drawn(self, model: str, heads: Heads, draws: int = DRAWS) -> list[list[Head]]:
        """So many random sets matched to some heads, also where one comes again."""
        about = self._files("heads")[model].data.attrs
        layers, n_heads, n_kv = (int(about[name]) for name in ("layers", "heads", "key_value_heads"))
        return choose.matched_sets([Head(*at) for at in heads], layers, n_heads, n_heads // n_kv, draws)

    def table(
        self,
        values: Mapping[str, xr.DataArray],
        by: Sequence[str] = (),
        *,
        whole: Mapping[str, xr.DataArray] | None = None,
        clusters: Sequence[str] = intervals.CLUSTERS,
        **columns: Any,
    ) -> pd.DataFrame:
        """Means with 95% intervals: a row for every model and every combination of entries along the dimensions `by`.

        values: model -> (prompt, and those of `by`). whole: model -> (prompt,) or with some of `by`, what they are a share
        of; a share of what is not clear of zero has no numbers. Columns: model, those of `by`, value, low, high, n (clusters
        of the first factor), and those given; they are there without rows, too. Where all values are missing, as of a set
        without heads, so are the numbers. Raises TwoTowersError for other dimensions, and for values that are missing in part.
        """
        rows = []
        for model, data in values.items():
            if set(data.dims) != {"prompt", *by}:
                dims, expected = (", ".join(map(str, names)) for names in (data.dims, ("prompt", *by)))
                raise TwoTowersError(f"a table of values over ({dims}), wanted ({expected}): name them in by=, or take means")
            for places in itertools.product(*(range(data.sizes[dim]) for dim in by)):
                at = dict(zip(by, places, strict=True))
                part = data.isel(at)
                all_of = None if whole is None else whole[model].isel({dim: i for dim, i in at.items() if dim in whole[model].dims})
                if part.isnull().all():
                    number = Interval(np.nan, (0,))
                else:
                    number = intervals.mean(part, clusters) if all_of is None else intervals.ratio(part, all_of, clusters)
                entries = {dim: data[dim].values.tolist()[i] for dim, i in at.items()}
                numbers = {"value": number.estimate, "low": number.low, "high": number.high, "n": number.n[0]}
                rows.append({"model": model, **entries, **numbers, **columns})
        return pd.DataFrame(rows, columns=["model", *by, "value", "low", "high", "n", *columns])

    def figure(self, number: str, shown: alt.TopLevelMixin | Styler, caption: str) -> None:
        """Show a chart, or a table, with its number and caption: what to see, then how it was made.

        Once "heads" was opened it also names, with their accuracy, models in no verdict since they do not learn the task or too few
        blocks tell; and, with the command that makes it, what recorded models lack.
        """
        drawn = getattr(shown, "data", None)
        caption += " Nothing to draw: no model has these numbers." if isinstance(drawn, pd.DataFrame) and drawn.empty else ""
        if (self.settings.suite, "heads") in self._open:
            chance = [f"{m} ({pages.not_learned(of)})" for m, of in self.learned.items() if not of.low > pages.CHANCE]
            caption += f" In no verdict: {', '.join(chance)}." if chance else ""
        commands = [command for of_model in self.not_recorded.values() for command in of_model]
        caption += f" Not recorded, so not everywhere; this makes it: {pages.joined(commands)}." if commands else ""
        table = isinstance(shown, Styler)
        display(HTML(shown.to_html()) if table else shown.properties(description=caption))
        of = f"{'Table' if table else 'Figure'} {number}"
        display(HTML(f'<p class="caption" id="fig-{number.replace(".", "-")}"><b>{of}.</b> {html.escape(caption)}</p>'))

    def beside_paper(self, item: str, figure: str, found: Mapping[str, tuple[float, str]]) -> None:
        """Judge whether an exhibit of the paper, such as "figure 6", comes out in each model: shows the sentence, keeps the rows.

        Args:
            item: of data/figures.csv, whose rule judges.
            figure: the book's own that stands beside it, such as "4.1".
            found: model -> (the statistic, in words what it rests on). Models left out elsewhere are not testable here.
        """
        exhibit = exhibits.exhibits().get(item)
        if exhibit is None or exhibit.not_run:
            raise TwoTowersError(f"no rule for '{item}' in data/figures.csv: add one with its date")
        why = {m: reason for m, reason in self.left_out.items() if m not in found}
        of_models = exhibits.rows(exhibit, figure, found, why)
        self.exhibits[item] = of_models
        display(HTML(exhibits.sentence(exhibit, of_models)))

    def explore(self, name: str, *variables: str, over: str = "") -> None:
        """Show variables of a measurement with controls: model, head, prompts (`explore.Explorer`)."""
        files, suite = self.measured(name), self.settings.suite
        missing = sorted({*recorded.recorded_models(), self.model} - files.keys())
        why = {m: self.left_out.get(m, f"{recorded.command(m, suite, name)} records it") for m in missing}
        display(explore.Explorer(files, variables, over, why, self.model))

    def close(self) -> None:
        """Write the chapter's rows of evidence: beside the measurements, or where the build of the book wants them."""
        folder = Path(os.environ.get("TWOTOWERS_EVIDENCE") or store.folder(self.settings, self.model) / "evidence")
        every = [row for of_models in self.exhibits.values() for row in of_models]
        tables = (".", evidence.check_rows(self.rows)), ("exhibits", pd.DataFrame(every))
        for place, table in (each for each in tables if len(each[1])):
            path = folder / place / f"{table['chapter'].iloc[0]}.csv"
            part = path.with_suffix(f".{os.getpid()}.part")
            try:
                with store.writing(path):
                    table.to_csv(part, index=False)
                    os.replace(part, path)
            except TwoTowersError as error:
                if "TWOTOWERS_EVIDENCE" in os.environ:  # a build, whose pages read it
                    raise
                pages.note(f"Verdicts are not kept: {error}")
