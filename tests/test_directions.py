"""Directions by plain loops; moving towers against hooks on the model's own maps and against edited caches of keys."""

import numpy as np
import tiny_blocks
import torch
from conftest import refused, tiny
from plain_hooks import run
from towerlab.measure.directions import class_directions, random_directions
from towerlab.measure.tower_grid import tower_grid
from towerlab.model import query_key
from towerlab.model.capture import answer
from transformers import DynamicCache


def test_directions_are_differences_of_class_means(float64, small_batches):
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(4)  # whose queries and keys are compared as they are, not turned
    directions = class_directions(model, encoded)
    queries, keys = {"a": [], "b": []}, {"a": [], "b": []}
    for e in encoded:
        attention = run(model, e)["attention"].values()
        queries[e.prompt.cls].append([x.query[0, :, -1].numpy() * x.scaling for x in attention])
        for d, p in zip(e.prompt.demonstrations, e.label_positions, strict=True):
            keys[d.cls].append([x.key[0, :, p].numpy() for x in attention])
    for name, of_class in (("query", queries), ("keys", keys)):
        expected = np.mean(of_class["a"], 0) - np.mean(of_class["b"], 0)
        np.testing.assert_allclose(directions[name].sel(pair="a/b"), expected, rtol=0, atol=1e-9)
    refused("two blocks a pair", class_directions, model, encoded[:4])


def query_map(model, layer):
    """The module whose output begins with, or is, the queries of all heads before rotation."""
    return model.part(layer, "attention").get_submodule("c_attn" if model.name == "gpt2" else "q_proj")


def test_moving_queries_is_adding_to_the_output_of_the_query_map(model, small_batches):
    encoded, heads = tiny_blocks.blocks(2, seed=1), [(0, 1), (1, 0)]
    directions = class_directions(model, tiny_blocks.blocks(4))
    data = tower_grid(model, encoded, {"two": (heads, directions)}, (-1.0, 0.0, 2.0))
    moved = data["log_prob_true"].isel(heads=0).sel(key_coefficient=0)

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
        np.testing.assert_allclose(moved.sel(query_coefficient=dose), expected, rtol=0, atol=1e-9)
    assert (abs(moved.diff("query_coefficient")) > 1e-7).all()


def test_moving_keys_is_changing_the_cache_that_the_last_position_reads(model):
    encoded = tiny_blocks.blocks(2, seed=1)
    heads = [(1, head) for head in range(model.n_heads) if model.value_head(head) == 1]  # all that share its keys
    directions = class_directions(model, tiny_blocks.blocks(4))
    data = tower_grid(model, encoded, {"group": (heads, directions)}, (0.0, 1.5))
    moved = data["log_prob_true"].isel(heads=0).sel(query_coefficient=0)
    for i, e in enumerate(encoded):
        ids, cache = model.token_ids([e]), DynamicCache()
        model.hf(input_ids=ids[:, :-1], past_key_values=cache)
        for d, p in zip(e.prompt.demonstrations, e.label_positions, strict=True):
            added = torch.tensor(directions["keys"].values[0, 1, 1]) * (1.5 if d.cls == "a" else -1.5)
            cache.layers[1].keys[0, 1, p] += query_key.rotated(model, 1, added, torch.tensor(p))
        log_prob = model.hf(input_ids=ids[:, -1:], past_key_values=cache).logits[0, -1].log_softmax(-1)
        np.testing.assert_allclose(moved.sel(key_coefficient=1.5)[i], log_prob[e.true_id], rtol=0, atol=1e-9)
        plain = answer(model, [e])[1][:, 0]
        np.testing.assert_allclose(moved.sel(key_coefficient=0)[i], plain[0], rtol=0, atol=1e-9)


def test_random_directions_have_the_norm_of_their_own(float64):
    directions = class_directions(tiny("llama"), tiny_blocks.blocks(4))
    random = random_directions(directions, 0)
    for name in ("query", "keys"):
        norm, of_drawn = ((x[name] ** 2).sum("d_head") for x in (directions, random))
        np.testing.assert_allclose(of_drawn, norm)
        assert (abs(random[name] - directions[name]) > 0).isel(layer=1).all()


def test_what_cannot_be_moved_is_refused():
    model, encoded = tiny("gpt2"), tiny_blocks.blocks(2, seed=1)
    directions = class_directions(model, tiny_blocks.blocks(4))
    refused("head 7-0", tower_grid, model, encoded, {"x": ([(7, 0)], directions)}, (0.0,))
    refused("no direction for a/b", tower_grid, model, encoded, {"x": ([(0, 0)], directions.assign_coords(pair=["c/d"]))}, (0.0,))
