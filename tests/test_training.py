"""The training of the included model: the loss falls, a stopped run continues, the card is true."""

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from tolerances import near
from transformers import AutoModelForCausalLM, AutoTokenizer

from training import card, prompts, trainer
from training.configuration import CONFIGURATIONS
from training.tokenizer import LABELS

MINI = ROOT / "data/models/mini-gpt2"
PROMPT = "love : bar like : bar eight : foo two : foo one :"


SHORT = replace(
    CONFIGURATIONS["mini-gpt2"],
    batch=8,
    updates=20,
    validate_every=10,
    validation_prompts=4,
    save_every=5,
)


class Short(trainer.Trainer):
    """All stages, but each ends after some fifteen batches; `kill_at` is an update that is never
    done."""

    kill_at, enough = None, 8.5

    def __init__(self, seed, checkpoints=None):
        super().__init__(SHORT, seed, checkpoints, quiet=True)

    def until(self, name, draw, enough=None, beside=None):
        super().until(name, draw, self.enough, beside)

    def train(self, batch):
        if self.step == self.kill_at:
            raise KeyboardInterrupt
        return super().train(batch)


def test_a_few_updates_lower_the_loss():
    trained = Short(0)
    batch = trained.text.episodes(8, 0.5)
    losses = [trained.train(batch) for _ in range(25)]
    near(losses[0], np.log(len(trained.tokenizer)), atol=0.5)  # random weights: an even guess
    assert losses[-1] < losses[0] - 2


@pytest.mark.nightly
def test_a_run_that_was_killed_ends_with_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(card, "write", lambda folder, *_: (folder / "README.md").write_text(""))
    Short(3, tmp_path / "whole").run(tmp_path / "whole out")
    last = json.loads((tmp_path / "whole out/training.json").read_text())["stages"][-1][1]
    for kill_at in (60, last - 1):
        again = Short(3, tmp_path / "killed")
        again.kill_at = kill_at
        with pytest.raises(KeyboardInterrupt):
            again.run(tmp_path / "out")
        assert not (tmp_path / "out").exists()
    again = Short(3, tmp_path / "killed")
    assert again.take_up() and not Short(4, tmp_path / "killed").take_up()
    again.run(tmp_path / "out")
    for name in ("model.safetensors", "training.json"):
        files = (tmp_path / folder / name for folder in ("out", "whole out"))
        assert len({file.read_bytes() for file in files}) == 1


def test_the_shipped_model_is_whole_and_its_card_is_of_it():
    model = AutoModelForCausalLM.from_pretrained(MINI, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(MINI, local_files_only=True)
    text, summary = (
        (MINI / "README.md").read_text(),
        json.loads((MINI / "training.json").read_text()),
    )
    assert {path.suffix for path in MINI.iterdir()} == {".safetensors", ".json", ".md"}
    assert all(weight.isfinite().all() for weight in model.state_dict().values())
    assert summary["labels"] == LABELS and summary["form"] == {"k": prompts.K, "separator": "space"}
    spans = tokenizer(PROMPT, return_offsets_mapping=True).offset_mapping
    assert [PROMPT[start:end] for start, end in spans] == PROMPT.split()
    for label in summary["labels"]:
        assert len(tokenizer("one " + label).input_ids) == 1 + len(tokenizer("one").input_ids)
    assert card.facts(model, summary) in text and card.stages(summary) in text
