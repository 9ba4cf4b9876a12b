"""Steering against hooks on the model's own maps and against edited caches of keys; directions by plain loops."""

import numpy as np
import tiny_blocks
import torch
import xarray as xr
from conftest import refused, tiny
from towerlab.measure.steering import class_directions, directions_of_other_pairs, random_directions, steering
from towerlab.model import query_key
from towerlab.model.capture import answer, capture
from transformers import DynamicCache


def test_directions_are_differences_of_class_means(float64):
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(4)  # whose queries and keys are compared as they are, not turned
    directions = class_directions(model, encoded, max_tokens=50)
    queries, keys = {"a": [], "b": []}, {"a": [], "b": []}
    for e in encoded:
        plain = capture(model, [e], {"queries", "keys"})
        queries[e.prompt.cls].append(plain.queries[:, 0].numpy() * np.array(plain.scaling)[:, None, None])
        for d, p in zip(e.prompt.demonstrations, e.label_positions, strict=True):
            keys[d.cls].append(plain.keys[:, 0, :, p].numpy())
    for name, of_class in (("query", queries), ("keys", keys)):
        expected = np.mean(of_class["a"], 0) - np.mean(of_class["b"], 0)
        np.testing.assert_allclose(directions[name].sel(pair="a/b"), expected, rtol=0, atol=1e-9)
    refused("two blocks a pair", class_directions, model, encoded[:4])


def query_map(model, layer):
    """The module whose output begins with, or is, the queries of all heads before rotation."""
    return model.part(layer, "attention").get_submodule("c_attn" if model.name == "gpt2" else "q_proj")


def test_steering_queries_is_adding_to_the_output_of_the_query_map(model):
    encoded, heads = tiny_blocks.blocks(2, seed=1), [(0, 1), (1, 0)]
    directions = class_directions(model, tiny_blocks.blocks(4))
    data = steering(model, encoded, directions, {"two": heads}, (-1.0, 0.0, 2.0), ("query",), random=0, max_tokens=60).data

    def hook_of(layer, head, dose):
        vector = torch.tensor(directions["query"].values[0, layer, head]) * dose / model.score_scaling(layer)

        def hook(_module, _args, out):
            out = out.clone()
            out[:, -1, head * model.d_head : (head + 1) * model.d_head] += vector
            return out

        return hook

    for dose in (-1.0, 0.0, 2.0):
        hooks = [query_map(model, at).register_forward_hook(hook_of(at, head, dose)) for at, head in heads]
        expected = answer(model, encoded)[1][:, 0]
        for hook in hooks:
            hook.remove()
        np.testing.assert_allclose(data["log_prob_true"].sel(dose=dose)[0, 0], expected, rtol=0, atol=1e-9)
    assert (abs(data["log_prob_true"].diff("dose")) > 1e-7).all()


def test_steering_keys_is_changing_the_cache_that_the_last_position_reads(model):
    encoded = tiny_blocks.blocks(2, seed=1)
    heads = [(1, head) for head in range(model.n_heads) if model.value_head(head) == 1]  # all that share its keys
    directions = class_directions(model, tiny_blocks.blocks(4))
    data = steering(model, encoded, directions, {"group": heads}, (0.0, 1.5), ("keys",), random=0).data
    for i, e in enumerate(encoded):
        ids, cache = model.token_ids([e]), DynamicCache()
        model.hf(input_ids=ids[:, :-1], past_key_values=cache)
        for d, p in zip(e.prompt.demonstrations, e.label_positions, strict=True):
            added = torch.tensor(directions["keys"].values[0, 1, 1]) * (1.5 if d.cls == "a" else -1.5)
            cache.layers[1].keys[0, 1, p] += query_key.rotated(model, 1, added, torch.tensor(p))
        log_prob = model.hf(input_ids=ids[:, -1:], past_key_values=cache).logits[0, -1].log_softmax(-1)
        np.testing.assert_allclose(data["log_prob_true"].sel(dose=1.5)[0, 0, i], log_prob[e.true_id], rtol=0, atol=1e-9)
        plain = answer(model, [e])[1][:, 0]
        np.testing.assert_allclose(data["log_prob_true"].sel(dose=0)[0, 0, i], plain[0], rtol=0, atol=1e-9)


def test_both_towers_together_and_random_directions_of_the_same_norm(float64):
    model, encoded, sets = tiny("llama"), tiny_blocks.blocks(1, seed=1), {"one": [(1, 2)], "all": [(0, 0), (1, 2)]}
    directions = class_directions(model, tiny_blocks.blocks(4))
    data, control = steering(model, encoded, directions, sets, (0.0, 1.0), random=2, max_tokens=1)
    assert data["heads"].values.tolist() == control["heads"].values.tolist() == ["one", "all"]
    assert (
        control["log_prob_true"].dims == ("tower", "heads", "draw", "dose", "prompt") and control["control"] == "random directions"
    )
    first = steering(model, encoded, random_directions(directions, [0, 0]), sets, (0.0, 1.0), random=0).data["log_prob_true"]
    np.testing.assert_allclose(control["log_prob_true"].sel(draw=0), first, rtol=0, atol=1e-9)
    flat = directions.copy(deep=True)
    flat["keys"] *= 0
    alone = steering(model, encoded, flat, sets, (0.0, 1.0), random=0).data["log_prob_true"]
    log_prob = data["log_prob_true"]
    np.testing.assert_allclose(alone.sel(tower="both"), log_prob.sel(tower="query"), rtol=0, atol=1e-9)
    assert (abs(log_prob.sel(tower="both", dose=1) - log_prob.sel(tower="query", dose=1)) > 1e-7).all()
    random = random_directions(directions, 0)
    for name in ("query", "keys"):
        norm, of_drawn = ((x[name] ** 2).sum("d_head") for x in (directions, random))
        np.testing.assert_allclose(of_drawn, norm)
        assert (abs(random[name] - directions[name]) > 0).isel(layer=1).all()


def test_other_class_pairs_lend_their_direction_once_each_at_the_length_of_the_own_one():
    values = np.random.default_rng(0).normal(size=(4, 2, 3, 5))  # (pair, layer, head, d_head)
    own = xr.Dataset({"query": (("pair", "layer", "head", "d_head"), values)}, coords={"pair": list("abcd")})
    others = directions_of_other_pairs(own)
    for p in range(4):
        lent = [
            values[q] * np.linalg.norm(values[p], axis=-1, keepdims=True) / np.linalg.norm(values[q], axis=-1, keepdims=True)
            for q in range(4)
            if q != p
        ]
        others_of = [other["query"].isel(pair=p).values for other in others]
        assert all(sum(np.allclose(x, y) for y in others_of) == 1 for x in lent) and len(others_of) == 3


def test_directions_given_are_steered_along_like_random_ones(float64):
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(1, seed=1)
    directions = class_directions(model, tiny_blocks.blocks(4))
    data = steering(model, encoded, directions, {"one": [(1, 0)]}, (1.0,), ("query",), others=[2 * directions])
    double = steering(model, encoded, directions, {"one": [(1, 0)]}, (2.0,), ("query",), random=0)
    along = data.control["log_prob_true"].sel(draw=0, dose=1.0)
    assert data.control["control"] == "other class pairs"
    np.testing.assert_allclose(along, double.data["log_prob_true"].sel(dose=2.0), rtol=0, atol=1e-12)


def test_what_cannot_be_steered_is_refused():
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(2, seed=1)
    directions = class_directions(model, tiny_blocks.blocks(4))
    for settings, remedy in (
        (dict(towers=("value",)), "choose among query"),
        (dict(sets={"x": [(7, 0)]}), "head 7-0"),
        (dict(directions=directions.assign_coords(pair=["c/d"])), "no direction for a/b"),
    ):
        whole = {"directions": directions, "sets": {"one": [(0, 0)]}} | settings
        refused(remedy, steering, model, encoded, **whole)


def test_a_direction_without_length_is_lent_to_nobody():
    """In the first layer the query of one and the same token is the same whichever class is asked."""
    values = np.random.default_rng(0).normal(size=(3, 1, 2, 5))
    values[1] = 0
    own = xr.Dataset({"query": (("pair", "layer", "head", "d_head"), values)}, coords={"pair": list("abc")})
    first, second = (other["query"] for other in directions_of_other_pairs(own))
    assert np.isfinite(first).all() and np.isfinite(second).all() and (second.isel(pair=0) == 0).all()
    np.testing.assert_allclose((first.isel(pair=0) ** 2).sum("d_head"), (values[0] ** 2).sum(-1))
