"""Attention and answers under changed prompts: against weights of one prompt at a time, summed by
hand."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_blocks
import torch
from reference import Reference
from towerlab.prompts.prompt import encode_all
from towerlab_experiments.conditions import CONDITIONS, conditions

EXPECTED = {
    "plain": "TFFT",
    "one true fewer": "TFF",
    "one other fewer": "TFT",
    "true nearest": "FFTT",
    "true first": "TTFF",
}


def encode(prompts):
    return encode_all(prompts, tiny_blocks.tokenizer())


def test_every_number_is_a_sum_of_weights_of_one_prompt(model):
    prompts = [e.prompt for e in tiny_blocks.blocks(2)]
    result = conditions(replace(model, tokenizer=tiny_blocks.tokenizer()), encode(prompts))
    assert result["attention_true"].dims == ("condition", "prompt", "layer", "head")
    for name, change in CONDITIONS.items():
        for i, e in enumerate(encode([change(prompt) for prompt in prompts])):
            slow = Reference(model, e.ids)
            parts = e.prompt.demonstrations
            true = [
                p
                for p, d in zip(e.label_positions, parts, strict=True)
                if d.label == e.prompt.true_label
            ]
            other = [p for p in e.label_positions if p not in true]
            for layer, weights in enumerate(slow.attentions):
                at = result.sel(condition=name).isel(prompt=i, layer=layer)
                np.testing.assert_allclose(
                    at["attention_true"], sum(weights[:, p] for p in true), rtol=0, atol=1e-6
                )
                np.testing.assert_allclose(
                    at["attention_other"], sum(weights[:, p] for p in other), rtol=0, atol=1e-6
                )
                if name == "plain":  # a demonstration is three tokens: text, colon, label
                    np.testing.assert_allclose(
                        at["attention_left"],
                        sum(weights[:, p] for p in true[:-1]),
                        rtol=0,
                        atol=1e-6,
                    )
                    removed = weights[:, true[-1] - 2 : true[-1] + 1].sum(-1)
                    np.testing.assert_allclose(at["attention_removed"], removed, rtol=0, atol=1e-6)
            logits = model.hf(torch.tensor([e.ids])).logits[0, -1].log_softmax(-1)
            assert float(result["log_prob_true"].sel(condition=name)[i]) == pytest.approx(
                float(logits[e.true_id]), abs=1e-9
            )


def test_what_the_conditions_make_of_a_prompt():
    prompt = next(
        e.prompt for e in tiny_blocks.blocks(20) if e.prompt.is_true == (True, False, False, True)
    )
    orders = {name: change(prompt).order for name, change in CONDITIONS.items()}
    assert orders == EXPECTED
