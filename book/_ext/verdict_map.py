"""The picture of every test at the top of *Figure by figure*, with its counts.

    MARK.sub(lambda _: drawn(Path("_build")), text)

A row is a result of the paper, and a column is a model. Each cell leads to its result.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import pandas as pd
from twotowers import claims, evidence, pages
from twotowers.paths import included_models
from twotowers.tables import ordered_models, shown_name

MARK = re.compile(r'<div id="verdict-map"></div>')
SIGNS = {
    claims.AGREES: "✓",
    claims.AGREES_UNSPECIFIC: "≈",
    claims.AGREES_TOO_FEW: "?",
    claims.IN_PART: "½",
    claims.PART_UNSPECIFIC: "½≈",
    claims.PART_TOO_FEW: "½?",
    claims.DISAGREES: "✗",
    claims.UNDECIDED: "±",
    claims.NOT_JUDGED: "#",
    claims.NOT_TESTABLE: "–",
}
MARKS = {claims.BY_POSITION: "n", claims.BY_WORD: "w"}
SHORT = {"appendix": "app.", "EMNLP table": "EMNLP"}  # names of rows
STABLE = 0.95
"""Signs of verdicts and of marks in the picture, and the share of resamples in which a stable
verdict stays the same"""


def tests(build: Path, solved: bool = False) -> pd.DataFrame:
    """Return the counted results of the paper in each model, tested or not testable.

    Args:
        build: Folder of built files.
        solved: Whether the verdicts are the second ones, on counterbalanced prompts.
    """
    judged = evidence.read(build / "evidence", claims.paper_results(), solved)
    return judged[~judged["claim"].isin(claims.UNCOUNTED)]


def _row_link(result: claims.PaperResult) -> str:
    """Return the name of a result of the paper as a link to its row.

    Args:
        result: Result of the paper.
    """
    address = f"#row-{result.anchor}"
    return f'<a href="{address}" title="{escape(result.statement)}">{result.id}</a>'


def counted(asked: pd.DataFrame) -> str:
    """Return the number of tests with each verdict, next to its sign.

    Args:
        asked: Rows of evidence of tests.
    """
    n = asked["verdict"].value_counts()
    return " ".join(
        f'<span class="count">{_badge(verdict)} {n[verdict]}</span>'
        for verdict in SIGNS
        if verdict in n
    )


def _badge(verdict: str) -> str:
    """Return the sign of a verdict in its colour."""
    name = pages.verdict_class(verdict)
    label = f'role="img" aria-label="{verdict}" title="{verdict}"'
    return f'<span class="verdict {name}" {label}>{SIGNS[verdict]}</span>'


def summary(judged: pd.DataFrame) -> str:
    """Return the counts of all and of pretrained models, with results that always or never hold.

    Results that always hold are stable in every model. Results that never hold agree fully in no
    model, or only as random heads do.

    Args:
        judged: Rows of evidence of the counted results.
    """
    asked = judged[~judged["verdict"].isin(claims.WITHOUT_VERDICT)]
    specific = asked["verdict"].isin([claims.AGREES, claims.AGREES_TOO_FEW])
    stable = specific & ~(asked["stability"] < STABLE)
    own = asked["model"].isin(included_models())
    results = claims.paper_results()
    links = {item: _row_link(results[item]) for item in dict.fromkeys(asked["claim"])}
    always, never = (
        ", ".join(link for item, link in links.items() if so[asked["claim"] == item].all())
        or "none"
        for so in (stable, ~specific)
    )
    return (
        f"{len(asked)} tests: {counted(asked)}<br>Pretrained models alone, {(~own).sum()} tests: "
        f"{counted(asked[~own])}<br>Agree in every model, in at least {STABLE:.0%} of resamples, "
        f"and not as random heads do where that was tested: {always}. Results that "
        f"agree fully in no model, or only as random heads do: {never}."
    )


def drawn(build: Path) -> str:
    """Return a picture of every test, on counterbalanced prompts and in the paper's protocol.

    Args:
        build: Folder of built files.
    """
    judged, solved = tests(build), tests(build, solved=True)
    models = ordered_models(judged["model"])
    asked = solved[~solved["verdict"].isin(claims.WITHOUT_VERDICT)]
    signs = " ".join(f'<span class="count">{_badge(v)} {v}</span>' for v in SIGNS)
    marks = "; ".join(f"<sup>{of}</sup> {claims.MARK_NAMES[mark]}" for mark, of in MARKS.items())
    return (
        f'<div class="verdict-map" id="verdict-map"><p>{signs} empty: not run. Marks of the '
        f"answers of a model that fails the task: {marks}. <i>Not specific</i>: random heads do as "
        "well. <i>Too few other heads</i>: not enough for this comparison.</p>"
        f"<p><b>On counterbalanced prompts</b> (order and labels balanced), {len(asked)} tests: "
        f"{counted(asked)}</p>"
        f"<div>{_tables(solved, models)}</div>"
        f"<p><b>In the paper's protocol</b> (right labels last), {summary(judged)}</p>"
        f"<div>{_tables(judged, models)}</div></div>"
    )


def _tables(judged: pd.DataFrame, models: list[str]) -> str:
    """Return three tables side by side, with a line for each result and a column for each model.

    Each cell leads to the row of its result.
    """
    results = claims.paper_results()
    cells = {(row.claim, row.model): row for row in judged.itertuples()}
    heads = "".join(f'<th scope="col"><span>{shown_name(m)}</span></th>' for m in models)
    lines = []
    for item in dict.fromkeys(judged["claim"]):
        link = _row_link(results[item])
        link = re.sub(">(appendix|EMNLP table) ", lambda m: f">{SHORT[m[1]]} ", link)
        line = f'<th scope="row">{link}</th>'
        for row in (cells.get((item, model)) for model in models):
            line += "<td></td>" if row is None else f"<td>{cell(row, results[item])}</td>"
        lines.append(f"<tr>{line}</tr>")
    third = -(-len(lines) // 3) or 1
    return "".join(
        f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{''.join(lines[i : i + third])}"
        "</tbody></table>"
        for i in range(0, len(lines), third)
    )


def cell(row, result: claims.PaperResult) -> str:
    """Return one test: the signs of its verdict and mark, and a link to its row.

    Args:
        row: Row of evidence.
        result: The result of the paper that was tested.
    """
    says = f"{row.claim}, {shown_name(row.model)}: {row.verdict}"
    says += f" ({claims.MARK_NAMES[row.mark]})" if row.mark else ""
    mark = f"<sup>{MARKS[row.mark]}</sup>" if row.mark else ""
    name = pages.verdict_class(row.verdict)
    return (
        f'<a class="verdict {name}" href="#row-{result.anchor}" '
        f'title="{escape(says)}" aria-label="{escape(says)}">{SIGNS[row.verdict]}{mark}</a>'
    )
