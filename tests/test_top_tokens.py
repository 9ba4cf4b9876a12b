"""Top tokens of values, keys and queries against sorted projections, with their relations."""

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, of_two_classes, shared_tiny
from reference import Reference
from towerlab.measure.pipeline import save
from towerlab.model import unembed
from towerlab.model.capture import capture
from towerlab.model.token_text import Lexicon
from towerlab_experiments import label_reads as module
from towerlab_experiments.label_reads import RELATIONS, relations_of, top_tokens
from twotowers.files import load
from twotowers.heads import Head

WORDS = tuple(f"word{i}" for i in range(VOCABULARY))
LEXICON = Lexicon(WORDS, WORDS)
CLASSES = {"number": ["word11", "word12"], "animal": ["word13"]}


@pytest.fixture(autouse=True)
def words(monkeypatch):
    monkeypatch.setattr(Lexicon, "from_tokenizer", lambda *_: LEXICON)
    monkeypatch.setattr(module, "class_words", lambda: CLASSES)


def test_every_reading_is_the_sorted_projection_of_the_slow_reference(
    model, tmp_path, small_batches
):
    encoded, heads = of_two_classes(3), [Head(1, 1), Head(0, 0)]
    result = top_tokens(model, encoded, heads)
    slow = [Reference(model, e.ids) for e in encoded]
    plain = [capture(model, [e], {"streams"}) for e in encoded]
    for j, (layer, head) in enumerate(heads):
        for place, position in enumerate(encoded[0].label_positions):
            vectors = {
                "value": [s.value_output(layer, head, position) for s in slow],
                "key": [torch.from_numpy(s.run.resid[layer][position]) for s in slow],
                "key, attention only": [
                    s.stream_attention[:layer, 0, position].sum(0) for s in plain
                ],
            }
            for what, rows in vectors.items():
                mean = sum(rows) / len(rows)
                for name, subtrahend in (("kept", 0), ("taken out", mean)):
                    at = result.sel(vector=what, mean=name).isel(
                        prompt=2, selected_head=j, demonstration=place
                    )
                    if what == "key, attention only" and layer == 0:
                        assert set(at["token"].values) == {""}
                        continue
                    bs = unembed.bs_values(rows[2] - subtrahend, model.unembedding, slow[2].scale)
                    assert at["token"].values.tolist() == [
                        f"word{i}" for i in bs.argsort(descending=True)[: module.WORDS_PER_VECTOR]
                    ]
    save("top_tokens", result, tmp_path / "top.nc", {})
    assert (load(tmp_path / "top.nc")["token"] == result["token"]).all()


def test_relations_stand_beside_their_tokens(float64, monkeypatch):
    """A label is known by its token, and is listed even where it reads as a stop word."""
    model, encoded = shared_tiny("gpt2"), of_two_classes(3)
    foo = f"word{encoded[0].label_ids['foo']}"
    plain = tuple("the" if word == foo else word for word in LEXICON.texts)
    monkeypatch.setattr(module, "WORDS_PER_VECTOR", VOCABULARY)
    monkeypatch.setattr(Lexicon, "from_tokenizer", lambda *_: Lexicon(LEXICON.texts, plain))
    result = top_tokens(model, encoded, [Head(1, 0)])
    assert (result["token"] == foo).any("rank").all()
    for what, variable in (("token", "relation"), ("query_token", "query_relation")):
        tokens, codes = (result[name].transpose("prompt", ..., "rank") for name in (what, variable))
        for at in np.ndindex(tokens.shape):
            e, place = encoded[at[0]], dict(zip(tokens.dims, at, strict=True))
            # labels are known by their tokens
            words = {f"word{token}": label for label, token in e.label_ids.items()}
            word = words.get(tokens.values[at], tokens.values[at])
            relations = relations_of(e.prompt, place.get("demonstration", -1), CLASSES)
            assert codes.values[at] == relations.get(word, RELATIONS.index("none"))
    assert {"own text", "own class", "other class"} <= {
        RELATIONS[c] for c in np.unique(result["relation"])
    }
