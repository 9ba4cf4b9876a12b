"""Which edges a knockout has. The numbers are in test_independent."""

import tiny_blocks
from towerlab_experiments.ablations import EDGES, closed_edges


def test_edges_of_a_prompt():
    # a : foo b : bar a : foo b : bar a :
    # 0 1 2   3 4 5   6 7 8   9 10 11 12 13
    encoded = tiny_blocks.blocks(1)[0]
    assert encoded.label_positions == (2, 5, 8, 11) and encoded.last == 13
    texts = (0, 3, 6, 9)
    expected = {
        "labels and colons to own text": [[at + i, at] for at in texts for i in (1, 2)],
        "last position to query": [[13, 12]],
    }
    for name, maker in EDGES.items():
        closed = closed_edges([encoded, encoded], maker)
        assert closed.shape == (2, 14, 14)
        assert closed[1].nonzero().tolist() == expected[name]
