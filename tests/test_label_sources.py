"""From where a position reads the label: against plain runs, and on a model whose last position reads labels alone."""

from itertools import product

import numpy as np
import tiny_blocks
from conftest import refused
from plain_hooks import run, weights_of, z_of
from towerlab.measure.label_sources import READERS, SOURCES, label_sources
from towerlab.model.loading import load
from towerlab.prompts.blocks import donors_of, draw_blocks
from towerlab.prompts.prompt import encode_all
from twotowers.forms import Form

EXACT = dict(rtol=0, atol=1e-9)


def slow(model, e, donor, readers, sources):
    """Logit difference where rows `readers` find at `sources` what the donor has: one row, head and layer after the other."""
    theirs = run(model, donor)["attention"]

    def change(layer, z, attention):
        key, value = attention[1].clone(), attention[2].clone()
        key[:, :, sources], value[:, :, sources] = (x[:, :, sources] for x in theirs[layer][1:3])
        for q, head in product(readers, range(model.n_heads)):
            weights = weights_of(model, attention, head, q, key=key)
            z[0, q, head * model.d_head : (head + 1) * model.d_head] = z_of(model, weights, value, head)
        return z

    return run(model, e, change)["difference"]


def test_every_reader_and_source_equals_a_slow_run(model):
    encoded = tiny_blocks.blocks(1)
    result, donors = label_sources(model, encoded).logit_difference_by_source, donors_of(encoded)["labels exchanged"]
    for i, e in enumerate(encoded[:2]):
        spans, query = e.text_spans, range(*e.query_span)
        places = {
            "labels": [*e.label_positions],
            "texts": [p for span in spans for p in range(*span)],
            "colons": [p for span, label in zip(spans, e.label_positions, strict=True) for p in range(span[1], label)],
            "query's text": [*query],
        }
        places["all"] = [p for some in places.values() for p in some]
        rows = {"last position": [e.last], "query's text": [*query], "both": range(query[0], e.last + 1)}
        for reader, source in product(READERS, SOURCES):
            expected = slow(model, e, encoded[donors[i]], rows[reader], places[source])
            np.testing.assert_allclose(result.sel(reader=reader, source=source)[i], expected, **EXACT)


def test_the_shipped_model_reads_labels_at_its_last_position_and_nowhere_else():
    model = load("mini-gpt2")
    encoded = encode_all(draw_blocks(20, Form(2, "space"), seed=1, labels=["foo/bar"]), model.tokenizer)
    without = label_sources(model, encoded).logit_difference_by_source.mean("prompt")
    plain = np.mean([run(model, e)["difference"] for e in encoded])
    share = (plain - without) / (2 * plain)
    assert share.sel(reader="last position", source="labels") > 0.9
    assert abs(share.sel(reader="query's text")).max() < 0.1 and abs(share.sel(source="texts")).max() < 0.1


def test_blocks_that_are_not_whole_are_refused(model):
    refused("not whole", label_sources, model, tiny_blocks.blocks(1)[:3])
