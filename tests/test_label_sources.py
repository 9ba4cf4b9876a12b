"""From where a position reads the label: against plain runs, and on a model whose last position reads labels alone."""

from itertools import product

import numpy as np
import tiny_blocks
from plain_hooks import run, weights_of, z_of
from towerlab.measure.label_sources import EXCHANGED, READERS, SOURCES, label_sources
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


def parts_of(e):
    """Part of a demonstration -> its positions, one list a demonstration."""
    return {
        "labels": [[label] for label in e.label_positions],
        "texts": [[*range(*span)] for span in e.text_spans],
        "colons": [[*range(span[1], label)] for span, label in zip(e.text_spans, e.label_positions, strict=True)],
    }


def class_before(e, place):
    """Whether the demonstration before has the query's class; None for the first."""
    return e.prompt.is_true[place - 1] if place else None


def slow_reversed(model, e, rows, after):
    """Logit difference where at some rows attention on every part of demonstrations of the two classes changes places."""
    plain = run(model, e)["attention"]

    def change(layer, z, attention):
        for q, head in product(rows, range(model.n_heads)):
            weights = weights_of(model, plain[layer], head, q)
            for part, positions in parts_of(e).items():
                shifted = after and part != "labels"
                classes = [class_before(e, i) for i in range(len(positions))] if shifted else e.prompt.is_true
                sides = [
                    [p for some, true in zip(positions, classes, strict=True) if true is side for p in some if p < q]
                    for side in (True, False)
                ]
                sums = [weights[side].sum().item() for side in sides]
                if all(sides):
                    for side, own, new in zip(sides, sums, sums[::-1], strict=True):
                        weights[side] *= new / own
            z[0, q, head * model.d_head : (head + 1) * model.d_head] = z_of(model, weights, attention[2], head)
        return z

    return run(model, e, change)["difference"]


def test_every_source_stretch_and_demonstration_equals_a_slow_run(model):
    encoded = tiny_blocks.blocks(1)
    measured, donors = label_sources(model, encoded), donors_of(encoded)
    for i, e in enumerate(encoded[:2]):
        query, parts = range(*e.query_span), parts_of(e)
        places = {part: [p for some in positions for p in some] for part, positions in parts.items()} | {"query's text": query}
        places["all"] = [p for some in places.values() for p in some]
        rows = {"last position": [e.last], "query's text": [*query]}
        for contrast, reader, source in product(EXCHANGED, READERS, SOURCES):
            at = dict(contrast=contrast, reader=reader, source=source)
            expected = slow(model, e, encoded[donors[contrast][i]], rows[reader], places[source])
            np.testing.assert_allclose(measured.logit_difference_by_source.sel(at)[i], expected, **EXACT)
        every = *rows.values(), range(query[0], e.last + 1), range(e.last + 1)
        expected = [[slow_reversed(model, e, some, after) for some in every] for after in (False, True)]
        np.testing.assert_allclose(measured.logit_difference_stretches_reversed[..., i], expected, **EXACT)
        other = encoded[donors["labels exchanged"][i]]
        for (row, of), (column, after) in product(enumerate((True, False)), enumerate((True, False))):
            chosen = [j for j, true in enumerate(e.prompt.is_true) if true == of and class_before(e, j) is after]
            at = [p for j in chosen for p in (*parts["texts"][j], *parts["colons"][j])]
            expected = run(model, e)["difference"] - slow(model, e, other, [e.last], at) if at else np.nan
            np.testing.assert_allclose(measured.effect_by_demonstration[row, column, i], expected, **EXACT)


def test_the_shipped_model_reads_labels_at_its_last_position_and_nowhere_else():
    model = load("mini-gpt2")
    encoded = encode_all(draw_blocks(20, Form(2, "space"), seed=1, labels=["foo/bar"]), model.tokenizer)
    measured = label_sources(model, encoded)
    without = measured.logit_difference_by_source.mean("prompt")
    plain = np.mean([run(model, e)["difference"] for e in encoded])
    share = (plain - without) / (2 * plain)
    assert share.sel(contrast="labels exchanged", reader="last position", source="labels") > 0.9
    assert abs(share.sel(reader="query's text")).max() < 0.1 and abs(share.sel(source="texts")).max() < 0.1
    assert abs(share.sel(contrast="texts exchanged")).max() < 0.1  # nobody tells it a place
    for reversed_looks in ((plain - measured.logit_difference_stretches_reversed.mean("prompt")) / (2 * plain)).values:
        assert reversed_looks[[0, 2, 3]].min() > 0.9 and abs(reversed_looks[1]) < 0.1


def test_exchanged_labels_that_stand_elsewhere_have_no_number(model):
    prompts = draw_blocks(1, tiny_blocks.FORM, seed=0, pairs=["a/b"], labels=["foo/bar a1"], texts=tiny_blocks.TEXTS)
    result = label_sources(model, encode_all(prompts, tiny_blocks.tokenizer()))
    of_query = result.source == "query's text"
    assert result.logit_difference_by_source.sel(source=of_query).notnull().all()
    assert result.logit_difference_by_source.sel(source=~of_query).isnull().all() and result.effect_by_demonstration.isnull().all()
    assert result.logit_difference_stretches_reversed.notnull().all()
