"""One label exchanged, of a similar or a less similar demonstration; against single prompts by the
formulas in float64, and quads against loops."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import tiny_blocks
import xarray as xr
from conftest import refused, tiny
from independent import Formulas, changed_at, lead
from tolerances import ROTATED, near
from towerlab_experiments.similar_flips import (
    class_similarities,
    quad_prompts,
    quads_of,
    quads_of_classes,
    similar_flips,
)
from twotowers.heads import Head

DESIGN = tiny_blocks.design(k=3)


def prompts(block=0, quad=(0, 1, 2, 3)):
    return quad_prompts(DESIGN, "a/b", "a", tiny_blocks.TEXTS, quad, "foo/bar", block)


def contrast(values, first, second, like, far):
    own = values[first, like] + values[second, far]
    return own - values[first, far] - values[second, like]


def test_a_quad_has_the_largest_contrast_that_ranks_and_tokens_allow():
    rng = np.random.default_rng(0)
    for _ in range(20):
        similarity = rng.normal(size=(7, 7))
        similarity += similarity.T
        rank, tokens = np.arange(7), rng.integers(1, 3, 7)
        closeness = -abs(rank[:, None] - rank)
        allowed = [
            quad
            for quad in permutations(range(7), 4)
            if tokens[quad[0]] == tokens[quad[1]] and contrast(closeness, *quad) <= 0
        ]
        best = max((contrast(similarity, *quad) for quad in allowed), default=0)
        quads = quads_of(similarity, tokens, 2)
        assert len(quads) == (best > 0) and quads[0] in allowed  # no four other words are left
        near(contrast(similarity, *quads[0]), best)
    twice = quads_of(rng.normal(size=(12, 12)), np.ones(12), 3)
    assert len({word for quad in twice for word in quad}) == 4 * len(twice) == 12


def exchanged(prompt):
    """Texts of the query's class with the other label."""
    shown = prompt.demonstrations
    return [d.text for d in shown if d.cls == "a" and d.label != prompt.true_label]


def test_the_prompts_of_a_quad_differ_in_query_exchanged_label_and_assignment():
    eight = prompts()
    for first, second in zip(eight[::2], eight[1::2], strict=True):
        assert (first.query, second.query) == ("a0", "a1")
        assert first.demonstrations == second.demonstrations
        (flipped,) = exchanged(first)
        assert flipped in ("a2", "a3")
        assert Counter(d.cls for d in first.demonstrations) == {"a": 3, "b": 3}
        assert first.block == 0 and len({d.text for d in first.demonstrations}) == 6
        others = {d.label for d in first.demonstrations if d.cls == "b"}
        assert others == {*first.labels} - {first.true_label}
    assert [prompt.true_label for prompt in eight] == ["foo"] * 4 + ["bar"] * 4
    texts = [[d.text for d in prompt.demonstrations] for prompt in eight]
    assert texts[0] == texts[7][::-1]


@pytest.mark.parametrize("kind", ["gpt2", "gptj", "llama", "gemma2", "qwen3"])
def test_a_common_query_is_the_mean_of_both(kind, float64, small_batches):
    model = tiny(kind)
    encoded = DESIGN.encode([*prompts(), *prompts(1, (5, 4, 3, 2))])
    sets = {"two": [Head(0, 1), Head(1, 0)], "upper": [Head(1, 1)]}
    data, by_hand = similar_flips(model, encoded, sets), Formulas(model.hf)
    runs = [by_hand.run(e.ids) for e in encoded]
    for i, e in enumerate(encoded):
        got, run, partner = data.isel(prompt=i), runs[i], runs[i ^ 1]
        near(got.base_logit_difference, lead(run.logits, e), **ROTATED)
        name = list(sets)[i % 2]

        def common(layer, head, run=run, partner=partner):
            return (run.q[layer][head, -1] + partner.q[layer][head, -1]) / 2

        changed = by_hand.run(e.ids, q=changed_at(sets[name], common, -1))
        near(got.logit_difference.sel(head_set=name), lead(changed.logits, e), **ROTATED)
        words = ("a0", "a2"), ("a1", "a3"), ("a5", "a3"), ("a4", "a2")
        is_near = (got["query"].item(), got["flipped_text"].item()) in words
        assert got["flipped"] == ("near" if is_near else "far")


def towers():
    """Two classes of six words, with a similarity by one head only."""
    n, rng = 6, np.random.default_rng(0)
    words = [*tiny_blocks.TEXTS["a"][:n], *tiny_blocks.TEXTS["b"][:n]]
    first = np.triu_indices(n, 1)[0]
    steps = rng.integers(-100, 100, (1, 2, 2 * len(first))).astype(np.int8)
    return xr.Dataset(
        {
            "within_class": (("layer", "head", "word_pair"), steps),
            "within_class_step": (("layer", "head"), [[0.5, 0.0]]),
            "tokens": ("asked", np.ones(2 * n, int)),
        },
        {
            "asked": words, "asked_class": ("asked", [*"a" * n, *"b" * n]), "layer": [0],
            "head": [0, 1], "word_class": ["a", "b"], "class_pair": ("word_class", ["a/b"] * 2),
            "pair_class": ("word_pair", [*"a" * len(first), *"b" * len(first)]),
        },
    )  # fmt: skip


def test_quads_are_chosen_by_the_mean_score_of_the_heads():
    data = towers()
    of_classes = class_similarities(data, [Head(0, 0), Head(0, 1)])
    step = data.within_class.values[0, 0] * 0.5 / 2
    near(of_classes["a"][0, 1:], step[:5])
    near(of_classes["b"][4, 5], step[-1])
    near(of_classes["b"], of_classes["b"].T)
    encoded = quads_of_classes(DESIGN, data, [Head(0, 0)])
    assert len(encoded) == 16 and [e.prompt.query_class for e in encoded] == [*"a" * 8, *"b" * 8]
    first, second, like, _ = quads_of(of_classes["a"], np.ones(6), 1)[0]
    texts = tiny_blocks.TEXTS["a"]
    assert [e.prompt.query for e in encoded[:2]] == [texts[first], texts[second]]
    assert exchanged(encoded[0].prompt) == [texts[like]]
    refused("no class has two words", quads_of_classes, DESIGN, data, [Head(0, 1)])
