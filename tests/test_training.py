"""The training of the shipped model: episodes are well formed, the loss falls, a stopped run goes
on, cards are true."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from training import card, prompts, trainer
from training.configuration import CONFIGURATIONS
from training.text import APART
from training.tokenizer import LABELS

MINI = ROOT / "data/models/mini-gpt2"
PROMPT = "love : bar like : bar eight : foo two : foo one :"


@pytest.fixture(scope="module")
def mini():
    """The shipped model, its tokenizer and its card."""
    model = AutoModelForCausalLM.from_pretrained(MINI, local_files_only=True).eval()
    return (
        model,
        AutoTokenizer.from_pretrained(MINI, local_files_only=True),
        (MINI / "README.md").read_text(),
    )


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
    assert losses[0] == pytest.approx(
        np.log(len(trained.tokenizer)), abs=0.5
    )  # random weights: an even guess
    assert losses[-1] < losses[0] - 2


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(card, "write", lambda folder, *_: (folder / "README.md").write_text(""))
    Short(3, tmp_path / "whole").run(tmp_path / "whole out")
    record = json.loads((tmp_path / "whole out/training.json").read_text())
    last = record["stages"][-1][1]
    steps = {path.name for path in (tmp_path / "whole").glob("step-*")}
    assert steps == {
        f"step-{step:06d}" for name, step in record["stages"] if not name.startswith("episodes")
    }
    for kill_at in (60, last - 1):
        again = Short(3, tmp_path / "killed")
        again.kill_at = kill_at
        with pytest.raises(KeyboardInterrupt):
            again.run(tmp_path / "out")
        assert not (tmp_path / "out").exists()
    again = Short(3, tmp_path / "killed")
    assert again.take_up() and not Short(4, tmp_path / "killed").take_up()
    again.run(tmp_path / "out")
    expected, result = (
        load_file(tmp_path / name / "model.safetensors") for name in ("whole out", "out")
    )
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    assert json.loads((tmp_path / "out/training.json").read_text()) == record


@pytest.mark.parametrize("repeat", [1.0, 0.0])
def test_episodes_of_words_are_well_formed(repeat):
    text = Short(0).text
    classes = {}
    for name, ids in text.episode_words.items():
        for i in ids:
            classes.setdefault(i, set()).add(name)
    for _ in range(5):
        ids, mask = text.episodes(16, repeat)
        assert (
            (ids[:, 1::3] == text.colon).all()
            and not mask[:, 0::3].any()
            and not mask[:, 1::3].any()
        )
        for words, labels, in_loss in zip(ids[:, 0::3], ids[:, 2::3], mask[:, 2::3], strict=True):
            assert set(labels) <= set(text.labels) and set(words) <= set(
                classes
            )  # no held-out word
            assert in_loss.astype(bool).tolist() == [
                label in labels[:at] for at, label in enumerate(labels)
            ]
            of_label = {label: [classes[w] for w in words[labels == label]] for label in labels}
            # Where nothing is wrong on purpose a label has one class, and no two are kept apart.
            if repeat == 1.0:
                common = [set.intersection(*of) for of in of_label.values()]
                assert all(common)
                certain = {next(iter(of)) for of in common if len(of) == 1}
                assert not any(pair <= certain for pair in APART)


def test_the_shipped_model_is_whole_and_its_card_is_of_it(mini):
    (model, tokenizer, text), record = mini, json.loads((MINI / "training.json").read_text())
    assert {path.suffix for path in MINI.iterdir()} == {".safetensors", ".json", ".md"}
    assert all(weight.isfinite().all() for weight in model.state_dict().values())
    assert record["labels"] == LABELS and record["form"] == {"k": prompts.K, "separator": "space"}
    spans = tokenizer(PROMPT, return_offsets_mapping=True).offset_mapping
    assert [PROMPT[start:end] for start, end in spans] == PROMPT.split()
    for label in record["labels"]:
        assert len(tokenizer("one " + label).input_ids) == 1 + len(tokenizer("one").input_ids)
    assert card.facts(model, record) in text and card.stages(record) in text


@pytest.mark.nightly
def test_numbers_of_the_card_are_measured(mini):
    model, tokenizer, text = mini
    for row in card.accuracies(model, tokenizer, prompts.WORD_SETS[2:3])[:2]:
        name, label, *percent = row.values()
        of_card = re.search(rf"\| {name} \| {label} \|(.*)\|", text)[1].split("|")
        np.testing.assert_allclose(
            [float(x) for x in of_card], percent, atol=0.25
        )  # near ties may fall otherwise


def test_a_step_that_answers_by_place_is_worth_less_than_one_that_learned_a_little():
    by_place = {"original": 100.0, "weakest": 100.0, "balance": 21.0, "order": 99.6}
    learner = {"original": 90.0, "weakest": 80.0, "balance": 10.0, "order": 20.0}
    assert (
        trainer.worth(by_place)
        < trainer.worth(learner)
        < trainer.worth(learner | {"weakest": 95.0})
    )
