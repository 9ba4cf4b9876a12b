"""The ladder's file: checkpoints have the names of their stages, models that did not learn are in it, and its means are right.
What pages make of it: planted models whose numbers can be worked out by hand."""

import json
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

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
from twotowers import ladder as measures

from training import ladder
from training.configuration import CONFIGURATIONS
from training.text import Text
from training.tokenizer import build_tokenizer, word_ids
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


def test_recall_is_wrong_where_attention_that_it_needs_is_knocked_out(monkeypatch):
    """Models that read a label `distance` places behind the first copy of its word, and, where that is the label itself, only if
    the label looked at the word before."""
    now = {}

    @contextmanager
    def blocked(model, layers, closed):
        now["closed"] = closed
        yield

    def reads(distance):
        def answer(ids):
            logits = torch.zeros(*ids.shape, 3000)
            for row, words in enumerate(ids.tolist()):
                half, closed = len(words) // 2, now["closed"][row]
                for asked in range(half, 2 * half, 2):
                    first = words.index(words[asked])
                    place = first + distance
                    hidden = (place < half and closed[asked, place]) or (distance == 1 and closed[place, first])
                    logits[row, asked, words[first + 1]] = float(not hidden)
            return SimpleNamespace(logits=logits)

        return SimpleNamespace(hf=answer, n_layers=1)

    monkeypatch.setattr(ladder, "blocked", blocked)
    words = word_ids(build_tokenizer())
    needs = {0: ["asked word to its first copy"], 1: ["asked word to its label", "labels to the word before"]}
    for distance, edges in needs.items():
        right = ladder.recall_accuracy(reads(distance), Text(words, 0), batches=3)
        assert right.sel(edges=edges).max() == 0 and right.drop_sel(edges=edges).min() == 1
    right = ladder.recall_accuracy(reads(2), Text(words, 0), batches=3)
    follows = right.sel(
        edges="asked word to what follows"
    )  # the last of 3, 4, 6 or 8 pairs has nothing of the first copy behind it
    assert right.drop_sel(edges="asked word to what follows").min() == 1 and 1 / 8 <= follows <= 1 / 3


def test_measures_of_planted_models():
    """Two layers of one head: the first looks (1.0 nats) and sends 0.8, of which it writes 0.2; the second sends against."""
    heads = dict(contrast=["reversed", "labels exchanged"], layer=[0, 1], head=[0])
    at = dict(model=["3 layers", "6 layers", "6 layers, untied"], seed=[0], checkpoint=["repeats", "recall", "end"])
    one = xr.Dataset(
        {
            "logit_difference": ((), 2.0),
            "accuracy": ((), 0.9),
            "effect": (("contrast", "layer", "head"), [[[1.0], [0.0]], [[0.8], [-0.3]]]),
            "direct_effect": (("contrast", "layer", "head"), [[[1.0], [0.0]], [[0.2], [-0.3]]]),
            "logit_difference_by_source": (("contrast", "reader", "source"), [[[-2.0, 0.0]], [[1.0, 2.0]]]),
        },
        coords=heads | {"reader": ["last position"], "source": ["query's text", "all"]},
    ).assign_coords(contrast=heads["contrast"])
    exchanged = one[["logit_difference_by_source"]].assign_coords(contrast=["labels exchanged", "texts exchanged"])
    one = one.drop_vars("logit_difference_by_source")
    of_query = one[["logit_difference", "accuracy"]].merge(exchanged, join="outer")
    assert measures.told(of_query, "labels exchanged", "last position")["query's text"] == 1
    assert measures.told(of_query, "texts exchanged", "last position")["query's text"] == 0.25
    assert measures.told(of_query.assign(accuracy=0.5), "labels exchanged", "last position")["query's text"].isnull()
    numbers = measures.numbers(one)
    np.testing.assert_allclose([numbers[name] for name in measures.MEASURES], [0.75, 0.0, 1.0, 0.3, 0.0])
    every = one.expand_dims({dim: len(values) for dim, values in at.items()}).assign_coords(at)
    every["updates"] = ("checkpoint", [100, 130, 900])
    every["recall_accuracy"] = ("checkpoint", "edges"), [[0.5, 0.5], [0.8, 0.2], [0.0, 0.0]]
    assert (measures.recall_without(every.assign_coords(edges=["nothing", "other"]), "other") == 0.25).all()
    assert (measures.recall_updates(every) == 30).all() and measures.layers(every).values.tolist() == [3, 6, 6]
    values = xr.DataArray([[1.0, 1.2], [2.0, 2.2], [9.0, 9.0]], coords={"model": at["model"], "seed": [0, 1]})
    slope, low, high = measures.slope(values)
    np.testing.assert_allclose([slope, (low + high) / 2], 1.0)
    assert low < 1 < high
    assert measures.named("depth-6-other-text") == "6 layers, other text" and measures.named("depth-8") == "8 layers"
