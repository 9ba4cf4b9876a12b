"""The ladder's file: checkpoints have the names of their stages, models that did not learn are in it, and its means are right."""

import json
import shutil

import numpy as np
import torch
import xarray as xr
from conftest import ROOT
from plain_hooks import run, weights_of, z_of
from towerlab.measure.answers import answers
from towerlab.measure.label_sources import label_sources
from towerlab.measure.looks import looks
from towerlab.model.loading import load
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.prompt import encode_all
from twotowers import forms, store

from training import ladder
from training.configuration import CONFIGURATIONS
from training.trainer import new_model

MINI = ROOT / "data/models/mini-gpt2"


def test_labels_are_in_no_prompt_of_the_book():
    assert not set("/".join(ladder.label_pairs()).split("/")) & set("/".join(forms.label_pairs()).split("/"))


def test_the_file_holds_means_over_prompts_and_models_that_did_not_learn(monkeypatch, tmp_path):
    monkeypatch.setattr(ladder, "BLOCKS", 4)
    folder = tmp_path / "steps/step-007919"
    shutil.copytree(MINI, folder)
    (folder / "training.json").write_text(json.dumps({"step": 7919, "checkpoint": "end"}))
    untrained = tmp_path / "steps/step-000001"
    shutil.copytree(MINI, untrained)
    torch.manual_seed(0)
    new_model(CONFIGURATIONS["mini-gpt2"], 2004).save_pretrained(untrained)
    (untrained / "training.json").write_text(json.dumps({"step": 1, "checkpoint": "few repeats"}))
    data = ladder.measure("depth-4", 0, tmp_path / "steps", ladder.outcome(MINI))
    failed = ladder.measure("depth-8", 1, tmp_path / "none", "repeats: the loss stayed at 6.00")
    deeper = data.assign_coords(model=["depth-6"], layer=data.layer + 2)
    ladder.gather([data, failed, deeper], tmp_path / "ladder.nc", "for a test")
    ladders = store.load(tmp_path / "ladder.nc").data
    assert list(ladders.checkpoint.values) == ladder.CHECKPOINTS and dict(ladders.sizes)["layer"] == 6
    assert ladders.outcome.sel(seed=0).values.tolist() == ["learned", "learned", "not run"]
    assert ladders.outcome.sel(seed=1).values.tolist() == ["not run", "not run", "repeats: the loss stayed at 6.00"]
    guesses = ladders.sel(model="depth-4", seed=0, checkpoint="few repeats")  # no choice: no head is asked for its part in it
    assert guesses.accuracy < ladder.CHOICE and guesses.logit_difference.notnull() and guesses.effect.isnull().all()
    assert ladders.effect.sel(model="depth-8").isnull().all() and ladders.effect.sel(model="depth-4", layer=[4, 5]).isnull().all()

    model = load(str(MINI))
    prompts = draw_blocks(4, forms.Form(2, "space"), seed=ladder.SEED, labels=ladder.label_pairs())
    plain = looks(model, encode_all(prompts, model.tokenizer), ["reversed", "labels exchanged", "texts exchanged"])
    of_mini = ladders.sel(model="depth-4", seed=0, checkpoint="end", layer=slice(0, 3))
    for name in ("effect", "direct_effect", "preference", "logit_difference_all_reversed", "logit_difference"):
        xr.testing.assert_allclose(of_mini[name].drop_vars(["model", "seed", "checkpoint"]), plain[name].mean("prompt"), atol=0.02)
    told = label_sources(model, encode_all(prompts, model.tokenizer)).logit_difference_by_source.mean("prompt")
    xr.testing.assert_allclose(
        of_mini.logit_difference_by_source.sel(contrast=told.contrast).reset_coords(drop=True), told, atol=0.02
    )
    np.testing.assert_allclose(of_mini.accuracy, (plain.logit_difference > 0).mean(), atol=1e-6)


def test_the_last_position_reads_the_query_as_it_stands_later():
    model = load(str(MINI))
    encoded = encode_all(draw_blocks(2, forms.Form(2, "space"), seed=5), model.tokenizer)
    places = model.hf.transformer.wpe.weight
    for demonstrations in (0, 2):
        whole, measured = ladder.later(model, encoded, demonstrations)
        for e, of_whole, value in zip(encoded, whole, measured, strict=True):
            plain = places.detach().clone()
            places.data = plain.roll(-3 * demonstrations, 0)  # a demonstration has three tokens
            there = run(model, e)
            places.data = plain
            np.testing.assert_allclose(of_whole, there["difference"], atol=1e-4)

            def change(layer, z, attention, e=e, theirs=there["attention"]):
                values = attention[2].clone()
                values[:, :, slice(*e.query_span)] = theirs[layer][2][:, :, slice(*e.query_span)]
                for head in range(model.n_heads):
                    of_head = z_of(model, weights_of(model, attention, head, e.last), values, head)
                    z[0, e.last, head * model.d_head : (head + 1) * model.d_head] = of_head
                return z

            np.testing.assert_allclose(value, run(model, e, change)["difference"], atol=1e-4)
        answered = answers(model, encoded)
        moved = np.abs(measured - (answered.log_prob_true - answered.log_prob_other)).max()
        assert moved > 0.001 if demonstrations else moved < 1e-4


def test_a_model_that_only_guesses_counts_as_one_that_did_not_learn(tmp_path):
    guess = "at chance: {}% right on validation, reordered or not"
    for right, fall, outcome in ((98.0, 20.0, "learned"), (51.0, 0.0, guess.format(51)), (97.0, 92.0, guess.format(51))):
        row = {"step": 5, "original": right, "order": fall}  # the last answers by place
        (tmp_path / "training.json").write_text(json.dumps({"step": 5, "validation": [row]}))
        assert ladder.outcome(tmp_path) == outcome
