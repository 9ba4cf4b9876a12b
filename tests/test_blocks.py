"""Blocks of prompts: balance, which is what every later number rests on."""

from collections import Counter

import pytest
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from towerlab.prompts.blocks import class_pairs, draw_blocks
from twotowers.settings import Template, read_label_pairs

TEMPLATE = Template(2, "space")


@settings(max_examples=20)
@given(st.integers(1, 45), st.integers(1, 6), st.integers(0, 9))
def test_a_block_is_an_order_and_its_mirror_under_both_assignments(n, k, seed):
    prompts = draw_blocks(n, Template(k, "line break"), seed=seed)
    assert len(prompts) == 4 * n
    for block in range(n):
        four = prompts[4 * block : 4 * block + 4]
        assert {p.block for p in four} == {block} and len({p.query for p in four}) == 1
        order, mirror, *again = (p.order for p in four)
        assert again == [order, mirror] and order.count("T") == k
        assert mirror == order.translate(str.maketrans("TF", "FT"))
        first, *others = (p.true_label for p in four)
        assert [label == first for label in others] == [True, False, False]
        assert len({frozenset(d.text for d in p.demonstrations) for p in four}) == 1
        for p in four:
            assigned = {(d.cls, d.label) for d in p.demonstrations}
            assert (p.query_class, p.true_label) in assigned and len(assigned) == 2
        assert four[0].query not in {d.text for d in four[0].demonstrations}


def test_pairs_labels_and_classes_take_turns():
    prompts = draw_blocks(200, TEMPLATE, seed=1)[::4]
    assert set(Counter(p.dataset for p in prompts).values()) == {10}
    assert {p.dataset for p in prompts} == set(class_pairs())
    for pair in class_pairs():
        of_pair = [p for p in prompts if p.dataset == pair]
        assert len({p.labels for p in of_pair}) == len(read_label_pairs()) == 10
        assert Counter(p.query_class for p in of_pair) == dict.fromkeys(pair.split("/"), 5)


def test_the_same_seed_gives_the_same_prompts():
    first, again, other = (draw_blocks(5, TEMPLATE, seed=[0, n]) for n in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(pairs=["animal/nothing"]), "unknown class 'nothing'"),
        (dict(template=Template(40, "space")), "smaller k"),
    ],
)
def test_refusals(wrong, message):
    arguments = {"n": 1, "template": TEMPLATE, "seed": 0} | wrong
    refused(message, draw_blocks, **arguments)
