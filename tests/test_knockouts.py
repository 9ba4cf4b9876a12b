"""Attention knockouts against whole runs, at every cut."""

import numpy as np
import tiny_blocks
from conftest import refused, tiny
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


def test_every_knockout_is_that_of_a_whole_run(model):
    encoded = tiny_blocks.blocks(2)
    edges = {"own": module.labels_to_own_text, "nothing": lambda _: [], "all": lambda e: [([e.last], range(e.last))]}
    n = model.n_layers
    data = knockouts(model, encoded, edges, max_tokens=60)
    assert data["cut"].values.tolist() == list(range(n + 1))
    for name, maker in edges.items():
        for side in ("below", "from"):
            for cut in range(n + 1):
                layers = range(cut) if side == "below" else range(cut, n)
                with edited(model, knockout(model, layers, closed_edges(encoded, maker))):
                    log_prob = answer(model, encoded)[1].numpy()
                cell = data.sel(edges=name, side=side, cut=cut)
                np.testing.assert_allclose(cell["log_prob_true"], log_prob[:, 0], rtol=0, atol=1e-9)
    plain = data.sel(side="below", cut=0)["log_prob_true"].values
    assert np.ptp(data.sel(edges="nothing")["log_prob_true"].values - plain[1], axis=None) < 1e-9
    assert (abs(data.sel(edges="all", side="from", cut=0)["log_prob_true"] - plain[0]) > 1e-6).all()


def test_what_cannot_be_measured_is_refused():
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(1)
    refused("layers 0 to 2", knockouts, model, encoded, cuts=[5])
    refused("attending to itself", knockouts, model, encoded, {"all": lambda e: [([e.last], range(e.last + 1))]})
