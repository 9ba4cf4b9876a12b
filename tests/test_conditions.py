"""Attention and answers under changed prompts: against weights of one prompt at a time, summed by
hand."""

from dataclasses import replace

import tiny_blocks
from independent import log_softmax
from reference import Reference
from tolerances import near
from towerlab.prompts.prompt import encode_all
from towerlab_experiments.conditions import CONDITIONS, conditions


def encode(prompts):
    return encode_all(prompts, tiny_blocks.tokenizer())


def test_every_number_is_a_sum_of_weights_of_one_prompt(model):
    prompts = [e.prompt for e in tiny_blocks.blocks(2)]
    result = conditions(replace(model, tokenizer=tiny_blocks.tokenizer()), encode(prompts))
    assert result["attention_true"].dims == ("condition", "prompt", "layer", "head")
    for name, change in CONDITIONS.items():
        for i, e in enumerate(encode([change(prompt) for prompt in prompts])):
            slow = Reference(model, e.ids)
            labels = [*zip(e.label_positions, e.prompt.is_true, strict=True)]
            true, other = (
                [p for p, is_true in labels if is_true == side] for side in (True, False)
            )
            for layer, weights in enumerate(slow.attentions):
                at = result.sel(condition=name).isel(prompt=i, layer=layer)
                near(at["attention_true"], sum(weights[:, p] for p in true), atol=1e-6)
                near(at["attention_other"], sum(weights[:, p] for p in other), atol=1e-6)
                if name == "plain":  # a demonstration is three tokens: text, colon, label
                    near(at["attention_left"], sum(weights[:, p] for p in true[:-1]), atol=1e-6)
                    removed = weights[:, true[-1] - 2 : true[-1] + 1].sum(-1)
                    near(at["attention_removed"], removed, atol=1e-6)
            expected = log_softmax(slow.run.logits)[e.true_id]
            near(result["log_prob_true"].sel(condition=name)[i], expected)
