"""Attention scores rebuilt from layer inputs equal those the model computed, on every architecture."""

import math

import pytest
import torch
from conftest import random_prompts, refused, tiny
from towerlab.model import query_key
from towerlab.model.capture import capture

WANT = {"weights", "scores", "queries", "keys", "streams"}


def cap(model, scores):
    softcap = getattr(model.config, "attn_logit_softcapping", None)
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


@pytest.fixture
def run(model):
    return capture(model, random_prompts(2, lengths=(11,)), WANT)


def test_queries_and_keys_from_layer_inputs_are_the_captured_ones(model, run):
    positions = torch.arange(11)
    for layer in range(model.n_layers):
        normed = query_key.normed(model, layer, run.stream_inputs[layer])
        query = query_key.rotated(model, layer, query_key.queries(model, layer, normed[:, -1]), positions[-1:])
        torch.testing.assert_close(query, run.queries[layer] * run.scaling[layer])
        key = query_key.rotated(model, layer, query_key.keys(model, layer, normed).transpose(1, 2), positions)
        torch.testing.assert_close(key, run.keys[layer])


def test_the_query_carried_back_through_w_k_gives_the_captured_scores(model, run):
    per_prompt = torch.tensor([[0, 2, 5, 10], [1, 2, 7, 9]])
    for layer in range(model.n_layers):
        normed = query_key.normed(model, layer, run.stream_inputs[layer])
        query = run.queries[layer] * run.scaling[layer]
        for head in range(model.n_heads):
            u, c = query_key.query_in_input_space(model, layer, head, query[:, head], torch.arange(11), normed)
            scores = cap(model, (u * normed).sum(-1) + c)
            expected = run.scores[layer, :, head]
            inside = expected > -1e30  # a sliding window masks the rest
            assert inside.any(-1).all()
            torch.testing.assert_close(scores[inside], expected[inside])
            weights = scores.masked_fill(~inside, float("-inf")).softmax(-1)
            torch.testing.assert_close(weights, run.weights[layer, :, head])

            of_positions = normed.gather(1, per_prompt[..., None].expand(-1, -1, model.d_model))
            v, d = query_key.query_in_input_space(model, layer, head, query[:, head], per_prompt, of_positions)
            torch.testing.assert_close((v * of_positions).sum(-1) + d, ((u * normed).sum(-1) + c).gather(1, per_prompt))


def test_without_positions_the_query_meets_the_unturned_keys(model, run):
    for layer in range(model.n_layers):
        normed = query_key.normed(model, layer, run.stream_inputs[layer])
        turned = run.queries[layer] * run.scaling[layer]
        query = query_key.rotated(model, layer, turned, torch.tensor([10]), back=True)
        start, both = torch.tensor(0), query_key.queries(model, layer, normed[:, -1])
        for _ in range(2):  # LongRoPE lengthens both ways
            both = query_key.rotated(model, layer, both, start)
        torch.testing.assert_close(query, both)
        keys = query_key.keys(model, layer, normed)
        for head in range(model.n_heads):
            u, c = query_key.query_in_input_space(model, layer, head, query[:, head], None, normed)
            plain = torch.einsum("bk,bpk->bp", query[:, head], keys[:, :, model.value_head(head)])
            torch.testing.assert_close((u * normed).sum(-1) + c, plain)
            # The last key stands where the query does, so turning both changes nothing; elsewhere it does.
            whole = torch.einsum("bk,bpk->bp", turned[:, head], run.keys[layer][:, model.value_head(head)])
            torch.testing.assert_close(plain[:, -1], whole[:, -1])
            assert ((plain - whole).abs().max() > 1e-3) == model.rotates(layer)


def test_windows_and_soft_caps_of_the_tiny_models_are_really_at_work(model, run):
    kind = model.name
    masked = (run.weights[..., :-1] == 0).any(-1).all(-1).all(-1)  # per layer
    windowed = {"mistral": [True, True], "qwen2": [False, True], "gemma2": [True, False], "gemma3_text": [True, False],
                "phi3": [True, True], "starcoder2": [True, True], "smollm3": [False, True, False],
                "gpt_neo": [False, True]}  # fmt: skip
    assert masked.tolist() == windowed.get(kind, [False] * model.n_layers)
    for layer in range(model.n_layers):
        hidden = 11 - (model.window(layer) or 11)
        assert (run.scores[layer, ..., :hidden] < -1e30).all() and (run.scores[layer, ..., hidden:] > -1e30).all()
    if kind == "gemma2":
        products = torch.einsum("lbkgd,lbkpd->lbkgp", run.queries.unflatten(2, (model.n_key_value_heads, -1)), run.keys)
        assert (products * run.scaling[0]).abs().max() > 2 * 1.5  # beyond the cap, where it bends
        assert run.logits.abs().max() < 4.0


def test_each_kind_of_layer_has_its_own_angles_and_some_layers_none(float64):
    v, at = torch.ones(1, 8, dtype=torch.float64), torch.tensor([5])
    gemma = tiny("gemma3_text")
    sliding, full = (query_key.rotated(gemma, layer, v, at) for layer in (0, 1))
    # By hand, for the second pair of numbers (of four): theta ** -(1 / 4), under the linear scaling a quarter of it.
    for turned, angle in ((sliding, 5 * 10**-0.25), (full, 5 / 4 * 100**-0.25)):
        expected = torch.tensor([math.cos(angle) - math.sin(angle), math.sin(angle) + math.cos(angle)]).double()
        torch.testing.assert_close(turned[0, [1, 5]], expected, atol=1e-6, rtol=0)
    smol = tiny("smollm3")
    still = [torch.equal(query_key.rotated(smol, layer, v[:, :4], at), v[:, :4]) for layer in range(3)]
    assert still == [False, True, False]


@pytest.mark.parametrize(("kind", "rope_type", "longest"), [("llama", "dynamic", 64), ("phi3 longrope", "longrope", 32)])
def test_positions_from_which_all_angles_change_are_refused(kind, rope_type, longest):
    model = tiny(kind)
    model.hf.model.rotary_emb.rope_type = rope_type
    assert model.context == longest
    query_key.rotated(model, 0, torch.ones(1, model.d_head), torch.tensor([longest - 1]))
    refused(
        f"more than {longest} tokens .{rope_type}",
        query_key.rotated,
        model,
        0,
        torch.ones(1, model.d_head),
        torch.tensor([longest]),
    )
