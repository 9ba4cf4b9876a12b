"""What is measured, against formulas in float64 from the state dict: no module of transformers is
on the other side."""

import numpy as np
import pytest
import tiny_blocks
from conftest import TINY, tiny
from independent import Formulas, changed_at, lead, log_softmax
from tolerances import LOGITS, ROTATED, near
from towerlab.model import loading
from towerlab.model.unembed import NORMS
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.prompt import encode_all
from towerlab_experiments.ablations import (
    EDGES,
    ablations,
    closed_edges,
    knockouts,
    single_head_ablations,
)
from towerlab_experiments.answers import answers
from towerlab_experiments.head_values import heads, increases
from towerlab_experiments.interchanges import interchanges, pairs_of
from towerlab_experiments.label_reads import label_reads, query_key_vectors
from towerlab_experiments.tower_grid import class_directions, tower_grid
from twotowers.heads import Head
from twotowers.settings import Template

LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}}
ONE, EVERY = {"num_key_value_heads": 1}, {"num_key_value_heads": 4}
# Beside the models of conftest: one and all key heads, other rotations, windows, activations, tied
# embeddings, other epsilons.
MORE = {
    "llama": [
        ONE,
        EVERY,
        LINEAR,
        {"hidden_act": "gelu", "tie_word_embeddings": True},
        {"rms_norm_eps": 0.1},
    ],
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
    "smollm3": [
        {
            "rope_parameters": TINY["llama wide heads"]["rope_parameters"],
            "use_sliding_window": False,
        }
    ],
    "gpt_neo": [{"attention_types": [[["local", "global"], 1]]}],
}
KINDS = {
    **{kind: TINY[kind] for kind in TINY},
    **{f"{k} {i}": TINY[k] | more for k in MORE for i, more in enumerate(MORE[k])},
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def tiny_model(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY, request.param, KINDS[request.param])
        return tiny(request.param)


@pytest.fixture(scope="module")
def pair(tiny_model):
    """A tiny model, its formulas, blocks of prompts, and their runs by hand."""
    by_hand, encoded = Formulas(tiny_model.hf), tiny_blocks.blocks(2)
    return tiny_model, by_hand, encoded, [by_hand.run(e.ids) for e in encoded]


def check_answer(got, e, run):
    """Log-probabilities of the true label and the other, and which is said, as the logits of a run
    by hand have them."""
    labels, top = list(e.label_pair_ids), int(run.logits.argmax())
    near([got.log_prob_true, got.log_prob_other], log_softmax(run.logits)[labels], **ROTATED)
    assert int(got.top_answer) == [*labels, top].index(top)


def test_answers(pair, float64):
    model, _, encoded, runs = pair
    for i, (e, run) in enumerate(zip(encoded, runs, strict=True)):
        check_answer(answers(model, encoded).isel(prompt=i), e, run)


def check_increases(data, model, by_hand, some, norm, within=ROTATED):
    """The first prompts' increases of blocks and heads; `some`: prompts and their runs by hand."""
    for i, (e, run) in enumerate(some):
        for layer in range(model.n_layers):
            before, word, frozen = run.resid[layer][-1], e.true_id, norm == "frozen"
            blocks = (before, run.attention[layer]), (before + run.attention[layer], run.ffn[layer])
            each = [
                by_hand.vector(run, layer, h, run.z[layer][h, -1]) for h in range(by_hand.heads)
            ]
            expected = [by_hand.increase(run, before, x, word, frozen) for x in each]
            near(data.increase[i, layer], expected, **within)
            expected = [by_hand.increase(run, x, y, word, frozen) for x, y in blocks]
            near(data.block_increase[i, layer], expected, **within)


@pytest.mark.parametrize("norm", NORMS)
# few prompts take the full-width plan, many the factored one
@pytest.mark.parametrize("times", [1, 5])
def test_increases(pair, norm, times, float64):
    model, by_hand, encoded, runs = pair
    data = increases(model, encoded[:4] * times, norm=norm)
    check_increases(data, model, by_hand, list(zip(encoded, runs, strict=True))[:2], norm)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [2, 60])
def test_in_float32_a_trained_model_stays_within_a_ten_thousandth_of_a_nat(prompts):
    """Both plans and several slabs, in the dtype that models run in."""
    model = loading.load("mini-gpt2")
    encoded = encode_all(
        draw_blocks(prompts // 2, Template(2, "space"), seed=0, label_pairs=["foo/bar"]),
        model.tokenizer,
    )
    by_hand = Formulas(model.hf)
    for norm in NORMS:
        check_increases(
            increases(model, encoded, norm),
            model,
            by_hand,
            [(encoded[0], by_hand.run(encoded[0].ids))],
            norm,
            dict(rtol=0, atol=LOGITS),
        )


def test_what_heads_write(pair, float64):
    model, by_hand, encoded, runs = pair
    written = heads(model, encoded)
    for i, (e, run) in enumerate(zip(encoded[:2], runs, strict=False)):
        check_answer(written.isel(prompt=i), e, run)
        sign = np.where(e.prompt.is_true, 1, -1)

        def written_by(x, e=e, run=run):
            return lead(by_hand.projected(x, by_hand.scale_of(run.final)), e)

        blocks = [[written_by(x) for x in of] for of in zip(run.attention, run.ffn, strict=True)]
        near(written["block_logit_difference"][i], blocks, **ROTATED)
        for layer, h in np.ndindex(model.n_layers, by_hand.heads):
            at = run.weights[layer][h, -1][list(e.label_positions)]
            got = written.isel(prompt=i, layer=layer, head=h)
            shares = [by_hand.vector(run, layer, h, run.v[layer][h, p]) for p in e.label_positions]
            leads = [*map(written_by, shares)]
            expected = {
                "attention": at,
                "attribution": at @ leads,
                "written_logit_difference": at @ (sign * leads),
                "ov_logit_difference": (sign * leads).mean(),
            }
            for name, value in expected.items():
                near(got[name], value, **ROTATED)


def test_what_heads_read_and_their_towers(pair, small_batches, float64):
    model, by_hand, encoded, runs = pair
    listed = [Head(0, 1), Head(1, 0), Head(1, by_hand.heads - 1)]
    data, of_towers = label_reads(model, encoded, listed), query_key_vectors(model, encoded, listed)
    assert list(data["selected_head"].values) == [str(head) for head in listed]
    for i, (e, run) in enumerate(zip(encoded, runs, strict=True)):
        for j, (layer, head) in enumerate(listed):
            vectors = of_towers.isel(prompt=i, selected_head=j)
            near(vectors.query_vector, run.q[layer][head, -1] * by_hand.score_scale(), **ROTATED)
            near(vectors.key_vector, run.k[layer][head][list(e.label_positions)], **ROTATED)
            for number, (p, shown) in enumerate(
                zip(e.label_positions, e.prompt.demonstrations, strict=True)
            ):
                bs = by_hand.projected(
                    by_hand.vector(run, layer, head, run.v[layer][head, p]),
                    by_hand.scale_of(run.final),
                )
                own = e.label_ids[shown.label]
                (other,) = {*e.label_ids.values()} - {e.label_ids[shown.label]}
                at = data.isel(prompt=i, selected_head=j, demonstration=number)
                assert [int(at.own_rank), int(at.other_rank)] == [
                    1 + (bs > bs[token] + 1e-9).sum() for token in (own, other)
                ]
                near(at.ov_logit_difference, bs[own] - bs[other], **ROTATED)
                near(at.attention, run.weights[layer][head, -1, p], **ROTATED)


def test_ablations(pair, small_batches, float64):
    model, by_hand, encoded, _ = pair
    top, last = model.n_layers - 1, by_hand.heads - 1
    sets = {
        "mixed": [(top, 0), (0, 1), (0, 0)],
        "twice": [(1, 0), (1, last), (1, 0)],
        "top": [(top, 1)],
        "empty": [],
        "again": [(top, 1)],
    }
    data = ablations(model, encoded, sets)
    for i, e in enumerate(encoded[:5]):
        for name, of in (sets | {"none": []}).items():
            check_answer(
                data.isel(prompt=i).sel(head_set=name),
                e,
                by_hand.run(e.ids, z=changed_at(of, lambda *_: 0.0)),
            )


@pytest.mark.parametrize("where", ["all", "last"])
def test_every_head_ablated_alone(pair, where, float64):
    model, by_hand, encoded, runs = pair
    data = single_head_ablations(model, encoded, where)
    assert data.log_prob_lost.dims == ("prompt", "layer", "head")
    for i, (e, run) in enumerate(zip(encoded[:2], runs, strict=False)):
        for at in np.ndindex(model.n_layers, by_hand.heads):
            changed = by_hand.run(
                e.ids, z=changed_at([at], lambda *_: 0.0, slice(None) if where == "all" else -1)
            )
            true, other = (log_softmax(run.logits) - log_softmax(changed.logits))[
                list(e.label_pair_ids)
            ]
            near(data.log_prob_lost[i][at], true, **ROTATED)
            near(data.logit_difference_lost[i][at], true - other, **ROTATED)


def test_knockouts_at_every_cut(pair, small_batches, monkeypatch, float64):
    model, by_hand, encoded, _ = pair
    edges = EDGES | {
        "nothing": lambda _: [],
        "all": lambda e: [(slice(e.last, None), slice(e.last))],
    }
    monkeypatch.setattr("towerlab_experiments.ablations.EDGES", edges)
    data = knockouts(model, encoded, range(model.n_layers + 1))
    for name, maker in edges.items():
        closed = closed_edges(encoded, maker).numpy()
        for i, cut in np.ndindex(2, model.n_layers + 1):
            run = by_hand.run(
                encoded[i].ids, closed=lambda layer, shut=closed[i], cut=cut: shut & (layer < cut)
            )
            check_answer(data.sel(edges=name, cut=cut).isel(prompt=i), encoded[i], run)


def test_exchanges(pair, small_batches, float64):
    model, by_hand, encoded, runs = pair
    pairs = pairs_of(encoded, tiny_blocks.tokenizer())[::4]  # of all kinds
    sets = {"two": [(0, 1), (1, 0)], "upper": [(1, 1)]}
    data = interchanges(model, pairs, sets)
    of_block = {e.ids: run for e, run in zip(encoded, runs, strict=True)}
    for i, (kind, base, source) in enumerate(pairs):
        got, at = data.isel(prompt=i), list(base.label_positions)
        plain, of_source = (of_block.get(e.ids) or by_hand.run(e.ids) for e in (base, source))
        for side, run in (("base", plain), ("source", of_source)):
            near(got[f"{side}_logit_difference"], lead(run.logits, base), **ROTATED)
        name = list(sets)[i % 2]
        q = changed_at(sets[name], lambda layer, head, run=of_source: run.q[layer][head, -1], -1)
        k = changed_at(
            sets[name], lambda layer, head, run=of_source, at=at: run.k[layer][head, at], at
        )
        v = changed_at(
            sets[name], lambda layer, head, run=of_source, at=at: run.v[layer][head, at], at
        )
        run = by_hand.run(
            base.ids, **{"query": {"q": q}, "keys": {"k": k}, "values": {"v": v}}[kind]
        )
        near(got.logit_difference.sel(head_set=name), lead(run.logits, base), **ROTATED)
        assert got["pair_kind"] == kind and got["query"] == base.prompt.query


def test_directions_and_both_towers_moved(pair, float64):
    model, by_hand, encoded, runs = pair
    of, dose = [(0, 1), (1, 0)], 1.5
    directions = class_directions(model, encoded)
    scale, group = by_hand.score_scale(), by_hand.heads // by_hand.kv_heads
    queries, keys = ({"a": [], "b": []} for _ in range(2))
    for e, run in zip(encoded, runs, strict=True):
        queries[e.prompt.query_class].append([x[:, -1] * scale for x in run.q])
        for p, shown in zip(e.label_positions, e.prompt.demonstrations, strict=True):
            keys[shown.cls].append([x[::group, p] for x in run.k])
    query, key = (np.mean(x["a"], 0) - np.mean(x["b"], 0) for x in (queries, keys))
    near(directions["query"].values[0], query, **ROTATED)
    near(directions["keys"].values[0], key, **ROTATED)
    first = class_directions(model, encoded, of[:1])  # the layers above are not run
    assert first["layer"].values.tolist() == [0]
    near(first["keys"], directions["keys"].sel(layer=[0]))
    data = tower_grid(model, encoded, {"two": (of, directions)}, (0.0, dose)).isel(head_set=0)
    for i, e in enumerate(encoded):
        signs = [1 if shown.cls == "a" else -1 for shown in e.prompt.demonstrations]
        at = list(e.label_positions)
        q = changed_at(of, lambda layer, head: dose * query[layer, head] / scale, -1, keep=1.0)
        k = changed_at(
            of,
            lambda layer, head, signs=signs: dose * np.outer(signs, key[layer, head // group]),
            at,
            keep=1.0,
        )
        for cell, edits in {
            (0, 0): {},
            (dose, 0): {"q": q},
            (0, dose): {"k": k},
            (dose, dose): {"q": q, "k": k},
        }.items():
            got = data.sel(query_coefficient=cell[0], key_coefficient=cell[1]).isel(prompt=i)
            near(got.logit_difference, lead(by_hand.run(e.ids, **edits).logits, e), **ROTATED)
