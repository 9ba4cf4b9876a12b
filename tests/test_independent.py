"""What is measured, against formulas in float64 from the state dict: no module of transformers is on the other side."""

import numpy as np
import pytest
import tiny_blocks
from conftest import TINY, tiny
from independent import Formulas, log_softmax
from towerlab.measure.ablations import ablations
from towerlab.measure.answers import answers
from towerlab.measure.directions import class_directions
from towerlab.measure.heads import heads
from towerlab.measure.increases import increases
from towerlab.measure.interchanges import interchanges, pairs_of
from towerlab.measure.knockouts import EDGES, closed_edges, knockouts
from towerlab.measure.label_reads import label_reads
from towerlab.measure.tower_grid import tower_grid
from twotowers.heads import Head

pytestmark = pytest.mark.slow
LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}}
ONE, EVERY = {"num_key_value_heads": 1}, {"num_key_value_heads": 4}
# Beside the models of conftest: one and all key heads, other rotations, windows, activations, tied embeddings, other epsilons.
MORE = {
    "llama": [ONE, EVERY, LINEAR, {"hidden_act": "gelu", "tie_word_embeddings": True}, {"rms_norm_eps": 0.1}],
    "mistral": [ONE, {"sliding_window": None, "head_dim": 6}],
    "qwen2": [EVERY, {"use_sliding_window": False}],
    "qwen3": [ONE, LINEAR],
    "gemma": [EVERY, {"hidden_act": "silu"}],
    "gemma2": [{"attn_logit_softcapping": None, "final_logit_softcapping": None}],
    "gemma3_text": [{"layer_types": ["full_attention", "full_attention"]}],
    "olmo2": [ONE],
    "phi": [{"partial_rotary_factor": 1.0}],
    "stablelm": [{"use_qkv_bias": False}],
    "gpt2": [{"n_inner": 24, "activation_function": "relu"}],
    "gptj": [{"rotary_dim": 8}],
    "smollm3": [{"rope_parameters": TINY["llama wide heads"]["rope_parameters"], "use_sliding_window": False}],
    "gpt_neo": [{"attention_types": [[["local", "global"], 1]]}],
}
KINDS = {**{kind: TINY[kind] for kind in TINY}, **{f"{k} {i}": TINY[k] | more for k in MORE for i, more in enumerate(MORE[k])}}
NEAR = dict(rtol=2e-6, atol=2e-6)


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair(request):
    """A tiny model, its formulas, blocks of prompts, and their runs by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, request.param, KINDS[request.param])
        model = tiny(request.param)
    by_hand, encoded = Formulas(model.hf), tiny_blocks.blocks(2)
    return model, by_hand, encoded, [by_hand.run(e.ids) for e in encoded]


def answer(e, run):
    return log_softmax(run.logits)[list(e.label_pair)]


def test_answers(pair, float64):
    model, _, encoded, runs = pair
    data = answers(model, encoded)
    expected = np.array([answer(e, run) for e, run in zip(encoded, runs, strict=True)])
    np.testing.assert_allclose(np.stack([data.log_prob_true, data.log_prob_other], 1), expected, **NEAR)
    tops = [int(run.logits.argmax()) for run in runs]
    assert data.says.values.tolist() == [[*e.label_pair, top].index(top) for e, top in zip(encoded, tops, strict=True)]


def test_increases_and_what_heads_write(pair, float64):
    model, by_hand, encoded, runs = pair
    written = heads(model, encoded)
    for norm in ("frozen", "recomputed"):
        data = increases(model, encoded[:2], norm=norm)
        for i, (e, run) in enumerate(zip(encoded[:2], runs[:2], strict=True)):
            for layer in range(model.n_layers):
                before, word, frozen = run.resid[layer][-1], e.true_id, norm == "frozen"
                blocks = (before, run.attention[layer]), (before + run.attention[layer], run.ffn[layer])
                each = [by_hand.vector(run, layer, h, run.z[layer][h, -1]) for h in range(by_hand.heads)]
                expected = [by_hand.increase(run, before, x, word, frozen) for x in each]
                np.testing.assert_allclose(data.increase[i, layer], expected, **NEAR)
                expected = [by_hand.increase(run, x, y, word, frozen) for x, y in blocks]
                np.testing.assert_allclose(data.block_increase[i, layer], expected, **NEAR)
                for h in range(by_hand.heads):
                    at = run.weights[layer][h, -1][list(e.label_positions)]
                    np.testing.assert_allclose(written.attention[i, layer, h], at, **NEAR)
                    shares = [by_hand.vector(run, layer, h, run.v[layer][h, p]) for p in e.label_positions]
                    leads = [np.subtract(*by_hand.projected(x, by_hand.scale_of(run.final))[list(e.label_pair)]) for x in shares]
                    np.testing.assert_allclose(written.contribution[i, layer, h], at @ leads, **NEAR)


def test_ranks(pair, float64):
    model, by_hand, encoded, runs = pair
    listed = [Head(0, 1), Head(1, 0), Head(1, by_hand.heads - 1)]
    data = label_reads(model, encoded, listed)
    for i, (e, run) in enumerate(zip(encoded, runs, strict=True)):
        for j, (layer, head) in enumerate(listed):
            for place, (p, shown) in enumerate(zip(e.label_positions, e.prompt.demonstrations, strict=True)):
                bs = by_hand.projected(by_hand.vector(run, layer, head, run.v[layer][head, p]), by_hand.scale_of(run.final))
                own, (other,) = e.label_ids[shown.label], {*e.label_ids.values()} - {e.label_ids[shown.label]}
                at = data.isel(prompt=i, listed_head=j, place=place)
                assert [int(at.own_rank), int(at.other_rank)] == [1 + (bs > bs[token] + 1e-9).sum() for token in (own, other)]
                np.testing.assert_allclose(at.reading, bs[own] - bs[other], **NEAR)


def changed_at(at, new, where=slice(None), keep=0.0):
    """An edit: heads of a layer are given `new(layer, head)` at some positions, beside so much of their own."""

    def edit(layer, x):
        x = x.copy()
        for head in (h for of, h in at if of == layer):
            x[head, where] = keep * x[head, where] + new(layer, head)
        return x

    return edit


def test_ablations_and_knockouts(pair, float64):
    model, by_hand, encoded, _ = pair
    sets = {"mixed": [(1, 0), (0, 1)], "one": [(1, by_hand.heads - 1)]}
    data = ablations(model, encoded, sets)
    for i, e in enumerate(encoded):
        for name, of in sets.items():
            run, got = by_hand.run(e.ids, z=changed_at(of, lambda *_: 0.0)), data.sel(heads=name).isel(prompt=i)
            np.testing.assert_allclose([got.log_prob_true, got.log_prob_other], answer(e, run), **NEAR)
    data = knockouts(model, encoded, [0, 1, model.n_layers])
    for name, maker in EDGES.items():
        closed = closed_edges(encoded, maker).numpy().astype(bool)
        for i, e in enumerate(encoded[:3]):
            run = by_hand.run(e.ids, closed=lambda layer, i=i, closed=closed: closed[i] & (layer < 1))
            got = data.sel(edges=name, cut=1).isel(prompt=i)
            np.testing.assert_allclose(got.log_prob_true, answer(e, run)[0], **NEAR)


def test_exchanges(pair, float64):
    model, by_hand, encoded, _ = pair
    pairs, of = pairs_of(encoded, tiny_blocks.tokenizer())[::5], [(0, 1), (1, 0)]
    data = interchanges(model, pairs, {"two": of})
    for i, (kind, base, source) in enumerate(pairs):
        other, at = by_hand.run(source.ids), list(base.label_positions)
        q = changed_at(of, lambda layer, head, run=other: run.q[layer][head, -1], -1)
        k = changed_at(of, lambda layer, head, run=other, at=at: run.k[layer][head, at], at)
        v = changed_at(of, lambda layer, head, run=other, at=at: run.v[layer][head, at], at)
        run = by_hand.run(base.ids, **{"query": {"q": q}, "keys": {"k": k}, "values": {"v": v}}[kind])
        got = data.sel(heads="two").isel(prompt=i)
        np.testing.assert_allclose([got.log_prob_true, got.log_prob_other], answer(base, run), **NEAR)


def test_directions_and_both_towers_moved(pair, float64):
    model, by_hand, encoded, runs = pair
    of, dose = [(0, 1), (1, 0)], 1.5
    directions = class_directions(model, encoded)
    scale, group = by_hand.score_scale(), by_hand.heads // by_hand.kv_heads
    queries, keys = ({"a": [], "b": []} for _ in range(2))
    for e, run in zip(encoded, runs, strict=True):
        queries[e.prompt.cls].append([x[:, -1] * scale for x in run.q])
        for p, shown in zip(e.label_positions, e.prompt.demonstrations, strict=True):
            keys[shown.cls].append([x[::group, p] for x in run.k])
    query, key = (np.mean(x["a"], 0) - np.mean(x["b"], 0) for x in (queries, keys))
    np.testing.assert_allclose(directions["query"].values[0], query, **NEAR)
    np.testing.assert_allclose(directions["keys"].values[0], key, **NEAR)
    data = tower_grid(model, encoded, {"two": (of, directions)}, (0.0, dose)).isel(heads=0)
    for i, e in enumerate(encoded):
        signs = [1 if shown.cls == "a" else -1 for shown in e.prompt.demonstrations]
        at = list(e.label_positions)
        q = changed_at(of, lambda layer, head: dose * query[layer, head] / scale, -1, keep=1.0)
        k = changed_at(of, lambda layer, head, signs=signs: dose * np.outer(signs, key[layer, head // group]), at, keep=1.0)
        for cell, edits in {(dose, 0): {"q": q}, (0, dose): {"k": k}, (dose, dose): {"q": q, "k": k}}.items():
            got = data.sel(query_coefficient=cell[0], key_coefficient=cell[1]).isel(prompt=i)
            np.testing.assert_allclose(got.log_prob_true, answer(e, by_hand.run(e.ids, **edits))[0], **NEAR)
