"""Similarities of words by queries and keys, against single prompts by the formulas in float64, and
their properties against loops."""

from collections import Counter, defaultdict
from itertools import chain, combinations, permutations, product

import numpy as np
import pytest
import tiny_blocks
import torch
from conftest import refused, tiny
from independent import Formulas
from tolerances import ROTATED, near
from towerlab.prompts.prompt import encode_all
from towerlab.prompts.word_blocks import spread, word_blocks
from towerlab_experiments.similarities import (
    centred,
    class_auc,
    class_effects,
    correlation,
    deviation,
    same_word_first,
)
from towerlab_experiments.word_towers import Contexts, singular_values, tower_vectors, word_towers
from twotowers.heads import Head

WORDS = {cls: spread(texts, 5) for cls, texts in tiny_blocks.TEXTS.items()}
PAIRS = ("a/b", "b/a")
ON_EACH_PUSH = ["gptj", "llama wide heads", "smollm3"]
NIGHTLY = ["gpt2", "gemma2", "gemma3_text", "qwen3", "opt"]
KINDS = ON_EACH_PUSH + [pytest.param(kind, marks=pytest.mark.nightly) for kind in NIGHTLY]


def contexts(pairs=PAIRS[:1]):
    def half(pair, seed):
        prompts = word_blocks(pair, WORDS, tiny_blocks.TEMPLATE, "foo/bar", seed)
        return encode_all(prompts, tiny_blocks.tokenizer())

    return [
        Contexts(pair, tuple(chain(*(WORDS[cls] for cls in pair.split("/")))),
                 (half(pair, 2 * i), half(pair, 2 * i + 1)))
        for i, pair in enumerate(pairs)
    ]  # fmt: skip


@pytest.mark.parametrize("k", [1, 2, 4])
def test_every_word_is_asked_and_shown_in_balance(k):
    """Neither the order nor a label tells a class, for any asked or shown word."""
    template = tiny_blocks.TEMPLATE._replace(k=k)
    prompts = word_blocks("a/b", WORDS, template, "foo/bar", 3)
    asked, shown = defaultdict(list), defaultdict(Counter)
    for prompt in prompts:
        texts = [d.text for d in prompt.demonstrations]
        assert prompt.query not in texts and len(set(texts)) == 2 * k
        assert prompt.order.count("T") == k
        asked[prompt.query].append((prompt.true_label, prompt.order))
        for place, d in enumerate(prompt.demonstrations):
            assert d.text in WORDS[d.cls] and d.label in prompt.labels
            shown[d.text][d.label] += 1
            shown[d.cls][place] += 1
    mirror = str.maketrans("TF", "FT")
    for (label, order), (other_label, other_order) in asked.values():
        assert {label, other_label} == {"foo", "bar"} and order == other_order.translate(mirror)
    assert set(asked) == {*WORDS["a"], *WORDS["b"]} <= set(shown)
    assert all(shown[word]["foo"] == shown[word]["bar"] for word in asked)
    assert shown["a"] == shown["b"]
    times = [sum(shown[word].values()) for word in asked]
    assert max(times) - min(times) <= 4
    beginnings = {(prompt.block, tuple(prompt.demonstrations)) for prompt in prompts}
    assert len(beginnings) <= 4 * (prompts[-1].block + 1) <= len(prompts)
    refused("too few words", word_blocks, "a/b", {"a": ["a0"], "b": ["b0"]}, template, "foo/bar", 0)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_similarities_are_those_of_single_prompts(kind, float64):
    model, some = tiny(kind), contexts()
    heads = model.all_heads
    data = word_towers(model, some, tower_vectors(model, some), {"all": heads}, {"a/b": heads[:2]})
    by_hand, words = Formulas(model.hf), some[0].words
    queries, keys, distances = defaultdict(list), defaultdict(list), Counter()
    for half, encoded in enumerate(some[0].halves):
        for e in encoded:
            run = by_hand.run(e.ids)
            for layer in range(model.n_layers):
                queries[half, layer, e.prompt.query].append(run.q[layer][:, -1])
                for d, position in zip(e.prompt.demonstrations, e.label_positions, strict=True):
                    keys[half, layer, d.text].append(run.k[layer][:, position])
            distances.update(e.last - position for position in e.label_positions)

    def turned(layer, vector, position):
        rows = np.repeat(vector[:, None], position + 1, 1)  # (head, position, d_head)
        return by_hand.turn(layer, rows)[:, position]

    for i, head in enumerate(heads):
        largest = 0.0
        for (w, asked), (v, shown) in product(enumerate(words), repeat=2):
            scores = []
            for half in (0, 1):
                query = np.mean(queries[half, head.layer, asked], 0)
                key = np.mean(keys[1 - half, head.layer, shown], 0)
                key = turned(head.layer, key, 0)[head.head]
                for distance, times in distances.items():
                    score = turned(head.layer, query, distance)[head.head] @ key
                    scores.append(score * by_hand.score_scale() * times)
            mean = sum(scores) / (2 * sum(distances.values()))
            got = float(data.similarity[i, w, v] * data.similarity_step[i])
            assert abs(got - mean) <= 0.5001 * float(data.similarity_step[i])
            largest = max(largest, abs(mean))
        near(data.similarity_step[i] * 127, largest, **ROTATED)
    assert data.is_selected.values.tolist() == [[1, 1] + [0] * (len(heads) - 2)] * 2


def test_the_properties_are_those_of_the_similarities(float64):
    """Of several class pairs: what is kept of a head in steps has nearly its exact properties."""
    model, some = tiny("llama"), contexts(PAIRS)
    heads = model.all_heads
    data = word_towers(model, some, tower_vectors(model, some), {"all": heads}, {})
    similarity = (data.similarity * data.similarity_step).values
    for i, head in enumerate(heads):
        of_head, start = data.sel(layer=head.layer, head=head.head), 0
        for c in range(4):
            own = slice(5 * c, 5 * c + 5)
            block = similarity[i, own, own]
            step, steps = float(data.similarity_step[i]), float(of_head.within_class_step)
            rest = centred(block)
            pairs = [(rest[a, b] + rest[b, a]) / 2 for a, b in combinations(range(5), 2)]
            kept = of_head.within_class[start : start + 10] * steps
            near(kept, pairs, atol=step + steps)
            near(of_head.within_class_sd[c], deviation(rest), atol=step)
            start += 10
        for p in range(2):
            both = slice(10 * p, 10 * p + 10)
            got = of_head.class_effect[2 * p : 2 * p + 2]
            expected = class_effects(similarity[i, both, both])
            near(got, expected, atol=step)
    assert data.words_in_class.values.tolist() == [5] * 4
    assert np.isnan(data.random_form_auc).all() and not data.is_selected.any()
    assert data.pair_class.values.tolist() == [*"a" * 10, *"b" * 20, *"a" * 10]
    embeddings = model.hf.get_input_embeddings().weight
    ids = {e.prompt.query: e.ids[e.query_span[0]] for e in some[0].halves[0]}
    ends = (data.first_word, data.second_word)
    both = [embeddings[[ids[word] for word in names.values]] for names in ends]
    cosine = torch.nn.functional.cosine_similarity(*both, dim=-1)
    near(data.embedding_similarity, cosine, atol=1e-12)


def additive_rest(square):
    """The rest of a least-squares fit with a number for each row and column, and the columns."""
    n = len(square)
    places = list(permutations(range(n), 2))
    design = np.zeros((len(places), 2 * n))
    for i, (row, column) in enumerate(places):
        design[i, row] = design[i, n + column] = 1
    values = np.array([square[place] for place in places])
    fit = np.linalg.lstsq(design, values, rcond=None)[0]
    rest = np.zeros_like(square)
    for place, value in zip(places, values - design @ fit, strict=True):
        rest[place] = value
    return rest, fit[n:]


def test_statistics_are_those_of_loops():
    rng = np.random.default_rng(0)
    both = rng.normal(size=(3, 14, 14)) + rng.normal(size=(3, 1, 14))
    both[:, np.arange(14), np.arange(14)] += 2
    for square, got_effects, got_auc in zip(
        both, class_effects(both), class_auc(both), strict=True
    ):
        rest, columns = additive_rest(square[:7, :7])
        got = centred(square[:7, :7])
        near(got, rest, atol=1e-12)
        off = ~np.eye(7, dtype=bool)
        near(correlation(got, got.T), np.corrcoef(rest[off], rest.T[off])[0, 1])
        near(correlation(0 * got, got), 0)  # a head that compares nothing
        near(deviation(got), rest[off].std())
        without = square[:7, :7] - columns
        first = np.mean([without[w].argmax() == w for w in range(7)])
        assert same_word_first(square[:7, :7]) == first
        classes = [range(7), range(7, 14)]
        attraction = [
            np.mean([np.mean([square[w, v] for w in rows if w != v]) for rows in classes])
            for v in range(14)
        ]
        for c, own in enumerate(classes):
            other, pairs = classes[1 - c], [*permutations(own, 2)]
            effect = np.mean([square[pair] for pair in pairs])
            effect -= np.mean([square[pair] for pair in product(own, other)])
            near(got_effects[c], effect)
            free = square - attraction
            above = [free[w, v] > free[w, u] for (w, v), u in product(pairs, other)]
            near(got_auc[c], np.mean(above))


def test_random_forms_have_the_singular_values_of_the_head(float64):
    model = tiny("llama")
    query, key = (model.projection(1, which)[0].double() for which in (0, 1))
    form = query[3].T @ key[model.value_head(3)]
    expected = torch.linalg.svdvals(form)[: model.d_head]
    near(singular_values(model, 1, 3), expected)


def test_random_forms_compare_inputs(float64):
    """A form that keeps all dimensions with one weight orders words as the inputs' products do."""
    model, some, one = tiny("gpt2"), contexts(), [Head(2, 0)]
    data = word_towers(model, some, tower_vectors(model, some), {"one": one}, {"a/b": one})
    forms = data.random_form_auc.values
    assert forms.shape == (20, 2) and ((forms >= 0) & (forms <= 1)).all()
    assert len(np.unique(forms[:, 0])) > 5
