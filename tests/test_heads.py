"""Every head's measurement against a slow reference, in float64 on three kinds of model; and the files of measurements."""

import numpy as np
import pytest
import tiny_blocks
import torch
import xarray as xr
from conftest import refused, tiny
from reference import Reference, log_prob
from towerlab.measure.answers import answers
from towerlab.measure.heads import heads
from twotowers.recording import Recording
from twotowers.store import kept, load, rounded, save


def test_what_heads_write_from_labels_is_the_difference_of_two_increases(model):
    """`contribution` is I_true - I_other of `sum alpha vo` over label positions, position by position."""
    encoded = tiny_blocks.blocks(1)
    result = heads(model, encoded)
    for i, e in enumerate(encoded):
        slow = Reference(model, e.ids)
        other = next(id_ for id_ in e.label_ids.values() if id_ != e.true_id)
        for layer in range(model.n_layers):
            for head in range(model.n_heads):
                reading, writing, contribution = [], 0.0, 0.0
                for place, at in enumerate(e.label_positions):
                    vo, alpha = slow.value_output(layer, head, at), float(slow.attentions[layer][head, at])
                    true, false = (float(log_prob(model, vo, id_, "frozen", slow.scale)) for id_ in (e.true_id, other))
                    sign = 1 if e.prompt.is_true[place] else -1
                    reading.append(sign * (true - false))
                    writing += alpha * sign * (true - false)
                    contribution += alpha * (true - false)
                    assert float(result.attention[i, layer, head, place]) == pytest.approx(alpha, abs=1e-6)
                cell = result.isel(prompt=i, layer=layer, head=head)
                assert float(cell.reading) == pytest.approx(np.mean(reading), abs=1e-9)
                assert float(cell.writing) == pytest.approx(writing, abs=1e-9)
                assert float(cell.contribution) == pytest.approx(contribution, abs=1e-9)


def test_answers_are_the_models_own(model):
    encoded = tiny_blocks.blocks(2)
    result = answers(model, encoded)
    for i, e in enumerate(encoded):
        logits = model.hf(torch.tensor([e.ids])).logits[0, -1]
        p, other = logits.log_softmax(-1), next(x for x in e.label_ids.values() if x != e.true_id)
        assert float(result.log_prob_true[i]) == pytest.approx(float(p[e.true_id]), abs=1e-9)
        assert float(result.log_prob_other[i]) == pytest.approx(float(p[other]), abs=1e-9)
        top = int(logits.argmax())
        assert int(result.says[i]) == (0 if top == e.true_id else 1 if top == other else 2)
    together = heads(model, encoded)
    xr.testing.assert_allclose(together["log_prob_true"].drop_vars(["kind", "true"], errors="ignore"), result["log_prob_true"])


def test_prompts_without_both_labels_are_refused():
    refused("no prompts", heads, tiny("gpt2"), [])


def test_large_variables_keep_nine_bits_and_others_all(tmp_path):
    values, data = np.array([1.0, 1 / 3, -2.7e-5, 0.0, np.nan, 123456.0]), heads(tiny("gpt2"), tiny_blocks.blocks(2))
    data["writing"][:6, 0, 0] = data["logit_difference"][:6] = values
    save(kept("heads", Recording(data)), tmp_path / "a.nc", {"measurement": "heads"})
    again = load(tmp_path / "a.nc").data
    large, small = again["writing"].values[:6, 0, 0], again["logit_difference"].values[:6]
    assert large.dtype == np.float32 and (small == values.astype(np.float32))[~np.isnan(values)].all()
    np.testing.assert_allclose(large, values.astype(np.float32), rtol=2**-10)
    np.testing.assert_array_equal(large[~np.isnan(values)], rounded(xr.DataArray(values[~np.isnan(values)])))
    assert (large[:4].view(np.uint32) & ((1 << 14) - 1) == 0).all() and large[1] != np.float32(1 / 3)
