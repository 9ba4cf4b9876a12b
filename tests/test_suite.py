"""Designs of the suite: the factorial one, where no influence is correlated with another, and steering across labels."""

import numpy as np
import pytest
from twotowers.errors import NotTestable
from twotowers.heads import Head
from twotowers.measure import steering
from twotowers.measure.chain import Run
from twotowers.measure.observations import observations
from twotowers.measure.settings import Settings
from twotowers.measure.suite import FEWEST, ORDERS, _steering_labels, spread_orders
from twotowers.prompts.blocks import Form, draw_blocks
from twotowers.prompts.variants import factorial


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_the_design_is_balanced(k):
    blocks = draw_blocks(4, Form(k, "space"), seed=1, pairs=["animal/country"], labels=["foo/bar"])
    orders = spread_orders(blocks[0])
    assert len(set(orders)) == (2 if k == 1 else ORDERS)
    assert {order.translate(str.maketrans("TF", "FT")) for order in orders} == set(orders)
    prompts = factorial(blocks, orders)
    match = np.array([1 if p.true_label == "foo" else -1 for p in prompts])
    last = np.array([1 if p.demonstrations[-1].label == "foo" else -1 for p in prompts])
    assert match.sum() == last.sum() == (match * last).sum() == 0


LABELS = ("foo/bar", "baz/qux", "plugh/thud")


def test_directions_of_one_half_of_the_labels_steer_the_other(monkeypatch):
    """Every prompt is steered twice: along directions from label pairs with its own among them, and from all the others."""

    def labels(encoded):
        return {"/".join(e.prompt.labels) for e in encoded}

    def steered(model, encoded, directions, sets, *args, **kwargs):
        same = {"comparers, same labels": True, "comparers, other labels": False}[next(iter(sets))]
        assert labels(encoded) == directions if same else labels(encoded) | directions == set(LABELS)
        assert same or not labels(encoded) & directions
        zeros = np.zeros((1, len(encoded)), np.float32)
        return observations(encoded, {"says": (("heads", "prompt"), zeros, "")}, heads=list(sets))

    monkeypatch.setattr(steering, "class_directions", lambda model, encoded: labels(encoded))
    monkeypatch.setattr(steering, "steering", steered)
    run = Run(Settings(k=1, separator="space", labels=LABELS))
    run.__dict__["sets"] = {"comparers": [Head(1, 0)]}
    measured = _steering_labels(run)
    assert measured.sizes == {"heads": 2, "prompt": 4 * FEWEST}
    alone = Run(Settings(k=1, separator="space", labels=LABELS[:1]))
    with pytest.raises(NotTestable, match="at least two"):
        _steering_labels(alone)
