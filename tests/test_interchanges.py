"""Pairs made of blocks, and what is refused. The numbers are in test_independent."""

import tiny_blocks
from conftest import word_tokenizer
from towerlab.prompts.blocks import texts_of_one_length
from towerlab_experiments.interchanges import pairs_of
from twotowers.settings import CLASS_NAMES


def parts(encoded):
    p = encoded.prompt
    return [d.label for d in p.demonstrations], [d.text for d in p.demonstrations], p.query


def test_pairs_differ_in_what_their_kind_says_and_in_nothing_else():
    pairs = pairs_of(tiny_blocks.blocks(4), tiny_blocks.tokenizer())
    assert len(pairs) == 3 * 16
    for kind, base, source in pairs:
        (labels, texts, query), (others, source_texts, source_query) = parts(base), parts(source)
        same = {
            "values": labels == others,
            "keys": texts == source_texts,
            "query": query == source_query,
        }
        assert same == {part: part != kind for part in same}
        classes = [d.cls for d in base.prompt.demonstrations]
        assert (classes != [d.cls for d in source.prompt.demonstrations]) == (kind == "keys")
        assert all((a != b) == (kind == "values") for a, b in zip(labels, others, strict=True))
        assert base.prompt.true_label != source.prompt.true_label
        assert base.label_positions == source.label_positions
        assert source_query not in source_texts


def test_pairs_whose_positions_differ_are_dropped_and_texts_of_one_length_leave_none():
    texts = {
        "a": [*(f"a{i} a{i}" for i in range(4)), *tiny_blocks.TEXTS["a"][4:]],
        "b": tiny_blocks.TEXTS["b"],
    }
    pairs = pairs_of(tiny_blocks.blocks(6, texts), tiny_blocks.tokenizer())
    assert 0 < len(pairs) < 72 and all(base.last == source.last for _, base, source in pairs)
    of_one_length = texts_of_one_length(
        tiny_blocks.tokenizer(), tiny_blocks.TEMPLATE, ["a/b"], texts, "foo/bar"
    )
    assert of_one_length == {"a": texts["a"][4:], "b": texts["b"]}
    assert len(pairs_of(tiny_blocks.blocks(6, of_one_length), tiny_blocks.tokenizer())) == 72


def test_texts_are_measured_with_labels_that_the_tokenizer_has():
    texts = tiny_blocks.TEXTS
    without_foo = word_tokenizer(["<unk>", ":", "a", "b", "x", "y", *texts["a"], *texts["b"]])
    for label_pair in ("x/y", CLASS_NAMES):
        found = texts_of_one_length(without_foo, tiny_blocks.TEMPLATE, ["a/b"], texts, label_pair)
        assert found == texts
