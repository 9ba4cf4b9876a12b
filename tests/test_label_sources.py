"""From where a position reads the label: against plain runs, and on a model whose last position reads labels alone."""

from contextlib import ExitStack

import numpy as np
import pytest
import tiny_blocks
from towerlab.measure.label_sources import READERS, SOURCES, label_sources
from towerlab.model.attention_hooks import reading_attention
from towerlab.model.hooks import changing_z
from towerlab.model.loading import load
from towerlab.prompts.blocks import donors_of, draw_blocks
from towerlab.prompts.prompt import encode_all
from twotowers.errors import TwoTowersError
from twotowers.forms import Form

EXACT = dict(rtol=0, atol=1e-9)


def difference(model, one):
    logits, other = model.logits([one])[0], next(i for i in one.label_ids.values() if i != one.true_id)
    return float(logits[one.true_id] - logits[other])


def attention_of(model, one):
    """Layer -> query, keys, values, mask, scaling, softcap of a plain run."""
    seen = {}
    for layer in range(model.n_layers):
        with reading_attention(model, layer, lambda *given, layer=layer: seen.update({layer: [*given]})):
            model.logits([one])
    return seen


def run(model, one, donor, readers, sources):
    """Logit difference where rows `readers` find at `sources` what the donor has: one row, head and layer after the other."""
    theirs, own = attention_of(model, donor), {}

    def put(layer, z):
        query, key, value, mask, scaling, softcap = own[layer]
        for q in readers:
            for head in range(model.n_heads):
                group = model.value_head(head)
                keys, values = key[0, group].clone(), value[0, group].clone()
                for p in sources:
                    keys[p], values[p] = theirs[layer][1][0, group, p], theirs[layer][2][0, group, p]
                scores = keys[: q + 1] @ query[0, head, q] * scaling
                scores = scores if softcap is None else softcap * (scores / softcap).tanh()
                if mask is not None:
                    seen = mask[0, 0, q, : q + 1]
                    scores = scores + seen if seen.is_floating_point() else scores.masked_fill(~seen, -np.inf)
                z[0, q, head] = scores.softmax(-1) @ values[: q + 1]

    with ExitStack() as stack:
        for layer in range(model.n_layers):
            stack.enter_context(reading_attention(model, layer, lambda *given, layer=layer: own.update({layer: given})))
        stack.enter_context(changing_z(model, {layer: lambda z, layer=layer: put(layer, z) for layer in range(model.n_layers)}))
        return difference(model, one)


def test_every_reader_and_source_equals_a_slow_run(any_model):
    encoded = tiny_blocks.blocks(1)
    found, donors = label_sources(any_model, encoded).logit_difference_by_source, donors_of(encoded)["labels exchanged"]
    for i, one in enumerate(encoded[:2]):
        spans, query = one.text_spans, range(*one.query_span)
        places = {
            "labels": [*one.label_positions], "texts": [p for span in spans for p in range(*span)],
            "colons": [p for span, label in zip(spans, one.label_positions, strict=True) for p in range(span[1], label)],
            "query's text": [*query],
        }  # fmt: skip
        places["all"] = [p for some in places.values() for p in some]
        rows = {"last position": [one.last], "query's text": [*query], "both": range(query[0], one.last + 1)}
        for reader in READERS:
            for source in SOURCES:
                want = run(any_model, one, encoded[donors[i]], rows[reader], places[source])
                np.testing.assert_allclose(found.sel(reader=reader, source=source)[i], want, **EXACT)


def test_the_shipped_model_reads_labels_at_its_last_position_and_nowhere_else():
    model = load("mini-gpt2")
    encoded = encode_all(draw_blocks(20, Form(2, "space"), seed=1, labels=["foo/bar"]), model.tokenizer)
    found = label_sources(model, encoded).logit_difference_by_source.mean("prompt")
    plain = np.mean([difference(model, one) for one in encoded])
    share = (plain - found) / (2 * plain)
    assert share.sel(reader="last position", source="labels") > 0.9
    assert abs(share.sel(reader="query's text")).max() < 0.1 and abs(share.sel(source="texts")).max() < 0.1


def test_blocks_that_are_not_whole_are_refused(any_model):
    with pytest.raises(TwoTowersError, match="not whole"):
        label_sources(any_model, tiny_blocks.blocks(1)[:3])
