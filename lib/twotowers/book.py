"""The chapter of a notebook: its measurements, models, figures and judged claims.

    >>> chapter = open({"model": "smollm2-135m"})       # in a notebook: open(globals())
    >>> heads = chapter.measured("heads")               # {model: xarray.Dataset}
    >>> heads["smollm2-135m"]["attribution"].sizes["layer"]
    30
    >>> sorted(chapter.sets["smollm2-135m"])
    ['by attention', 'by attribution', 'by written logit difference']

Claims are judged and figures are shown only here. `chapter.figure("4.1", chart, "Caption.")` shows
a chart, and `chapter.close()` writes the rows of evidence.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import xarray as xr
from IPython.display import HTML, display
from pandas.io.formats.style import Styler

from twotowers import (
    claims,
    evidence,
    explore,
    files,
    identity,
    intervals,
    pages,
    paper_results,
    strips,
)
from twotowers import theme as _theme  # noqa: F401  charts have its theme and renderer
from twotowers.claims import NOT_TESTABLE, Claim, PaperResult, Statement
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.evidence import EvidenceRow, verdict_row
from twotowers.head_selection import MIN_ATTENTION_DIFFERENCE, label_heads_without_preference
from twotowers.heads import Head, Sizes
from twotowers.judged_model import LEARNED, JudgedModel, selected
from twotowers.measurements import Measurements
from twotowers.names import is_known
from twotowers.paper_results import Result, Solved
from twotowers.random_heads import largest_share_in_layer
from twotowers.settings import FEW_BLOCKS, Settings
from twotowers.tables import shown_name

BLOCKS = "evaluation_blocks", "selection_blocks"
"""Settings that count blocks"""


def open(variables: Mapping[str, Any], extra: Sequence[str] = ()) -> Chapter:
    """Return the chapter of a notebook.

        >>> chapter = open({"model": "smollm2-135m", "k": 4, "other": "no setting"})
        >>> chapter.settings.k, chapter.settings.evaluation_blocks
        (4, 50)

    The number of blocks may be "auto". It is then the default, or FEW_BLOCKS for a model that is
    neither included nor precomputed nor measured already.

    Args:
        variables: Variables of the notebook, from its `globals()`.
        extra: Parameters that only this notebook has.

    Raises:
        TwoTowersError: If a parameter has a wrong value, or if papermill was given an unknown one.
            The message has one line.
    """
    names = Settings.model_fields.keys() & variables.keys()
    for cell in variables.get("In", []):
        # papermill's own cell assigns the parameters that papermill was given.
        if cell.startswith("# Parameters\n"):
            names |= {*re.findall(r"^(\w+) = ", cell, re.MULTILINE)} - {*extra}
    values = {name: variables.get(name) for name in names}
    automatic = [name for name in BLOCKS if values.get(name) == "auto"]
    given = {name: value for name, value in values.items() if name not in automatic}
    settings = Settings.from_values(given)
    few = settings.model_copy(update=dict.fromkeys(automatic, FEW_BLOCKS))
    if few == settings or not _is_new(settings):
        return Chapter(settings)
    chapter = Chapter(few)
    pages.note(
        f"{chapter.model} is measured on {few.evaluation_blocks} evaluation blocks and "
        f"{few.selection_blocks} selection blocks, of four prompts each. `twotowers measure` has "
        f"{settings.evaluation_blocks} and {settings.selection_blocks} by default."
    )
    return chapter


def _is_new(settings: Settings) -> bool:
    """Return whether a model is neither included nor precomputed nor measured already."""
    model = Measurements(settings).model
    heads = identity.folder_of(settings, model, "heads") / "heads.nc"
    return not is_known(model) and not heads.is_file()


class Chapter(Measurements):
    """Measurements of all models, claims and figures of one notebook.

    Attributes:
        rows: Rows of evidence of the claims that were judged so far.
    """

    def __init__(self, settings: Settings):
        """Open a chapter without any evidence.

        Args:
            settings: Settings of the notebook.
        """
        super().__init__(settings, report=pages.note)
        self.rows: list[EvidenceRow] = []

    @cached_property
    def models(self) -> dict[str, JudgedModel]:
        """Every model whose answers on evaluation blocks are measured, by name."""
        heads = self.measured("heads")
        return {name: JudgedModel(self, name, data) for name, data in heads.items()}

    def judge_claim(
        self,
        claim: str,
        values: Mapping[str, xr.DataArray],
        *,
        denominator: Mapping[str, xr.DataArray] | None = None,
        control: Mapping[str, xr.DataArray] | None = None,
        untestable: Mapping[str, str] | None = None,
        template: str = "",
        observations: str = "prompts",
    ) -> None:
        """Judge one claim for every model, show its block, and keep its rows of evidence.

            >>> chapter = open({"model": "smollm2-135m"})
            >>> answers = chapter.measured("answers")
            >>> is_right = {model: data["logit_difference"] > 0 for model, data in answers.items()}
            >>> chapter.judge_claim("learned", is_right)
            <IPython.core.display.HTML object>
            >>> {row.verdict for row in chapter.rows if row.model == "smollm2-135m"}
            {'holds'}

        Args:
            claim: Id of a line of data/claims.csv.
            values: Values of every prompt by model, over the dimensions that the line needs
                (`JudgedModel.select`).
            denominator: Denominator (prompt,) by model, if the claim is about a share.
            control: The same values of random sets by model, with the additional dimension
                `random_set`.
            untestable: Reason by model why the claim has no meaning there. Such a model needs no
                values.
            template: Prompt template, if it is not the one with the highest accuracy.
            observations: Name of the values along `prompt`, if they are means over prompts.

        Raises:
            TwoTowersError: If values or control do not fit the line. The message names claim and
                model.
        """
        line = claims.claims().get(claim)
        if line is None:
            raise TwoTowersError(
                f"unknown claim '{claim}': expected an id in data/claims.csv; add a line there"
            )
        reasons = {name: why for name, why in self.left_out.items() if name not in values}
        reasons |= untestable or {}
        rows = []
        for model in {**values, **reasons}:
            try:
                if model in reasons:
                    raise NotTestable(reasons[model])
                model_denominator = None if denominator is None else denominator[model]
                random = None if control is None else control.get(model)
                row = self._judged(line, model, values[model], model_denominator, random, template)
                rows.append(replace(row, observations=observations))
            except NotTestable as error:
                rows.append(verdict_row(line, model, NOT_TESTABLE, str(error)))
            except TwoTowersError as error:
                raise TwoTowersError(f"claim '{claim}', {model}: {error}") from None
        details = "; ".join(
            f"{shown_name(row.model)}: {row.prompts / row.n:.3g} {observations} per class pair, "
            f"{row.n} × {row.label_pairs} class and label pairs, {row.template}"
            for row in rows
            if row.n
        )
        controlled = [row.model for row in rows if row.n_random_sets]
        if line.heads == "by attention" and "random sets" in line.control and controlled:
            details += f". {self._stricter_control(controlled, line.heads)}"
        self._show(line, rows, "Prompts", details)

    def _stricter_control(self, models: Sequence[str], judged: str) -> str:
        """Return by name the heads of models that attend to labels as a set does, but prefer none.

        Args:
            models: Names of models.
            judged: Name of the set.
        """
        selection = self.measured("selection")
        names = []
        for model in models:
            heads = label_heads_without_preference(selection[model], self.sets[model][judged])
            names.append(f"{shown_name(model)} {', '.join(map(str, heads)) or 'none'}")
        return (
            "Random heads attend little to labels. Heads with at least half of the attention on "
            "labels of these heads, and an attention difference below "
            f"{MIN_ATTENTION_DIFFERENCE} (on selection blocks): {'; '.join(names)}. Chapter 6 "
            "exchanges queries, keys and values of the first of them."
        )

    def _judged(
        self,
        claim: Claim,
        name: str,
        values: xr.DataArray,
        denominator: xr.DataArray | None,
        random: xr.DataArray | None,
        template: str,
    ) -> EvidenceRow:
        """Return the row of evidence of one claim and model."""
        if name not in self.models:
            raise NotTestable("its answers were not measured, so we cannot tell whether it learns")
        model = self.models[name]
        if claim.id != LEARNED:
            model.check_learned()
        effect, control = model.select(claim, values, random)
        row = evidence.judge_claim(
            claim,
            name,
            effect,
            denominator=denominator,
            control=control,
            logit_difference=intervals.mean(model.heads["logit_difference"]).estimate,
            template=template or str(model.template),
        )
        if not row.n_random_sets or claim.control != "random sets":
            return row
        sizes, heads = model.heads.attrs, self.sets[name].get(claim.heads)
        if sizes["key_value_heads"] == 1:
            remark = ", from other layers, since all heads of a layer share their keys"
            row = replace(row, words=row.words + remark)
        if not heads:
            return row
        share = largest_share_in_layer(heads, sizes)
        words = (
            f"{row.words}; {share:.0%} of random heads are in the layer of the head they replace"
        )
        return replace(row, words=words, share_in_layer=share)

    def _show(
        self, statement: Statement, rows: list[EvidenceRow], summary: str, details: str
    ) -> None:
        """Show the block of a statement, and keep its rows of evidence."""
        self.rows = [row for row in self.rows if row.claim != statement.id] + rows
        display(HTML(strips.block(statement, rows, summary, details)))

    def draw_random_sets(self, model: str, name: str, n_sets: int) -> list[tuple[Head, ...]]:
        """Return different random sets that are matched to a named set.

        They have the same layers and other key-value groups. If the model has no other heads, or if
        the named set is empty, a note says so.

        Args:
            model: Name of the model.
            name: Name of the set.
            n_sets: Number of different sets, fewer if there are fewer.
        """
        try:
            heads = selected(self.sets[model], name)
            sets = self.models[model].draw_random_sets(heads, n_sets)
        except NotTestable as error:
            pages.note(f"{model}: no random heads for comparison: {error}.")
            return []
        return [tuple(sorted(heads)) for heads in sets]

    def lists_of_heads(self, model: str) -> dict[str, Sequence[Sequence[Head]]]:
        """Return two lists of a model and twenty random ones, by name, without empty ones.

        The random ones are matched to the heads by attribution (`draw_random_sets`).

        Args:
            model: Name of the model.
        """
        sets: dict[str, Sequence[Sequence[Head]]] = {
            name: [self.sets[model][name]] for name in ("by attribution", "by attention")
        }
        sets["other heads"] = self.draw_random_sets(model, "by attribution", n_sets=20)
        return {name: lists for name, lists in sets.items() if lists and lists[0]}

    table = staticmethod(intervals.table)

    def figure(
        self, number: str, shown: alt.TopLevelMixin | Styler, caption: str, *, folded: bool = False
    ) -> None:
        """Show a chart or a table with its number and caption.

            >>> table = pages.shown(pd.DataFrame({"head": ["18-6"], "attention": [0.25]}))
            >>> open({"model": "smollm2-135m"}).figure("4.1", table, "Attention of one head.")
            <IPython.core.display.HTML object>
            <IPython.core.display.HTML object>

        Args:
            number: Number in the book, such as "4.1".
            shown: A chart, or a table of `pages.shown`.
            caption: A description of the values and of how they were measured. Formulas are between
                dollar signs.
            folded: Whether a table is folded above its caption.
        """
        data = getattr(shown, "data", None)
        if isinstance(data, pd.DataFrame) and data.empty:
            caption += " Nothing to draw: no model has these numbers."
        kind = "Table" if isinstance(shown, Styler) else "Figure"
        if not isinstance(shown, Styler):
            display(shown.properties(description=caption.replace("$", "")))
        elif folded:
            display(pages.unfolding("Show the numbers", shown))
        else:
            display(HTML(shown.to_html()))
        text = f"<b>{kind} {number}.</b> {pages.with_formulas(caption)}"
        display(HTML(f'<p class="caption" id="fig-{number.replace(".", "-")}">{text}</p>'))

    def compare_with_paper(
        self,
        name: str,
        figure: str,
        data: Mapping[str, Any],
        statistic: Callable[[Any], Any] | None = None,
        *,
        heads: Mapping[str, Sequence[Head | str]] | None = None,
        others: Mapping[str, Sequence[Head | str]] | None = None,
        every_head: Mapping[str, xr.DataArray] | None = None,
        resamples: Mapping[str, xr.DataArray] | None = None,
        control: Mapping[str, Any] | None = None,
        edited: Mapping[str, Sequence[Sequence[Head | str]]] | None = None,
        words: Mapping[str, str] | Callable[[Any], str] | None = None,
        suite: str | None = None,
        solved: Solved | None = None,
    ) -> None:
        """Judge whether a result of the paper is reproduced in each model, and keep the rows.

        The statistic is judged by the rule of the result. It is also applied to random lists of
        heads and to resamples of the prompts (`paper_results.compare`).

            >>> chapter = open({"model": "smollm2-135m"})
            >>> found = Result(0.95, "19 of 20 heads")
            >>> chapter.compare_with_paper("figure 6", "4.1", {"mine": found})
            <IPython.core.display.HTML object>
            >>> {row.verdict for row in chapter.rows if row.model == "mine"}
            {'agrees'}

        Args:
            name: Name of the result in data/figures.csv, whose rule decides, such as "figure 6".
            figure: Number of the book's figure for the same result, such as "4.1"; "" if there is
                none.
            data: Values by model, over (..., prompt) or averaged over prompts; or a finished
                `paper_results.Result`. Models that are left out elsewhere are not testable here.
            statistic: Function of these values that returns the judged number.
            heads: List of heads by model, for a result about a list of heads.
            others: Heads by model from which random lists are drawn, by default all.
            every_head: Means of all heads by model, from which random lists are drawn, if `data`
                has the listed heads only.
            resamples: Values of resampled prompts by model, over (resample, ...), if they are not
                means of `data`.
            control: Values of random heads by model, with the dimension `random_set`, for heads
                that were edited. A model without them has too few other heads.
            edited: Sets of heads by model that `control` replaces, all of the same size.
            words: Description by model of the basis, or a function of the values that returns it.
            suite: Suite of the prompts, if it is not the suite of the settings.
            solved: The same comparison on counterbalanced prompts, for the second verdict.

        Raises:
            TwoTowersError: If data/figures.csv has no rule for the result.
        """
        result = claims.paper_results().get(name)
        if result is None or result.not_run:
            raise TwoTowersError(
                f"unknown result '{name}': expected an id in data/figures.csv; add a rule there"
            )
        is_of_model = name not in claims.WITHOUT_MODEL
        balance = self.measured("paper_balance", suite) if is_of_model else {}
        marks = {model: paper_results.task_mark(ds) for model, ds in balance.items()}
        results = {model: Result(math.nan, reason) for model, reason in self.left_out.items()}
        for model, values in data.items():
            results[model] = _found(
                model,
                values,
                statistic,
                words,
                {} if heads is None and edited is None else balance[model].attrs,
                control,
                edited,
                heads=heads,
                others=others,
                every_head=every_head,
                resamples=resamples,
            )
        rows = [
            verdict_row(
                result,
                model,
                figure=figure,
                mark=marks.get(model, ""),
                prompt_set=claims.ON_PAPER,
                **paper_results.judge(result, found),
            )
            for model, found in results.items()
        ]
        if solved is not None:
            rows += self._second_rows(result, figure, solved, statistic)
        self._show(result, rows, "Numbers and rule", claims.rules_in_words(result))

    def _second_rows(
        self,
        result: PaperResult,
        figure: str,
        solved: Solved,
        statistic: Callable[[Any], Any] | None,
    ) -> list[EvidenceRow]:
        """Return the second verdict on a result, on counterbalanced prompts, by model."""
        rows = []
        for model in (model for model in solved.data if model in self.models):
            try:
                self.models[model].check_learned()
                if solved.heads is not None and model not in solved.heads:
                    raise NotTestable("its heads were not listed by other prompts than these")
                found = _found(
                    model,
                    solved.data[model],
                    solved.statistic or statistic,
                    solved.words,
                    self.models[model].heads.attrs,
                    solved.control,
                    solved.edited,
                    heads=solved.heads,
                )
            except NotTestable as error:
                found = Result(math.nan, str(error))
            judged = paper_results.judge(result, found)
            rows.append(
                verdict_row(result, model, figure=figure, prompt_set=claims.ON_SOLVED, **judged)
            )
        return rows

    def explore(self, name: str, *variables: str) -> None:
        """Show variables of a measurement with controls for model, head and prompts.

        Args:
            name: Measurement.
            *variables: Variables that share their dimensions (`explore.explorer`).
        """
        if measurements := {m: data[[*variables]] for m, data in self.measured(name).items()}:
            display(explore.explorer(measurements, self.model))

    def close(self) -> None:
        """Write the rows of evidence to the folder `TWOTOWERS_EVIDENCE`, which a build sets.

        Raises:
            TwoTowersError: If the folder cannot be written.
        """
        folder = os.environ.get("TWOTOWERS_EVIDENCE", "")
        for chapter in {row.chapter for row in self.rows} if folder else ():
            with files.atomic_write(Path(folder) / f"{chapter}.csv") as scratch:
                pd.DataFrame(self.rows).to_csv(scratch, index=False)


def _found(
    model: str,
    values: Any,
    statistic: Callable[[Any], Any] | None,
    words: Mapping[str, str] | Callable[[Any], str] | None,
    sizes: Sizes,
    control: Mapping[str, Any] | None,
    edited: Mapping[str, Sequence[Sequence[Head | str]]] | None,
    **options: Mapping[str, Any] | None,
) -> Result:
    """Return the judged number of one model, from arguments of `paper_results.compare` by model."""
    found = values
    if statistic is not None and not isinstance(values, Result):
        found = paper_results.compare(
            statistic,
            values,
            words if callable(words) else (words or {}).get(model, ""),
            sizes=sizes,
            control=(control or {}).get(model),
            **{
                name: of_models[model]
                for name, of_models in options.items()
                if of_models is not None
            },
        )
    if control is not None and model not in control:
        return found._replace(random=[])  # too few other heads
    if edited is None or math.isnan(found.value):
        return found
    shares = [
        largest_share_in_layer([Head.parse(str(head)) for head in heads], sizes)
        for heads in edited[model]
    ]
    return found._replace(share_in_layer=sum(shares) / len(shares))
