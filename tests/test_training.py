"""How the miniatures are trained: a package without a circle, runs that go on after a kill, measures along the way."""

import ast
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT, random_prompts, tiny
from miniatures import along_training, choice, repeated_tokens, train, trainer
from miniatures.trainer import Trainer
from safetensors.torch import load_file
from twotowers.analysis import locate
from twotowers.model import loading
from twotowers.model.capture import captures
from twotowers.stats import tables
from twotowers.studies.training import ALL, OF_HEADS, OF_MODEL

PACKAGE = ROOT / "lib" / "miniatures"

# --- the package ------------------------------------------------------------------------------------------------------


def test_modules_import_in_the_order_that_the_package_names():
    lines = re.findall(r"^- ([\w, ]+):", (PACKAGE / "__init__.py").read_text(), flags=re.MULTILINE)
    order = ", ".join(lines).split(", ")
    assert sorted(order) == sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    for at, name in enumerate(order):
        for node in ast.walk(ast.parse((PACKAGE / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("miniatures"):
                assert node.module.partition(".")[2] in order[:at], f"{name} imports {node.module}"


def test_twotowers_does_without_the_package():
    for path in (ROOT / "lib" / "twotowers").rglob("*.py"):
        assert "import miniatures" not in path.read_text() and "from miniatures" not in path.read_text(), path


def test_the_old_command_is_not_named_any_more():
    places = [*ROOT.glob("data/models/*/README.md"), *ROOT.glob("book/*.md"), ROOT / "Makefile", *PACKAGE.glob("*.py")]
    assert len(places) > 10
    for path in places:
        assert "models/train.py" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (train, ["mini-bert"], "invalid choice: 'mini-bert'"),
        (along_training, ["--out", "x", "--seeds", "0;1"], "give whole numbers with commas between them"),
        (along_training, ["--out", "file/x"], "cannot write to"),
    ],
)
def test_bad_input_is_one_line(command, arguments, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["a command", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code
    assert said in f"{end.value.code} {capsys.readouterr().err}"


# --- training ---------------------------------------------------------------------------------------------------------


class Short(Trainer):
    """All stages, but each ends after some fifteen batches; `kill_at` is a step that is never done."""

    kill_at = None

    def until(self, name, draw, enough, beside=None):
        super().until(name, draw, 8.5, beside)

    def train(self, batch):
        if self.step == self.kill_at:
            raise KeyboardInterrupt
        return super().train(batch)

    def write_card(self, folder):
        pass


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(trainer, "BATCH", 8)
    monkeypatch.setattr(trainer, "EPISODE_STEPS", {"mini-gpt2": 55})
    monkeypatch.setattr(trainer, "STATE_EVERY", 5)
    monkeypatch.setattr(trainer, "KEPT", (20,))
    monkeypatch.setattr(choice, "VALIDATION_COUNT", 5)


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_a_run_that_was_stopped_again_and_again_ends_with_the_same_weights(short, tmp_path):
    Short("mini-gpt2", 3, tmp_path / "whole", quiet=True).run(tmp_path / "whole out")
    kept = sorted(path.name for path in (tmp_path / "whole").iterdir())
    last = int(kept[-1].removeprefix("step-"))
    assert "step-000000" in kept and len(kept) == 9, "random weights, six stages, one on the way, the end"
    for kill_at in (3, 60, 61, last - 30, last - 1):
        again = Short("mini-gpt2", 3, tmp_path / "killed", quiet=True)
        again.kill_at = kill_at
        with pytest.raises(KeyboardInterrupt):
            again.run(tmp_path / "out")
        assert not (tmp_path / "out").exists()
        assert again.step == kill_at
    Short("mini-gpt2", 3, tmp_path / "killed", quiet=True).run(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == kept
    for folder, same in [("whole out", "out"), *((f"whole/{name}", f"killed/{name}") for name in kept)]:
        expected, found = weights(tmp_path / folder), weights(tmp_path / same)
        assert all(torch.equal(found[name], expected[name]) for name in expected), folder
        record = (tmp_path / folder / "training.json").read_text()
        assert record == (tmp_path / same / "training.json").read_text()


def test_the_state_of_another_run_is_not_taken_up(short, tmp_path):
    first = Short("mini-gpt2", 3, tmp_path, quiet=True)
    first.kill_at = 40
    with pytest.raises(KeyboardInterrupt):
        first.run(tmp_path / "out")
    assert Short("mini-gpt2", 3, tmp_path, quiet=True).take_up()
    assert not Short("mini-gpt2", 4, tmp_path, quiet=True).take_up()
    other_text = Short("mini-gpt2", 3, tmp_path, quiet=True)
    other_text.run_id = ["mini-gpt2", 3, "another recipe"]
    assert not other_text.take_up()
    second = Short("mini-gpt2", 4, tmp_path, quiet=True)
    second.kill_at = 1
    with pytest.raises(KeyboardInterrupt):
        second.run(tmp_path / "out")
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000"], "checkpoints of two runs must not mix"


# --- along the training -----------------------------------------------------------------------------------------------


def test_label_margin_is_what_label_positions_add_to_the_lead(any_model):
    encoded = random_prompts(6, lengths=(14,))
    found = along_training.head_values(any_model, encoded, locate.increases(any_model, encoded).heads)
    for seen in captures(any_model, encoded, {"weights", "values", "scores"}):
        other = torch.tensor([sum(e.label_ids.values()) - e.true_id for e in seen.prompts])
        of_true, of_other = (locate.position_increases(seen, any_model, words) for words in (seen.true_ids, other))
        at = seen.label_positions[:, None, None].expand(*of_true.shape[:3], -1)
        expected = (of_true - of_other).gather(3, at).sum(-1).flatten(1)
        np.testing.assert_allclose(
            found["label margin"][seen.index], expected, rtol=1e-5, atol=1e-6
        )  # weights are held in float32
        # A window that hides a label leaves no class interaction; nothing else does.
        seen_all = seen.scores.transpose(0, 1).gather(3, at).isfinite().all(-1).flatten(1)
        assert (np.isfinite(found["class interaction"][seen.index]) == seen_all.numpy()).all()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_head_values_by_hand(kind, float64):
    model = tiny(kind)
    encoded = random_prompts(4, lengths=(14,))
    found = along_training.head_values(model, encoded, locate.increases(model, encoded).heads)
    seen = next(captures(model, encoded, {"weights"}))
    for row, one in zip(seen.index, seen.prompts, strict=True):
        true = [p for p, t in zip(one.label_positions, one.prompt.is_true, strict=True) if t]
        false = [p for p in one.label_positions if p not in true]
        weight = seen.weights[:, seen.index.index(row)]
        difference = weight[..., true].sum(-1) - weight[..., false].sum(-1)
        # A softmax turns scores into weights, so a difference of scores is one of log weights.
        interaction = weight[..., true].log().mean(-1) - weight[..., false].log().mean(-1)
        np.testing.assert_allclose(found["attention difference"][row], difference.flatten(), atol=1e-6)
        np.testing.assert_allclose(found["class interaction"][row], interaction.flatten(), atol=1e-5)


def test_clustered_mean_by_hand():
    mean, error, n = along_training.clustered_mean(np.array([[0.0], [0.0], [1.0], [1.0]]), np.array(list("aabb")))
    assert (mean, n) == (0.5, 2)
    assert error == pytest.approx(0.5)  # two draws, 0 and 1: their standard deviation over the root of two
    _, alone, n = along_training.clustered_mean(np.array([[0.0], [0.0], [1.0], [1.0]]), np.array(list("abcd")))
    assert n == 4 and alone == pytest.approx(np.std([0, 0, 1, 1], ddof=1) / 2)


def test_repeated_tokens_end_where_one_position_tells_what_follows():
    model = loading.load("mini-gpt2")
    sequences = repeated_tokens.repeated(model, training_seed=0, n=40)
    assert len({one.last - one.label_positions[0] for one in sequences}) > 3, "not copied from one fixed distance"
    for one in sequences:
        (target,) = one.label_positions
        assert one.ids[target - 1] == one.ids[one.last] and one.ids[target] == one.true_id
        assert target < one.last and one.ids.count(one.ids[one.last]) == 2
        copied = len(one.ids) - len(set(one.ids))
        distance = one.last - target + 1
        assert one.ids[-copied:] == one.ids[-copied - distance : -distance]
    assert [e.ids for e in sequences] != [e.ids for e in repeated_tokens.repeated(model, training_seed=1, n=40)]


def test_induction_is_the_weight_at_that_position():
    model = loading.load("mini-gpt2")
    sequences = repeated_tokens.repeated(model, 0, 20)
    scores, copied = repeated_tokens.induction(model, 0, 20)
    for row in (0, 11):
        seen = next(captures(model, [sequences[row]], {"weights"}))
        np.testing.assert_allclose(scores[row], seen.weights[:, 0, :, sequences[row].label_positions[0]], atol=1e-6)
        assert copied[row] == (seen.logits.argmax() == sequences[row].true_id)


def test_checkpoints_are_dense_where_a_stage_begins():
    class Stage(along_training.ManyCheckpoints):
        def __init__(self, stage):
            self.at = trainer.Progress(stage)

    assert [n for n in range(1, 1000) if Stage("recall").keeps(n)] == [50, 100, 200, 400, 800]
    kept = [n for n in range(1, 1501) if Stage("episodes").keeps(n)]
    assert kept == [25, 35, 50, 71, 100, 141, 200, 283, 400, 566, 800, 1131]


def test_stages_by_hand(tmp_path):
    ended = [["repeats", 50], ["colon", 80], ["episodes without exact repeats from", 95], ["end", 140]]
    (tmp_path / "training.json").write_text(json.dumps({"step": 130, "stages": ended}))
    table = along_training.stages(tmp_path)
    assert table[["stage", "start", "end"]].to_numpy().tolist() == [
        ["repeats", 0, 50], ["colon", 50, 80], ["episodes", 80, 140],
    ]  # fmt: skip
    assert table["chosen"].tolist() == [None, None, 130]


@pytest.mark.slow
def test_tables_along_a_short_training_and_nothing_is_done_twice(short, monkeypatch, tmp_path):
    monkeypatch.setattr(along_training, "PROMPTS", 12)
    monkeypatch.setattr(along_training, "induction", lambda *given: repeated_tokens.induction(*given, n=12))
    monkeypatch.setattr(along_training, "ManyCheckpoints", Short)
    out, checkpoints = tmp_path / "tables", tmp_path / "checkpoints"
    assert along_training.study([0], out, checkpoints) == []
    names = [f"along-training-{name}" for name in ("heads", "measures", "stages")]
    assert sorted(path.stem for path in out.iterdir()) == names
    heads, measured, *_ = before = [tables.load(out, name) for name in names]
    of_heads, of_model = (measured[measured["head"].eq(ALL) == whole] for whole in (False, True))
    for quantities, rows in ((OF_HEADS, of_heads), (OF_MODEL, of_model)):
        assert rows[[*quantities, *(f"{name}, error" for name in quantities)]].notna().all(axis=None)
    assert not measured.duplicated(["seed", "step", "head"]).any()
    assert (
        measured["head"].nunique() == 33
        and measured["step"].nunique() >= 8
        and measured["step"].is_monotonic_increasing
    )
    assert heads["in_context"].sum() <= along_training.TOP

    def never(*_):
        raise AssertionError("this was done before")

    shutil.copytree(checkpoints / "seed-0", checkpoints / "seed-1")  # stands for a second training
    monkeypatch.setattr(Short, "run", never)
    monkeypatch.setattr(along_training, "measures", never)
    assert along_training.study([0, 1], out, checkpoints) == []
    for name, alone in zip(names, before, strict=True):
        for _, table in tables.load(out, name).groupby("seed"):
            pd.testing.assert_frame_equal(table.drop(columns="seed").reset_index(drop=True), alone.drop(columns="seed"))
