"""Attention knockouts against whole runs, at every cut."""

import numpy as np
import tiny_blocks
from towerlab.measure import knockouts as module
from towerlab.measure.knockouts import EDGES, closed_edges, default_cuts, knockouts
from towerlab.model.capture import answer
from towerlab.model.edits import edited, knockout


def test_edges_of_a_prompt():
    # a : foo b : bar a : foo b : bar a :
    # 0 1 2   3 4 5   6 7 8   9 10 11 12 13
    encoded = tiny_blocks.blocks(1)[0]
    assert encoded.label_positions == (2, 5, 8, 11) and encoded.last == 13
    expected = {
        "labels and colons to own text": {(2, 0), (1, 0), (5, 3), (4, 3), (8, 6), (7, 6), (11, 9), (10, 9)},
        "last position to query": {(13, 12)},
    }
    for name, maker in EDGES.items():
        closed = closed_edges([encoded, encoded], maker)
        assert closed.shape == (2, 14, 14) and set(map(tuple, closed[1].nonzero().tolist())) == expected[name]


def test_cuts_are_evenly_spaced_and_end_at_both_ends():
    assert default_cuts(32, 7) == [0, 4, 8, 12, 16, 20, 24, 28, 32] and default_cuts(3) == [0, 1, 2, 3]


def test_every_knockout_is_that_of_a_whole_run(model, small_batches, monkeypatch):
    encoded = tiny_blocks.blocks(2)
    edges = {"own": module.labels_to_own_text, "nothing": lambda _: [], "all": lambda e: [([e.last], range(e.last))]}
    monkeypatch.setattr(module, "EDGES", edges)
    n = model.n_layers
    data = knockouts(model, encoded, range(n + 1))
    for name, maker in edges.items():
        for cut in range(n + 1):
            with edited(model, knockout(model, range(cut), closed_edges(encoded, maker))):
                log_prob = answer(model, encoded)[1].numpy()
            np.testing.assert_allclose(data.sel(edges=name, cut=cut)["log_prob_true"], log_prob[:, 0], rtol=0, atol=1e-9)
    plain = data.sel(cut=0)["log_prob_true"].values
    assert np.ptp(data.sel(edges="nothing")["log_prob_true"].values - plain[1], axis=None) < 1e-9
    assert (abs(data.sel(edges="all", cut=n)["log_prob_true"] - plain[0]) > 1e-6).all()
