"""What a chapter opens: measurements of all models at hand, and the one place where claims are judged and figures shown.

    chapter = book.open(globals())                    # checks the parameters cell
    heads = chapter.measured("heads")                 # {model: xarray.Dataset}, the parameter's model and every recorded one
    chapter.compare("comparers-prefer", {m: looks(d) for m, d in heads.items()}, heads="comparers")
    chapter.figure("4.1", chart, "What to see. How it was made.")

`chapter.close()` writes the rows of evidence.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import xarray as xr
from IPython.display import HTML, Markdown, display

import twotowers.measure.suite  # noqa: F401  (fills the list of measurements)
from twotowers import choose, evidence, figures
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.measure.chain import NOT_TESTABLE, Run, open_recorded, recorded
from twotowers.measure.settings import Settings
from twotowers.paths import book_folder, data_folder

DRAWS = 1000
CHANCE = 0.5


def open(given: Mapping[str, Any]) -> Chapter:
    """The chapter of a notebook, from its `globals()`. Raises TwoTowersError, in one line, for a wrong parameter."""
    return Chapter(given)


class Chapter:
    """Measurements of all models, claims and figures of one notebook."""

    def __init__(self, given: Mapping[str, Any]):
        names = set(Settings.model_fields)
        self.settings = Settings.of({name: value for name, value in given.items() if name in names})
        self.run = Run(self.settings)
        self.rows: list[dict] = []
        self.left_out: dict[str, str] = {}
        self._open: dict[tuple[str, str], dict[str, xr.Dataset]] = {}
        self._sets: dict[str, dict[str, list[Head]]] = {}

    def measured(self, name: str, suite: str | None = None) -> dict[str, xr.Dataset]:
        """Model -> measurement: every recorded model and the parameter's, smallest first. Measures what is not there.

        Models for which it has no meaning are left out, and their claims not testable. `suite`: another than the
        chapter's, such as "sentences".
        """
        suite = suite or self.settings.suite
        if (suite, name) not in self._open:
            every = {model: open_recorded(model, suite, name) for model in recorded()}
            found = {model: data for model, data in every.items() if data is not None}
            if self.run.name not in found:
                run = self.run if suite == self.settings.suite else Run(self.settings.model_copy(update={"suite": suite}))
                found[run.name] = run.measured(name)
            self.left_out |= {m: d.attrs[NOT_TESTABLE] for m, d in found.items() if NOT_TESTABLE in d.attrs}
            found = {m: d for m, d in found.items() if NOT_TESTABLE not in d.attrs}
            self._open[suite, name] = dict(sorted(found.items(), key=lambda item: item[1].attrs["parameters"]))
        return self._open[suite, name]

    @property
    def sets(self) -> dict[str, dict[str, list[Head]]]:
        """Model -> name -> heads, by the rules of `choose`, from locating blocks."""
        if not self._sets:
            self._sets = {m: choose.head_sets(d, self.settings.top_k) for m, d in self.measured("locating").items()}
        return self._sets

    @property
    def learned(self) -> dict[str, evidence.Interval]:
        """Model -> accuracy between the two labels on judging blocks (n = class pairs)."""
        return {
            m: evidence.interval(evidence.cluster_means((d["log_prob_true"] > d["log_prob_other"]).astype(float)))
            for m, d in self.measured("heads").items()
        }

    def compare(
        self, claim: str, values: Mapping[str, xr.DataArray], heads: str | None = None,
        random: Mapping[str, xr.DataArray] | None = None, by: str = "pair", gate: bool = True,
        untestable: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Judge one claim for every model: shows its sentence and a forest plot, and keeps its rows of evidence.

        values: model -> (prompt,), or with heads="comparers" (prompt, layer, head): these heads against DRAWS random sets
        of the same layers from other key-value groups; with (heads, prompt), the entry of that name against the entries
        "NAME, random ..." beside it. random: model -> (draw, prompt), a control given as it is.
        gate: a model that does not learn the task is "not testable"; False for the claim that it learns. untestable:
        model -> why the claim has no meaning there; a model in it needs no values.
        """
        about = evidence.claims().get(claim)
        if about is None:
            raise TwoTowersError(f"no claim '{claim}' in data/claims.csv: add a line with its rule and date")
        why = {m: reason for m, reason in self.left_out.items() if m not in values} | dict(untestable or {})
        tested = {model: data for model, data in values.items() if model not in why}
        rows = [self._row(about, model, data, heads, (random or {}).get(model), by, gate) for model, data in tested.items()]
        rows += [evidence.not_testable(about, model, reason) for model, reason in why.items()]
        self.rows = [row for row in self.rows if row["claim"] != claim] + rows
        table = pd.DataFrame(rows)
        display(HTML(sentence(about, table)))
        shown = table.dropna(subset="effect").assign(row=lambda t: t["model"])
        if len(shown):
            unit = "" if about.measure.endswith(f"({about.unit})") else f" ({about.unit})"
            display(figures.forest(shown, title=about.measure + unit, null=about.null).properties(description=about.statement))

    def _row(self, claim, model, data, heads, random, by, gate):
        learned = self.learned.get(model) if gate else None
        if learned is not None and not learned.low > CHANCE:
            return evidence.not_testable(claim, model, f"does not learn the task: accuracy {learned:.0%}")
        if heads is None:
            return evidence.compare(claim, model, data, random, by)
        if "heads" in data.dims:  # sets that were measured together, among them random ones matched to this one
            names = [str(name) for name in data["heads"].values]
            matched = [name for name in names if name.startswith(f"{heads}, random")]
            if heads not in names:
                return evidence.not_testable(claim, model, f"the rule names no {heads}")
            random = data.sel(heads=matched).rename(heads="draw") if matched else None
            return evidence.compare(claim, model, data.sel(heads=heads), random, by)
        chosen = self.sets[model][heads]
        if not chosen:
            return evidence.not_testable(claim, model, f"the rule names no {heads}")
        effect = choose.pick(data, chosen).mean("heads")
        return evidence.compare(claim, model, effect, evidence.over_sets(data, self.controls(model, heads)), by)

    def controls(self, model: str, heads: str, draws: int = DRAWS) -> list[list[Head]]:
        """Random sets matched to a set: same layers, other key-value groups."""
        about = self.measured("heads")[model].attrs
        layers, n_heads, n_kv = (int(about[name]) for name in ("layers", "heads", "key_value_heads"))
        return choose.matched_sets(self.sets[model][heads], layers, n_heads, n_heads // n_kv, draws)

    def table(self, values: Mapping[str, xr.DataArray], by: str = "pair", **columns: Any) -> pd.DataFrame:
        """One row a model with mean and 95% interval over clusters `by`: columns model, value, low, high, n, and those given."""
        rows = []
        for model, data in values.items():
            part = evidence.interval(evidence.cluster_means(data, by))
            rows.append({"model": model, "value": part.estimate, "low": part.low, "high": part.high, "n": part.n, **columns})
        return pd.DataFrame(rows)

    def figure(self, number: str, chart: alt.TopLevelMixin, caption: str) -> None:
        """Show a chart with its number and caption: what to see, then how it was made.

        The caption also names models that do not learn the task, with their accuracy, once "heads" was opened.
        """
        if (self.settings.suite, "heads") in self._open:
            chance = [f"{m} (accuracy {of:.0%})" for m, of in self.learned.items() if not of.low > CHANCE]
            caption += f" Not learned, so in no verdict: {', '.join(chance)}." if chance else ""
        display(chart.properties(description=caption))
        display(HTML(f'<p class="caption" id="fig-{number.replace(".", "-")}"><b>Figure {number}.</b> {html.escape(caption)}</p>'))

    def close(self) -> None:
        """Write the chapter's rows of evidence: beside the measurements, or where the build of the book wants them."""
        table = evidence.check_rows(self.rows)
        if table.empty:
            return
        folder = Path(os.environ.get("TWOTOWERS_EVIDENCE") or self.run.path("x").parent / "evidence")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{table['chapter'].iloc[0]}.csv"
        part = path.with_suffix(f".{os.getpid()}.part")
        table.to_csv(part, index=False)
        os.replace(part, path)


def sentence(claim: evidence.Claim, table: pd.DataFrame) -> str:
    """The one sentence form of the book: the claim, then verdict and numbers, model by model."""
    whole = claim.null == CHANCE and claim.unit == "share"  # of something lost, not a difference between two shares
    fmt = "z.0%" if whole else {"share": "+z.1%", "AUC": "z.2f", "MRR": "z.2f"}.get(claim.unit, "+z.2f")  # z: no -0.00
    judged = table[table["verdict"] != evidence.NOT_TESTABLE]
    sizes = ("n = " + judged["n"].astype(str) + " " + judged["clusters"].map(html.escape)).unique()
    items = ""
    for row in table.to_dict("records"):
        text = f"<b>{html.escape(row['verdict'])}</b>"
        if row["verdict"] == evidence.NOT_TESTABLE:
            text += f": {html.escape(row['note'])}"
        else:
            text += f", {row['effect']:{fmt}} [{row['effect_low']:{fmt}}, {row['effect_high']:{fmt}}]"
            if row["draws"]:
                reach = round(row["share"] * row["draws"])
                text += f"; control {row['control']:{fmt}}, {reach:,} of {row['draws']:,} random draws reach it"
            text += f" (n = {row['n']} {html.escape(row['clusters'])})" if len(sizes) > 1 else ""
        items += f"<li>{html.escape(row['model'])}: {text}</li>"
    size = f" <small>({sizes[0]})</small>" if len(sizes) == 1 else ""
    return f'<div class="claim" id="claim-{claim.id}"><p>{html.escape(claim.statement)}{size}</p><ul>{items}</ul></div>'


def all_evidence() -> pd.DataFrame:
    """Every row of evidence of the book being built: what the opening page and the scorecard are drawn from."""
    return evidence.read(Path(os.environ.get("TWOTOWERS_EVIDENCE", "_build/evidence")))


def ladder(rows: pd.DataFrame) -> HTML:
    """Claims x models, the verdict in each cell, with its numbers where a cell is pointed at; a claim links to its chapter."""
    pages = {_number(path.stem): path.stem for path in book_folder().glob("*-*.ipynb")}
    models = list(dict.fromkeys(rows["model"]))
    lines = ["<tr><th>claim</th><th>source</th>" + "".join(f'<th scope="col">{html.escape(model)}</th>' for model in models) + "</tr>"]
    for (claim, statement, chapter), part in rows.groupby(["claim", "statement", "chapter"], sort=False):
        cells = []
        for model in models:
            row = next(iter(part[part["model"] == model].to_dict("records")), None)
            told = "" if row is None else row["note"] if row["verdict"] == evidence.NOT_TESTABLE else (
                f"{row['effect']:+.3f} [{row['effect_low']:+.3f}, {row['effect_high']:+.3f}] {row['unit']}"
                + (f"; control {row['control']:+.3f}" if row["draws"] else ""))  # fmt: skip
            verdict = "" if row is None else row["verdict"]
            cells.append(f'<td class="{verdict.replace(" ", "-")}" title="{html.escape(str(told))}">{html.escape(verdict)}</td>')
        link = f'<a href="{pages.get(str(chapter))}.html#claim-{html.escape(claim)}">{html.escape(statement)}</a>'
        source = evidence.claims()[claim].source if claim in evidence.claims() else ""
        lines.append(f'<tr><th scope="row">{link}</th><td>{html.escape(source)}</td>{"".join(cells)}</tr>')
    return HTML(f'<table class="ladder">{"".join(lines)}</table>')


def _number(stem: str) -> str:
    """The chapter of a file name, as claims name it: "07-two-towers" is chapter 7, "b-what-decides" chapter B."""
    return stem.partition("-")[0].lstrip("0").upper()


def findings() -> pd.DataFrame:
    """data/findings.csv: each hand-written finding of the opening page ("intro") and of chapters, with the verdicts it rests on.

    Columns page, sentence, chapter (where it is shown how we know), claim, model, verdict.
    """
    table = pd.read_csv(data_folder() / "findings.csv")
    table[["page", "sentence", "chapter"]] = table[["page", "sentence", "chapter"]].ffill()
    return table


def answer(rows: pd.DataFrame) -> str:
    """The sentences of the opening page, each with its chapter: the first by itself, the others as a list.

    A sentence whose verdicts are not those of `rows` is left out: better no sentence than a wrong one.
    """
    verdicts, table, lines = rows.set_index(["claim", "model"])["verdict"].to_dict(), findings(), []
    for i, ((text, chapter), part) in enumerate(table[table["page"] == "intro"].groupby(["sentence", "chapter"], sort=False)):
        if all(verdicts.get((row.claim, row.model)) == row.verdict for row in part.itertuples()):
            where = f"([chapter {_number(chapter)}]({chapter}))"
            lines.append(f"1. {text} {where}" if i else f"**{text}** {where}\n")
    return "\n".join(lines)


def note(text: str) -> None:
    """Show a sentence made in a cell."""
    display(Markdown(text))
