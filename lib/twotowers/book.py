"""A chapter: the one place where claims are judged and figures shown.

    >>> chapter = open({"model": "smollm2-135m"})       # in a notebook: open(globals())
    >>> heads = chapter.measured("heads")               # {model: xarray.Dataset}
    >>> heads["smollm2-135m"]["contribution"].sizes["layer"]
    30
    >>> sorted(chapter.sets["smollm2-135m"])
    ['by attention', 'by writing', 'located']

`chapter.figure("4.1", chart, "What to see. How it was made.")` shows a chart, `chapter.close()`
writes the rows of evidence.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import xarray as xr
from IPython.display import HTML, display
from pandas.io.formats.style import Styler

from twotowers import (
    choose,
    claims,
    evidence,
    exhibits,
    explore,
    figures,
    files,
    intervals,
    pages,
    selection,
)
from twotowers.claims import Claim
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.evidence import EvidenceRow
from twotowers.heads import Head, Heads
from twotowers.measurements import Measurements
from twotowers.settings import Form, Settings

DRAWS = 1000


def open(cells: Mapping[str, Any], own: Sequence[str] = ()) -> Chapter:
    """The chapter of a notebook.

    Args:
        cells: its `globals()`.
        own: parameters of this notebook alone.

    Raises:
        TwoTowersError: in one line, for a wrong parameter, and for one that papermill was given and
            nobody knows.
    """
    given = [name for name in Settings.model_fields if name in cells]
    for source in cells.get("In", []):
        # papermill's own cell assigns what it was given.
        if source.startswith("# Parameters\n"):
            given += [
                name for name in re.findall(r"^(\w+) = ", source, re.MULTILINE) if name not in own
            ]
    return Chapter(Settings.of({name: cells.get(name) for name in given}))


class Model:
    """One model as claims ask of it: `sets` of heads, random ones, and its prompts.

    `learned`: its accuracy between the two labels on judging blocks.
    """

    def __init__(self, chapter: Chapter, name: str, heads: xr.Dataset):
        self.name, self.chapter, self.heads = name, chapter, heads
        self.learned = intervals.mean(heads["logit_difference"] > 0)

    @property
    def sets(self) -> dict[str, list[Head]]:
        return self.chapter.sets[self.name]

    @property
    def form(self) -> Form:
        """The form of its prompts: what its measurements were given, else the best-learned one."""
        given = json.loads(self.heads.attrs["identity"])
        if given["k"] and given["separator"]:
            return Form(given["k"], given["separator"])
        return choose.form(self.chapter.measured("forms", labels="all")[self.name])

    def turns(self, target: xr.DataArray) -> Iterator[tuple[dict[str, list[Head]], xr.DataArray]]:
        """Sets by the same rules, from locating blocks of other class pairs and label pairs.

        Yields:
            (sets, the prompts of `target` that they judge).
        """
        locating = self.chapter.measured("locating", labels="arbitrary")[self.name]
        for chooses, judges in choose.turns(locating, target):
            if not chooses.sizes["prompt"]:
                raise NotTestable(
                    "no locating block has other classes and other labels: give more (locate)"
                )
            yield choose.head_sets(chooses, self.chapter.settings.top_k), judges

    def drawn(self, heads: Heads, draws: int = DRAWS) -> list[list[Head]]:
        """So many random sets matched to some heads, also where one comes again."""
        n_layers, n_heads, n_kv = (
            int(self.heads.attrs[name]) for name in ("layers", "heads", "key_value_heads")
        )
        return choose.matched_sets(
            [Head(*at) for at in heads], n_layers, n_heads, n_heads // n_kv, draws
        )


class Chapter(Measurements):
    """Measurements of all models, claims and figures of one notebook."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.rows: list[EvidenceRow] = []
        self.exhibits: dict[str, list[dict]] = {}
        if settings.blocks < pages.QUICK and self.model not in files.precomputed_models():
            pages.quick_look(self.model, settings.blocks)

    @cached_property
    def models(self) -> dict[str, Model]:
        """Every model whose answers on judging blocks are there."""
        return {name: Model(self, name, heads) for name, heads in self.measured("heads").items()}

    @cached_property
    def sets(self) -> dict[str, dict[str, list[Head]]]:
        """Model -> name -> heads, by the rules of `choose`, from all locating blocks."""
        return {
            m: choose.head_sets(d, self.settings.top_k)
            for m, d in self.measured("locating").items()
        }

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
        """Judge one claim for every model.

        Shows its sentence, and a forest plot where there is a control or a threshold to draw, and
        keeps its rows of evidence.

        Args:
            claim: the id of a line of data/claims.csv.
            values: model -> values of every prompt, over the dimensions that the line wants
                (`selection.select`).
            whole: model -> (prompt,), what they are a share of.
            control: model -> the same values of random sets, with a dimension `random_set` more.
            gate: a model that does not learn the task is "not testable"; False for the claim that
                it learns.
            untestable: model -> why the claim has no meaning there; a model in it needs no values.

        Raises:
            TwoTowersError: naming claim and model, for what does not fit the line.
        """
        line = claims.claims().get(claim)
        if line is None:
            raise TwoTowersError(
                f"no claim '{claim}' in data/claims.csv: add a line with its rule and date"
            )
        why = {m: reason for m, reason in self.left_out.items() if m not in values} | dict(
            untestable or {}
        )
        rows = []
        for model in dict.fromkeys([*values, *why]):
            try:
                if model in why:
                    raise NotTestable(why[model])
                of = self._learned(model, gate)
                all_of = None if whole is None else whole[model]
                random = None if control is None else control.get(model)
                rows.append(self._row(line, of, values[model], all_of, random))
            except NotTestable as error:
                rows.append(evidence.not_testable(line, model, str(error)))
            except TwoTowersError as error:
                raise TwoTowersError(f"claim '{claim}', {model}: {error}") from None
        self.rows = [row for row in self.rows if row.claim != claim] + rows
        table = pd.DataFrame(rows, columns=evidence.COLUMNS)
        shared = [m for m, of in self.models.items() if of.heads.attrs["key_value_heads"] == 1]
        elsewhere = shared if line.control == "random sets" else ()
        display(HTML(pages.sentence(line, table, elsewhere)))
        with_effect = table.dropna(subset="effect")
        # Without a control or a threshold a chart would repeat the sentence.
        if with_effect["draws"].any() or (line.null and len(with_effect)):
            unit = "" if line.measure.endswith(f"({line.unit})") else f" ({line.unit})"
            chart = figures.forest(with_effect, title=line.measure + unit, null=line.null)
            display(chart.properties(description=line.statement))

    def _learned(self, model: str, gate: bool) -> Model:
        """A model that learns the task, or any where there is no gate. Raises NotTestable."""
        if model not in self.models:
            raise NotTestable("its answers are not measured, so whether it learns is unknown")
        of = self.models[model]
        if gate and not of.learned.low > pages.CHANCE:
            raise NotTestable(pages.not_learned(of.learned))
        return of

    def _row(
        self,
        claim: Claim,
        model: Model,
        values: xr.DataArray,
        whole: xr.DataArray | None,
        random: xr.DataArray | None,
    ) -> EvidenceRow:
        effect, control = selection.select(claim, values, random, model)
        if control is not None and random is not None and claim.heads in model.sets:
            draws = random.sizes["random_set"]  # files hold those that this rule draws
            sets = model.drawn(
                model.sets[claim.heads], draws // 2 if "directions" in claim.control else draws
            )
            names = [str(sorted(of)) for of in sets] + [str(i) for i in range(len(sets), draws)]
            control = control.assign_coords(sets=("random_set", names))
        choice = intervals.mean(model.heads["logit_difference"]).estimate
        return evidence.compare(
            claim,
            model.name,
            effect,
            whole=whole,
            control=control,
            choice=choice,
            form=str(model.form),
        )

    def matched(self, model: str, name: str, draws: int) -> list[tuple[Head, ...]]:
        """Different random sets matched to a named set: same layers, other key-value groups.

        Of so many draws some may be the same. Where the model has no other heads, or the set none,
        a note says so.
        """
        heads = self.sets[model][name]
        try:
            if not heads:
                raise NotTestable(f"the rule names no {name} heads")
            return list(
                dict.fromkeys(tuple(sorted(of)) for of in self.models[model].drawn(heads, draws))
            )
        except NotTestable as error:
            pages.note(f"{model}: no other heads beside these: {error}.")
            return []

    table = staticmethod(intervals.table)

    def figure(self, number: str, shown: alt.TopLevelMixin | Styler, caption: str) -> None:
        """Show a chart, or a table, with its number and caption: what to see, then how it was made.

        Once "heads" was opened the caption also names, with their accuracy, models in no verdict
        since they do not learn the task or too few blocks tell.
        """
        data = getattr(shown, "data", None)
        drawn = data if isinstance(data, pd.DataFrame) else None
        if drawn is not None and drawn.empty:
            caption += " Nothing to draw: no model has these numbers."
        if self.is_open("heads"):
            learned = {model: of.learned for model, of in self.models.items()}
            chance = [
                f"{m} ({pages.not_learned(of)})"
                for m, of in learned.items()
                if not of.low > pages.CHANCE
            ]
            caption += f" In no verdict: {', '.join(chance)}." if chance else ""
        table = isinstance(shown, Styler)
        display(HTML(shown.to_html()) if table else shown.properties(description=caption))
        text = f"<b>{'Table' if table else 'Figure'} {number}.</b> {escape(caption)}"
        display(HTML(f'<p class="caption" id="fig-{number.replace(".", "-")}">{text}</p>'))

    def beside_paper(self, item: str, figure: str, found: Mapping[str, tuple[float, str]]) -> None:
        """Judge whether an exhibit of the paper comes out in each model: shows it, keeps the rows.

        Args:
            item: of data/figures.csv, whose rule judges, such as "figure 6".
            figure: the book's own that stands beside it, such as "4.1"; "" for none.
            found: model -> (the statistic, in words what it rests on). Models left out elsewhere
                are not testable here.
        """
        exhibit = exhibits.exhibits().get(item)
        if exhibit is None or exhibit.not_run:
            raise TwoTowersError(f"no rule for '{item}' in data/figures.csv: add one with its date")
        why = {m: reason for m, reason in self.left_out.items() if m not in found}
        of_models = exhibits.rows(exhibit, figure, found, why)
        self.exhibits[item] = of_models
        display(HTML(exhibits.sentence(exhibit, of_models)))

    def explore(self, name: str, *variables: str, over: str = "") -> None:
        """Show variables of a measurement with controls: model, head, prompts (`explore.explorer`).

        `over`: a coordinate of prompts whose groups are rows.
        """
        files = {m: d[[*variables]] for m, d in self.measured(name).items()}
        if files:
            display(explore.explorer(files, over, self.model))

    def close(self) -> None:
        """Write the rows of evidence, beside the measurements or where a build wants them."""
        folder = Path(
            os.environ.get("TWOTOWERS_EVIDENCE")
            or files.folder(self.settings, self.model) / "evidence"
        )
        every = [row for of_models in self.exhibits.values() for row in of_models]
        for place, rows in ((folder, self.rows), (folder / "exhibits", every)):
            if not rows:
                continue
            table = pd.DataFrame(rows)
            try:
                with files.atomic_write(place / f"{table['chapter'].iloc[0]}.csv") as scratch:
                    table.to_csv(scratch, index=False)
            except TwoTowersError as error:
                if "TWOTOWERS_EVIDENCE" in os.environ:  # a build, whose pages read it
                    raise
                pages.note(f"Verdicts are not kept: {error}")
