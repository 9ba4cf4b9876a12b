"""Settings: what each may be, and the remedy where it is something else; label pairs that a tokenizer lacks."""

from types import SimpleNamespace

import pytest
import tiny_blocks
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from towerlab.measure import chain
from towerlab.measure.observations import Answers
from towerlab.model import loading
from twotowers.errors import TwoTowersError
from twotowers.settings import Settings


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"blocks": 1_000_000_000}, "blocks=1000000000: give a whole number of at most 100,000"),
        ({"top_k": "200000"}, "at most 100,000"),
        ({"device_map": "banana"}, "device_map='banana': choose 'auto'"),
        ({"model": ""}, "model='': give a shipped or named model, a folder"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_with_the_remedy(given, remedy):
    with pytest.raises(TwoTowersError) as error:
        Settings.of(given)
    assert remedy in str(error.value)


@pytest.mark.parametrize(("given", "want"), [("auto", "auto"), ("none", None), ("", None), (None, None)])
def test_device_map_auto_reaches_the_model(given, want, monkeypatch):
    asked = {}
    monkeypatch.setattr(loading, "load", lambda name, **options: asked.update(options))
    assert chain.Run(Settings.of({"device_map": given})).model is None
    assert asked["device_map"] == want
    assert Settings.of({"separator": "auto"}).separator is None


def run(words, monkeypatch, **settings) -> chain.Run:
    """A run whose tokenizer knows a few words."""
    monkeypatch.setattr(chain, "label_pairs", lambda kinds=(): ("foo/bar", "up/down"))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["?", ":", *words])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    of_words = chain.Run(Settings.of(settings))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")
    of_words.__dict__["model"] = SimpleNamespace(tokenizer=fast)
    return of_words


def test_label_pairs_that_a_tokenizer_cannot_say_are_left_out_by_default_and_told(monkeypatch, capfd):
    some = run(["foo", "bar", "up"], monkeypatch)
    assert some.labels == ("foo/bar",) and "unknown" in some.unsayable["up/down"]
    assert capfd.readouterr().err == "mini-gpt2: label pairs left out, which its tokenizer cannot say: up/down\n"
    assert {prompt.labels for prompt in some.blocks(2, 1, chain.Form(1, "space"))} == {("foo", "bar")}
    assert run(["foo", "bar", "up", "down"], monkeypatch).labels == ("foo/bar", "up/down")
    assert run(["foo", "bar"], monkeypatch, labels="up/down").labels == ("up/down",)  # what is asked for is refused later
    with pytest.raises(TwoTowersError, match="can say no label pair"):
        _ = run(["foo"], monkeypatch).labels


def test_answers_that_are_not_finite_are_refused():
    encoded = tiny_blocks.blocks(1)
    with pytest.raises(TwoTowersError, match="not finite: take dtype=bfloat16"):
        Answers(encoded).put((), [0], torch.tensor([0]), torch.tensor([[0.0, float("nan")]]))
