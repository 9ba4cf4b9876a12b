"""The two towers of a head: against the model's own maps, one position at a time."""

import numpy as np
import tiny_blocks
from reference import Reference
from towerlab.measure.label_reads import towers
from twotowers.heads import Head


def test_every_vector_is_that_of_the_models_own_maps(model):
    encoded = tiny_blocks.blocks(2)
    heads = [Head(1, model.n_heads - 1), Head(0, 1)]
    result = towers(model, encoded, heads)
    assert result["key_vector"].dims == ("prompt", "listed_head", "place", "component")
    for i, e in enumerate(encoded):
        slow = Reference(model, e.ids)
        for j, (layer, head) in enumerate(heads):
            at = result.isel(prompt=i, listed_head=j)
            query, _ = slow.query_key(layer, head, slow.normed[layer][e.last])
            np.testing.assert_allclose(at["query_vector"], query, rtol=1e-6, atol=1e-7)  # kept in float32
            for place, p in enumerate(e.label_positions):
                _, key = slow.query_key(layer, head, slow.normed[layer][p])
                np.testing.assert_allclose(at["key_vector"][place], key, rtol=1e-6, atol=1e-7)
