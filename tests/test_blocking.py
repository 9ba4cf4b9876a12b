"""Blocked edges, what they cost the margin and the class in label keys: by hand and on data that hold no class."""

import numpy as np
import pandas as pd
import pytest
from conftest import random_prompts, tiny
from twotowers.analysis import blocking
from twotowers.analysis.blocking import EDGES, class_auc, closed_edges
from twotowers.errors import TwoTowersError
from twotowers.model import loading
from twotowers.model.capture import predict
from twotowers.prompts.datasets import counterbalanced, draw, paper_example
from twotowers.prompts.prompt import encode, encode_all


@pytest.fixture(scope="module")
def mini():
    return loading.load("mini-gpt2")


def flat(edges):
    return {(q, p) for begin, end in edges for q in begin for p in end}


def test_edges_of_the_papers_example(mini):
    # love : bar like : bar eight : foo two : foo one :
    #  0   1  2   3   4  5    6   7  8   9  10 11 12  13
    encoded = encode(paper_example(), mini.tokenizer)
    assert encoded.label_positions == (2, 5, 8, 11) and encoded.last == 13
    expected = {
        "labels and colons to own text": {(2, 0), (1, 0), (5, 3), (4, 3), (8, 6), (7, 6), (11, 9), (10, 9)},
        "labels and colons to previous text": {(4, 0), (5, 0), (7, 3), (8, 3), (10, 6), (11, 6)},
        "labels to earlier demonstrations": {
            (q, p) for i in range(1, 4) for q in (3 * i + 1, 3 * i + 2) for p in range(3 * i)
        },
        "last to query": {(13, 12)},
        "last to previous text": {(13, 9)},
        "last to demonstrations": {(13, p) for p in (0, 1, 3, 4, 6, 7, 9, 10)},
    }
    assert {name: flat(maker(encoded)) for name, maker in EDGES.items()} == expected
    closed = closed_edges([encoded, encoded], EDGES["last to query"])
    assert closed.shape == (2, 14, 14)
    assert {tuple(at) for at in closed[1].nonzero().tolist()} == expected["last to query"]
    assert not any(closed_edges([encoded], maker).diagonal(dim1=1, dim2=2).any() for maker in EDGES.values())


def test_thirds_of_the_layers():
    assert blocking.layer_thirds(tiny("gpt2")) == {"lower": [0], "middle": [1], "upper": [2]}
    with pytest.raises(TwoTowersError, match="2 layers"):
        blocking.layer_thirds(tiny("qwen2"))


def test_an_empty_list_of_edges_changes_nothing_and_others_do(any_model):
    encoded = random_prompts(5)
    edges = {"nothing": lambda _: [], "previous": lambda e: [([e.last], range(e.last))]}
    table = blocking.blocked_margins(any_model, encoded, edges, {"first": [0], "both": [0, 1]}, max_tokens=30)
    assert len(table) == 5 * 2 * 2
    labels = predict(any_model, encoded)[1].numpy()
    true = np.array([e.prompt.true_label == "foo" for e in encoded])
    expected = np.where(true, 1, -1) * (labels[:, 0] - labels[:, 1])
    np.testing.assert_allclose(table["plain"], expected[table["prompt"]], rtol=0, atol=1e-11)
    nothing = table[table["edges"] == "nothing"]
    assert (nothing["plain"] == nothing["blocked"]).all()
    assert (table["plain"] - table["blocked"])[table["edges"] == "previous"].abs().min() > 0


def test_what_a_block_costs_by_hand():
    table = pd.DataFrame(
        {
            "query": ["a", "a", "b"], "edges": "e", "layers": "lower", "plain": [2.0, 4.0, 6.0],
            "blocked": [1.0, 1.0, 1.0],
        }
    )  # fmt: skip
    (row,) = blocking.lost(table).to_dict("records")
    assert (row["plain"], row["blocked"], row["lost"], row["n"]) == (4, 1, 3, 2)
    assert (row["low"], row["high"]) == (2, 5)  # a twice, b twice
    assert (row["share"], row["share_low"], row["share_high"]) == pytest.approx((9 / 12, 4 / 6, 5 / 6))
    (row,) = blocking.lost(table, chance=1.0).to_dict("records")
    assert row["share"] == pytest.approx(9 / 9)
    (row,) = blocking.lost(table.assign(plain=[-1.0, -1.0, 1.0])).to_dict("records")
    assert np.isnan(row["share"])  # of a margin that may be zero


def keys_of(rng, n, signal=0.0, prompt_noise=0.0, place_noise=0.0, k=4, d=12):
    """Random keys of counterbalanced demonstrations of 30 texts a class, with shifts by class, prompt and place."""
    cls = np.array([rng.permutation([0, 0, 1, 1]) for _ in range(n)])
    label = np.where(rng.random(n) < 0.5, 0, 1)[:, None] ^ cls
    texts = np.array([[f"{c}{w}" for c, w in zip(row, rng.permutation(30)[:k], strict=True)] for row in cls])
    strata = np.array([[f"{p} {one}" for p, one in enumerate(row)] for row in label])
    keys = rng.normal(size=(n, k, d)) + prompt_noise * rng.normal(size=(n, 1, d))
    keys += place_noise * rng.normal(size=(1, k, d)) + signal * cls[..., None]
    return keys, cls, texts, strata


def test_keys_without_a_class_are_at_chance_whatever_prompts_words_and_places_share():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        keys, cls, texts, strata = keys_of(rng, 40, prompt_noise=3.0, place_noise=3.0)
        words = {word: rng.normal(size=12) * 3 for word in np.unique(texts)}  # a word is known again, its class is not
        keys = keys + np.array([[words[word] for word in row] for row in texts])
        found.append(class_auc(keys, cls, texts, strata).mean())
    assert abs(np.mean(found) - 0.5) < 3 * np.std(found) / np.sqrt(60) < 0.05


def test_keys_with_a_class_are_told_apart():
    rng = np.random.default_rng(0)
    assert class_auc(*keys_of(rng, 40, signal=20.0)).min() == 1
    some = class_auc(*keys_of(rng, 100, signal=0.5)).mean()
    assert 0.75 < some < 0.99


def test_keys_whose_class_place_or_label_word_tells_are_refused():
    keys, cls, texts, _ = keys_of(np.random.default_rng(0), 10)
    with pytest.raises(TwoTowersError, match="counterbalanced"):
        class_auc(keys, cls, texts, cls.astype(str))
    with pytest.raises(TwoTowersError, match="one class only"):
        class_auc(keys, np.where(np.arange(10)[:, None] == 3, 1, cls), texts, np.zeros_like(texts))
    with pytest.raises(TwoTowersError, match="draw more"):
        class_auc(keys[:1], cls[:1], texts[:1], np.zeros_like(texts[:1]))


@pytest.mark.slow
def test_class_in_keys_is_there_in_the_miniature_and_goes_with_its_texts(mini):
    prompts = counterbalanced(draw("animal/country", 36))
    encoded = encode_all(prompts, mini.tokenizer)
    edges = {name: EDGES[name] for name in ("labels and colons to own text", "labels and colons to previous text")}
    edges["nothing"] = lambda _: []
    table = blocking.class_in_keys(mini, encoded, [(3, 5), (3, 1)], edges, {"lower": [0, 1], "upper": [3]}, 100)
    assert len(table) == 36 * 2 * 3 * 2
    mean = table.groupby(["edges", "layers"])[["plain", "blocked"]].mean()
    assert (mean["plain"] > 0.9).all()
    assert mean.loc[("labels and colons to own text", "lower"), "blocked"] < 0.8
    assert mean.loc[("labels and colons to previous text", "lower"), "blocked"] > 0.9
    # Keys of layer 3 are made before the attention of layer 3.
    unchanged = table[(table["edges"] == "nothing") | (table["layers"] == "upper")]
    assert (unchanged["plain"] == unchanged["blocked"]).all()
    with pytest.raises(TwoTowersError, match="counterbalanced"):
        blocking.class_in_keys(mini, encode_all(draw("animal/country", 8), mini.tokenizer), [(3, 5)], edges, {"a": [0]})
