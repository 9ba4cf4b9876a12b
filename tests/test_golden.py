"""The evidence of the shipped models, chapter by chapter, against the table that is pinned in
golden.csv; and what figures and exhibits show of them and of a recorded one, against shown.csv.

What is measured here lies in _build/measurements, where `make book` takes it up; what a build has
left there is used, unless the code that measures is newer. After a change that is meant to change
numbers:  pytest tests/test_golden.py --pin
"""

import numpy as np
import pandas as pd
import pytest
from chapter_runs import CHAPTERS, evidence_of
from conftest import ROOT
from tolerances import HUNDREDTHS, LOGITS, PINNED, SHOWN, differences
from twotowers import book, exhibits
from twotowers.paths import shipped_models
from twotowers.tables import shown_name

GOLDEN, FIGURES = ROOT / "tests/golden.csv", ROOT / "tests/shown.csv"
MODELS = (*shipped_models(), "smollm2-135m")  # the second has every measurement
ARBITRARY = ("4.5",)  # principal components have any sign
ROUNDED = ("10.2", "11.2")  # to hundredths, before the test sees them


@pytest.fixture(scope="module", autouse=True)
def fresh():
    """Leaves no measurement that older code or weights have made: who pins a version as it was is
    held to it."""
    code = [
        path
        for room in ("prompts", "model", "measure")
        for path in (ROOT / "lib/towerlab" / room).glob("*.py")
    ]
    newest = max(path.stat().st_mtime for path in (*code, *ROOT.glob("data/models/*/*")))
    for path in ROOT.glob("_build/measurements/mini-*/*/*.nc"):
        if path.stat().st_mtime < newest:
            path.unlink()


def means(number: str, table: pd.DataFrame) -> list[tuple]:
    """Of the data of a figure: rows and mean of every column of numbers, for each of MODELS. Later
    rows weigh more, so that exchanged rows show."""
    of = table["model"].astype(str) if "model" in table else pd.Series("", table.index)
    parts = {m: table[of.str.startswith((m, shown_name(m)))] for m in MODELS if of.any()}
    return [
        (number, model, column, len(part), (part[column] * np.arange(1, 1 + len(part))).mean())
        for model, part in (parts or {"": table}).items()
        for column in part.select_dtypes("float")
        if len(part)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_evidence_and_figures_are_those_of_the_golden_tables(
    chapter, monkeypatch, tmp_path, request
):
    shown, figure = [], book.Chapter.figure

    def keep(self, number, chart, caption):
        data = getattr(chart, "data", None)
        if isinstance(data, pd.DataFrame) and number not in ARBITRARY:
            shown.extend(means(number, data))
        figure(self, number, chart, caption)

    monkeypatch.setattr(book.Chapter, "figure", keep)
    result = evidence_of(chapter, monkeypatch, tmp_path)
    result = result[result["model"].isin(shipped_models())].reindex(columns=PINNED)
    for row in exhibits.read(tmp_path / "exhibits").to_dict("records"):
        if row["model"] in MODELS and row["item"] not in exhibits.OF_NO_MODEL:
            shown.append((row["item"], row["model"], row["verdict"], 1, row["value"]))
    number = chapter.partition("-")[0].lstrip("0")
    columns = ["shown", "model", "column", "rows", "mean"]
    came = pd.DataFrame(shown, columns=columns).assign(chapter=number)
    golden, of_shown = (pd.read_csv(path, dtype={"chapter": str}) for path in (GOLDEN, FIGURES))
    mine, its = golden["chapter"] == number, of_shown["chapter"] == number
    if request.config.getoption("--pin"):
        for path, old, new in ((GOLDEN, golden[~mine], result), (FIGURES, of_shown[~its], came)):
            pinned = pd.concat([old, new]).sort_values("chapter", kind="stable")
            pinned.to_csv(path, index=False, float_format="%.6g")
        return
    assert differences(result, golden[mine]) == []
    both = (
        of_shown[its]
        .fillna({"model": ""})
        .merge(came, how="outer", on=columns[:-1], suffixes=("_was", "_is"))
    )
    atol = np.where(both["shown"].isin(ROUNDED), HUNDREDTHS, LOGITS)
    was, now = (both[name].astype(float) for name in ("mean_was", "mean_is"))
    close = np.isclose(was, now, rtol=SHOWN, atol=atol, equal_nan=True)
    only = both[["chapter_was", "chapter_is"]].isna().any(axis=1)
    assert both[~close | only].empty, both[~close | only].to_string()


def test_a_hundredth_of_an_interval_is_beyond_the_tolerances():
    golden = pd.read_csv(GOLDEN, dtype={"chapter": str}).dropna(subset="effect_low")
    step = np.maximum(2 * LOGITS, 0.01 * (golden["effect_high"] - golden["effect_low"]))
    assert (
        len(differences(golden.assign(effect=golden["effect"] + step), golden)) == len(golden) > 10
    )
