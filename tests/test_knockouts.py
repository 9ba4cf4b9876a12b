"""Which edges and cuts a knockout has. The numbers are in test_independent."""

import tiny_blocks
from towerlab_experiments.ablations import EDGES, closed_edges, default_cuts


def test_edges_of_a_prompt():
    # a : foo b : bar a : foo b : bar a :
    # 0 1 2   3 4 5   6 7 8   9 10 11 12 13
    encoded = tiny_blocks.blocks(1)[0]
    assert encoded.label_positions == (2, 5, 8, 11) and encoded.last == 13
    expected = {
        "labels and colons to own text": {
            (2, 0),
            (1, 0),
            (5, 3),
            (4, 3),
            (8, 6),
            (7, 6),
            (11, 9),
            (10, 9),
        },
        "last position to query": {(13, 12)},
    }
    for name, maker in EDGES.items():
        closed = closed_edges([encoded, encoded], maker)
        assert (
            closed.shape == (2, 14, 14)
            and set(map(tuple, closed[1].nonzero().tolist())) == expected[name]
        )


def test_cuts_are_evenly_spaced_and_end_at_both_ends():
    assert default_cuts(32) == [0, 4, 8, 12, 16, 20, 24, 28, 32] and default_cuts(3) == [0, 1, 2, 3]
