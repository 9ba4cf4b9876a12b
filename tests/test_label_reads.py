"""Label reads of some heads: against one value-output vector at a time, sorted by hand."""

from dataclasses import replace

import pytest
import torch
from conftest import random_prompts, refused, shared_tiny
from reference import Reference
from towerlab.measure.label_reads import label_reads
from towerlab.model import unembed
from twotowers.heads import Head
from twotowers.recording import Recording
from twotowers.store import kept, load, save


def test_every_number_is_that_of_the_slow_reference(model, tmp_path, small_batches):
    encoded = random_prompts(4, lengths=(14,))
    heads = [Head(1, model.n_heads - 1), Head(0, 1), Head(1, 0)]
    result = label_reads(model, encoded, heads)
    assert result["own_rank"].dims == ("prompt", "listed_head", "place")
    assert list(result["listed_head"].values) == [str(h) for h in heads]
    for i, e in enumerate(encoded):
        slow = Reference(model, e.ids)
        for j, (layer, head) in enumerate(heads):
            for p, (position, demonstrations) in enumerate(zip(e.label_positions, e.prompt.demonstrations, strict=True)):
                at = result.isel(prompt=i, listed_head=j, place=p)
                vo = slow.value_output(layer, head, position)
                bs = unembed.bs_values(vo, model.unembedding, slow.scale)
                own, other = e.label_ids[demonstrations.label], 16 - e.label_ids[demonstrations.label]
                order = bs.argsort(descending=True).tolist()
                assert (int(at["own_rank"]), int(at["other_rank"])) == (order.index(own) + 1, order.index(other) + 1)
                assert float(at["reading"]) == pytest.approx(float(bs[own] - bs[other]), abs=1e-9)
                assert float(at["attention"]) == pytest.approx(float(slow.attentions[layer][head, position]), abs=1e-12)
        logits = model.hf(torch.tensor([e.ids])).logits[0, -1].log_softmax(-1)
        assert float(result["log_prob_true"][i]) == pytest.approx(float(logits[e.true_id]), abs=1e-9)
    save(kept("label_reads", Recording(result)), tmp_path / "reads.nc", {"measurement": "label_reads"})
    again = load(tmp_path / "reads.nc").data
    assert (again["own_rank"] == result["own_rank"]).all()
    assert [Head(*at) for at in zip(again["layer"].values, again["head"].values, strict=True)] == heads


def test_what_cannot_be_read_is_refused():
    model, encoded = shared_tiny("gpt2"), random_prompts(2)
    refused("head 9-0 is not in gpt2", label_reads, model, encoded[:1], [Head(9, 0)])
    refused("different numbers of demonstrations", label_reads, model, encoded, [Head(0, 0)])
    e = encoded[0]
    same = tuple(replace(d, label=e.prompt.true_label) for d in e.prompt.demonstrations)
    refused(
        "lacks a true or a false", label_reads, model, [replace(e, prompt=replace(e.prompt, demonstrations=same))], [Head(0, 0)]
    )
