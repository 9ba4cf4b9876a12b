"""Variants of prompts, each against what it must keep and what it must change."""

from collections import Counter

from towerlab.prompts import variants
from towerlab.prompts.blocks import draw_blocks, prompt_coordinates
from twotowers.settings import Template


def test_a_factorial_crosses_order_class_and_assignment_within_every_block():
    prompts = draw_blocks(6, Template(2, "space"), seed=0, pairs=["animal/country", "fruit/tool"])
    variants_of = variants.factorial(prompts, variants.patterns(prompts[0]))
    columns = prompt_coordinates(variants_of)
    factors = [columns[name][1] for name in ("block", "order", "true_first", "query_class")]
    cells = Counter(zip(*factors, strict=True))
    assert len(variants_of) == 6 * 24 and set(cells.values()) == {1} and len(cells) == 144
    for prompt in variants_of:
        labels = {d.cls: d.label for d in prompt.demonstrations}
        assert labels[prompt.query_class] == prompt.true_label
        assert prompt.query not in {d.text for d in prompt.demonstrations}
    few = variants.factorial(prompts, ["FFTT", "TTFF"])
    assert set(prompt_coordinates(few)["order"][1]) == {"FFTT", "TTFF"} and len(few) == 48
