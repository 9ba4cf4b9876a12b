"""Routes of what heads send against a last position computed by hand, layer by layer and reader by
reader."""

from functools import partial
from itertools import product

import pytest
import tiny_blocks
import torch
from conftest import tiny
from tolerances import near
from towerlab.model import query_key
from towerlab.model.edits import UNCHANGED, patch_z
from towerlab.model.last_position import LastPosition
from towerlab.model.routes import Route, routed

ROUTES = [Route(*of) for of in product((False, True), repeat=3)]


def softmax(scores, softcap, mask):
    """Weights of one row of scaled scores, of which the mask lets some be seen."""
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


def manual(model, last, heads, sent, route):
    """The last position of one prompt, layer by layer and reader by reader, from weights and plain
    keys and values."""
    stream, messages = last.plain[0].x[0, 0], 0.0
    for layer in range(model.n_layers):
        (_, attention, own_z), position = last.plain[layer], torch.tensor(last.batch[0].last)
        read = model.normed(layer, "attention", stream - messages * (not route.queries))
        turn = partial(query_key.rotated, model, layer, positions=position)
        query = turn(query_key.queries(model, layer, read))
        key = turn(query_key.keys(model, layer, read))
        z = []
        for head in range(model.n_heads):
            group = model.value_head(head)
            scores = torch.cat([attention.key[0, group, :-1], key[group][None]]) @ query[head]
            own = query_key._through(*model.projection(layer, 2), read)[group]
            weights = softmax(scores, attention.softcap, attention.mask[0, 0, 0])
            z.append(weights @ torch.cat([attention.value[0, group, :-1], own[None]]))
        new = own_z[0, :, 0].clone()
        for head in (h for at, h in heads if at == layer):
            z[head] = new[head] = sent[layer][0, head]
        norm = model.norm_after(layer, "attention") or (lambda x: x)
        output, with_sent, before = (
            norm(model.part(layer, "attention_out")(v.flatten()[None, None]))[0, 0]
            for v in (torch.stack(z), new, own_z[0])
        )
        below, messages = messages, messages + with_sent - before
        middle = stream if model.parallel else stream + output
        read = middle - (below if model.parallel else messages) * (not route.mlps)
        if model.architecture.ffn_norm:
            read = model.part(layer, "ffn_norm")(read)
        ffn = model.layers[layer].mlp(read[None, None])[0, 0]
        norm = model.norm_after(layer, "ffn") or (lambda x: x)
        stream = stream + output + norm(ffn)
    return stream - messages * (not route.output)


@pytest.mark.parametrize("kind", ["gpt2", "gptj", "llama", "gemma2", "olmo2", "qwen2"])
def test_routes_equal_a_last_position_computed_by_hand(kind, float64):
    model, encoded = tiny(kind), tiny_blocks.blocks(1)
    sets = [[(0, 1)], [(0, 0), (model.n_layers - 1, 1)], [(model.n_layers - 1, 0)]]
    last, donor = LastPosition(model, encoded[:2]), LastPosition(model, encoded[2:])
    z = {layer: state.z[:, :, 0] for layer, state in donor.plain.items()}
    result = routed(last, [(patch_z(heads, z), route) for heads in sets for route in ROUTES])
    result = result.unflatten(0, (len(sets), len(ROUTES)))
    for i, e in enumerate(encoded[:2]):
        alone, own_z = LastPosition(model, [e]), {layer: x[i : i + 1] for layer, x in z.items()}
        # every route, of one set for each prompt
        for row, route in enumerate(ROUTES):
            near(result[i, row, i], manual(model, alone, sets[i], own_z, route), atol=1e-10)
    plain = next(last.finals([UNCHANGED]))[1][0]
    for s, heads in enumerate(sets):
        near(result[s, 0], plain, atol=1e-11)  # no route: the plain run
        expected = next(last.finals([patch_z(heads, z)]))[1][0]
        near(result[s, -1], expected, atol=1e-11)  # every route: the plain edit
    distance = (result - plain).abs().amax((-1, -2))
    assert (distance[:2, 1:] > 1e-5).all() and (
        distance[2, ROUTES.index(Route(False, True, False))] < 1e-11
    )
