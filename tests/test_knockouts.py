"""Attention knockouts against whole runs, and d' in keys by hand and on keys that hold no class."""

import numpy as np
import tiny_blocks
import torch
from conftest import refused, tiny
from towerlab.measure import knockouts as module
from towerlab.measure.knockouts import EDGES, class_in_keys, closed_edges, default_cuts, knockouts
from towerlab.model import query_key
from towerlab.model.attention_edits import blocked
from towerlab.model.capture import answer, capture


def test_edges_of_a_prompt():
    # a : foo b : bar a : foo b : bar a :
    # 0 1 2   3 4 5   6 7 8   9 10 11 12 13
    encoded = tiny_blocks.blocks(1)[0]
    assert encoded.label_positions == (2, 5, 8, 11) and encoded.last == 13
    expected = {
        "labels and colons to own text": {(2, 0), (1, 0), (5, 3), (4, 3), (8, 6), (7, 6), (11, 9), (10, 9)},
        "labels and colons to previous text": {(4, 0), (5, 0), (7, 3), (8, 3), (10, 6), (11, 6)},
        "last position to query": {(13, 12)},
        "last position to previous text": {(13, 9)},
    }
    for name, maker in EDGES.items():
        closed = closed_edges([encoded, encoded], maker)
        assert closed.shape == (2, 14, 14) and set(map(tuple, closed[1].nonzero().tolist())) == expected[name]


def test_cuts_are_evenly_spaced_and_end_at_both_ends():
    assert default_cuts(32, 7) == [0, 4, 8, 12, 16, 20, 24, 28, 32] and default_cuts(3) == [0, 1, 2, 3]


def test_every_knockout_is_that_of_a_whole_run(model, monkeypatch):
    encoded = tiny_blocks.blocks(2)
    edges = {"own": module.labels_to_own_text, "nothing": lambda _: [], "all": lambda e: [([e.last], range(e.last))]}
    heads, n = [(1, 0), (1, 1)], model.n_layers
    monkeypatch.setattr(module, "class_in_keys", lambda keys, _: keys.sum((1, 2)))
    data = knockouts(model, encoded, edges, heads=heads, max_tokens=60)
    assert data["cut"].values.tolist() == list(range(n + 1))
    at = torch.tensor([e.label_positions for e in encoded])
    for name, maker in edges.items():
        for side in ("below", "from"):
            for cut in range(n + 1):
                with blocked(model, range(cut) if side == "below" else range(cut, n), closed_edges(encoded, maker)):
                    log_prob = answer(model, encoded)[1].numpy()
                    stream = capture(model, encoded, {"streams"}).stream_inputs[1]
                cell = data.sel(edges=name, side=side, cut=cut)
                np.testing.assert_allclose(cell["log_prob_true"], log_prob[:, 0], rtol=0, atol=1e-9)
                keys = query_key.keys(model, 1, query_key.normed(model, 1, stream))
                for head, (_, h) in zip(cell["d_prime"], heads, strict=True):
                    own = torch.stack([x[p] for x, p in zip(keys[:, :, model.value_head(h)], at, strict=True)])
                    np.testing.assert_allclose(head, own.sum((1, 2)), rtol=1e-5, atol=1e-5)  # kept in float32
    plain = data.sel(side="below", cut=0)["log_prob_true"].values
    assert np.ptp(data.sel(edges="nothing")["log_prob_true"].values - plain[1], axis=None) < 1e-9
    assert (abs(data.sel(edges="all", side="from", cut=0)["log_prob_true"] - plain[0]) > 1e-6).all()


def test_d_prime_by_hand():
    # Two blocks; every key of class a is +x along the only axis, of class b -x, where x = 1, 2 by the place: 1, 2, 1, 2.
    encoded = tiny_blocks.blocks(2)
    keys = np.array(
        [[[(1 if d.cls == "a" else -1) * (1 + p % 2)] for p, d in enumerate(e.prompt.demonstrations)] for e in encoded], dtype=float
    )
    texts = [{d.text for d in e.prompt.demonstrations} for e in encoded]
    assert not texts[0] & texts[4]
    # Differences are 2, 4, 2, 4: mean 3, standard deviation 1, of a single key 1 / sqrt 2.
    np.testing.assert_allclose(class_in_keys(keys, encoded), 3 * np.sqrt(2))
    # What a place, a label or a block adds to all keys changes nothing; nor does the scale.
    labels = np.array([[[d.label == "foo"] for d in e.prompt.demonstrations] for e in encoded])
    shifted = 5 * keys + 7 * labels + np.arange(4)[:, None] + np.array([e.prompt.block for e in encoded])[:, None, None]
    np.testing.assert_allclose(class_in_keys(shifted, encoded), 3 * np.sqrt(2))
    assert (class_in_keys(np.zeros_like(keys), encoded) == 0).all()


def test_keys_that_know_words_but_no_class_have_a_d_prime_of_zero():
    encoded, values = tiny_blocks.blocks(40), []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        word = {text: rng.normal(size=6) for text in (*tiny_blocks.TEXTS["a"], *tiny_blocks.TEXTS["b"])}
        keys = np.array([[word[d.text] for d in e.prompt.demonstrations] for e in encoded])
        values.append(class_in_keys(keys + 0.1 * rng.normal(size=keys.shape), encoded).mean())
        prompt = np.array([[(d.cls == "a") * 3.0 for d in e.prompt.demonstrations] for e in encoded])[..., None]
        assert class_in_keys(keys + prompt, encoded).mean() > 2
    assert np.mean(values) < 2 * np.std(values) / np.sqrt(30)


def test_what_cannot_be_measured_is_refused():
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(1)
    refused("layers 0 to 2", knockouts, model, encoded, cuts=[5])
    refused("attending to itself", knockouts, model, encoded, {"all": lambda e: [([e.last], range(e.last + 1))]})
    assert np.isnan(knockouts(model, encoded, heads=[(1, 0)]).d_prime).all()  # no other block of the class pair
    refused("not whole", class_in_keys, np.zeros((3, 4, 2)), encoded[:3])
