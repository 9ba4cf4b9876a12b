"""Settings that reach the model; label pairs that a tokenizer lacks. What each setting may be:
test_engine.py, BAD."""

import pytest
import tiny_blocks
import torch
import xarray as xr
from conftest import ROOT, refused, word_tokenizer
from towerlab.measure import design as designs
from towerlab.measure.observations import answer_variables
from twotowers import identity
from twotowers.settings import Settings, Template


def design(words, monkeypatch, **settings) -> designs.Design:
    """A design whose tokenizer knows a few words."""
    monkeypatch.setattr(designs, "read_label_pairs", lambda kinds=(): ("foo/bar", "up/down"))
    tokenizer = word_tokenizer(["?", ":", *words])
    some = Settings.from_values(settings)
    return designs.Design(some, tokenizer, 64, xr.Dataset, some.model)


def test_an_empty_setting_is_the_default_and_the_model_has_a_name():
    names = Settings.model_fields.keys() - {"model"}
    for empty in ("", None):
        assert Settings.from_values(dict.fromkeys(names, empty)) == Settings()
    automatic = dict.fromkeys(("label_pairs", "k", "prompts"), "auto")
    assert Settings.from_values(automatic) == Settings()
    refused("model '': expected at least 1 item", Settings.from_values, {"model": ""})


def test_a_number_that_was_meant_as_a_name_is_one_and_the_home_folder_is_expanded_once(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    out = "_build/measurements"
    assert Settings.from_values({"out": out}).out == str(ROOT / out)
    settings = Settings.from_values({"model": 360, "out": "~/results"})
    assert (settings.model, settings.out) == ("360", "/home/me/results")
    assert Settings.from_values({"model": "~/a"}).model == "/home/me/a"


def test_label_pairs_that_a_tokenizer_cannot_say_are_left_out_by_default_and_told(
    monkeypatch, capfd
):
    some = design(["foo", "bar", "up"], monkeypatch)
    assert some.label_pairs == ("foo/bar",)
    told = "mini-gpt2: label pairs left out, which its tokenizer cannot encode: up/down\n"
    assert capfd.readouterr().err == told
    assert {prompt.labels for prompt in some.blocks(2, 1, Template(1, "space"))} == {("foo", "bar")}
    assert design(["foo", "bar", "up", "down"], monkeypatch).label_pairs == ("foo/bar", "up/down")
    # what is asked for is refused later
    assert design(["foo", "bar"], monkeypatch, label_pairs="up/down").label_pairs == ("up/down",)
    refused("can encode no label pair", getattr, design(["foo"], monkeypatch), "label_pairs")


def test_answers_that_are_not_finite_are_refused():
    encoded, log_prob = tiny_blocks.blocks(1)[:1], torch.tensor([[0.0, torch.nan]])
    words = "not finite; choose dtype=bfloat16"
    refused(words, answer_variables, encoded, torch.tensor([0]), log_prob)


CHANGED = (
    "evaluation_blocks=8 prompts=8 selection_blocks=8 k=2 separator=space label_pairs=foo/bar "
    "top_k=3 seed=1 dtype=float16"
)


@pytest.mark.parametrize("given", [*CHANGED.split(), "device=cuda"])
def test_what_decides_numbers_is_in_the_identity_and_a_recorded_file_stands_for_no_other(given):
    name, _, value = given.partition("=")
    plain, other = Settings(), Settings.from_values({name: value})
    of_words, of_sets = (identity.identity_of(name, plain, "m@0") for name in ("heads", "paper"))
    heads = xr.Dataset(attrs={"identity": of_words, "measurement": "heads"})
    for measurement, plain, is_other in (
        ("heads", of_words, name not in {"prompts", "device"}),
        ("paper", of_sets, name in {"prompts", "seed", "dtype"}),
    ):
        assert (identity.identity_of(measurement, other, "m@0") != plain) == is_other
    assert identity.matches_settings(heads, other) == (name in {*identity.NUMBERS, "device"})
