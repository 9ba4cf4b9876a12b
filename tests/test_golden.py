"""The evidence of the shipped models, chapter by chapter, against the table that is pinned in
golden.csv.

What is measured here lies in _build/measurements, where `make book` takes it up; what a build has
left there is used, unless the code that measures is newer. After a change that is meant to change
numbers:  pytest tests/test_golden.py --pin
"""

import numpy as np
import pandas as pd
import pytest
from chapter_runs import CHAPTERS, evidence_of
from conftest import ROOT
from tolerances import LOGITS, PINNED, differences
from twotowers.paths import shipped_models

GOLDEN = ROOT / "tests/golden.csv"


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


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_evidence_is_that_of_the_golden_table(chapter, monkeypatch, tmp_path, request):
    result = evidence_of(chapter, monkeypatch, tmp_path)
    result = result[result["model"].isin(shipped_models())].reindex(columns=PINNED)
    golden = pd.read_csv(GOLDEN, dtype={"chapter": str})
    mine = golden["chapter"] == chapter.partition("-")[0].lstrip("0").upper()
    if request.config.getoption("--pin"):
        pinned = pd.concat([golden[~mine], result]).sort_values("chapter", kind="stable")
        pinned.to_csv(GOLDEN, index=False, float_format="%.6g")
    else:
        assert differences(result, golden[mine]) == []


def test_a_hundredth_of_an_interval_is_beyond_the_tolerances():
    golden = pd.read_csv(GOLDEN, dtype={"chapter": str}).dropna(subset="effect_low")
    step = np.maximum(2 * LOGITS, 0.01 * (golden["effect_high"] - golden["effect_low"]))
    assert (
        len(differences(golden.assign(effect=golden["effect"] + step), golden)) == len(golden) > 10
    )
