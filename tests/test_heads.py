"""Every head's measurement against a slow reference, in float64 on three kinds of model; and the files of measurements."""

from io import StringIO

import numpy as np
import pytest
import tiny_blocks
import torch
import xarray as xr
from conftest import refused, tiny
from reference import Reference, log_prob
from towerlab.measure.answers import answers
from towerlab.measure.heads import heads
from tqdm import tqdm
from twotowers.recording import Recording
from twotowers.store import load, save


@pytest.mark.parametrize("norm", ["frozen", "recomputed"])
def test_increases_of_heads_and_blocks_are_those_of_the_definition(model, norm):
    encoded = tiny_blocks.blocks(1)[:2]
    result = heads(model, encoded, norm=norm)
    for i, e in enumerate(encoded):
        slow = Reference(model, e.ids)
        for layer in range(model.n_layers):
            x = slow.resid_pre[layer]
            expected = [slow.increase(x, slow.head(layer, h), e.true_id, norm) for h in range(model.n_heads)]
            np.testing.assert_allclose(result.increase[i, layer], expected, rtol=0, atol=1e-9)
            blocks = [
                slow.increase(x, slow.attention[layer], e.true_id, norm),
                slow.increase(x + slow.attention[layer], slow.ffn[layer], e.true_id, norm),
            ]
            np.testing.assert_allclose(result.block_increase[i, layer], blocks, rtol=0, atol=1e-9)


def test_what_heads_write_from_labels_is_the_difference_of_two_increases(model):
    """`contribution` is I_true - I_other of `sum alpha vo` over label positions, position by position."""
    encoded = tiny_blocks.blocks(1)
    result = heads(model, encoded)
    for i, e in enumerate(encoded):
        slow = Reference(model, e.ids)
        other = next(id_ for id_ in e.label_ids.values() if id_ != e.true_id)
        for layer in range(model.n_layers):
            for head in range(model.n_heads):
                reading, written, contributed = [], 0.0, 0.0
                for place, at in enumerate(e.label_positions):
                    vo, alpha = slow.value_output(layer, head, at), float(slow.attentions[layer][head, at])
                    true, false = (float(log_prob(model, vo, id_, "frozen", slow.scale)) for id_ in (e.true_id, other))
                    sign = 1 if e.prompt.is_true[place] else -1
                    reading.append(sign * (true - false))
                    written += alpha * sign * (true - false)
                    contributed += alpha * (true - false)
                    assert float(result.attention[i, layer, head, place]) == pytest.approx(alpha, abs=1e-6)
                cell = result.isel(prompt=i, layer=layer, head=head)
                assert float(cell.reading) == pytest.approx(np.mean(reading), abs=1e-9)
                assert float(cell.writing) == pytest.approx(written, abs=1e-9)
                assert float(cell.contribution) == pytest.approx(contributed, abs=1e-9)


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
    xr.testing.assert_allclose(
        together["log_prob_true"].drop_vars(["kind", "norm", "true"], errors="ignore"), result["log_prob_true"]
    )


def test_a_head_scaled_by_one_percent_or_a_label_one_place_off_is_seen(float64):
    """The tolerances above see a real change."""
    model, encoded = tiny("llama"), tiny_blocks.blocks(1)
    plain = heads(model, encoded)
    with torch.no_grad():
        model.part(1, "attention_out").weight.mul_(1.01)
    try:
        assert float(abs(heads(model, encoded).increase - plain.increase).max()) > 1e-4
    finally:
        with torch.no_grad():
            model.part(1, "attention_out").weight.div_(1.01)
    shifted = [type(e)(**{**vars(e), "label_positions": tuple(p - 1 for p in e.label_positions)}) for e in encoded]
    assert float(abs(heads(model, shifted).reading - plain.reading).max()) > 1e-3


def test_prompts_without_both_labels_are_refused():
    refused("no prompts", heads, tiny("gpt2"), [])


def test_a_measurement_comes_back_from_its_file(tmp_path):
    encoded = tiny_blocks.blocks(2)
    result = heads(tiny("gpt2"), encoded)
    path = tmp_path / "a" / "heads.nc"
    save(Recording(result), path, {"measurement": "heads", "model": "m", "version": 1, "sets": {"a": [1]}})
    again = load(path).data
    assert again.attrs["model"] == "m" and again.true.dtype == bool and list(again.pair.values) == list(result.pair.values)
    np.testing.assert_allclose(again.increase, result.increase, rtol=2**-9, atol=1e-6)
    assert [p.name for p in path.parent.iterdir()] == ["heads.nc"]
    path.write_bytes(path.read_bytes()[:200])
    refused("damaged", load, path)
    refused("measure it first", load, tmp_path / "none.nc")


def test_large_variables_keep_nine_bits_and_others_all(tmp_path):
    values, data = np.array([1.0, 1 / 3, -2.7e-5, 0.0, np.nan, 123456.0]), heads(tiny("gpt2"), tiny_blocks.blocks(2))
    data["increase"][:6, 0, 0] = data["log_prob_true"][:6] = values
    save(Recording(data), tmp_path / "a.nc", {"measurement": "heads"})
    again = load(tmp_path / "a.nc").data
    large, small = again["increase"].values[:6, 0, 0], again["log_prob_true"].values[:6]
    assert large.dtype == np.float32 and (small == values.astype(np.float32))[~np.isnan(values)].all()
    np.testing.assert_allclose(large, values.astype(np.float32), rtol=2**-10)
    assert (large[:4].view(np.uint32) & ((1 << 14) - 1) == 0).all() and large[1] != np.float32(1 / 3)


def test_the_bar_moves_within_a_group_of_captures(monkeypatch):
    """One walk over the vocabulary may take minutes on a model of ordinary size."""
    encoded, moved = tiny_blocks.blocks(2), []

    class Bar(tqdm):
        def update(self, by=1):
            moved.append(by)
            super().update(by)

    monkeypatch.setattr("towerlab.measure.heads.progress", lambda what, total: Bar(total=total, disable=False, file=StringIO()))
    monkeypatch.setattr("towerlab.model.increase.SLAB", 8)
    heads(tiny("llama"), encoded)
    assert sum(moved) == len(encoded) and sum(by > 0 for by in moved) > 3 and max(moved) < len(encoded)
