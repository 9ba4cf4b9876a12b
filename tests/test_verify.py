"""The authors' printed numbers: the way they are measured, on random models against the slow
reference."""

import pytest
import torch
from conftest import refused, tiny
from reference import Reference

from benchmarks import published as verify

IDS = (3, 17, 40, 8, 25)


def test_every_printed_quantity_is_what_the_reference_computes(model):
    slow = Reference(model, IDS)
    word = int(model.hf(torch.tensor([IDS])).logits[0, -1].argmax())
    layers = range(model.n_layers)
    attention = [slow.increase(slow.resid_pre[i], slow.attention[i], word) for i in layers]
    between = [slow.resid_pre[i] + slow.attention[i] for i in layers]
    ffn = [slow.increase(between[i], slow.ffn[i], word) for i in layers]
    expected = {
        "sum of attention block increases": sum(attention),
        "sum of FFN block increases": sum(ffn),
        "increase of attention block 1": attention[1],
        "increase of FFN block 0": ffn[0],
        "increase of head 1-1": slow.increase(slow.resid_pre[1], slow.head(1, 1), word),
        "increase of head 1-1 position 2": slow.increase(
            slow.resid_pre[1], slow.position(1, 1, 2), word
        ),
        "attention of head 1-1 position 2": float(slow.attentions[1][1, 2]),
        "increase of neuron 1-3": slow.increase(between[1], slow.neuron(1, 3), word),
    }
    predicted, result = verify.measure(model, IDS, list(expected))
    assert predicted == word
    assert result == pytest.approx(expected, abs=1e-9)


def test_every_published_quantity_can_be_read_and_no_other():
    patterns = (verify._BLOCKS, verify._BLOCK, verify._HEAD, verify._NEURON)
    assert all(
        any(pattern.fullmatch(quantity) for pattern in patterns)
        for quantity in verify.printed()["quantity"]
    )
    model = tiny("gpt2")
    refused("unknown quantity", verify.measure, model, IDS, ["attention of head 1-1"])
    refused("unknown model 'gpt2'", verify.authors_numbers, model)
