"""`benchmarks.verdicts`: every claim on a model of one's own, beside what was registered before it
was run."""

import shutil

import pandas as pd
import pytest
from conftest import refused
from towerlab.measure.pipeline import Pipeline
from twotowers import claims
from twotowers.paths import data_folder
from twotowers.settings import Settings

from benchmarks import verdicts

BLOCKS = "evaluation_blocks=2 selection_blocks=2 k=1 separator=space seed=1 prompts=2"
FEW = dict(word.split("=") for word in BLOCKS.split())


def test_predictions_stand_beside_verdicts_and_what_is_not_testable_is_neither_hit_nor_miss(
    tmp_path,
):
    ids = "learned", "query-text", "push-back", "headline"
    found = "holds", "absent", claims.NOT_TESTABLE, "undecided"
    table = verdicts.beside_predictions(pd.DataFrame({"claim": ids, "verdict": found}))
    hit, missed = table["probability"][:2]
    assert table["hit"].tolist()[:2] == [True, False] and table["hit"][2:].isna().all()
    assert verdicts.brier(table) == pytest.approx(((1 - hit) ** 2 + missed**2) / 2)
    assert verdicts.base_rate(table) == 1 / 4
    assert table["predicted"][3] == "undecided"  # of the rule before: no test


def test_chapters_are_those_that_judge_with_what_they_read():
    chapters = verdicts.chapters()
    assert {"selection", "heads", "query_key_vectors"} <= {*chapters["04-attention-weights"]}
    assert not {"intro", "scorecard"} & chapters.keys()
    assert list(verdicts.chapters(["4", "6"])) == ["04-attention-weights", "06-interventions"]
    refused("unknown chapter '99'", verdicts.chapters, ["4", "99"])


@pytest.mark.nightly
def test_the_command_measures_runs_chapters_and_prints_and_records_verdicts(
    tmp_path, capfd, monkeypatch
):
    options = [word for name, value in FEW.items() for word in (f"--{name}", value)]
    assert verdicts.main(["mini-gpt2", "--chapters", "4", "--out", str(tmp_path), *options]) == 0
    output = capfd.readouterr()
    run = Pipeline(Settings.from_values({"model": "mini-gpt2", "out": str(tmp_path), **FEW}))
    rows = pd.read_csv(verdicts.folder(run) / "verdicts.csv")
    assert "not testable, too few class pairs to tell whether it learns" in output.out
    assert str(verdicts.folder(run) / "verdicts.csv") in output.out
    assert {*rows["claim"]} == {name for name, of in claims.claims().items() if of.chapter == "4"}
    shutil.copy(data_folder() / "seeds.csv", tmp_path)
    monkeypatch.setattr(verdicts, "data_folder", lambda: tmp_path)
    for _ in range(2):
        verdicts.save_rows(run, rows)
    before, after = (pd.read_csv(path / "seeds.csv") for path in (data_folder(), tmp_path))
    assert len(after) == len(before) and set(after["claim"]) == set(before["claim"])
    assert after[after["evaluation_blocks"] == 2]["claim"].tolist() == rows["claim"].tolist()
    assert "WARNING" not in output.err
    assert (verdicts.folder(run) / "log/04-attention-weights.ipynb.txt").is_file()
