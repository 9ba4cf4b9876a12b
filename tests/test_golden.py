"""What the default book says of the included models, and what its figures and exhibits show of them
and of a precomputed one, against the tables that are pinned in golden.csv and shown.csv.

The book is the one in _build, which `make test` brings up to date. After a change that is meant to
change numbers:  make book, then  pytest tests/test_golden.py --pin
"""

import json
import os
import re
from xml.etree import ElementTree

import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from tolerances import HUNDREDTHS, LOGITS, PINNED, SHOWN, STORED, differences
from twotowers import claims, evidence
from twotowers.paths import data_folder, included_models
from twotowers.tables import shown_name
from twotowers.theme import VEGA

GOLDEN, FIGURES, BUILD = ROOT / "tests/golden.csv", ROOT / "tests/shown.csv", ROOT / "_build"
MODELS = (*included_models(), "smollm2-135m")  # the second has every measurement
ARBITRARY = ("4.5",)  # principal components have any sign
ROUNDED = ("10.2", "11.2")  # tables, to hundredths
COLUMNS = ["chapter", "shown", "model", "column", "rows", "mean"]


@pytest.fixture
def built():
    """Skip where no book is built, and fail where it is of other settings."""
    if not (BUILD / "settings.json").is_file():
        pytest.skip("a built book: make book")
    other = json.loads((BUILD / "settings.json").read_text("utf8"))
    other.pop("threads")
    if other:
        pytest.fail(f"the book in _build is of other settings, {other}: make test", pytrace=False)
    if newer := newer_than_evidence(BUILD, data_folder()):
        pytest.fail(
            f"the book in _build is older than {', '.join(newer)}: make test", pytrace=False
        )


def newer_than_evidence(build, data):
    """Tables of statements that have changed since the last build (F7).

    A build leaves the evidence of chapters whose rows did not change, but then it makes the pages
    again.
    """
    files = [build / "html", *(build / "evidence").glob("[!.]*.csv")]
    last = max((file.lstat().st_mtime for file in files if file.exists()), default=0)
    tables = [data / f"{name}.csv" for name in ("claims", "figures", "solved")]
    return [path.name for path in tables if path.stat().st_mtime > last]


def test_evidence_that_is_older_than_its_tables_is_named(tmp_path):
    tables = ("data/claims.csv", "data/figures.csv", "data/solved.csv")
    for name in (*tables, "evidence/1.csv", "html/index.html"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (1000, 1000))
    os.utime(tmp_path / "html", (1000, 1000))
    assert newer_than_evidence(tmp_path, tmp_path / "data") == []
    os.utime(tmp_path / "data/figures.csv", (1001, 1001))
    assert newer_than_evidence(tmp_path, tmp_path / "data") == ["figures.csv"]
    os.utime(tmp_path / "html", (1002, 1002))
    assert newer_than_evidence(tmp_path, tmp_path / "data") == []


def figures():
    """(number, data) of every figure and of ROUNDED, as they stand in the chapters that were run;
    a figure's number is in the caption after it."""
    for path in sorted((BUILD / "chapters").glob("*-*.ipynb")):
        cells = nbformat.read(path, 4).cells
        shown = None
        for out in (out for cell in cells for out in cell.get("outputs", []) if "data" in out):
            html = out.data.get("text/html", "")
            caption = re.search(r'class="caption" id="fig-(\d+)-(\d+)"', html)
            if not caption:
                shown = out.data.get(VEGA, html)
            elif isinstance(shown, dict) and "name" in shown.get("data", {}):
                yield (
                    ".".join(caption.groups()),
                    pd.DataFrame(shown["datasets"][shown["data"]["name"]]),
                )
            elif (number := ".".join(caption.groups())) in ROUNDED:
                yield number, numbers_of(shown)


def numbers_of(html: str) -> pd.DataFrame:
    """A table of a page."""
    end = html.index("</table>") + len("</table>")
    table = ElementTree.fromstring(html[html.index("<table") : end].replace("&nbsp;", ""))
    names = [cell.text for cell in table.iter("th") if "col_heading" in cell.get("class", "")]
    rows = [[cell.text for cell in row.iter("td")] for row in table.iter("tr")]
    table = pd.DataFrame(filter(None, rows), columns=names)
    numbers = table.apply(pd.to_numeric, errors="coerce").dropna(axis="columns")
    return table.assign(**numbers)


def means(number: str, table: pd.DataFrame) -> list[tuple]:
    """Of the data of a figure: rows and mean of every column of numbers, for each of MODELS. Later
    rows weigh more, so that exchanged rows show."""
    of = table["model"].astype(str) if "model" in table else pd.Series("", table.index)
    parts = {m: table[of.str.startswith((m, shown_name(m)))] for m in MODELS if of.any()}
    return [
        (number.partition(".")[0], number, model, column, len(part),
         (part[column] * np.arange(1, 1 + len(part))).mean())
        for model, part in (parts or {"": table}).items()
        for column in part.select_dtypes("float")
        if len(part)
    ]  # fmt: skip


def pinned(path, new, request):
    """The table as it is pinned; with --pin, pinned anew."""
    if request.config.getoption("--pin"):
        new.sort_values("chapter", kind="stable").to_csv(path, index=False, float_format="%.6g")
    return pd.read_csv(path, dtype={"chapter": str})


@pytest.mark.slow
def test_evidence_is_that_of_the_golden_table(built, request):
    rows = evidence.read(BUILD / "evidence")
    rows = rows[rows["model"].isin(included_models())].reindex(columns=PINNED)
    assert differences(rows, pinned(GOLDEN, rows, request)) == []


@pytest.mark.slow
def test_figures_and_exhibits_show_what_is_pinned(built, request):
    came = [row for number, data in figures() if number not in ARBITRARY
            for row in means(number, data)]  # fmt: skip
    results = claims.paper_results()
    for solved, suffix in ((False, ""), (True, claims.SECOND)):
        for row in evidence.read(BUILD / "evidence", results, solved).itertuples():
            if row.model in MODELS and row.claim not in claims.WITHOUT_MODEL:
                name = row.claim + suffix
                came.append((row.chapter, name, row.model, row.verdict, 1, row.effect))
    came = pd.DataFrame(came, columns=COLUMNS)
    both = (
        pinned(FIGURES, came, request)
        .fillna({"model": ""})
        .merge(came, how="outer", on=COLUMNS[:-1], suffixes=("_was", "_is"), indicator="in")
    )
    atol = np.where(both["shown"].isin(ROUNDED), HUNDREDTHS, LOGITS)
    is_result = both["shown"].str.removesuffix(claims.SECOND).isin(results)
    atol = np.where(is_result, STORED, atol)
    was, now = (both[name].astype(float) for name in ("mean_was", "mean_is"))
    close = np.isclose(was, now, rtol=SHOWN, atol=atol, equal_nan=True) & (both["in"] == "both")
    assert both[~close].empty, both[~close].to_string()


@pytest.mark.slow
def test_readme_counts_what_random_heads_reach(built):
    rows = evidence.read(BUILD / "evidence", claims.paper_results())
    rows = rows[~rows["claim"].isin(claims.UNCOUNTED)]
    agrees = rows["verdict"].str.startswith((claims.AGREES, claims.IN_PART))
    compared = rows[agrees & (rows["n_random_sets"] >= evidence.MIN_RANDOM_SETS)]
    reached = compared["verdict"].str.endswith(claims.NOT_SPECIFIC).sum()
    assert f"in {reached} of {len(compared)} cases" in (ROOT / "README.md").read_text("utf8")
    second = evidence.read(BUILD / "evidence", claims.paper_results(), solved=True)
    is_counted = ~second["claim"].isin(claims.UNCOUNTED)
    verdicts = second[is_counted & ~second["verdict"].isin(claims.WITHOUT_VERDICT)]["verdict"]
    n_agree = verdicts.str.startswith(claims.AGREES).sum()
    n_not = (verdicts == claims.DISAGREES).sum()
    n_random = (verdicts == claims.AGREES_UNSPECIFIC).sum()
    text = f"{n_agree} of {len(verdicts)} tests of these results agree, and {n_not} do not. "
    text += f"Of those that agree, random heads do as well in {n_random}."
    assert text in (ROOT / "README.md").read_text("utf8")


def test_a_hundredth_of_an_interval_is_beyond_the_tolerances():
    golden = pd.read_csv(GOLDEN, dtype={"chapter": str}).dropna(subset="effect_low")
    step = np.maximum(2 * LOGITS, 0.01 * (golden["effect_high"] - golden["effect_low"]))
    moved = golden.assign(effect=golden["effect"] + step)
    assert len(differences(moved, golden)) == len(golden) > 10
