"""The evidence of the shipped models, chapter by chapter, against the table that is pinned in golden.csv.

What is measured here lies in _build/measurements, where `make book` takes it up; what a build has left there is used, unless
the code that measures is newer. After a change that is meant to change numbers:  pytest tests/test_golden.py --pin
"""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from chapter_runs import CHAPTERS, evidence_of
from conftest import ROOT
from safetensors.torch import load_file, save_file
from tolerances import PINNED, differences
from towerlab.measure import chain
from towerlab.prompts.prompt import encode_all
from twotowers.forms import label_pairs
from twotowers.paths import shipped_models

GOLDEN = ROOT / "tests/golden.csv"


@pytest.fixture(scope="module", autouse=True)
def fresh():
    """Leaves no measurement that older code or weights have made: who pins a version as it was is held to it."""
    code = [path for room in ("prompts", "model", "measure") for path in (ROOT / "lib/towerlab" / room).glob("*.py")]
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


def same(folder, monkeypatch):
    """The model of the table, from another folder."""


def scaled_values(folder, monkeypatch):
    """The values of one of its writers, 3-7, are 1% larger."""
    weights = load_file(folder / "model.safetensors")
    width = weights["transformer.wte.weight"].shape[1]
    d_head = width // json.loads((folder / "config.json").read_text())["n_head"]
    first = 2 * width + 7 * d_head
    for name in ("weight", "bias"):
        weights[f"transformer.h.3.attn.c_attn.{name}"][..., first : first + d_head] *= 1.01
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def labels_off_by_one(folder, monkeypatch):
    """Labels are looked for one token too early."""

    def shifted(*arguments):
        encoded = encode_all(*arguments)
        return [replace(e, label_positions=tuple(p - 1 for p in e.label_positions)) for e in encoded]

    monkeypatch.setattr(chain, "encode_all", shifted)


@pytest.mark.slow
@pytest.mark.parametrize("change", [same, scaled_values, labels_off_by_one])
def test_a_real_change_is_beyond_the_tolerances(change, monkeypatch, tmp_path):
    folder = tmp_path / "mini-gpt2"
    shutil.copytree(shipped_models()["mini-gpt2"], folder)
    change(folder, monkeypatch)
    (tmp_path / "evidence").mkdir()
    settings = {"model": str(folder), "labels": ",".join(label_pairs(("nonsense",))), "k": 2, "separator": "space"}
    settings["out"] = str(tmp_path / "measurements")
    result = evidence_of("05-imbalanced-and-reordered", monkeypatch, tmp_path / "evidence", **settings)
    golden = pd.read_csv(GOLDEN, dtype={"chapter": str}).query("chapter == '5'")
    lines = differences(result[result["model"] == "mini-gpt2"], golden)
    assert bool(lines) == (change is not same), lines
